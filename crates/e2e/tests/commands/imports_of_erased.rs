//! Imports of exports with text of a thread that was erased since: in the thread, in the threads of
//! queues, and in sessions.

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
    let import = format!("database import --file {}", source.path("a").display());

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

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_thread_is_left_out_and_the_rest_is_imported() {
    let source = CommandFixture::new().await;
    let mut threads = ["a", "b", "c"];
    threads.sort_by_key(|thread| bucket(thread));
    let [erased, next, last] = threads;
    for thread in threads {
        source.put(thread, TALK).await;
        source
            .execute(&format!(
                "INSERT INTO reasoning_sessions (bucket, session_id, agent_id, source_threads, created_by)
                 VALUES ({}, 's-{thread}', 'bot', '{{bot,{thread}}}', 'ada')",
                bucket(&format!("s-{thread}"))
            ))
            .await;
    }
    source.export("x").await;
    let target = CommandFixture::new().await;
    target
        .execute(&format!(
            "INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ({}, '{erased}', 'ada')",
            bucket(erased)
        ))
        .await;
    let import = format!("database import --file {}", source.path("x").display());
    for new in [2, 0] {
        let done = target.invoke(&format!("{import} -o json")).await;
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert!(done.stderr.contains(&format!("thread {erased} was erased at ")), "{}", done.stderr);
        assert!(
            done.stderr.contains(&format!("reasoning session s-{erased} is left out: ")),
            "{}",
            done.stderr
        );
        let counts: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!((&counts["threads"], &counts["new_threads"]), (&json!(2), &json!(new)));
        assert_eq!(counts["new_reasoning_sessions"], json!(new));
    }
    let of = "SELECT thread_id AS t, count(*) AS n FROM messages GROUP BY bucket, thread_id ORDER BY bucket";
    assert_eq!(target.rows(of).await, [json!({"t": next, "n": 11}), json!({"t": last, "n": 11})]);
    assert_eq!(target.number("SELECT count(*) FROM reasoning_sessions").await, 2);
}
