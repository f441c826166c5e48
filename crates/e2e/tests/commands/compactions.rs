//! Compactions in exports and forks.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn compactions_without_summary_stay_with_the_original() {
    let mut fixture = fixture_with_talk().await;
    fixture.serve(&[]).await;
    fixture
        .execute(&format!(
            "INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, strategy, valid_from_position, previous_id,
                                      pending_agent, pending_task, provenance)
             VALUES ({}, 't', 45, 40, 'summarise', 46, 35, 't', 'compaction-45',
                     '{{\"batches\": [\"40\"], \"messages\": 1, \"tokens_before\": 9, \"tokens_after\": 5}}')",
            bucket("t")
        ))
        .await;
    fixture.json("threads fork t copy").await;
    fixture.export("a").await;
    let other = CommandFixture::new().await;
    other.json(&format!("database import --file {}", fixture.path("a").display())).await;
    let compactions = "SELECT thread_id AS t, compaction_id AS id FROM compactions ORDER BY 1, 2";
    let finished = [json!({"t": "copy", "id": 35}), json!({"t": "t", "id": 35})];
    assert_eq!(other.rows(compactions).await, finished);
    assert_eq!(fixture.rows(compactions).await[..1], finished[..1]);
    assert_eq!(fixture.number("SELECT count(*) FROM compactions WHERE thread_id = 't'").await, 2);
}
