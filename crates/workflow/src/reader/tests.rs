mod fuzz;
mod providers;
mod recordings;
mod shapes;

use serde_json::json;

use super::*;

/// The content of an answer, joined.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Whole {
    text: String,
    reasoning: String,
    /// `name arguments` as clients see them.
    shown: Vec<String>,
    /// `name arguments` as the tools get them.
    calls: Vec<String>,
    arguments: Vec<String>,
    finish: Option<Finish>,
    counts: (u64, u64),
    failure: Option<String>,
    deviations: Deviations,
}

fn read_pieces<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Whole {
    read_as(Interface::default(), pieces)
}

fn read_as<'p>(interface: Interface, pieces: impl IntoIterator<Item = &'p [u8]>) -> Whole {
    let tools = ["find_boat", "write_log", "tide"].map(str::to_owned);
    let mut known = HashSet::new();
    let mut reader = Reader::new(interface, 0, &mut known, &tools, false);
    let mut parts = Vec::new();
    for piece in pieces {
        parts.extend(reader.push(piece));
        if reader.is_done() {
            break;
        }
    }
    let ended = reader.end(None);
    parts.extend(ended.parts);
    let (mut text, mut reasoning) = (String::new(), String::new());
    let mut shown: Vec<(CallName, String)> = Vec::new();
    for part in parts {
        match part {
            Part::Text(more) => text.push_str(&more),
            Part::Reasoning(more) => reasoning.push_str(&more),
            Part::Call(name, more) => match shown.iter_mut().find(|(known, _)| *known == name) {
                Some((_, arguments)) => arguments.push_str(&more),
                None => shown.push((name, more)),
            },
        }
    }
    let reply = ended.reply;
    assert_eq!(text, reply.text);
    Whole {
        text,
        reasoning,
        shown: shown.into_iter().map(|(name, arguments)| format!("{} {arguments}", name.tool)).collect(),
        calls: reply.calls.iter().map(|call| format!("{} {}", call.name.tool, call.arguments)).collect(),
        arguments: reply.calls.iter().map(|call| call.arguments.clone()).collect(),
        finish: reply.finish,
        counts: (reply.usage.input(), reply.usage.output()),
        failure: ended.outcome.err().map(|failure| failure.code),
        deviations: reply.deviations,
    }
}

fn read(bytes: &[u8]) -> Whole {
    read_pieces([bytes])
}

fn chunk(delta: Value) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}))
}

fn finish(reason: &str) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
}

const DONE: &str = "data: [DONE]\n\n";

fn of(events: &[String]) -> Whole {
    read(events.concat().as_bytes())
}

/// A stream with comments, empty blocks, CRLF, fields without data and multi-byte characters.
fn sample() -> String {
    let usage = json!({"model": "m-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}});
    let chunk = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]}).to_string();
    let end = json!({"choices": [{"delta": {}, "finish_reason": "stop"}]});
    format!(
        ": hello\r\n\r\n\
         data: {}\r\n\r\n\
         event: message\ndata:{}\n\n\
         id: 7\n\n: ping\n\n\n\n\
         data: {}\r\n\r\n\
         data: {end}\n\ndata: {usage}\n\ndata: [DONE]\r\n\r\n",
        chunk(json!({"role": "assistant", "content": ""})),
        chunk(json!({"content": "Grüße, "})),
        chunk(json!({"content": "Welt 🌍", "reasoning_content": "hm"})),
    )
}

#[test]
fn a_stream_reads_the_same_wherever_it_is_cut() {
    let bytes = sample().into_bytes();
    let whole = read(&bytes);
    assert_eq!((whole.text.as_str(), whole.reasoning.as_str()), ("Grüße, Welt 🌍", "hm"));
    assert_eq!((whole.finish, whole.counts, &whole.failure), (Some(Finish::Stop), (3, 4), &None));
    assert_eq!(whole.deviations, Deviations::default());
    for at in 0..=bytes.len() {
        let (front, back) = bytes.split_at(at);
        assert_eq!(read_pieces([front, back]), whole, "cut at {at}");
    }
    for size in [1, 2, 3, 7] {
        assert_eq!(read_pieces(bytes.chunks(size)), whole, "pieces of {size}");
    }
}

#[test]
fn a_stream_that_ends_before_its_finish_reason_has_been_cut() {
    let text = sample();
    let end = text.find("\"finish_reason\"").unwrap();
    for length in 0..end {
        let whole = read(&text.as_bytes()[..length]);
        assert_eq!(whole.failure.as_deref(), Some("upstream_cut"), "{length} bytes");
    }
    for length in end + "\"finish_reason\":\"stop\"}]}".len()..text.len() {
        let whole = read(&text.as_bytes()[..length]);
        assert_eq!((whole.failure, whole.text.as_str()), (None, "Grüße, Welt 🌍"), "{length} bytes");
    }
}

#[test]
fn an_error_in_the_stream_ends_it() {
    let error = json!({"error": {"message": "overloaded", "type": "server_error"}});
    let whole =
        of(&[chunk(json!({"content": "Hal"})), format!("event: error\ndata: {error}\n\n"), DONE.to_owned()]);
    assert_eq!((whole.text.as_str(), whole.failure.as_deref()), ("Hal", Some("upstream_error")));
    for error in [
        "data: {\"object\":\"error\",\"message\":\"x\",\"code\":500}\n\n",
        "data: {\"type\":\"error\",\"message\":\"x\"}\n\n",
        "event: error\ndata: out of memory\n\n",
        "event: error\ndata: {\"message\":\"x\"}\n\n",
        "data: {\"detail\":\"x\"}\n\n",
        "data: {\"error\":\"x\"}\n\n",
        "data: {\"errors\":[{\"message\":\"x\"}]}\n\n",
        "data: {\"error_code\":336,\"error_msg\":\"x\"}\n\n",
        "data: {\"base_resp\":{\"status_code\":1013,\"status_msg\":\"x\"},\"choices\":null}\n\n",
        "data: error: the engine stopped\n\n",
        "data: [ERROR] the engine stopped\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"error\":{\"code\":502,\"message\":\"x\"},\"finish_reason\":\"error\"}]}\n\n",
        "{\"error\":{\"message\":\"x\"}}\n",
    ] {
        let whole =
            of(&[chunk(json!({"content": "Hal"})), error.to_owned(), finish("stop"), DONE.to_owned()]);
        assert_eq!(whole.failure.as_deref(), Some("upstream_error"), "{error}");
    }
    let null = format!("data: {}\n\n", json!({"error": null, "choices": [{"delta": {"content": "ok"}}]}));
    assert_eq!(of(&[null, DONE.to_owned()]).failure, None);
    // Counts after the error are read.
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n".to_owned();
    let whole = of(&[format!("data: {error}\n\n"), usage, DONE.to_owned()]);
    assert_eq!((whole.failure.as_deref(), whole.counts), (Some("upstream_error"), (7, 1)));
}

#[test]
fn counts_are_found_wherever_they_are() {
    for counted in [
        json!({"choices": [{"delta": {}, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}]}),
        json!({"choices": [{"delta": {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}}]}),
        json!({"x_host": {"usage": {"input_tokens": "7", "output_tokens": 2.0}}}),
        json!({"metadata": {"response": {"token_usage": {"prompt_tokens": 7, "completion_tokens": 2}}}}),
        json!({"usage": [{"prompt_tokens": 1}], "usage_info": {"prompt_tokens": 7, "completion_tokens": 2}}),
        json!({"prompt_eval_count": 7, "eval_count": 2}),
        json!({"usage": {"promptTokens": 7, "completionTokens": 2}}),
        json!({"inputTokens": 7, "outputTokens": 2}),
        json!({"Usage": {"tokens": {"input_tokens": 7, "output_tokens": 2}, "billed_units": {"input_tokens": 5}}}),
        json!({"meta": {"billed_units": {"input_tokens": 7, "output_tokens": 2}}}),
        json!({"amazon-bedrock-invocationMetrics": {"inputTokenCount": 7, "outputTokenCount": 2}}),
    ] {
        let event = format!("data: {counted}\n\n");
        let whole = of(&[chunk(json!({"content": "ok"})), event, finish("stop")]);
        assert_eq!((whole.counts, whole.failure), ((7, 2), None), "{counted}");
    }
    // Counts in text that the model writes are not read.
    let text = json!({"content": [{"type": "text", "text": "ok", "usage": {"prompt_tokens": 9}}]});
    assert_eq!(of(&[chunk(text), finish("stop")]).counts, (0, 0));
}

#[test]
fn what_cannot_be_read_is_a_failure_unless_the_answer_has_ended() {
    let text = || chunk(json!({"content": "ok"}));
    for garbage in ["data: {\n\n", "data: {\"choices\":[{\"delta\":{\"content\":\"x}\n\n"] {
        let before = of(&[text(), garbage.to_owned(), finish("stop"), DONE.to_owned()]);
        assert_eq!(before.failure.as_deref(), Some("bad_stream"), "{garbage}");
        let after = of(&[text(), finish("stop"), garbage.to_owned(), DONE.to_owned()]);
        assert_eq!((after.failure, after.text.as_str()), (None, "ok"), "{garbage}");
    }
    for aside in ["data: ping\n\n", "data: <html>\n\n", "ping\n\n"] {
        let whole = of(&[text(), aside.to_owned(), finish("stop"), DONE.to_owned()]);
        assert_eq!((whole.failure, whole.text.as_str()), (None, "ok"), "{aside}");
        assert!(whole.deviations.has(Deviation::NotJson), "{aside}");
    }
    assert_eq!(read(b"<html>\n<body>busy</body>\n").failure.as_deref(), Some("bad_stream"));
    assert_eq!(read(b"").failure.as_deref(), Some("upstream_cut"));
}

#[test]
fn content_has_many_shapes() {
    let said = |delta: Value| {
        let whole = of(&[chunk(delta), DONE.to_owned()]);
        (whole.text, whole.reasoning)
    };
    let text = |text: &str| (text.to_owned(), String::new());
    for delta in [
        json!({"content": "Hi"}),
        json!({"content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}),
        json!({"content": {"type": "text", "text": "Hi"}}),
        json!({"content": [{"type": "output_text", "text": {"value": "Hi", "annotations": []}}]}),
        json!({"content": ["H", "i"]}),
        json!({"content": null, "refusal": "Hi"}),
        json!({"text": "Hi"}),
        json!("Hi"),
        json!({"content": [{"type": "image_url"}, {"type": "text", "text": "Hi"}]}),
    ] {
        assert_eq!(said(delta.clone()), text("Hi"), "{delta}");
    }
    let thought = ("Hi".to_owned(), "hm".to_owned());
    for delta in [
        json!({"content": "Hi", "reasoning_content": "hm"}),
        json!({"content": "Hi", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
        json!({"content": "Hi", "reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]}),
        json!({"content": "Hi", "reasoning": {"content": "hm"}}),
        json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Hi"}]}),
        json!({"content": [{"type": "reasoning", "reasoning": "hm"}, "Hi"]}),
    ] {
        assert_eq!(said(delta.clone()), thought, "{delta}");
    }
    for nothing in [
        json!({"content": 7}),
        json!({"content": true}),
        json!({"content": [{"type": "image_url", "image_url": {}}]}),
        json!({}),
    ] {
        let whole = of(&[chunk(nothing.clone()), finish("stop"), DONE.to_owned()]);
        assert_eq!(whole.failure.as_deref(), Some("empty_answer"), "{nothing}");
    }
}

#[test]
fn a_whole_message_is_said_once() {
    let body = json!({
        "model": "m", "object": "chat.completion", "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        "choices": [{"message": {"role": "assistant", "content": "Hi", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "tide", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}],
    });
    for text in [body.to_string(), format!("{body:#}"), format!("data: {body}\n\n")] {
        let whole = read(text.as_bytes());
        assert_eq!(
            (whole.text.as_str(), &whole.calls[..], whole.counts),
            ("Hi", &["tide {}".to_owned()][..], (1, 2)),
            "{text}"
        );
        assert_eq!(whole.failure, None);
    }
    // Some endpoints end their streams like this.
    let repeated = |content: &str| {
        let last =
            json!({"choices": [{"delta": {}, "message": {"content": content}, "finish_reason": "stop"}]});
        of(&[chunk(json!({"content": "H"})), chunk(json!({"content": "i"})), format!("data: {last}\n\n")])
    };
    assert_eq!(repeated("Hi").text, "Hi");
    assert_eq!(repeated("Hi!").text, "Hi!");
    let other = repeated("Other");
    assert!(other.text == "Hi" && other.deviations.has(Deviation::Message), "{other:?}");
}

#[test]
fn the_first_choice_is_the_answer() {
    let both = json!({"choices": [
        {"index": 0, "delta": {"content": "one"}}, {"index": 1, "delta": {"content": "two"}}]});
    let second = json!({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]});
    let whole = of(&[format!("data: {both}\n\ndata: {second}\n\n"), finish("stop")]);
    assert_eq!((whole.text.as_str(), whole.finish), ("one", Some(Finish::Stop)));
    assert!(whole.deviations.has(Deviation::OtherChoice));
}

#[test]
fn what_comes_after_a_call_is_shown_after_it() {
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "tide", "arguments": "{\"a\":1}"}}]});
    let bytes = [chunk(call), chunk(json!({"content": "then"})), finish("tool_calls")].concat();
    let (mut known, tools) = (HashSet::new(), Vec::new());
    let mut reader = Reader::new(Interface::default(), 0, &mut known, &tools, false);
    let kinds = reader.push(bytes.as_bytes()).into_iter().map(|part| match part {
        Part::Text(text) | Part::Reasoning(text) => text,
        Part::Call(_, arguments) => arguments,
    });
    let kinds: Vec<String> = kinds.collect();
    assert_eq!(kinds.concat(), "{\"a\":1}then");
}
