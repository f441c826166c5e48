//! A client that sends a request and reads the whole response.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) text: String,
    /// A chunked body came to its end.
    pub(crate) is_whole: bool,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{} {}", self.status, self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Status, code, and whether a retry may help.
    pub(crate) fn problem(&self) -> (u16, String, bool) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let body = self.json();
        assert_eq!(body["status"], self.status);
        assert!(!body["detail"].as_str().unwrap().is_empty());
        (self.status, body["code"].as_str().unwrap().to_owned(), body["retryable"].as_bool().unwrap())
    }
}

/// Sends a JSON body.
pub(crate) async fn send(addr: SocketAddr, method: &str, path: &str, body: &Value) -> Reply {
    send_with(addr, method, path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
}

pub(crate) async fn post(addr: SocketAddr, path: &str, body: &Value) -> Reply {
    send(addr, "POST", path, body).await
}

/// Sends no body.
pub(crate) async fn bare(addr: SocketAddr, method: &str, path: &str) -> Reply {
    send_with(addr, method, path, &[], b"").await
}

pub(crate) async fn send_with(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    let mut bytes = request.into_bytes();
    bytes.extend_from_slice(body);
    exchange(addr, &bytes).await
}

/// Sends these bytes and reads until the connection ends.
pub(crate) async fn exchange(addr: SocketAddr, request: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // The error of a cut is ignored: the received bytes show the cut.
    let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.expect("no end came");
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let (text, is_whole) = if chunked { unchunked(body) } else { (body.to_owned(), true) };
    Reply { status, head: head.to_owned(), text, is_whole }
}

fn unchunked(mut body: &str) -> (String, bool) {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (text, true);
        }
        let Some(part) = rest.get(..size) else { break };
        text.push_str(part);
        body = rest[size..].trim_start_matches("\r\n");
    }
    (text, false)
}
