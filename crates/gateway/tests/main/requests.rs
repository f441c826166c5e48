//! Responses that are not streams.

use serde_json::Value;
use testkit::http;

use crate::client::Client;
use crate::fixture::Fixture;
use crate::sending::post;

async fn problem(fixture: &Fixture, path: &str) -> (u16, String, bool) {
    let answer = http::get(fixture.gateways[0], path).await.unwrap();
    let body: Value =
        serde_json::from_str(&answer.text).unwrap_or_else(|_| panic!("{path}: {}", answer.text));
    assert_eq!(body["status"], answer.status);
    assert!(!body["detail"].as_str().unwrap().is_empty());
    (answer.status, body["code"].as_str().unwrap().to_owned(), body["retryable"].as_bool().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_the_reason() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let _owner = fixture.owner(1, vec![]).await;
    let long = format!("/v1/threads/{}/events", "x".repeat(129));
    let cases = [
        ("/nothing", 404, "unknown_address"),
        ("/v1/threads/a.b/events", 400, "invalid_id"),
        ("/v1/threads/a%00/events", 400, "invalid_id"),
        ("/v1/threads/%3E/history", 400, "invalid_id"),
        (long.as_str(), 400, "invalid_id"),
        ("/v1/threads/t1/events?after=now", 400, "invalid_cursor"),
        ("/v1/threads/t1/events?after=1~a.1", 400, "invalid_cursor"),
        ("/v1/threads/t1/events?after=-1", 400, "invalid_cursor"),
        ("/v1/threads/t1/history?limit=0", 400, "invalid_limit"),
        ("/v1/threads/t1/history?limit=-1", 400, "invalid_limit"),
        ("/v1/threads/t1/history?limit=9223372036854775808", 400, "invalid_limit"),
        ("/v1/threads/t1/history?after=x", 400, "invalid_position"),
        ("/v1/threads/t1/history?before=-1", 400, "invalid_position"),
        ("/v1/threads/t1/history?next=x", 400, "invalid_position"),
        ("/v1/threads/unknown/history", 404, "unknown_thread"),
    ];
    for (path, status, code) in cases {
        assert_eq!(problem(&fixture, path).await, (status, code.to_owned(), false), "{path}");
    }
    let refused =
        http::open(fixture.gateways[0], "/v1/threads/t1/events", &[("last-event-id", "x~y")]).await.unwrap();
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(http::get(fixture.gateways[0], "/livez").await.unwrap().status, 200);
    assert_eq!(http::get(fixture.gateways[0], "/readyz").await.unwrap().status, 200);
    assert_eq!(http::get_json(fixture.gateways[0], "/").await.unwrap()["name"], "antiphon");
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_paged_in_both_directions() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    for n in 1..=5 {
        fixture.commit(&format!("m{n}"), n * 10, &format!("text {n}")).await;
    }
    let read = async |query: &str| {
        let page =
            http::get_json(fixture.gateways[0], &format!("/v1/threads/t1/history?{query}")).await.unwrap();
        let positions =
            page["messages"].as_array().unwrap().iter().map(|it| it["position"].as_str().unwrap().to_owned());
        (positions.collect::<Vec<_>>().join(" "), page["next"].as_str().unwrap_or("-").to_owned())
    };
    let page = |positions: &str, next: &str| (positions.to_owned(), next.to_owned());
    assert_eq!(read("").await, page("10 20 30 40 50", "-"));
    assert_eq!(read("limit=2").await, page("10 20", "20"));
    assert_eq!(read("limit=2&next=20").await, page("30 40", "40"));
    assert_eq!(read("limit=2&next=40").await, page("50", "-"));
    assert_eq!(read("after=20&limit=3").await, page("30 40 50", "-"));
    assert_eq!(read("before=50&limit=2").await, page("30 40", "30"));
    assert_eq!(read("before=50&limit=2&next=30").await, page("10 20", "-"));
    assert_eq!(read("before=30&limit=2").await, page("10 20", "-"));
    assert_eq!(read("after=10&before=40&limit=1").await, page("20", "20"));
    assert_eq!(read("after=10&before=40&limit=1&next=20").await, page("30", "-"));
    let page = http::get_json(fixture.gateways[0], "/v1/threads/t1/history?limit=1").await.unwrap();
    let message = &page["messages"][0];
    assert_eq!(
        (&message["content"], &message["role"], &message["batch_type"]),
        (&"text 1".into(), &"assistant".into(), &"system_trigger".into())
    );
    assert!(message["created_at"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_opens_events_on_an_insecure_gateway() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let made = post(fixture.gateways[0], "/v1/threads/t1/tickets", &serde_json::json!({})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let made = made.json();
    Client::at(fixture.gateways[0], made["events_url"].as_str().unwrap(), None).await;
}
