//! Round trips of messages through LangChain's format.

use super::*;
use crate::Item;

fn exported(items: &[Item]) -> Value {
    items.iter().flat_map(langchain).collect()
}

fn imported(list: &Value) -> Vec<Item> {
    let id = ThreadId::parse("t").unwrap();
    assign_positions(&id, lenient(list, ForeignFormat::LangGraph).messages, Timestamp(1_900_000_000_000))
        .items
}

#[test]
fn what_came_from_langchain_goes_back_as_it_came() {
    let list = json!([
        {"type": "system", "data": {"type": "system", "id": "s", "content": "Be brief.", "additional_kwargs": {"cache": true}}},
        {"type": "human", "data": {"type": "human", "id": "h", "name": "ada", "content": [{"type": "text", "text": "What"}, {"type": "image_url", "image_url": {"url": "x"}}],
            "additional_kwargs": {"synthetic": true, "trigger_type": "check_in", "x": {"y": [1]}}}},
        {"type": "ai", "data": {"type": "ai", "id": "a", "content": "", "response_metadata": {"model_name": "m"},
            "usage_metadata": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
            "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"}],
            "invalid_tool_calls": [{"name": "g", "args": "{broken", "id": "d", "error": "key must be a string at line 1 column 2", "type": "invalid_tool_call"}],
            "additional_kwargs": {"refusal": null}}},
        {"type": "tool", "data": {"type": "tool", "id": "t1", "content": "A", "tool_call_id": "c", "name": "f", "status": "success", "artifact": {"n": 1}, "additional_kwargs": {}}},
        {"type": "tool", "data": {"type": "tool", "id": "t2", "content": "no", "tool_call_id": "d", "status": "error", "additional_kwargs": {}}},
        {"type": "ai", "data": {"type": "ai", "id": "b", "content": "So.", "tool_calls": [], "invalid_tool_calls": [], "additional_kwargs": {}}},
    ]);
    let items = imported(&list);
    let mut out = exported(&items);
    for message in out.as_array_mut().unwrap() {
        let own = message["data"]["additional_kwargs"].as_object_mut().unwrap().remove("antiphon").unwrap();
        assert!(own["created_at"].is_i64(), "{own}");
    }
    assert_eq!(out, list);
    // Repeated round trips return what is stored.
    let again = imported(&exported(&items));
    assert_eq!(again, items);
}

#[test]
fn what_langchain_has_no_place_for_comes_back() {
    let list = json!([
        {"role": "user", "id": "u", "content": "Hi", "created_at": 1_750_000_000, "user": "ada"},
        {"role": "assistant", "id": "a", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Hello"}]},
    ]);
    let mut read = lenient(&list, ForeignFormat::OpenAi).messages;
    read[1].token_count = Some(9);
    let items = assign_positions(&ThreadId::parse("t").unwrap(), read, Timestamp(1_900_000_000_000)).items;
    assert_eq!(imported(&exported(&items)), items);
}

#[test]
fn results_beside_their_calls_become_messages() {
    let own = json!([{"role": "assistant", "id": "a", "content": "Done.", "tool_calls": [{"id": "c", "name": "f", "arguments": "", "result": "F"}]}]);
    let items = assign_positions(
        &ThreadId::parse("t").unwrap(),
        lenient(&own, ForeignFormat::OpenAi).messages,
        Timestamp(0),
    )
    .items;
    let out = exported(&items);
    assert_eq!(out[0]["data"]["tool_calls"][0]["args"], json!({}));
    assert_eq!((&out[1]["data"]["content"], &out[1]["data"]["tool_call_id"]), (&json!("F"), &json!("c")));
    assert_eq!(out.as_array().unwrap().len(), 2);
}
