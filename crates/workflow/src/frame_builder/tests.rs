use serde_json::Value;

use super::*;

fn builder() -> FrameBuilder {
    FrameBuilder::new(MessageId::parse("u0001-x-a").unwrap(), 3, Some("c".into()))
}

fn call(id: &str) -> CallName {
    CallName { id: id.into(), tool: "weather".into() }
}

/// `id.step kind "text"` of each chunk, with a `!` for the last one.
fn shown(frame: &[IncomingChunk]) -> Vec<String> {
    let line = |arrival: &IncomingChunk| {
        let chunk = &arrival.chunk;
        let end = if chunk.is_final { "!" } else { "" };
        format!("{}.{} {} {:?}{end}", chunk.id, arrival.step, chunk.kind.name(), chunk.text)
    };
    frame.iter().map(line).collect()
}

#[test]
fn what_belongs_together_is_one_chunk_until_the_frame_is_taken() {
    let mut builder = builder();
    builder.reasoning("hm");
    builder.reasoning("m");
    builder.text("Hel");
    builder.text("lo");
    assert_eq!(shown(&builder.take_frame()), ["0.0 reasoning \"hmm\"", "1.0 content \"Hello\""]);
    assert!(builder.is_empty());
    builder.text(" you");
    builder.close();
    builder.text("!");
    assert_eq!(shown(&builder.take_frame()), ["2.0 content \" you\"", "3.0 content \"!\""]);
}

#[test]
fn a_step_begins_with_what_the_model_says_after_results() {
    let mut builder = builder();
    builder.text("Let me look.");
    builder.call(&call("c1"), "{\"city\":");
    builder.call(&call("c1"), "\"Bonn\"}");
    builder.call(&call("c2"), "{}");
    builder.result(&call("c1"), "rain", false);
    builder.keepalive();
    builder.result(&call("c2"), "no", true);
    builder.reasoning("so");
    builder.text("It rains.");
    builder.finish(Map::new());
    let frame = builder.take_frame();
    assert_eq!(
        shown(&frame),
        [
            "0.0 content \"Let me look.\"",
            "1.0 tool_call \"{\\\"city\\\":\\\"Bonn\\\"}\"",
            "2.0 tool_call \"{}\"",
            "3.0 tool_result \"rain\"",
            "4.0 metadata \"\"",
            "5.0 tool_result \"no\"",
            "6.1 reasoning \"so\"",
            "7.1 content \"It rains.\"!",
        ]
    );
    assert!(frame.iter().all(|arrival| arrival.attempt == 3 && arrival.message.as_str() == "u0001-x-a"));
    assert_eq!(
        frame[5].chunk.metadata.to_value(),
        json!({"tool_call_id": "c2", "tool_name": "weather", "is_error": true})
    );
    assert_eq!((frame[3].role, frame[1].role), (Role::Tool, Role::Assistant));
}

#[test]
fn last_chunk_carries_metadata_and_the_open_text() {
    let mut builder = builder();
    builder.text("Hi");
    builder.take_frame();
    builder.finish(json!({"tokens_used": 7}).as_object().unwrap().clone());
    let frame = builder.take_frame();
    assert_eq!(shown(&frame), ["1.0 content \"\"!"]);
    assert_eq!(frame[0].chunk.metadata.tokens_used(), Ok(Some(7)));
}

#[test]
fn a_failure_says_what_it_means() {
    let mut builder = builder();
    builder.text("partial");
    let failure = Failure {
        retry_after: Some(std::time::Duration::from_millis(2_500)),
        ..Failure::transient("rate_limited", "too \0 many")
    };
    builder.fail(&failure);
    let frame = builder.take_frame();
    assert_eq!(shown(&frame), ["0.0 content \"partial\"", "1.0 error \"too \u{FFFD} many\"!"]);
    let hint = model::RetryHint::of(&frame[1].chunk.metadata);
    assert_eq!((hint.class, hint.retry_after_ms), (model::ErrorClass::Transient, Some(2_500)));
    assert_eq!(frame[1].chunk.metadata.get("code"), Some(&Value::from("rate_limited")));
    let auth = Failure { class: model::ErrorClass::Auth, ..Failure::transient("a", "b") };
    for failure in [Failure::permanent("a", "b"), auth] {
        let hint = model::RetryHint::of(&Metadata::new(failure.metadata()).unwrap());
        assert_eq!(hint.class, failure.class);
    }
}

#[test]
fn large_texts_are_split_between_characters_and_nothing_is_lost() {
    let mut builder = builder();
    let text = "aé€😀".repeat(9_000);
    builder.text("x");
    builder.text(&text);
    assert!(!builder.is_empty());
    let frame = builder.take_frame();
    assert!(frame.len() >= 6 && frame.iter().all(|arrival| arrival.chunk.text.len() <= CHUNK_BYTES));
    let joined: String = frame.iter().map(|arrival| &*arrival.chunk.text).collect();
    assert_eq!(joined, format!("x{text}"));
    assert_eq!(
        frame.iter().map(|arrival| arrival.chunk.id).collect::<Vec<_>>(),
        (0..frame.len() as u32).collect::<Vec<_>>()
    );
}

#[test]
fn an_empty_call_is_still_a_chunk() {
    let mut builder = builder();
    builder.call(&call("c1"), "");
    builder.call(&call("c1"), "");
    assert_eq!(shown(&builder.take_frame()), ["0.0 tool_call \"\""]);
}
