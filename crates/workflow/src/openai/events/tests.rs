use serde_json::json;

use super::*;

/// All that a response of these pieces says, and how it ends.
async fn read(pieces: Vec<Vec<u8>>) -> (Vec<CompletionDelta>, Result<(), Failure>) {
    let bytes = stream::iter(pieces).map(|piece| Ok(Bytes::from(piece)));
    let mut events = Events::of_stream(bytes.boxed());
    let mut deltas = Vec::new();
    loop {
        match events.next().await {
            Ok(Some(CompletionDelta { failure: Some(failure), .. })) => return (deltas, Err(failure)),
            Ok(Some(delta)) => deltas.push(delta),
            Ok(None) => return (deltas, Ok(())),
            Err(failure) => return (deltas, Err(failure)),
        }
    }
}

async fn read_text(text: &str) -> (String, Result<(), String>) {
    let (deltas, end) = read(vec![text.as_bytes().to_vec()]).await;
    (deltas.into_iter().map(|delta| delta.text).collect(), end.map_err(|failure| failure.code))
}

fn chunk(delta: Value) -> String {
    json!({"choices": [{"index": 0, "delta": delta}]}).to_string()
}

/// Everything that a stream may have: comments, empty blocks, CRLF, fields without data, characters of several bytes.
fn sample() -> String {
    let usage = json!({"model": "m-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}});
    let finish = json!({"choices": [{"delta": {}, "finish_reason": "stop"}]});
    format!(
        ": hello\r\n\r\n\
         data: {}\r\n\r\n\
         event: message\ndata:{}\n\n\
         id: 7\n\n: ping\n\n\n\n\
         data: {}\r\n\r\n\
         data: {finish}\n\ndata: {usage}\n\ndata: [DONE]\r\n\r\n",
        chunk(json!({"role": "assistant", "content": ""})),
        chunk(json!({"content": "Grüße, "})),
        chunk(json!({"content": "Welt 🌍", "reasoning_content": "hm"})),
    )
}

fn expected() -> Vec<CompletionDelta> {
    let usage =
        TokenCounts::of_usage(&json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}));
    vec![
        CompletionDelta::default(),
        CompletionDelta { text: "Grüße, ".to_owned(), ..CompletionDelta::default() },
        CompletionDelta {
            text: "Welt 🌍".to_owned(),
            reasoning: "hm".to_owned(),
            wants_reasoning_back: true,
            ..CompletionDelta::default()
        },
        CompletionDelta { finish_reason: Some("stop".to_owned()), ..CompletionDelta::default() },
        CompletionDelta { model: Some("m-1".to_owned()), usage, ..CompletionDelta::default() },
    ]
}

#[tokio::test]
async fn a_stream_reads_the_same_wherever_it_is_split() {
    let bytes = sample().into_bytes();
    for at in 0..=bytes.len() {
        let (front, back) = bytes.split_at(at);
        assert_eq!(read(vec![front.to_vec(), back.to_vec()]).await, (expected(), Ok(())), "split at {at}");
    }
    for size in [1, 2, 3, 7] {
        let pieces = bytes.chunks(size).map(<[u8]>::to_vec).collect();
        assert_eq!(read(pieces).await, (expected(), Ok(())), "pieces of {size}");
    }
}

#[tokio::test]
async fn a_stream_that_ends_before_done_has_been_cut() {
    let bytes = sample().into_bytes();
    let done = bytes.len() - "[DONE]\r\n\r\n".len();
    for length in 0..done + "[DONE]".len() {
        let (_, end) = read(vec![bytes[..length].to_vec()]).await;
        let failure = end.expect_err("cut");
        assert_eq!(failure.class, model::ErrorClass::Transient, "{length} bytes");
        assert!(["upstream_cut", "bad_stream"].contains(&failure.code.as_str()), "{length} bytes: {failure}");
    }
    let without_empty_line = bytes[..done + "[DONE]".len()].to_vec();
    assert_eq!(read(vec![without_empty_line]).await.1, Ok(()), "the last empty line may be missing");
}

#[tokio::test]
async fn an_error_in_the_stream_ends_it() {
    let error = json!({"error": {"message": "overloaded", "type": "server_error"}});
    let text = format!(
        "data: {}\n\nevent: error\ndata: {error}\n\ndata: [DONE]\n\n",
        chunk(json!({"content": "Hal"}))
    );
    assert_eq!(read_text(&text).await, ("Hal".to_owned(), Err("upstream_error".to_owned())));
    let null = format!("data: {}\n\ndata: [DONE]\n\n", json!({"error": null, "choices": []}));
    assert_eq!(read_text(&null).await, (String::new(), Ok(())));
    for garbage in ["data: {\n\n", "data: <html>\n\n", "data: \u{0}\n\n"] {
        assert_eq!(read_text(garbage).await.1, Err("bad_stream".to_owned()), "{garbage:?}");
    }
}

#[tokio::test]
async fn what_is_misshapen_is_passed_over() {
    let odd = json!({"choices": [{"delta": {"content": 7, "tool_calls": "x"}, "finish_reason": 1}], "usage": [], "model": null});
    let text =
        format!("data: {odd}\n\ndata: [1]\n\ndata: {}\n\ndata: [DONE]\n\n", chunk(json!({"content": "ok"})));
    assert_eq!(read_text(&text).await, ("ok".to_owned(), Ok(())));
}

#[tokio::test]
async fn a_response_that_is_not_a_stream_is_one_delta() {
    let body = json!({
        "model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        "choices": [{"message": {"role": "assistant", "content": "Hi", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}],
    });
    let mut events = Events::of_whole(body.to_string().as_bytes()).unwrap();
    let delta = events.next().await.unwrap().unwrap();
    assert_eq!((delta.text.as_str(), delta.calls.len()), ("Hi", 1));
    assert_eq!((delta.usage.input(), delta.usage.output()), (1, 2));
    assert_eq!(events.next().await.unwrap(), None);
    assert!(Events::of_whole(b"{").is_err());
    let refusal = br#"{"error": {"code": 400}, "usage": {"prompt_tokens": 7}}"#;
    let refused = Events::of_whole(refusal).unwrap().next().await.unwrap().unwrap();
    assert_eq!(refused.usage.input(), 7, "what it has used counts all the same");
    let failure = refused.failure.unwrap();
    assert_eq!(failure.class, model::ErrorClass::Permanent);
}
