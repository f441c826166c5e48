use model::{Chunk, Metadata, Position, Role, ThreadId, Timestamp, WaitReason};
use protocols::chat_completions;
use protocols::responses::{self, Resume};
use protocols::{ChatCompletions, Responses, StreamError};
use serde_json::{Value, json};

use crate::streaming::transcode::*;

fn message() -> MessageId {
    MessageId::parse("m").unwrap()
}

#[derive(Default)]
struct Stream(Vec<Arc<FeedEvent>>);

impl Stream {
    fn then(mut self, event: NativeEvent) -> Self {
        self.0.push(Arc::new(FeedEvent { bytes: Bytes::new(), event }));
        self
    }

    fn says(self, attempt: u32, id: u32, text: &str) -> Self {
        let chunk = Arc::new(Chunk::content(id, text, text.ends_with('.')));
        let (message, role) = (message(), Role::Assistant);
        self.then(NativeEvent::Chunk { message, attempt, role, chunk, is_compacted: false })
    }

    fn resets(self, attempt: u32) -> Self {
        self.then(NativeEvent::Reset { message: message(), attempt })
    }

    fn restarts(self) -> Self {
        self.then(NativeEvent::Restart)
    }

    fn completes(self, is_stopped: bool) -> Self {
        self.then(NativeEvent::Complete {
            message: message(),
            position: Position::from_stored(9),
            is_stopped,
            report: model::AnswerReport::default(),
        })
    }

    fn fails(self, failure: StreamError) -> Self {
        let (position, failure) = (Position::from_stored(9), Box::new(failure));
        self.then(NativeEvent::Failed { message: message(), position, failure })
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
        shown: Metadata::EMPTY,
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

/// Collects the events in groups of `size`: how many arrive together depends on the load.
fn collected<P: Protocol>(
    mut transcoder: Transcoder<P>,
    events: &[Arc<FeedEvent>],
    size: usize,
) -> (bool, P) {
    let mut has_ended = false;
    for events in events.chunks(size) {
        assert!(!has_ended, "something follows the end");
        has_ended = transcoder.collect(events).unwrap();
    }
    (has_ended, transcoder.into_fold())
}

#[test]
fn collected_response_has_all_of_the_last_attempt() {
    let events = Stream::default()
        .says(0, 0, "I tr")
        .resets(1)
        .says(1, 0, "Once ")
        .resets(2)
        .says(2, 0, "At ")
        .says(2, 1, "last.")
        .completes(false)
        .0;
    for size in [1, 2, events.len()] {
        let (end, response) = collected(response(), &events, size);
        let response = object(&response.object());
        assert_eq!((end, &response["status"]), (true, &json!("completed")), "{response}");
        assert_eq!(response["output"][0]["content"][0]["text"], "At last.", "{response}");
        let (end, completion) = collected(completion(), &events, size);
        let completion = object(&completion.object().unwrap().unwrap());
        assert!(end);
        assert_eq!(completion["choices"][0]["message"]["content"], "At last.", "{completion}");
    }
}

#[test]
fn collected_response_reports_a_stop_and_a_failure() {
    let begun = || Stream::default().says(0, 0, "I tr").resets(1).says(1, 0, "Once ");
    let stopped = begun().completes(true).0;
    let (end, response) = collected(response(), &stopped, stopped.len());
    assert_eq!((end, &object(&response.object())["status"]), (true, &json!("cancelled")));
    let failed = begun().fails(StreamError::new("stalled", "no more", true)).0;
    let (end, completion) = collected(completion(), &failed, failed.len());
    assert_eq!((end, &*completion.object().unwrap().unwrap_err().code), (true, "stalled"));
}

#[test]
fn stream_is_aborted_when_shown_text_no_longer_counts() {
    let events = Stream::default().says(0, 0, "I tr").resets(1).says(1, 0, "At last.").completes(false).0;
    let mut transcoder = response();
    let output = transcoder.apply(&events);
    assert_eq!(output.then, StreamAction::Abort);
    let text = String::from_utf8(output.bytes.to_vec()).unwrap();
    assert!(text.contains("I tr") && !text.contains("At last"), "{text}");
}

#[test]
fn a_store_that_went_back_cuts_the_stream_of_another_protocol() {
    let events = Stream::default().says(0, 0, "one ").restarts().says(0, 0, "one ").0;
    assert!(response().collect(&events).is_err(), "a part that came twice is taken for the whole");
    let mut streamed = response();
    let output = streamed.apply(&events);
    assert_eq!(output.then, StreamAction::Abort);
    let text = String::from_utf8_lossy(&output.bytes).into_owned();
    assert_eq!(text.matches("\"delta\":\"one \"").count(), 1, "{text}");
}

#[test]
fn why_an_answer_waits_is_a_comment_in_other_protocols() {
    let mut transcoder = response();
    let mut other = Stream::default().then(NativeEvent::Waiting {
        message: MessageId::parse("other").unwrap(),
        reason: WaitReason::NoWorkflow,
    });
    assert_eq!(transcoder.apply(&other.0).bytes, Bytes::new(), "another answer");
    other =
        Stream::default().then(NativeEvent::Waiting { message: message(), reason: WaitReason::NoWorkflow });
    let output = transcoder.apply(&other.says(0, 0, "Sunny").0);
    let text = String::from_utf8(output.bytes.to_vec()).unwrap();
    let (comment, rest) = text.split_once("\n\n").unwrap();
    assert!(
        comment.starts_with(": waiting: no_workflow: no workflow service") && !comment.contains('\n'),
        "{text}"
    );
    assert!(rest.starts_with("event: response."), "{text}");
    assert!(
        !transcoder
            .collect(
                &Stream::default()
                    .then(NativeEvent::Waiting { message: message(), reason: WaitReason::Taken })
                    .0
            )
            .unwrap()
    );
}
