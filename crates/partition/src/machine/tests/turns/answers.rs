//! Stored messages of an answer with tool calls.

use super::*;

#[test]
fn tool_steps_are_messages_of_the_same_commit() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &["look", "call:c:{}", "result:c:42", "it is 42!"]);
    let wanted = r#"user "ask x", assistant "look", tool "42", assistant "it is 42""#;
    assert_eq!(script.history(), [wanted]);
    let messages = &script.last_commit().turns[0].messages;
    assert_eq!(messages.iter().map(|m| m.placement.sequence_num).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(messages[1].tool_calls, Some(json!([{"id": "c", "name": "f", "arguments": "{}"}])));
    assert_eq!(messages[2].tool_call_id.as_deref(), Some("c"));
    let ids: std::collections::BTreeSet<_> = messages.iter().map(|m| &m.key.message).collect();
    assert_eq!(ids.len(), 4);
}

#[test]
fn of_an_answer_that_ends_too_soon_is_stored_what_came() {
    let stored = |words: &[&str]| {
        let mut script = TurnScript::new();
        script.open("x");
        script.say(0, words);
        let messages = script.last_commit().turns[0].messages.clone();
        assert_eq!(messages.last().unwrap().key.message, turn("x").answer(0), "clients are sent this id");
        let numbers: Vec<_> = messages.iter().map(|it| it.placement.sequence_num).collect();
        assert_eq!(numbers, (0..messages.len() as i32).collect::<Vec<_>>());
        let ids: std::collections::BTreeSet<_> = messages.iter().map(|it| &it.key.message).collect();
        assert_eq!(ids.len(), messages.len());
        let is_missing = messages.last().unwrap().metadata.get("missing") == Some(&json!(true));
        (script.history()[0].clone(), is_missing)
    };
    let history = |rows: &str, is_missing| (format!(r#"user "ask x", {rows}"#), is_missing);
    assert_eq!(
        stored(&["look", "call:c:{}", "result:c:42!"]),
        history(r#"assistant "look", tool "42", assistant """#, true)
    );
    assert_eq!(stored(&["look", "call:c:{}!"]), history(r#"assistant "look", assistant """#, true));
    assert_eq!(
        stored(&["call:c:{}", "call:d:{}", "result:d:42", "so!"]),
        history(r#"assistant "", tool "42", assistant "so""#, false)
    );
    assert_eq!(stored(&["result:c:42", "so!"]), history(r#"tool "42", assistant "so""#, false));
}

#[test]
fn calls_of_one_id_are_stored_as_they_came_and_counted() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(
        0,
        &["call:c:{}", r#"call:c:{"n":1}"#, "call::{}", "result:c:A", "result:c:B", "result::C", "so!"],
    );
    let messages = &script.last_commit().turns[0].messages;
    let call = |id: &str, arguments: &str| json!({"id": id, "name": "f", "arguments": arguments});
    assert_eq!(
        messages[1].tool_calls,
        Some(json!([call("c", "{}"), call("c", r#"{"n":1}"#), call("", "{}")]))
    );
    let results: Vec<_> =
        messages[2..5].iter().map(|it| (it.tool_call_id.as_deref().unwrap(), &*it.content)).collect();
    assert_eq!(results, [("c", "A"), ("c", "B"), ("", "C")]);
    assert_eq!(script.machine.take_counters().ambiguous_calls, 2);
}
