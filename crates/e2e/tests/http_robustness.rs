//! Misbehaving clients of a real gateway process on plain sockets: each gets a clear answer or is
//! disconnected, and no other client is affected.

mod behind_nginx;
mod connection_limits;
mod cursors;
mod drain;
mod http1;
mod http2;
mod raw_http2;

use std::{net::SocketAddr, time::Duration};

use testkit::{
    WAIT_TIMEOUT,
    fleet::{FleetOptions, Process},
    http,
    load::PlannedMessage,
    sse::{FollowOptions, Follower},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{api_client::scripted, fixture::Fixture};

/// Limit for heads, bodies and idle connections here.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may read nothing.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit after which the gateway counts as hanging.
const LIMIT: Duration = Duration::from_secs(10);

/// One worker, a scripted service, and a gateway with short timeouts.
fn impatient(options: FleetOptions) -> FleetOptions {
    scripted(options)
        .with_env("ANTIPHON_HEADER_TIMEOUT_SECONDS", HEAD_TIMEOUT.as_secs())
        .with_env("ANTIPHON_IDLE_TIMEOUT_SECONDS", HEAD_TIMEOUT.as_secs())
        .with_env("ANTIPHON_BODY_TIMEOUT_SECONDS", 1)
        .with_env("ANTIPHON_WRITE_TIMEOUT_SECONDS", WRITE_TIMEOUT.as_secs())
}

/// What arrived on a socket until it was closed.
#[derive(Debug)]
struct Said {
    text: String,
}

impl Said {
    /// The status of the answer; `None` if the connection was cut without one.
    fn status(&self) -> Option<u16> {
        self.text.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
    }

    fn body(&self) -> &str {
        self.text.split_once("\r\n\r\n").map_or("", |(_, body)| body)
    }

    fn has(&self, header: &str) -> bool {
        let head = self.text.split_once("\r\n\r\n").map_or("", |(head, _)| head);
        head.lines().any(|line| line.eq_ignore_ascii_case(header))
    }

    fn answers(&self) -> usize {
        self.text.matches("HTTP/1.1 ").count()
    }
}

/// Sends these bytes, and reads until the gateway closes the connection.
async fn shout(addr: SocketAddr, bytes: &[u8]) -> Said {
    // A refused connection may be reset before the client knows that it is connected.
    let Ok(stream) = TcpStream::connect(addr).await else { return Said { text: String::new() } };
    let (mut reader, mut writer) = stream.into_split();
    let write = async {
        // A client that is disconnected cannot send the rest.
        let _ = writer.write_all(bytes).await;
        writer
    };
    let (_writer, said) = tokio::join!(write, rest(&mut reader));
    said
}

async fn rest(reader: &mut (impl AsyncReadExt + Unpin)) -> Said {
    let mut all = Vec::new();
    // A reset is a cut as well.
    let _ = timeout(LIMIT, reader.read_to_end(&mut all)).await.expect("the gateway hangs");
    Said { text: String::from_utf8_lossy(&all).into_owned() }
}

fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").into_bytes()
}

fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n"
    );
    format!("{head}{headers}\r\n{body}").into_bytes()
}

/// The resources that a process uses.
#[derive(Debug, Clone, Copy)]
struct Held {
    rss_mb: u64,
    files: usize,
}

impl Held {
    fn by(process: &Process) -> Self {
        let pid = process.pid().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kb: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        Self { rss_mb: kb / 1024, files }
    }
}

/// Checks that the gateway still works, and has no more sockets than before and at most `megabytes`
/// more memory.
async fn unharmed(fixture: &Fixture, before: Held, megabytes: u64) {
    let gateway = &fixture.fleet.gateways[0];
    let answer = http::get(gateway.http_addr(), "/livez").await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let turn = fixture.api().say("unharmed", "hello").await.unwrap();
    fixture
        .until("a turn completes", WAIT_TIMEOUT, async || {
            fixture.messages_of("unharmed").await.iter().any(|message| message.message_id == turn.answer)
        })
        .await;
    // Some connections to NATS and Postgres come and go.
    fixture
        .until("the sockets are given back", LIMIT, async || Held::by(gateway).files <= before.files + 8)
        .await;
    let after = Held::by(gateway);
    println!("held before {before:?}, after {after:?}");
    assert!(after.rss_mb <= before.rss_mb + megabytes, "before {before:?}, after {after:?}");
}
