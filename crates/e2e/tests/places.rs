//! Places in line of what waits.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::api::Api;

use crate::{
    api_client::{SOON, alone, asked_for},
    fixture::Fixture,
};

async fn place(api: Api, path: &str) -> Value {
    api.call("GET", path, None).await.unwrap()["place"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_turns_and_tasks_show_their_place_in_line() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("ann", json!({})).await;
    let first = api.say("ann", "one").await.unwrap();
    let asked = asked_for(&workflow, &first).await;
    let second = api.say("ann", "two").await.unwrap();
    let of_turn = |id: &str| format!("/v1/turns/{id}");
    let is_waiting = async || !place(api, &of_turn(&second.id)).await.is_null();
    fixture.until("the second turn waits", SOON, is_waiting).await;
    let unknown = json!({"ahead": 1, "expected_at": null});
    assert_eq!(place(api, &of_turn(&second.id)).await, unknown, "no turn has ended yet");
    assert_eq!(place(api, &of_turn(&first.id)).await, Value::Null, "it does not wait");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    asked.answer("1").await.unwrap();
    let asked = asked_for(&workflow, &second).await;

    let third = api.say("ann", "three").await.unwrap();
    let fourth = api.say("ann", "four").await.unwrap();
    for id in ["t1", "t2"] {
        api.send_task("ann", id, "work").await.unwrap();
    }
    let waiting = async || api.thread("ann").await.unwrap()["waiting_turns"].as_array().unwrap().clone();
    fixture.until("two turns wait", SOON, async || waiting().await.len() == 2).await;
    let seconds_left = async |place: &Value| -> f64 {
        let left = "SELECT extract(epoch FROM $1::timestamptz - clock_timestamp())::float8";
        let left = sqlx::query_scalar(left).bind(place["expected_at"].as_str().unwrap().to_owned());
        left.fetch_one(&fixture.pool).await.unwrap()
    };
    let turns = waiting().await;
    let places: Vec<Value> = turns.iter().map(|turn| turn["place"].clone()).collect();
    assert_eq!((&places[0]["ahead"], &places[1]["ahead"]), (&json!(1), &json!(2)), "{turns:?}");
    // The fourth begins one usual turn after the third. A turn has taken 1.5 s or more.
    let between = seconds_left(&places[1]).await - seconds_left(&places[0]).await;
    assert!(between >= 1.4, "{places:?}");
    assert_eq!(place(api, &of_turn(&fourth.id)).await["ahead"], 2);
    let tasks = async || {
        let [one, two] = ["t1", "t2"].map(|id| format!("/v1/agents/ann/tasks/{id}"));
        let known = api.send("GET", &two, None, &[]).await.unwrap().status == 200;
        known.then_some((one, two))
    };
    fixture.until("both tasks are known", SOON, async || tasks().await.is_some()).await;
    let (one, two) = tasks().await.unwrap();
    assert_eq!(
        (place(api, &one).await["ahead"].clone(), place(api, &two).await["ahead"].clone()),
        (json!(0), json!(1))
    );
    assert!(seconds_left(&place(api, &two).await).await > 0.0);

    asked.answer("2").await.unwrap();
    asked_for(&workflow, &third).await.answer("3").await.unwrap();
    asked_for(&workflow, &fourth).await.answer("4").await.unwrap();
    for _ in 0..2 {
        workflow.next(SOON).await.unwrap().answer("done").await.unwrap();
    }
    fixture.until_tasks("ann", &["completed", "completed"]).await;
    assert_eq!((place(api, &one).await, waiting().await), (Value::Null, vec![]));
}
