use serde_json::json;

use super::*;
use crate::testing::{batch, item, items, position, with_metadata};

fn state(script: &str) -> String {
    match batch(script).state() {
        BatchState::Complete => "complete".to_owned(),
        BatchState::Incomplete(why) => why.code().to_owned(),
    }
}

#[test]
fn batches_are_grouped_by_id_and_not_by_neighbourhood() {
    let batches = group(items("1.0u@10 2.0u@20 1.1a@21 2.1a@22"));
    let ids: Vec<(Position, usize)> = batches.iter().map(|batch| (batch.id(), batch.items().len())).collect();
    assert_eq!(ids, [(position(10), 2), (position(20), 2)]);
    assert!(batches.iter().all(|batch| batch.state() == BatchState::Complete));
    let twice = group(items("1.1a 1.0u 1.0u"));
    assert_eq!(twice[0].items().iter().map(|item| item.sequence_num).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn complete_is_balanced_and_ends_in_a_text() {
    for complete in [
        "1.0u 1.1a",
        "1.0u 1.1A:c 1.2t:c 1.3a",
        "1.0u 1.1A:a,b 1.2t:b 1.3t:a 1.4a",
        "1.0u 1.1A:c 1.2t:c 1.3A:c 1.4t:c 1.5a",
        "1.0u 1.1a 1.2A:c 1.3t:c 1.4a",
        "1.0u 1.1A:c 1.2a 1.3t:c 1.4a",
        "1.0s 1.1u 1.2a",
        "1.0u 1.1a 1.2u 1.3a",
        "1.0u 1.1u 1.2a",
    ] {
        assert_eq!(state(complete), "complete", "{complete}");
    }
    for (incomplete, why) in [
        ("1.0u", "lone_input"),
        ("1.0s 1.1u", "lone_input"),
        ("1.0u 1.1A:c", "unanswered_calls"),
        ("1.0u 1.1A:a,b 1.2t:b 1.3a", "unanswered_calls"),
        ("1.0u 1.1A:c 1.2t:c", "ends_in_result"),
        ("1.0u 1.1A:c 1.2a 1.3t:c", "ends_in_result"),
        ("1.0u 1.1a 1.2A:c", "late_call"),
        ("1.0u 1.1a 1.2A:c 1.3t:c", "ends_in_result"),
        ("1.0u 1.1t:c 1.2a", "orphan_result"),
        ("1.0u 1.1A:c 1.2t:c 1.3t:c 1.4a", "orphan_result"),
        ("1.0u 1.2a", "hole"),
        ("1.1a", "hole"),
        ("1.0u@10 1.1a@11 1.1a@12", "doubled"),
        ("1.0a", "no_input"),
        ("1.0u 1.1a 1.2u", "ends_in_input"),
    ] {
        assert_eq!(state(incomplete), why, "{incomplete}");
    }
}

#[test]
fn the_reason_names_what_is_missing() {
    let why = |script: &str| match batch(script).state() {
        BatchState::Incomplete(why) => why,
        BatchState::Complete => panic!("{script} is complete"),
    };
    assert_eq!(
        why("1.0u 1.1A:a,b,c 1.2t:b"),
        IncompleteReason::UnansweredCalls { ids: vec!["a".to_owned(), "c".to_owned()] }
    );
    assert_eq!(why("1.0u 1.1a 1.2A:x"), IncompleteReason::LateCall { ids: vec!["x".to_owned()] });
    assert_eq!(why("1.0u 1.1t:x"), IncompleteReason::OrphanResult { id: "x".to_owned() });
    assert_eq!(why("1.0u 1.1a 1.3a"), IncompleteReason::Hole { missing: 2 });
    assert_eq!(why("1.0u 1.1A:a,b").to_string(), "calls have no results: a, b");
}

#[test]
fn a_marked_end_goes_on() {
    let end = |metadata| {
        let answer = with_metadata(item("1.1a"), metadata);
        group([item("1.0u"), answer]).remove(0).state()
    };
    assert_eq!(end(json!({"continuation": true})), BatchState::Incomplete(IncompleteReason::Continues));
    assert_eq!(end(json!({"continuation": "true"})), BatchState::Complete);
    // The messages of the continuation follow with the next numbers.
    let answer = with_metadata(item("1.1a"), json!({"continuation": true}));
    let beat = with_metadata(item("1.2u"), json!({"continues": "10"}));
    assert_eq!(group([item("1.0u"), answer, beat, item("1.3a")]).remove(0).state(), BatchState::Complete);
}

#[test]
fn the_system_may_speak_unasked() {
    let mut alone = item("1.0a");
    alone.batch_type = BatchType::SystemTrigger;
    assert_eq!(group([alone.clone()]).remove(0).state(), BatchState::Complete);
    alone.tool_calls = Some(json!([{"id": "a", "result": "A"}]));
    assert_eq!(group([alone.clone()]).remove(0).state(), BatchState::Complete);
    alone.tool_calls = Some(json!([{"id": "a", "result": "A"}, {"id": "b"}]));
    let why = IncompleteReason::UnansweredCalls { ids: vec!["b".to_owned()] };
    assert_eq!(group([alone]).remove(0).state(), BatchState::Incomplete(why));
}

#[test]
fn nested_batches_are_complete_on_their_own() {
    let child = with_metadata(item("2.0u"), json!({"parent_batch": "10"}));
    let batches = group([item("1.0u"), child, item("2.1a")]);
    assert_eq!((batches[1].parent(), batches[1].state()), (Some(position(10)), BatchState::Complete));
    assert_eq!(
        (batches[0].parent(), batches[0].state()),
        (None, BatchState::Incomplete(IncompleteReason::LoneInput))
    );
    for wrong in [json!(10), json!("x"), json!("-1"), json!("20")] {
        let child = with_metadata(item("2.0u"), json!({ "parent_batch": wrong }));
        assert_eq!(group([child])[0].parent(), None);
    }
}

#[test]
fn without_progress_for_its_timeout_it_is_abandoned() {
    let open = batch("1.0u 1.1A:c");
    let last = open.last_at();
    assert_eq!(last, Timestamp(11_000));
    assert_eq!(open.abandoned_since(last.plus_ms(4_999), 5_000), None);
    assert_eq!(open.abandoned_since(last.plus_ms(9_000), 5_000), Some(last.plus_ms(5_000)));
    let own = group([item("1.0u"), with_metadata(item("1.1A:c"), json!({"timeout_ms": 7_000}))]);
    assert_eq!(own[0].abandoned_since(last.plus_ms(9_000), 5_000), Some(last.plus_ms(7_000)));
    for never in ["1.0u 1.1a", "1.0u 1.2a"] {
        assert_eq!(batch(never).abandoned_since(Timestamp(i64::MAX), 1), None, "{never}");
    }
}

#[test]
fn calls_are_shown_with_their_results() {
    let shown = batch("1.0u 1.1A:a,b 1.2t:b");
    let exchanges = shown.exchanges();
    let of = |id: &str, result| Exchange {
        id: id.to_owned(),
        name: format!("tool_{id}"),
        call_at: position(11),
        is_answered: Option::is_some(&result),
        result,
    };
    assert_eq!(exchanges, [of("a", None), of("b", Some((position(12), "text 1.2")))]);
}

#[test]
fn a_header_says_what_a_batch_is_worth() {
    let header = |metadata| {
        let input = with_metadata(item("1.0u"), metadata);
        BatchHeader::of(&group([input, item("1.1a")]).remove(0), &crate::EstimatingCounter)
    };
    let plain = header(json!({}));
    assert_eq!((plain.messages, plain.is_complete, plain.importance, plain.is_pinned), (2, true, 0.6, false));
    // Two messages of eight bytes: three tokens each, plus four per message.
    assert_eq!(plain.tokens, 14);
    assert_eq!(header(json!({"importance": 0.25, "pinned": true})).importance, 0.25);
    assert!(header(json!({"pinned": true})).is_pinned);
    assert_eq!(header(json!({"importance": 7})).importance, 0.6, "not from 0 to 1: it claims nothing");
    assert_eq!(header(json!({"synthetic": true})).importance, 0.1);
}

#[test]
fn a_note_is_whole_by_itself() {
    let note = |script: &str, batch_type| {
        let mut items = items(script);
        items[0] = with_metadata(items[0].clone(), json!({"note": true, "author": "ann"}));
        items.iter_mut().for_each(|item| item.batch_type = batch_type);
        group(items)[0].state() == BatchState::Complete
    };
    assert!(note("1.0s", BatchType::SystemTrigger));
    assert!(note("1.0u", BatchType::SystemTrigger));
    assert!(!note("1.0s 1.1u", BatchType::SystemTrigger), "a batch of its own");
    assert!(!note("1.0u", BatchType::UserRequest), "an input is no note, whatever it says");
}
