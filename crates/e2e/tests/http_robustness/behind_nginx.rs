//! Behind nginx as shipped by Debian: with HTTP/1.0 to the gateway, which is its default, and with
//! HTTP/1.1.

use std::time::Instant;

use devservices::{
    services::{Nginx, Server},
    tools,
};
use testkit::http::{HttpRequest, Response};

use super::*;
use crate::fixture::{long, short};

const HTTP1: &str = "proxy_http_version 1.1;\nproxy_set_header Connection \"\";";

/// Two gateways, and nginx with three ports: default settings for the first gateway, HTTP/1.1 for
/// the first, and default settings for the second.
async fn proxied() -> (Fixture, Nginx) {
    let fixture = Fixture::with(|mut options| {
        options.gateways = 2;
        impatient(options)
    })
    .await;
    let gateways = fixture.fleet.gateway_addrs();
    let server =
        |gateway: usize, lines: &str| Server { upstream: gateways[gateway], lines: lines.to_owned() };
    let servers = [server(0, ""), server(0, HTTP1), server(1, "")];
    let nginx = tokio::task::spawn_blocking(move || Nginx::start(&tools::nginx()?.path, &servers));
    (fixture, nginx.await.unwrap().unwrap())
}

struct Viewer {
    response: Response,
    seen: Vec<u8>,
}

impl Viewer {
    async fn open(addr: SocketAddr, thread: &str, cursor: Option<&str>) -> Self {
        let mut headers = vec![("accept-encoding", "gzip, br")];
        headers.extend(cursor.map(|cursor| ("last-event-id", cursor)));
        let path = format!("/v1/threads/{thread}/events");
        let opened = http::open(addr, &path, &headers);
        let response = timeout(Duration::from_secs(1), opened).await.expect("the head is held back").unwrap();
        assert_eq!((response.status, response.header("content-encoding")), (200, None), "{response:?}");
        Self { response, seen: Vec::new() }
    }

    /// Reads until this text has arrived. `Err` if the body ends before; the value is true if it
    /// was cut.
    async fn until(&mut self, wanted: &str) -> Result<(), bool> {
        while !self.text().contains(wanted) {
            match timeout(LIMIT, self.response.body.read(&mut self.seen)).await.expect("nothing comes") {
                Ok(0) => return Err(false),
                Ok(_) => {}
                Err(_) => return Err(true),
            }
        }
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    fn last_id(&self) -> String {
        self.text().lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_chunk_passes_at_once_and_a_cut_stays_a_cut() {
    let (mut fixture, nginx) = proxied().await;
    let addrs = nginx.addrs();
    let message = long("proxied", "m");
    let mut viewers =
        [Viewer::open(addrs[0], "proxied", None).await, Viewer::open(addrs[1], "proxied", None).await];
    for viewer in &mut viewers {
        // The stream opens before there is any chunk: nginx forwards a head with the first byte of
        // its body.
        viewer.until(": open\n").await.unwrap();
    }
    let mut slowest = Duration::ZERO;
    for id in 0..20 {
        let began = Instant::now();
        fixture.send_part(&message, id..id + 1).await;
        for viewer in &mut viewers {
            viewer.until(&format!("\"chunk_id\":{id},")).await.unwrap();
        }
        slowest = slowest.max(began.elapsed());
    }
    println!("a chunk took {slowest:?} at most");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    // The gateway sends no answer: the client gets a reset from the kernel.
    fixture.fleet.gateways[0].kill().await.unwrap();
    for (version, viewer) in ["HTTP/1.0", "HTTP/1.1"].iter().zip(&mut viewers) {
        assert_eq!(viewer.until("message_complete").await, Err(true), "a clean end behind {version}");
    }
    // At the other gateway each viewer continues where it was.
    fixture.send_part(&message, 20..message.chunks.len()).await;
    for viewer in &viewers {
        let mut resumed = Viewer::open(addrs[2], "proxied", Some(&viewer.last_id())).await;
        resumed.until("message_complete").await.unwrap();
        let text = resumed.text();
        assert!(!text.contains("\"chunk_id\":19,") && text.contains("\"chunk_id\":20,"), "{text}");
    }
    fixture.fleet.gateways[0].spawn().unwrap();
    fixture.fleet.gateways[0].ready(WAIT_TIMEOUT).await.unwrap();
    fixture.audit(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_stay_ends_and_drains_are_cuts() {
    let (mut fixture, nginx) = proxied().await;
    let addrs = nginx.addrs();
    let headers =
        [("accept", "text/event-stream"), ("content-type", "application/json"), ("accept-encoding", "gzip")];
    for addr in &addrs[..2] {
        let request = HttpRequest {
            method: "POST",
            path: "/v1/threads/ends/messages",
            headers: &headers,
            body: br#"{"content":"hello"}"#,
        };
        let response = http::begin(*addr, request).await.unwrap();
        let mut viewer = Viewer { response, seen: Vec::new() };
        viewer.until("message_complete").await.unwrap();
        assert_eq!(viewer.until("nothing more").await, Err(false), "no clean end: {}", viewer.text());
    }
    let mut viewers =
        [Viewer::open(addrs[0], "ends", None).await, Viewer::open(addrs[1], "ends", None).await];
    for viewer in &mut viewers {
        viewer.until(": open\n").await.unwrap();
    }
    fixture.fleet.gateways[0].terminate();
    for viewer in &mut viewers {
        viewer.until("event: drain").await.unwrap();
        assert_eq!(viewer.until("nothing more").await, Err(true), "a clean end: {}", viewer.text());
    }
    // A new client gets nginx's answer for an unreachable gateway, and no stream.
    fixture.fleet.gateways[0].ended(LIMIT).await.unwrap();
    assert_eq!(http::get(addrs[0], "/livez").await.unwrap().status, 502);
    fixture.send(&short("ends", "m", 1)).await;
    fixture
        .until("the message is there", WAIT_TIMEOUT, async || fixture.messages_of("ends").await.len() == 5)
        .await;
}
