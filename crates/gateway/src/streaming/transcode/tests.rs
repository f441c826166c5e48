use model::{BatchType, Chunk, Metadata, Position, Role, ThreadId, Timestamp};
use protocols::chat_completions;
use protocols::responses::{self, Resume};
use protocols::{ChatCompletions, Cursor, MessageHeader, MessageProgress, Native, Responses, StreamError};
use serde_json::{Value, json};

use crate::streaming::transcode::*;

fn message() -> MessageId {
    MessageId::parse("m").unwrap()
}

fn header(attempt: u32) -> MessageHeader {
    MessageHeader::new(message(), attempt, Role::Assistant, BatchType::UserRequest)
}

/// The native stream of an answer.
struct Stream(Native, Vec<u8>);

impl Stream {
    fn new() -> Self {
        Self(Native::new(ThreadId::parse("t").unwrap(), Cursor::at(Position::from_stored(1))), Vec::new())
    }

    fn says(mut self, attempt: u32, id: u32, text: &str) -> Self {
        let is_final = text.ends_with('.');
        let chunk = Chunk::content(id, text, is_final);
        let mut progress = MessageProgress::new(attempt, true);
        progress.advance(&chunk);
        self.1.extend(self.0.chunk(&header(attempt), progress.seen().clone(), &chunk, false).bytes());
        self
    }

    fn resets(mut self, attempt: u32) -> Self {
        self.1.extend(self.0.reset(&message(), attempt));
        self
    }

    fn restarts(mut self) -> Self {
        self.1.extend(self.0.restart(Cursor::at(Position::from_stored(0))));
        self
    }

    fn completes(mut self) -> Self {
        self.1.extend(self.0.complete(&header(0), Position::from_stored(9), false).bytes());
        self
    }

    fn stops(mut self) -> Self {
        self.1.extend(self.0.complete(&header(0), Position::from_stored(9), true).bytes());
        self
    }

    fn fails(mut self, note: &StreamError) -> Self {
        self.1.extend(self.0.failed(&header(0), Position::from_stored(9), note).bytes());
        self
    }
}

fn response() -> Transcoder<Responses> {
    let terms = responses::ResponseOptions {
        thread: ThreadId::parse("t").unwrap(),
        message: message(),
        model: "a".to_owned(),
        created_at: Timestamp(0),
        background: false,
        previous_response_id: None,
        metadata: Metadata::EMPTY,
    };
    Transcoder::new(Responses::new(terms, Resume::Start), message()).0
}

fn completion() -> Transcoder<ChatCompletions> {
    let terms = chat_completions::CompletionOptions {
        message: message(),
        model: "a".to_owned(),
        created_at: Timestamp(0),
        include_usage: false,
    };
    Transcoder::new(ChatCompletions::new(terms), message()).0
}

fn object(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// All at once, or byte after byte: what comes together depends on the load.
fn heard<P: Protocol>(mut transcoder: Transcoder<P>, bytes: &[u8], size: usize) -> (bool, P) {
    let mut has_ended = false;
    for piece in bytes.chunks(size) {
        assert!(!has_ended, "something follows the end");
        has_ended = transcoder.collect_bytes(piece).unwrap();
    }
    (has_ended, transcoder.into_fold())
}

#[test]
fn collected_response_has_all_of_the_last_attempt() {
    let bytes = Stream::new()
        .says(0, 0, "I tr")
        .resets(1)
        .says(1, 0, "Once ")
        .resets(2)
        .says(2, 0, "At ")
        .says(2, 1, "last.")
        .completes()
        .1;
    for size in [1, 7, bytes.len()] {
        let (end, response) = heard(response(), &bytes, size);
        let response = object(&response.object());
        assert_eq!((end, &response["status"]), (true, &json!("completed")), "{response}");
        assert_eq!(response["output"][0]["content"][0]["text"], "At last.", "{response}");
        let (end, completion) = heard(completion(), &bytes, size);
        let completion = object(&completion.object().unwrap().unwrap());
        assert!(end);
        assert_eq!(completion["choices"][0]["message"]["content"], "At last.", "{completion}");
    }
}

#[test]
fn collected_response_reports_a_stop_and_a_failure() {
    let begun = || Stream::new().says(0, 0, "I tr").resets(1).says(1, 0, "Once ");
    let stopped = begun().stops().1;
    let (end, response) = heard(response(), &stopped, stopped.len());
    assert_eq!((end, &object(&response.object())["status"]), (true, &json!("cancelled")));
    let failed = begun().fails(&StreamError::new("stalled", "no more", true)).1;
    let (end, completion) = heard(completion(), &failed, failed.len());
    assert_eq!((end, &*completion.object().unwrap().unwrap_err().code), (true, "stalled"));
}

#[test]
fn stream_is_aborted_when_shown_text_no_longer_counts() {
    let bytes = Stream::new().says(0, 0, "I tr").resets(1).says(1, 0, "At last.").completes().1;
    let mut transcoder = response();
    let output = transcoder.feed(&bytes);
    assert_eq!(output.then, StreamAction::Abort);
    let text = String::from_utf8(output.bytes.to_vec()).unwrap();
    assert!(text.contains("I tr") && !text.contains("At last"), "{text}");
}

#[test]
fn a_store_that_went_back_cuts_the_stream_of_another_protocol() {
    let bytes = Stream::new().says(0, 0, "one ").restarts().says(0, 0, "one ").1;
    assert!(response().collect_bytes(&bytes).is_err(), "a part that came twice is taken for the whole");
    let mut streamed = response();
    let output = streamed.feed(&bytes);
    assert_eq!(output.then, StreamAction::Abort);
    let text = String::from_utf8_lossy(&output.bytes).into_owned();
    assert_eq!(text.matches("\"delta\":\"one \"").count(), 1, "{text}");
}
