//! Follow-ups and schedules in the commands' output and in exports.

use serde_json::json;

use super::{CommandFixture, bucket, fixture_with_talk};

#[tokio::test(flavor = "multi_thread")]
async fn follow_ups_and_schedules_are_shown_and_follow_ups_exported() {
    let mut fixture = fixture_with_talk().await;
    let id = |n: i64| format!("f{:04x}-{n}", bucket("t"));
    for (n, state) in [(5, "fired"), (6, "pending")] {
        let ended = if state == "pending" { "NULL" } else { "now()" };
        fixture
            .execute(&format!(
                "INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at, state, ended_at, created_at, body)
                 VALUES ({bucket}, '{}', 'follow_up', 't', 'ann', 0, now(), '{state}', {ended}, to_timestamp({n}),
                         '{{\"trigger_type\": \"check_in\", \"armed_by\": \"u0001-x\", \"armed_position\": \"9000000000\"}}')",
                id(n),
                bucket = bucket("t"),
            ))
            .await;
    }
    fixture.serve(&[]).await;
    let listed = fixture.json("follow-ups list t").await;
    let statuses: Vec<_> =
        listed["follow_ups"].as_array().unwrap().iter().map(|one| one["status"].clone()).collect();
    assert_eq!(statuses, ["pending", "fired"]);
    let older = fixture.json(&format!("follow-ups list t --next {}", id(6))).await;
    assert_eq!(older["follow_ups"][0]["follow_up_id"], json!(id(5)));
    let shown = fixture.json(&format!("follow-ups show t {}", id(6))).await;
    assert_eq!((&shown["verdict"], &shown["rules"][0]["rule"]), (&json!("refused"), &json!("disabled")));
    let unknown = fixture.refused(&format!("follow-ups show t {}", id(7))).await;
    assert!(unknown.contains("unknown_follow_up"), "{unknown}");
    fixture
        .execute(&format!(
            "INSERT INTO schedules (bucket, agent_id, name, cron, time_zone, content, created_by, timer_id)
             VALUES ({}, 'ann', 'daily', '0 9 * * *', 'Europe/Berlin', 'report', 'anna', 's')",
            bucket("ann")
        ))
        .await;
    assert_eq!(fixture.json("schedules list ann").await["schedules"][0]["name"], "daily");
    assert_eq!(fixture.json("schedules show ann daily").await["cron"], "0 9 * * *");
    let table = fixture.invoke("schedules list ann").await.stdout;
    assert!(table.starts_with("NAME") && table.contains("Europe/Berlin"), "{table}");

    fixture.export("a").await;
    let other = CommandFixture::new().await;
    let import = format!("database import --file {}", fixture.path("a").display());
    other.json(&import).await;
    other.json(&import).await;
    let rows = other.rows("SELECT timer_id, state, ended_by FROM timers ORDER BY timer_id").await;
    let fired = json!({"timer_id": id(5), "state": "fired", "ended_by": null});
    let waited = json!({"timer_id": id(6), "state": "cancelled", "ended_by": "import"});
    assert_eq!(rows, [fired, waited], "what waited there does not fire here");
}
