//! `antiphon usage`.

use serde_json::json;

use super::CommandFixture;

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_summed_priced_and_written_as_csv() {
    let mut fixture = CommandFixture::new().await;
    fixture
        .execute(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
             VALUES ('2026-05-31T10:00Z', 1, 't', 'a', 0, 'ann', 'turn', 'm', 1000000, 100000, false),
                    ('2026-06-01T00:00Z', 1, 't', 'b', 0, 'ann', 'turn', 'm', 1000000, 100000, false),
                    ('2026-06-01T10:00Z', 1, 't', 'b', 1, 'ann', 'turn', '=\"x\"', 1, 1, true)",
        )
        .await;
    let prices = fixture.path("prices.json");
    let table = json!({"currency": "USD", "prices": [
        {"model": "m", "input": 2, "output": 10}, {"model": "m", "from": "2026-06-01", "input": 1.1, "output": 8}]});
    std::fs::write(&prices, table.to_string()).unwrap();
    fixture.serve(&[("ANTIPHON_PRICES_FILE", prices.display().to_string())]).await;
    let priced = "usage --from 2026-05-01";
    let report = fixture.json(&format!("{priced} --by day")).await;
    let days: Vec<_> = report["usage"].as_array().unwrap().iter().collect();
    assert_eq!((&report["currency"], days.len()), (&json!("USD"), 2));
    assert_eq!((&days[0]["cost"], &days[0]["unpriced_calls"]), (&json!("3"), &json!(0)));
    assert_eq!((&days[1]["cost"], &days[1]["unpriced_calls"]), (&json!("1.9"), &json!(1)));
    let csv = fixture.invoke(&format!("{priced} --to 2026-06-02 --by model --format csv")).await;
    let lines: Vec<&str> = csv.stdout.split("\r\n").collect();
    assert_eq!(
        lines[1..],
        [
            r#",,,,"'=""x""",,,1,1,0,1,1,0,0,,1,"USD","#,
            r#",,,,"m",,,2,0,0,2000000,200000,0,0,4.9,0,"USD","#,
            ""
        ]
    );
    let table = fixture.invoke("usage --from 2026-06-01T00:00:00Z").await;
    assert!(table.stdout.contains("CALLS") && table.stdout.lines().count() == 2, "{}", table.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_words_are_refused_with_one_line() {
    let mut fixture = CommandFixture::new().await;
    fixture.serve(&[]).await;
    for (words, named) in [
        ("usage --from yesterday", "a time like 2026-12-24T18:00:00Z"),
        ("usage --from 2026-06-01 --by week", "week is none of day"),
        ("usage --from 2026-06-01 --format xml", "neither json nor csv"),
        ("usage", "--from"),
    ] {
        let done = fixture.invoke(words).await;
        assert_eq!(done.code, Some(2), "{words}");
        assert!(done.stderr.contains(named), "{}", done.stderr);
    }
}

#[tokio::test]
async fn a_gateway_does_not_start_with_wrong_prices() {
    let fixture = CommandFixture::new().await;
    let prices = fixture.path("prices.json");
    std::fs::write(&prices, r#"{"currency": "USD", "prices": [{"model": "m", "input": -1, "output": 0}]}"#)
        .unwrap();
    let env = [
        ("DATABASE_URL".to_owned(), fixture.database.url().to_owned()),
        ("ANTIPHON_PRICES_FILE".to_owned(), prices.display().to_string()),
    ];
    let done = testkit::fleet::invoke(&["gateway", "--insecure"], &env).await.unwrap();
    assert_eq!(done.code, Some(2), "{}", done.stderr);
    assert!(done.stderr.contains("price 1 (m): an amount must be"), "{}", done.stderr);
}
