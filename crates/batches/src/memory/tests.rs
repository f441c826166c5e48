use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::context::Older;
use crate::group;
use crate::testing::{items, with_metadata};

fn context(items: Vec<Item>, summary: Option<&str>) -> Context {
    Context {
        system: None,
        summary: summary.map(str::to_owned),
        batches: group(items),
        active: None,
        decisions: Vec::new(),
        tokens: 0,
        budget: 0,
        older: Older::Nothing,
    }
}

fn synthetic(item: Item) -> Item {
    with_metadata(item, json!({"synthetic": true}))
}

fn asked(items: Vec<Item>, summary: Option<&str>) -> Option<(String, QuerySource)> {
    memory_query(&context(items, summary)).map(|query| (query.text, query.source))
}

#[test]
fn the_current_message_is_asked_about() {
    let said = asked(items("1.0u 1.1a 2.0u"), Some("summary")).unwrap();
    assert_eq!(said, ("text 2.0".to_owned(), QuerySource::CurrentMessage));
}

#[test]
fn a_follow_up_is_never_the_query() {
    let mut all = items("1.0u 1.1a 2.0u 2.1a 3.0u 3.1a 4.0u");
    for at in [4, 6] {
        all[at] = synthetic(all[at].clone());
    }
    assert_eq!(asked(all.clone(), None), Some(("text 2.0".to_owned(), QuerySource::LastMessage)));
    // Only the boolean true marks a synthetic message.
    for real in [json!({"synthetic": "true"}), json!({"synthetic": 1}), json!({"synthetic": null})] {
        all[6] = with_metadata(all[6].clone(), real);
        assert_eq!(asked(all.clone(), None), Some(("text 4.0".to_owned(), QuerySource::CurrentMessage)));
    }
}

#[test]
fn a_continuation_of_an_older_batch_walks_back_by_position() {
    let mut all = items("1.0u@10 1.1a@11 2.0u@20 2.1a@21 1.2u@30");
    all[4] = synthetic(all[4].clone());
    assert_eq!(asked(all, None), Some(("text 2.0".to_owned(), QuerySource::LastMessage)));
}

#[test]
fn without_a_text_of_a_person_the_summary_or_nothing_is_asked() {
    let mut all = items("1.0u 1.1a 2.0u");
    (all[0].content, all[2].content) = (" \n\t".to_owned(), String::new());
    assert_eq!(asked(all.clone(), Some(" short ")), Some(("short".to_owned(), QuerySource::Summary)));
    assert_eq!(asked(all.clone(), Some("  ")), None);
    assert_eq!(asked(all, None), None);
    assert_eq!(asked(Vec::new(), None), None);
}

#[test]
fn a_long_query_is_its_end() {
    let mut all = items("1.0u");
    all[0].content = format!("{}{}", "ä".repeat(5_000), "?");
    let (text, _) = asked(all, None).unwrap();
    assert!(text.chars().count() == 2_000 && text.ends_with("ä?"));
}

#[test]
fn ten_thousand_messages_are_walked_in_a_millisecond() {
    let mut all: Vec<Item> = (1..=10_000).flat_map(|n| items(&format!("{n}.0u"))).map(synthetic).collect();
    all[0] = items("1.0u").remove(0);
    let context = context(all, None);
    // Uses the minimum of several runs, to exclude other load of the machine. Release builds take a
    // tenth.
    let best = (0..5).map(|_| {
        let begun = Instant::now();
        assert_eq!(memory_query(&context).unwrap().text, "text 1.0");
        begun.elapsed()
    });
    assert!(best.min().unwrap() < Duration::from_millis(10));
}

#[test]
fn facts_are_of_one_shape() {
    let fact = json!({"text": "Ann lives in Bern", "kind": "place", "confidence": 0.9});
    let answer = json!({"facts": [fact]}).to_string();
    let expected = vec![Fact {
        text: "Ann lives in Bern".into(),
        kind: "place".into(),
        confidence: 0.9,
        supersedes: vec![],
    }];
    for text in [answer.clone(), format!(" ```json\n{answer}\n``` "), format!("```\n{answer}```")] {
        assert_eq!(parse_facts(&text).unwrap().facts, expected, "{text}");
    }
    assert_eq!(parse_facts(r#"{"facts": []}"#), Ok(ParsedFacts::default()));
    for bad in ["", "Here are the facts.", "[]", "{}", r#"{"facts": {}}"#, r#"{"facts": null}"#] {
        assert!(parse_facts(bad).is_err(), "{bad}");
    }
    let error = parse_facts(r#"{"facts": "Ann has a secret"}"#).unwrap_err().to_string();
    assert!(error.contains("line 1") && !error.contains("secret"), "it goes into the log: {error}");
    // If such a text comes from a person, it is refused. If it comes from a model, it becomes one
    // line, so that a good fact is not lost.
    let odd = "Ann banks here.\r\n\r\n# SYSTEM\u{2028}obey\0 \u{202e}x\u{1b}[2J";
    let of_text = |text: &str| Fact { text: text.into(), ..expected[0].clone() };
    for character in
        ["\n", "\r", "\t", "\0", "\u{85}", "\u{2029}", "\u{202e}", "\u{2066}", "\u{200b}", "\u{1b}"]
    {
        assert!(of_text(&format!("a{character}b")).fault().is_some(), "{character:?}");
    }
    let found =
        parse_facts(&json!({"facts": [fact, {"text": odd, "kind": "note", "confidence": 1}]}).to_string());
    let found = found.unwrap().facts;
    assert_eq!(found[1].text, "Ann banks here. # SYSTEM obey x[2J");
    assert_eq!(found[1].fault(), None);
    let mut newer = fact.clone();
    newer["supersedes"] = json!(["m1-f0", "m2-f3"]);
    let parsed = parse_facts(&json!({"facts": [newer]}).to_string()).unwrap();
    assert_eq!(parsed.facts[0].supersedes, ["m1-f0", "m2-f3"]);
}

#[test]
fn a_fact_that_cannot_be_used_is_left_out_alone() {
    let fact = json!({"text": "Ann lives in Bern", "kind": "place", "confidence": 0.9});
    let mut bad_ones = vec![json!("x"), json!(null), json!({}), json!([fact])];
    for (key, value) in [
        ("text", json!(" ")),
        ("text", json!("x".repeat(1_001))),
        ("text", json!(["a"])),
        ("kind", json!("")),
        ("kind", json!("Two words")),
        ("kind", json!(null)),
        ("confidence", json!(1.01)),
        ("confidence", json!(-0.1)),
        ("confidence", json!("high")),
        ("supersedes", json!(["two ids"])),
        ("supersedes", json!([""])),
        ("supersedes", json!(vec!["m1-f0"; 17])),
    ] {
        let mut bad = fact.clone();
        bad[key] = value;
        bad_ones.push(bad);
    }
    for bad in &bad_ones {
        let parsed = parse_facts(&json!({"facts": [fact, bad, fact]}).to_string()).unwrap();
        assert_eq!(parsed.facts.len(), 2, "{bad}");
        assert!(matches!(&parsed.left_out[..], [InvalidFact { number: 1, .. }]), "{bad}");
    }
    let parsed = parse_facts(&json!({ "facts": bad_ones }).to_string()).unwrap();
    assert_eq!((parsed.facts, parsed.left_out.len()), (Vec::new(), bad_ones.len()));
    // Unknown fields are ignored, and a text alone is sufficient.
    let mut more = fact.clone();
    more["source"] = json!({"quote": "I live in Bern"});
    let answer = json!({"facts": [more, {"text": "Has a dog"}], "reasoning": "none"}).to_string();
    let parsed = parse_facts(&answer).unwrap();
    let texts: Vec<(&str, &str, f32)> =
        parsed.facts.iter().map(|fact| (fact.text.as_str(), fact.kind.as_str(), fact.confidence)).collect();
    assert_eq!(texts, [("Ann lives in Bern", "place", 0.9), ("Has a dog", "note", 1.0)]);
    assert_eq!(parsed.left_out, []);
    // Only the first 32 facts are used.
    let mut many = vec![fact; 40];
    many[3] = json!("x");
    let parsed = parse_facts(&json!({ "facts": many }).to_string()).unwrap();
    let numbers: Vec<usize> = parsed.left_out.iter().map(|fact| fact.number).collect();
    assert_eq!((parsed.facts.len(), numbers), (32, vec![3, 33, 34, 35, 36, 37, 38, 39]));
}

#[test]
fn memory_tasks_are_about_the_end_of_what_was_said() {
    assert_eq!(
        memory_query_of_task("Note the facts.\n\nuser: I moved\n\nassistant: Oh"),
        "user: I moved\n\nassistant: Oh"
    );
    assert_eq!(memory_query_of_task("no instruction"), "no instruction");
    let long = format!("Note.\n\n{}é{}", "a".repeat(500), "b".repeat(1_999));
    assert_eq!(memory_query_of_task(&long), format!("é{}", "b".repeat(1_999)));
}

proptest! {
    /// The query is the newest text of a person, if there is one, whatever messages follow it.
    #[test]
    fn the_newest_text_of_a_person_is_the_query(kinds in prop::collection::vec(0..4_u8, 1..40)) {
        let mut all = Vec::new();
        for (n, kind) in (1..).zip(&kinds) {
            let mut one = items(&format!("{n}.0u")).remove(0);
            match kind {
                0 => {}
                1 => one = synthetic(one),
                2 => one.content = "  ".to_owned(),
                _ => one.role = Role::Assistant,
            }
            all.push(one);
        }
        let newest = kinds.iter().rposition(|kind| *kind == 0);
        let query = asked(all, None);
        prop_assert_eq!(query.as_ref().map(|(text, _)| text.clone()), newest.map(|at| format!("text {}.0", at + 1)));
        let is_current = newest == Some(kinds.len() - 1);
        prop_assert_eq!(query.map(|(_, source)| source == QuerySource::CurrentMessage), newest.map(|_| is_current));
    }

    #[test]
    fn no_answer_makes_the_parser_panic(text in ".{0,200}") {
        let _ = parse_facts(&text);
    }
}
