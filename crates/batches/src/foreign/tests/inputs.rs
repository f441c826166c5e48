//! Inputs in the form that other programs write, with the resulting messages and notes.

use super::*;

/// One line per message, `role text {call(arguments)} @answered call`, and after them the notes.
pub(super) fn rendered(thread: &ForeignThread) -> String {
    let mut lines: Vec<String> = Vec::new();
    for message in &thread.messages {
        let mut line = format!("{} {:?}", message.role.name(), message.content);
        for call in message.tool_calls.iter().filter_map(Value::as_array).flatten() {
            let text = |key: &str| call[key].as_str().unwrap();
            line += &format!(" {}={}({})", text("id"), text("name"), text("arguments"));
        }
        line += &message.tool_call_id.as_ref().map_or(String::new(), |id| format!(" @{id}"));
        if let Some(reasoning) = message.metadata.get("reasoning") {
            line += &format!(" ~{reasoning}");
        }
        lines.push(line);
    }
    lines.extend(thread.notes.iter().map(|note| format!("! {note}")));
    if !thread.left_out.is_empty() {
        lines.push(format!("- {}", thread.left_out));
    }
    lines.join("\n")
}

fn openai(bytes: &[u8]) -> String {
    rendered(&lenient(&parse(bytes).unwrap(), ForeignFormat::OpenAi))
}

fn strict(bytes: &[u8]) -> String {
    match read(&parse(bytes).unwrap(), ForeignFormat::OpenAi, Strictness::Strict) {
        Ok(threads) => rendered(&threads[0]),
        Err(error) => error.to_string(),
    }
}

macro_rules! input {
    ($name:literal) => {
        include_bytes!(concat!("inputs/", $name, ".json")).as_slice()
    };
}

#[test]
fn texts_of_parts_are_read_wherever_they_are() {
    assert_eq!(openai(input!("parts-with-value")), "user \"How far is it?\"\nassistant \"Two miles.\"");
    assert_eq!(openai(input!("refusal")), "user \"How far is it?\"\nassistant \"I may not say.\"");
    assert_eq!(openai(input!("bom")), "user \"How far is it?\"");
}

#[test]
fn unknown_parts_are_named() {
    assert_eq!(
        openai(input!("parts-of-unknown-types")),
        "user \"How far is it?\"\nassistant \"Two miles.\"\n\
         ! message 2: part 1 is of the unknown type \"answer\"; its text was taken from its field \"body\""
    );
    assert_eq!(
        strict(input!("parts-of-unknown-types")),
        "message 2: part 1 is of the unknown type \"answer\""
    );
}

#[test]
fn calls_and_results_among_the_parts_are_calls_and_results() {
    let whole = "user \"How far is it?\"\nassistant \"I look.\" w1=find_boat({\"harbour\":\"Skagen\"})\ntool \"berth 11\" @w1\n\
                 assistant \"At berth 11.\"";
    assert_eq!(openai(input!("calls-and-results-as-parts")), whole);
    assert_eq!(strict(input!("calls-and-results-as-parts")), whole);
    assert_eq!(
        openai(input!("control-calls")),
        "user \"How far is it?\"\nassistant \"\" w1=find_boat({\"harbour\":\"Skagen\",\"berth\":11})\ntool \"berth 11\" @w1\n\
         assistant \"At berth 11.\""
    );
}

#[test]
fn what_cannot_be_stored_is_replaced_and_named() {
    assert_eq!(
        openai(input!("nul-in-one-of-three")),
        "user \"How far is it?\"\nassistant \"Two\u{fffd} miles.\"\nuser \"Thanks.\"\n\
         ! message 2: content holds a NUL character; it was replaced"
    );
    assert_eq!(
        openai(input!("half-an-emoji")),
        "user \"Ahoy \u{fffd}\"\nassistant \"Ahoy.\"\n! message 1: content holds half of a UTF-16 pair; it was replaced"
    );
    assert_eq!(strict(input!("nul-in-one-of-three")), "message 2: content holds a NUL character");
    assert_eq!(strict(input!("half-an-emoji")), "message 1: content holds half of a UTF-16 pair");
    let number = br#"[{"role": "user", "content": "a", "score": NaN, "metadata": {"x": [1e999]}}, {"role": "assistant", "content": "b"}]"#;
    assert_eq!(
        openai(number),
        "user \"a\"\nassistant \"b\"\n! message 1: metadata.x[0] holds a number that is not finite (2 in the message); it was replaced"
    );
    let calls = br#"[{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"id": "c\u0000", "function": {"name": "f", "arguments": "{\"a\": \"\ud83d\"}"}}]}, {"role": "tool", "tool_call_id": "c\u0000", "content": "\udea4"}]"#;
    assert_eq!(
        openai(calls),
        "user \"a\"\nassistant \"\" c\u{fffd}=f({\"a\": \"\u{fffd}\"})\ntool \"\u{fffd}\" @c\u{fffd}\n\
         ! message 2: tool_calls[0].function.arguments holds half of a UTF-16 pair; it was replaced\n\
         ! message 2: tool_calls[0].id holds a NUL character; it was replaced\n\
         ! message 3: content holds half of a UTF-16 pair; it was replaced\n\
         ! message 3: tool_call_id holds a NUL character; it was replaced"
    );
}

#[test]
fn lists_without_messages_have_none() {
    for input in [input!("empty-list"), input!("empty-messages")] {
        assert_eq!(openai(input), "");
    }
}
