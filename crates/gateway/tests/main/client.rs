//! A subscriber that reads events as they come and reports how its stream ended.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use testkit::http::{self, Response};
use tokio::time::timeout;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    pub(crate) response: Response,
    pub(crate) last_id: Option<String>,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn open(gateway: SocketAddr, last_id: Option<&str>) -> Self {
        Self::at(gateway, "/v1/threads/t1/events", last_id).await
    }

    pub(crate) async fn at(gateway: SocketAddr, path: &str, last_id: Option<&str>) -> Self {
        let headers: Vec<_> = last_id.map(|id| ("last-event-id", id)).into_iter().collect();
        let response = http::open(gateway, path, &headers).await.unwrap();
        assert_eq!(response.status, 200);
        let mut client = Self { response, last_id: last_id.map(str::to_owned), buffer: Vec::new() };
        assert_eq!(client.line().await, ": open");
        client
    }

    async fn line(&mut self) -> String {
        while !self.buffer.contains(&b'\n') {
            let read = timeout(TEST_TIMEOUT, self.response.body.read(&mut self.buffer));
            assert!(read.await.expect("nothing came").unwrap() > 0, "the stream has ended");
        }
        let at = self.buffer.iter().position(|byte| *byte == b'\n').unwrap();
        String::from_utf8(self.buffer.drain(..=at).collect()).unwrap().trim_end().to_owned()
    }

    /// The next block between blank lines; `None` at a clean end. A cut panics.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block = String::from_utf8(self.buffer.drain(..at + 2).collect()).unwrap();
                return Some(block.trim_end().to_owned());
            }
            let read =
                timeout(TEST_TIMEOUT, self.response.body.read(&mut self.buffer)).await.expect("nothing came");
            if read.expect("the stream was cut") == 0 {
                return None;
            }
        }
    }

    /// The next event in short form: `m:text`, `m!`, `m?code`, `m^attempt`, `drain`, `end`.
    pub(crate) async fn next(&mut self) -> String {
        loop {
            let Some(block) = self.block().await else { return "end".to_owned() };
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
            let Some(data) = field("data: ") else { continue };
            if let Some(id) = field("id: ") {
                self.last_id = Some(id.to_owned());
            }
            // Every stream without a cursor begins with `ready`.
            if field("event: ") != Some("ready") {
                return short(field("event: "), &serde_json::from_str(data).unwrap());
            }
        }
    }

    /// Waits for the first event of a stream without a cursor.
    pub(crate) async fn ready(&mut self) {
        let block = self.block().await.unwrap();
        assert!(block.contains("event: ready\n"), "{block}");
        self.last_id = block.lines().find_map(|line| line.strip_prefix("id: ")).map(str::to_owned);
    }

    /// The next events up to `last`, joined by `|`.
    pub(crate) async fn until(&mut self, last: &str) -> String {
        let mut all = Vec::new();
        while all.last().map(String::as_str) != Some(last) {
            all.push(self.next().await);
        }
        all.join("|")
    }

    /// Reads to the end of the connection; true when the body ended cleanly.
    pub(crate) async fn ends_cleanly(&mut self) -> bool {
        loop {
            match timeout(TEST_TIMEOUT, self.response.body.read(&mut self.buffer))
                .await
                .expect("it did not end")
            {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Whether nothing arrives within this time.
    pub(crate) async fn is_quiet(&mut self, time: Duration) -> bool {
        timeout(time, self.next()).await.is_err()
    }
}

fn short(event: Option<&str>, data: &Value) -> String {
    if event == Some("drain") {
        return "drain".to_owned();
    }
    if event == Some("restart") {
        return format!("restart {}", data["after"].as_str().unwrap());
    }
    let message = data["message_id"].as_str().unwrap();
    match data["chunk_type"].as_str() {
        _ if event == Some("input") => message.to_owned(),
        _ if event == Some("reset") => format!("{message}^{}", data["attempt"]),
        Some("system") => format!("{message}!"),
        Some("error") => format!("{message}?{}", data["metadata"]["code"].as_str().unwrap()),
        _ => format!("{message}:{}", data["chunk"].as_str().unwrap()),
    }
}
