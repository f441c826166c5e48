use serde_json::json;

use super::*;

/// Each item is a list of pieces. Returns the shown `id/name+arguments`, and the calls.
fn assembled_with(lists: &[Value], known: &[&str], tools: &[&str]) -> (Vec<String>, Vec<String>) {
    let mut known = known.iter().map(ToString::to_string).collect();
    let tools: Vec<String> = tools.iter().map(ToString::to_string).collect();
    let mut calls = Calls::new(2, &mut known, &tools);
    let mut deviations = Deviations::default();
    let mut shown = Vec::new();
    for list in lists {
        let pieces = match list {
            Value::Array(list) => list.iter().filter_map(CallDelta::of).collect(),
            one => CallDelta::of(one).into_iter().collect(),
        };
        shown.extend(calls.add(pieces, &mut deviations));
    }
    let (rest, calls) = calls.finish(false, &mut deviations);
    shown.extend(rest);
    let shown = shown.into_iter().map(|(name, text)| format!("{}/{}+{text}", name.id, name.tool)).collect();
    let calls = calls.unwrap();
    (shown, calls.iter().map(|c| format!("{}/{}{}", c.name.id, c.name.tool, c.arguments)).collect())
}

fn assembled(lists: &[Value]) -> Vec<String> {
    assembled_with(lists, &[], &[]).1
}

fn piece(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}})
}

fn without_index(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "function": {"name": name, "arguments": arguments}})
}

#[test]
fn pieces_go_by_index_even_when_calls_are_interleaved() {
    let (shown, calls) = assembled_with(
        &[
            json!({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}),
            json!({"index": 0, "function": {"arguments": "{\"x\""}}),
            json!({"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}}),
            json!({"index": 0, "function": {"arguments": ":1}"}}),
            json!({"index": 1, "function": {"arguments": "}"}}),
            json!({"index": 1, "function": {"arguments": null}}),
        ],
        &[],
        &[],
    );
    assert_eq!(shown, ["a/f+{\"x\"", "b/g+{", "a/f+:1}", "b/g+}"]);
    assert_eq!(calls, ["a/f{\"x\":1}", "b/g{}"]);
}

#[test]
fn calls_without_a_sure_id_and_index_stay_apart() {
    let cases: Vec<(&str, Vec<Value>, &[&str])> = vec![
        (
            "each has index 0 and an id",
            vec![piece(0, "a", "f", "{}"), piece(0, "b", "f", "{}")],
            &["a/f{}", "b/f{}"],
        ),
        (
            "neither id nor index",
            vec![without_index("", "f", "{\"x\":1}"), without_index("", "f", "{\"x\":1}")],
            &["call_2_0/f{\"x\":1}", "call_2_1/f{\"x\":1}"],
        ),
        (
            "index 0 and an empty id",
            vec![piece(0, "", "f", "{\"x\":1}"), piece(0, "", "g", "{}"), piece(0, "", "g", "{\"y\":2}")],
            &["call_2_0/f{\"x\":1}", "call_2_1/g{\"y\":2}"],
        ),
        (
            "the same id for two calls",
            vec![
                piece(0, "a", "f", "{\"x\":1}"),
                piece(1, "a", "g", "{\"y\":1}"),
                piece(2, "a", "g", "{\"y\":2}"),
            ],
            &["a/f{\"x\":1}", "call_2_1/g{\"y\":1}", "call_2_2/g{\"y\":2}"],
        ),
        (
            "a list without index",
            vec![
                json!([without_index("", "f", "{\"x\""), without_index("", "f", "{\"y\"")]),
                json!([without_index("", "", ":1}"), without_index("", "", ":2}")]),
            ],
            &["call_2_0/f{\"x\":1}", "call_2_1/f{\"y\":2}"],
        ),
        (
            "a list with one index",
            vec![json!([piece(0, "", "f", "{\"x\":1}"), piece(0, "", "f", "{\"x\":1}")])],
            &["call_2_0/f{\"x\":1}", "call_2_1/f{\"x\":1}"],
        ),
        (
            "by id alone",
            vec![
                without_index("a", "f", "{"),
                without_index("b", "g", "{"),
                without_index("a", "", "\"x\":1}"),
                without_index("b", "", "}"),
            ],
            &["a/f{\"x\":1}", "b/g{}"],
        ),
        (
            "a tail under the index of a whole call",
            vec![piece(0, "a", "f", "{\"x\":1}"), piece(1, "b", "g", "{\"y\":"), piece(0, "", "", "2}")],
            &["a/f{\"x\":1}", "b/g{\"y\":2}"],
        ),
        (
            "calls of one tool that begin before their arguments",
            vec![
                piece(0, "a", "f", ""),
                piece(1, "b", "f", ""),
                piece(0, "", "", "{\"x\":1}"),
                piece(1, "", "", "{\"x\":2}"),
            ],
            &["a/f{\"x\":1}", "b/f{\"x\":2}"],
        ),
        (
            "one id for two calls, which go on by index",
            vec![
                piece(0, "x", "f", ""),
                piece(1, "x", "g", ""),
                piece(0, "x", "", "{\"x\":"),
                piece(1, "x", "", "{\"y\":"),
                piece(0, "x", "", "1}"),
                piece(1, "x", "", "2}"),
            ],
            &["x/f{\"x\":1}", "call_2_1/g{\"y\":2}"],
        ),
        (
            "one id for two calls of a tool, one after the other",
            vec![
                piece(0, "x", "f", ""),
                piece(0, "", "", "{\"x\":1}"),
                piece(1, "x", "f", ""),
                piece(1, "", "", "{\"x\":2}"),
            ],
            &["x/f{\"x\":1}", "call_2_1/f{\"x\":2}"],
        ),
        (
            "one id for two calls of a tool, together",
            vec![
                piece(0, "x", "f", ""),
                piece(1, "x", "f", ""),
                piece(0, "x", "", "{\"x\":"),
                piece(1, "x", "", "{\"x\":"),
                piece(0, "", "", "1}"),
                piece(1, "", "", "2}"),
            ],
            &["x/f{\"x\":1}", "call_2_1/f{\"x\":2}"],
        ),
        (
            "one id and one index in a list",
            vec![json!([piece(0, "a", "f", "{\"x\":1}"), piece(0, "a", "f", "{\"x\":2}")])],
            &["a/f{\"x\":1}", "call_2_1/f{\"x\":2}"],
        ),
    ];
    for (what, lists, calls) in cases {
        assert_eq!(assembled(&lists), calls, "{what}");
    }
}

#[test]
fn one_call_stays_one_however_its_pieces_are_called() {
    let cases: Vec<(&str, Vec<Value>)> = vec![
        ("new ids", vec![piece(0, "a", "f", ""), piece(0, "b", "", "{\"x\""), piece(0, "c", "", ":1}")]),
        (
            "new ids, with the name",
            vec![piece(0, "a", "f", ""), piece(0, "b", "f", "{\"x\""), piece(0, "c", "f", ":1}")],
        ),
        ("new indexes", vec![piece(0, "a", "f", "{\"x\""), piece(1, "", "", ":"), piece(2, "", "", "1}")]),
        (
            "new indexes, with the name",
            vec![piece(0, "a", "f", "{\"x\""), piece(1, "", "f", ":1"), piece(2, "", "f", "}")],
        ),
        (
            "new ids and indexes",
            vec![piece(0, "a", "f", "{\"x\""), piece(1, "b", "", ":"), piece(2, "c", "", "1}")],
        ),
        ("new ids, no index", vec![without_index("a", "f", "{\"x\""), without_index("b", "f", ":1}")]),
        ("whole, twice", vec![piece(0, "a", "f", "{\"x\":1}"), piece(0, "a", "f", "{\"x\":1}")]),
        (
            "whole, twice, without an id",
            vec![piece(0, "a", "f", "{\"x\":1}"), piece(0, "", "f", "{\"x\": 1}")],
        ),
        ("whole, under new indexes", vec![piece(0, "a", "f", "{\"x\":1}"), piece(1, "a", "f", "{\"x\":1}")]),
        (
            "growing",
            vec![piece(0, "a", "f", "{\"x"), piece(0, "a", "f", "{\"x\":"), piece(1, "a", "f", "{\"x\":1}")],
        ),
        (
            "growing objects",
            vec![
                piece(0, "a", "f", "{}"),
                piece(0, "a", "f", "{\"x\":1}"),
                piece(0, "a", "f", "{ \"x\": 1 }"),
            ],
        ),
        (
            "a placeholder",
            vec![piece(0, "a", "f", "{}"), piece(0, "", "", "{\"x\""), piece(0, "", "", ":1}")],
        ),
        ("growing numbers", vec![piece(0, "a", "f", "{\"x\":10}"), piece(0, "a", "f", "{\"x\":1}")]),
        (
            "growing lists and objects, without an id",
            vec![piece(0, "a", "f", "{}"), piece(0, "", "f", "{\"x\":null}"), piece(0, "", "f", "{\"x\":1}")],
        ),
        (
            "a blank piece with the name and a new id",
            vec![piece(0, "a", "f", "{\"x\""), piece(0, "b", "f", ""), piece(0, "b", "f", ":1}")],
        ),
        (
            "announced under several indexes",
            vec![piece(0, "a", "f", ""), piece(1, "a", "f", ""), piece(2, "a", "f", "{\"x\":1}")],
        ),
        (
            "announced once more after its arguments",
            vec![piece(0, "a", "f", "{\"x\":1}"), piece(1, "a", "f", ""), piece(2, "a", "f", "")],
        ),
        ("a late name", vec![piece(0, "a", "", "{\"x\":"), piece(0, "", "f", "1}")]),
        (
            "an object",
            vec![json!({"index": "0", "id": "a", "function": {"name": "f", "arguments": {"x": 1}}})],
        ),
        ("a flat object", vec![json!({"index": 0.0, "id": "a", "name": "f", "input": {"x": 1}})]),
    ];
    for (what, lists) in cases {
        assert_eq!(assembled(&lists), ["a/f{\"x\":1}"], "{what}");
    }
}

#[test]
fn names_come_in_pieces_or_whole() {
    let of = |pieces: Vec<Value>, tools: &[&str]| assembled_with(&pieces, &[], tools).1;
    let halves = || vec![piece(0, "a", "find", ""), piece(0, "", "_boat", "{}")];
    assert_eq!(of(halves(), &[]), ["a/find_boat{}"]);
    assert_eq!(of(halves(), &["find", "find_boat"]), ["a/find_boat{}"]);
    let grown = vec![piece(0, "a", "find", ""), piece(0, "", "find_boat", "{}")];
    assert_eq!(of(grown, &["find_boat"]), ["a/find_boat{}"]);
    let two = || vec![piece(0, "", "tide", ""), piece(0, "", "find", "{}")];
    assert_eq!(of(two(), &["tide", "find"]), ["call_2_0/tide{}", "call_2_1/find{}"]);
    let bare = vec![without_index("", "tide", ""), without_index("", "find", "{}")];
    assert_eq!(of(bare, &["tide", "find"]), ["call_2_0/tide{}", "call_2_1/find{}"]);
}

#[test]
fn an_id_that_the_turn_has_already_is_replaced() {
    let of = |id: &str, known: &[&str]| assembled_with(&[piece(0, id, "f", "{}")], known, &[]).1;
    assert_eq!(of("call_0", &["call_0"]), ["call_2_0/f{}"]);
    assert_eq!(of("call_0", &["call_0", "call_2_0"]), ["call_2_0_0/f{}"]);
    for unfit in ["x".repeat(129), "a\0b".to_owned()] {
        assert_eq!(of(&unfit, &[]), ["call_2_0/f{}"]);
    }
}

#[test]
fn a_call_without_a_name_is_no_call() {
    let (mut known, mut deviations) = (HashSet::new(), Deviations::default());
    let mut calls = Calls::new(0, &mut known, &[]);
    let nameless = CallDelta::of(&json!({"index": 0, "function": {"arguments": "{}"}})).unwrap();
    assert_eq!(calls.add(vec![nameless], &mut deviations), []);
    assert_eq!(calls.finish(false, &mut deviations).1.unwrap_err().code, "bad_stream");
    for nothing in [json!({}), json!(7), json!("x"), json!(null)] {
        assert_eq!(CallDelta::of(&nothing), None, "{nothing}");
    }
}

#[test]
fn calls_are_bounded() {
    let (mut known, mut deviations) = (HashSet::new(), Deviations::default());
    let mut calls = Calls::new(0, &mut known, &[]);
    for index in 0..=MOST_CALLS as u64 {
        calls.add(
            vec![CallDelta { index: Some(index), name: "f".to_owned(), ..CallDelta::default() }],
            &mut deviations,
        );
    }
    assert!(calls.finish(false, &mut deviations).1.unwrap_err().text.contains("more than 1024"));
}
