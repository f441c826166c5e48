//! A client that sends its input again after its stream was cut, like libraries for SSE over POST.

use std::time::Duration;

use serde_json::json;
use testkit::{
    http::{self, HttpRequest, Response},
    sse::{Parser, SseItem, StreamEvent},
};
use tokio::time::timeout;

use crate::{
    api_client::{SOON, scripted},
    fixture::Fixture,
};

const PATH: &str = "/v1/threads/talk/messages";

/// One attempt of a request, read as far as wanted.
struct Try {
    response: Response,
    parser: Parser,
    turn: String,
    events: Vec<StreamEvent>,
    last_id: Option<String>,
    raw: Vec<u8>,
}

async fn send(
    fixture: &Fixture,
    content: &str,
    key: Option<&str>,
    last_id: Option<&str>,
) -> Result<Try, http::TextResponse> {
    let body = json!({ "content": content }).to_string();
    let mut headers = vec![("accept", "text/event-stream"), ("content-type", "application/json")];
    headers.extend(key.map(|key| ("idempotency-key", key)));
    headers.extend(last_id.map(|id| ("last-event-id", id)));
    let request = HttpRequest { method: "POST", path: PATH, headers: &headers, body: body.as_bytes() };
    let response = http::begin(fixture.api().0, request).await.unwrap();
    if response.status != 200 {
        return Err(http::exchange(fixture.api().0, request).await.unwrap());
    }
    let turn = response.header("x-antiphon-turn").unwrap().to_owned();
    Ok(Try { response, parser: Parser::default(), turn, events: Vec::new(), last_id: None, raw: Vec::new() })
}

impl Try {
    /// Reads until `chunks` chunks have arrived or the body has ended.
    async fn read(&mut self, chunks: usize) {
        while self.chunks() < chunks {
            let mut bytes = Vec::new();
            let read =
                timeout(SOON, self.response.body.read(&mut bytes)).await.expect("nothing came").unwrap();
            if read == 0 {
                return;
            }
            self.raw.extend_from_slice(&bytes);
            for item in self.parser.feed(&bytes) {
                if let SseItem::Event { id, name, data } = item {
                    self.last_id = id.or(self.last_id.take());
                    self.events.push(StreamEvent::read(name.as_deref(), &data));
                }
            }
        }
    }

    /// Some clients take every blank line for the end of an event, whether or not there was data
    /// before it.
    fn has_data_in_every_block(&self) -> bool {
        let text = String::from_utf8_lossy(&self.raw);
        let (blocks, _) = text.rsplit_once("\n\n").unwrap_or_default();
        blocks.split("\n\n").all(|block| block.lines().any(|line| line.starts_with("data: ")))
    }

    fn chunks(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, StreamEvent::Chunk(_))).count()
    }

    fn text(&self) -> String {
        let text = |event: &StreamEvent| match event {
            StreamEvent::Chunk(chunk) if chunk.message == format!("{}-a", self.turn) => chunk.text.clone(),
            _ => String::new(),
        };
        self.events.iter().map(text).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resent_input_resumes_its_stream() {
    let fixture = Fixture::with(scripted).await;
    for (round, key) in [Some("k"), None].into_iter().enumerate() {
        let content = format!("slowly {round}");
        let whole = format!("Slowly {content} and {content} and {content}");
        let mut first = send(&fixture, &content, key, None).await.unwrap();
        first.read(3).await;
        assert!(first.has_data_in_every_block(), "{}", String::from_utf8_lossy(&first.raw));
        let (mut text, mut last_id) = (first.text(), first.last_id.clone());
        let turn = first.turn.clone();
        drop(first);
        // Cut repeatedly; the last try reads to the end.
        for chunks in [2, 1, usize::MAX] {
            let mut again = send(&fixture, &content, key, last_id.as_deref()).await.unwrap();
            assert_eq!(again.turn, turn, "another turn");
            again.read(chunks).await;
            text.push_str(&again.text());
            last_id = again.last_id.or(last_id);
        }
        assert_eq!(text, whole, "key: {key:?}");
        // The client saw the end, but not that the body ended: there is nothing more, and no second
        // turn.
        let mut over = send(&fixture, &content, key, last_id.as_deref()).await.unwrap();
        over.read(usize::MAX).await;
        assert_eq!((over.turn, over.events), (turn, vec![]));
    }
    let inputs = fixture.messages_of("talk").await.into_iter().filter(|message| message.role == "user");
    assert_eq!(inputs.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_a_last_event_id_opens_no_turn() {
    let fixture = Fixture::with(scripted).await;
    let mut first = send(&fixture, "slowly", None, None).await.unwrap();
    first.read(2).await;
    let under_way = first.last_id.clone().unwrap();
    first.read(usize::MAX).await;
    let ended = first.last_id.clone().unwrap();
    for last_id in [under_way.as_str(), ended.as_str()] {
        let refused = send(&fixture, "something else", None, Some(last_id)).await.err().expect("refused");
        let problem = refused.json().unwrap();
        assert_eq!(
            (refused.status, &problem["code"]),
            (409, &json!("idempotency_key_needed")),
            "{refused:?}"
        );
    }
    let nonsense = send(&fixture, "slowly", Some("k"), Some("nonsense")).await.err().expect("refused");
    assert_eq!((nonsense.status, nonsense.json().unwrap()["code"].clone()), (400, json!("invalid_cursor")));
    // Another input with its own key opens another turn, and the stream shows the events after the
    // id.
    let mut next = send(&fixture, "something else", Some("n"), Some(&ended)).await.unwrap();
    next.read(usize::MAX).await;
    assert_ne!(next.turn, first.turn);
    assert_eq!(next.text(), "You said: something else");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let inputs = fixture.messages_of("talk").await.into_iter().filter(|message| message.role == "user");
    assert_eq!(inputs.map(|input| input.content).collect::<Vec<_>>(), ["slowly", "something else"]);
}
