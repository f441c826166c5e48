//! What an export has of a thread that was erased since, in the threads of queues.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn text_of_an_erased_thread_is_left_out_of_imported_queues() {
    let source = CommandFixture::new().await;
    source.put("bot+memory", "10:10.0u 11:10.1a 20:20.0u 21:20.1a 30:30.0u 31:30.1a").await;
    source
        .execute(&format!(
            "UPDATE messages SET metadata = metadata || jsonb_build_object('task_kind', 'memory', 'assistant_message_id', 'x',
                 'thread_id', CASE batch_id WHEN 20 THEN 'kept' ELSE 'secret' END) WHERE sequence_num = 0;
             INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, summary, strategy, valid_from_position, provenance)
             VALUES ({}, 'bot+memory', 25, 10, 'Of both.', 'summarise', 26,
                     '{{\"batches\": [\"10\"], \"messages\": 2, \"tokens_before\": 9, \"tokens_after\": 5}}')",
            bucket("bot+memory")
        ))
        .await;
    source.export("a").await;
    let import = format!("threads import --file {}", source.path("a").display());

    let target = CommandFixture::new().await;
    target
        .execute(&format!(
            "INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ({}, 'secret', 'ada')",
            bucket("secret")
        ))
        .await;
    for _ in 0..2 {
        target.json(&import).await;
        assert_eq!(
            target.rows("SELECT batch_id AS b FROM messages ORDER BY position").await,
            [json!({"b": 20}), json!({"b": 20})]
        );
        assert_eq!(target.rows("SELECT summary AS s FROM compactions").await, [json!({"s": null})]);
    }
    let whole = CommandFixture::new().await;
    whole.json(&import).await;
    assert_eq!(whole.number("SELECT count(*) FROM messages").await, 6);
}
