//! The differences between the three servers: how to subscribe to a thread, and how to publish to
//! it.

use std::{net::SocketAddr, sync::Arc};

use super::stream::Dialect;

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// The shipped binary.
    Antiphon,
    /// nginx with nchan.
    Nchan,
    /// Electric's `durable-streams`.
    Durable,
}

impl ServerKind {
    pub(super) const ALL: [Self; 3] = [Self::Antiphon, Self::Nchan, Self::Durable];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Antiphon => "antiphon",
            Self::Nchan => "nchan",
            Self::Durable => "durable-streams",
        }
    }
}

/// A server, and the names of the threads of one measurement.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) kind: ServerKind,
    /// The address for subscribers, and also for publishers of servers other than Antiphon.
    pub(super) addr: SocketAddr,
    pub(super) dialect: Dialect,
    /// A prefix that differs in every measurement.
    pub(super) prefix: Arc<str>,
}

impl Target {
    pub(super) fn new(kind: ServerKind, addr: SocketAddr, prefix: &str) -> Self {
        let dialect = if kind == ServerKind::Durable { Dialect::Control } else { Dialect::Id };
        Self { kind, addr, dialect, prefix: prefix.into() }
    }

    pub(super) fn thread(&self, number: usize) -> String {
        format!("{}-{number:05}", self.prefix)
    }

    /// The request of a subscriber, which connects for the first time or resumes after `cursor`.
    pub(super) fn request(&self, thread: usize, cursor: Option<&[u8]>) -> String {
        let (thread, cursor) = (self.thread(thread), cursor.map(String::from_utf8_lossy));
        let (path, last_event_id) = match self.kind {
            ServerKind::Antiphon => (format!("/v1/threads/{thread}/events"), cursor),
            ServerKind::Nchan => (format!("/events/{thread}"), cursor),
            ServerKind::Durable => {
                (format!("/{thread}?offset={}&live=sse", cursor.as_deref().unwrap_or("now")), None)
            }
        };
        let last_event_id = last_event_id.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\n{last_event_id}\r\n",
            self.addr
        )
    }

    /// One or several requests that append these texts to a thread. Not for Antiphon, which takes
    /// its chunks from NATS.
    pub(super) fn post(&self, thread: usize, texts: &[String]) -> Vec<u8> {
        let thread = self.thread(thread);
        let post = |path: String, kind: &str, body: &str| {
            let length = body.len();
            let fields = format!("host: {}\r\ncontent-type: {kind}\r\ncontent-length: {length}", self.addr);
            format!("POST {path} HTTP/1.1\r\n{fields}\r\n\r\n{body}").into_bytes()
        };
        match self.kind {
            // Each element of the array is one message.
            ServerKind::Durable => {
                post(format!("/{thread}"), "application/json", &format!("[\"{}\"]", texts.join("\",\"")))
            }
            ServerKind::Antiphon | ServerKind::Nchan => {
                let one = |text: &String| post(format!("/publish/{thread}"), "text/plain", text);
                texts.iter().flat_map(one).collect()
            }
        }
    }

    /// The number of requests that [`Target::post`] makes for this number of texts.
    pub(super) fn posts(&self, texts: usize) -> u64 {
        if self.kind == ServerKind::Durable { 1 } else { texts as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(kind: ServerKind) -> Target {
        Target::new(kind, SocketAddr::from(([127, 0, 0, 1], 9)), "s1")
    }

    #[test]
    fn cursor_is_sent_in_each_servers_own_way() {
        let asked = |kind, cursor| target(kind).request(7, cursor);
        assert!(
            asked(ServerKind::Antiphon, None).starts_with("GET /v1/threads/s1-00007/events HTTP/1.1\r\n")
        );
        assert!(asked(ServerKind::Nchan, Some(b"5:0")).ends_with("\r\nlast-event-id: 5:0\r\n\r\n"));
        assert!(asked(ServerKind::Durable, None).starts_with("GET /s1-00007?offset=now&live=sse "));
        assert!(asked(ServerKind::Durable, Some(b"0_8")).starts_with("GET /s1-00007?offset=0_8&live=sse "));
    }

    #[test]
    fn a_burst_is_one_array_or_so_many_posts() {
        let texts = ["a".to_owned(), "b".to_owned()];
        let post = |kind| String::from_utf8(target(kind).post(0, &texts)).unwrap();
        assert!(post(ServerKind::Durable).ends_with("content-length: 9\r\n\r\n[\"a\",\"b\"]"));
        assert_eq!(post(ServerKind::Nchan).matches("POST /publish/s1-00000 ").count(), 2);
        assert_eq!((target(ServerKind::Durable).posts(2), target(ServerKind::Nchan).posts(2)), (1, 2));
    }
}
