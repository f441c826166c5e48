//! Settings of gateways: proxies in front, and the times of a stop.

use std::time::Instant;

use serde_json::json;
use testkit::http::{self, HttpRequest, Response};

use crate::{
    api_client::{SOON, alone},
    fixture::Fixture,
};

async fn follow(fixture: &Fixture, client: &str) -> Response {
    let headers = [("x-forwarded-for", client)];
    http::open(fixture.api().0, "/v1/threads/talk/events", &headers).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_trusted_proxy_are_counted_by_their_addresses() {
    let fixture = Fixture::with(|options| {
        alone(options)
            .with_env("ANTIPHON_TRUSTED_PROXIES", "127.0.0.0/8")
            .with_env("ANTIPHON_MAX_CONNECTIONS_PER_IP", 2)
    })
    .await;
    let (first, second) = (follow(&fixture, "203.0.113.1").await, follow(&fixture, "203.0.113.1").await);
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(follow(&fixture, "203.0.113.1").await.status, 429);
    assert_eq!(follow(&fixture, "203.0.113.2").await.status, 200);
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_takes_the_times_that_are_set() {
    let mut fixture = Fixture::with(|options| {
        alone(options)
            .with_env("ANTIPHON_HTTP_CLOSE_DELAY_SECONDS", 3)
            .with_env("ANTIPHON_HTTP_DRAIN_SECONDS", 1)
    })
    .await;
    // A request that waits for an answer that never comes.
    let workflow = fixture.manual_workflow().await;
    let gateway = fixture.api().0;
    let waiting = tokio::spawn(async move {
        let body =
            json!({"model": "talk", "stream": false, "messages": [{"role": "user", "content": "hello"}]});
        let headers = [("content-type", "application/json")];
        let body = body.to_string();
        let request = HttpRequest {
            method: "POST",
            path: "/v1/chat/completions",
            headers: &headers,
            body: body.as_bytes(),
        };
        http::exchange(gateway, request).await
    });
    let _unanswered = workflow.next(SOON).await.unwrap();
    let began = Instant::now();
    fixture.fleet.gateways[0].terminate();
    fixture
        .until("the gateway is not ready", SOON, async || !fixture.fleet.gateways[0].is_ready().await)
        .await;
    // On loopback the default closes at once.
    assert_eq!(http::get(gateway, "/livez").await.unwrap().status, 200);
    fixture.fleet.gateways[0].ended(SOON).await.unwrap();
    let took = began.elapsed().as_secs_f64();
    // The default would drain for ten seconds after the delay.
    assert!((3.0..9.0).contains(&took), "the stop took {took} s");
    assert!(waiting.await.unwrap().map_or(true, |answer| answer.status == 503));
}
