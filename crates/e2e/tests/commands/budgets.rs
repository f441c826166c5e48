//! `antiphon budgets`.

use serde_json::json;

use super::CommandFixture;

#[tokio::test(flavor = "multi_thread")]
async fn budgets_are_set_listed_changed_and_deleted() {
    let mut fixture = CommandFixture::new().await;
    fixture
        .execute(
            "INSERT INTO usage (bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
             VALUES (1, 't', 'a', 0, 'ann', 'turn', 'm', 1000000, 100000, false)",
        )
        .await;
    let prices = fixture.path("prices.json");
    let table = json!({"currency": "USD", "prices": [{"model": "m", "input": 2, "output": 10}]});
    std::fs::write(&prices, table.to_string()).unwrap();
    fixture.serve(&[("ANTIPHON_PRICES_FILE", prices.display().to_string())]).await;
    let put = "budgets put ann-daily --tokens 2000000 --period day --time-zone Europe/Berlin --agent ann --actor ada";
    let budget = fixture.json(put).await;
    assert_eq!((&budget["limit"], &budget["spent"]), (&json!("2000000"), &json!("1100000")));
    assert_eq!(
        (&budget["scope"], &budget["agent_id"], &budget["version"]),
        (&json!("agent"), &json!("ann"), &json!(1))
    );

    let cost = fixture.json("budgets put all --cost 12.50 --period month").await;
    assert_eq!(
        (&cost["spent"], &cost["remaining"], &cost["currency"]),
        (&json!("3"), &json!("9.5"), &json!("USD"))
    );

    let raised = fixture.json(&put.replace("2000000", "3000000")).await;
    assert_eq!((&raised["remaining"], &raised["version"]), (&json!("1900000"), &json!(2)));
    let listed = fixture.json("budgets list").await;
    let names: Vec<_> = listed["budgets"].as_array().unwrap().iter().map(|budget| &budget["name"]).collect();
    assert_eq!(names, ["all", "ann-daily"]);
    let table = fixture.invoke("budgets list").await;
    assert!(table.stdout.contains("ann-daily") && table.stdout.lines().count() == 3, "{}", table.stdout);

    let deleted = fixture.invoke("budgets delete ann-daily").await;
    assert_eq!((deleted.code, deleted.stdout.as_str()), (Some(0), ""), "{}", deleted.stderr);
    assert!(fixture.refused("budgets delete ann-daily").await.contains("unknown_budget"));
    let audit = fixture.json("budgets audit ann-daily").await;
    let put = &audit["entries"].as_array().unwrap().last().unwrap()["actor"];
    assert_eq!((audit["entries"].as_array().unwrap().len(), put), (3, &json!("ada")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_budget_is_refused_with_one_line() {
    let mut fixture = CommandFixture::new().await;
    fixture.serve(&[]).await;
    for (words, named) in [
        ("budgets put b --period day", "invalid_budget"),
        ("budgets put b --tokens 1 --cost 1 --period day", "invalid_budget"),
        ("budgets put b --tokens 1 --period day --agent a --user u", "invalid_budget"),
        ("budgets put b --tokens 1", "--period"),
        ("budgets put b --tokens many --period day", "it is not a number"),
        ("budgets put b --tokens 1 --period week", "period must be day or month"),
        ("budgets put b --tokens 1 --period day --time-zone Mars/Base", "time_zone"),
        ("budgets put b --cost 1 --period day", "the operator has given no prices"),
        ("budgets put no.name --tokens 1 --period day", "budget"),
    ] {
        let done = fixture.invoke(words).await;
        assert_eq!(done.code, Some(2), "{words}: {}", done.stderr);
        assert!(done.stderr.contains(named), "{words}: {}", done.stderr);
    }
}
