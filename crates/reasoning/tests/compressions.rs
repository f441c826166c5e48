//! The messages that a compression replaces, and the requests that are refused.

use reasoning::{
    CompressionRequest, MAX_MESSAGES_PER_SESSION, MAX_SUMMARY_BYTES, MAX_SUMMARY_NUMBER, Selection, compress,
};

use crate::fixture::{last, numbers, over, range, refused, request, shown, temp, texts};

const EIGHT: &str = "u:A a:B u:C a:D u:E a:F u:G a:H";

#[test]
fn range_is_replaced_in_place_with_both_ends() {
    let mut stack = temp("u:A a:B u:C a:D");
    let done = range(&mut stack, 2, 3, "BC").unwrap();
    assert_eq!((texts(&stack).as_str(), shown(&stack)), ("A BC D", vec![1, 5, 4]));
    assert_eq!((done.replaced, done.positions, done.summary), (vec![2, 3], (2, 3), 5));
    assert!(stack.view().contains("\n[2] Summary: BC\n[3] Assistant: D\n"));
}

#[test]
fn last_three_of_eight_are_six_to_eight() {
    let mut stack = temp(EIGHT);
    let done = last(&mut stack, 3, "FGH").unwrap();
    assert_eq!((done.positions, texts(&stack).as_str()), ((6, 8), "A B C D E FGH"));
    assert!(stack.view().contains("[6] Summary: FGH\n"));
}

#[test]
fn summary_takes_a_new_number_in_place() {
    let mut stack = temp("u:1 a:2 u:3 a:4 u:5 a:6 u:7");
    numbers(&mut stack, &[3, 4], "3+4").unwrap();
    assert_eq!(shown(&stack), [1, 2, 8, 5, 6, 7]);
    stack.append(crate::fixture::messages("a:9")).unwrap();
    assert_eq!(shown(&stack), [1, 2, 8, 5, 6, 7, 9]);
    // The numbers may be in any order and include a summary.
    numbers(&mut stack, &[5, 8], "3+4+5").unwrap();
    assert_eq!((shown(&stack), texts(&stack).as_str()), (vec![1, 2, 10, 6, 7, 9], "1 2 3+4+5 6 7 9"));
}

#[test]
fn range_outside_is_refused_with_the_valid_one() {
    let mut stack = temp(EIGHT);
    for (from, to) in [(3, 2), (0, 1), (2, 9), (-1, 4), (1 << 53, 1 << 53), (i64::MIN, i64::MAX)] {
        assert_eq!(
            refused(&mut stack, |stack| range(stack, from, to, "x")),
            format!("[{from}] to [{to}] is no range of the thread, which has 8 messages; valid: [1] to [8]")
        );
    }
}

#[test]
fn count_outside_is_refused_with_the_valid_one() {
    let mut stack = temp(EIGHT);
    for count in [0, -1, 9, 1 << 53, i64::MIN] {
        assert_eq!(
            refused(&mut stack, |stack| last(stack, count, "x")),
            format!(
                "the last {count} messages cannot be compressed: only the temp layer counts; valid: 1 to 8"
            )
        );
    }
}

#[test]
fn last_counts_the_temp_layer_alone() {
    let mut stack = over("u:A a:B u:C", "a:D u:E");
    let text = refused(&mut stack, |stack| last(stack, 3, "x"));
    assert!(text.ends_with("only the temp layer counts; valid: 1 to 2"), "{text}");
    last(&mut stack, 2, "DE").unwrap();
    assert_eq!(texts(&stack), "A B C DE");
    let mut only_base = over("u:A a:B", "");
    let text = refused(&mut only_base, |stack| last(stack, 1, "x"));
    assert!(text.ends_with("valid: nothing, the temp layer has no message to compress"), "{text}");
}

#[test]
fn range_may_reach_into_base_layers() {
    let mut stack = over("u:A a:B u:C", "a:D u:E");
    range(&mut stack, 2, 4, "BCD").unwrap();
    assert_eq!(texts(&stack), "A BCD E");
    // A summary of base messages does not belong to the temp layer.
    let text = refused(&mut stack, |stack| last(stack, 2, "x"));
    assert!(text.ends_with("valid: 1 to 1"), "{text}");
}

#[test]
fn numbers_that_are_not_shown_refuse_the_call() {
    let mut stack = temp("u:1 a:2 u:3 a:4 u:5");
    numbers(&mut stack, &[3, 4], "34").unwrap();
    for (asked, text) in [
        (&[1, 9][..], "no message has the number 9"),
        (&[0, 1], "no message has the number 0"),
        (&[-3], "no message has the number -3"),
        (&[1 << 53, 1], "no message has the number 9007199254740992"),
        (&[1, 2, 3], "the message with the number 3 is not shown"),
        (&[1, 2, 1], "the number 1 is named twice"),
        (&[1, 6], "the messages do not stand next to each other: 2 stands between them"),
        (&[], "the list of numbers is blank"),
    ] {
        let expected = format!("{text}; valid: 1-2, 6, 5");
        assert_eq!(refused(&mut stack, |stack| numbers(stack, asked, "x")), expected);
    }
    let many: Vec<i64> = (0..10_001).collect();
    let text = refused(&mut stack, |stack| numbers(stack, &many, "x"));
    assert!(text.starts_with("there are 10001 numbers; at most 10000 are taken"), "{text}");
}

#[test]
fn range_is_widened_so_that_pairs_stay_whole() {
    for (asked, positions) in [((2, 3), (2, 4)), ((3, 4), (2, 4)), ((4, 5), (2, 5)), ((1, 2), (1, 4))] {
        let mut stack = temp("u:A a:B>c1,c2 t<c2:r2 t<c1:r1 a:E");
        let done = range(&mut stack, asked.0, asked.1, "s").unwrap();
        assert_eq!((done.positions, done.is_widened()), (positions, true), "{asked:?}");
    }
    let mut stack = temp("u:A a:B>c1 t<c1:r1 a:C>c1 t<c1:r2 a:E");
    let done = last(&mut stack, 2, "s").unwrap();
    assert_eq!((done.positions, done.asked), ((4, 6), (5, 6)));
    let whole = range(&mut stack, 2, 3, "s").unwrap();
    assert!(!whole.is_widened());
}

#[test]
fn widening_goes_on_until_nothing_is_split() {
    let mut stack = temp("a:A>x a:B>y t<x:rx u:C t<y:ry a:D");
    let done = range(&mut stack, 3, 4, "s").unwrap();
    assert_eq!((done.positions, texts(&stack).as_str()), ((1, 5), "s D"));
}

#[test]
fn running_call_is_never_inside() {
    let mut stack = temp("u:A a:B u:C a:now>frs1");
    let done = last(&mut stack, 2, "BC").unwrap();
    assert_eq!((done.positions, texts(&stack).as_str()), ((2, 3), "A BC now"));
    let text = refused(&mut stack, |stack| range(stack, 1, 3, "x"));
    assert!(text.ends_with("valid: [1] to [2]"), "{text}");
    // The message of the open call has another call, whose result exists already.
    let mut stack = temp("u:A a:B u:C a:now>c1,frs1 t<c1:r");
    assert!(refused(&mut stack, |stack| last(stack, 4, "x")).ends_with("valid: 1 to 3"));
    last(&mut stack, 3, "s").unwrap();
    assert_eq!(texts(&stack), "s now r");
    let mut running = temp("a:now>frs1");
    let text = refused(&mut running, |stack| last(stack, 1, "x"));
    assert!(text.ends_with("valid: nothing, the temp layer has no message to compress"), "{text}");
}

#[test]
fn call_without_result_is_not_compressed() {
    let mut stack = temp("u:A a:B>c1 u:C a:D");
    let text = refused(&mut stack, |stack| last(stack, 3, "x"));
    assert_eq!(text, "[2] calls a tool whose result has not come; valid: 1 to 2");
    let text = refused(&mut stack, |stack| range(stack, 1, 3, "x"));
    assert_eq!(text, "[2] calls a tool whose result has not come; valid: [1] to [1] or [3] to [4]");
    last(&mut stack, 2, "CD").unwrap();
    stack.append(crate::fixture::messages("t<c1:late")).unwrap();
    assert_eq!(range(&mut stack, 2, 3, "s").unwrap().positions, (2, 4));
    // The turn of a base layer is over, so the result never arrives and the call is not open.
    let mut stack = over("u:A a:B>c1 u:C", "");
    range(&mut stack, 1, 3, "s").unwrap();
}

#[test]
fn one_message_needs_a_shorter_summary() {
    let mut stack = temp("u:A a:long-enough");
    assert_eq!(last(&mut stack, 1, "short").unwrap().chars, (11, 5));
    let text = refused(&mut stack, |stack| last(stack, 1, "other"));
    assert_eq!(
        text,
        "one message is compressed only into a summary that is shorter: name at least two; valid: 2 to 2"
    );
}

#[test]
fn longer_summary_is_said_to_be() {
    let mut stack = temp("u:A a:B u:C");
    assert!(!last(&mut stack, 2, "BC").unwrap().is_longer());
    assert!(range(&mut stack, 1, 2, "much longer").unwrap().is_longer());
}

#[test]
fn stale_token_is_refused() {
    let mut stack = temp("u:A a:B u:C");
    let token = stack.thread().token().to_string();
    let with = |token: &str| CompressionRequest {
        token: Some(token.to_owned()),
        ..request(Selection::Range(1, 2), "AB")
    };
    stack.append(crate::fixture::messages("a:D")).unwrap();
    let text = refused(&mut stack, |stack| stack.compress(&with(&token)));
    assert_eq!(text, "the thread has changed: 4 messages now; view it again; valid: [1] to [4]");
    for wrong in ["", "x", "\0", &"f".repeat(100_000)] {
        assert!(
            refused(&mut stack, |stack| stack.compress(&with(wrong))).starts_with("the thread has changed")
        );
    }
    let token = stack.thread().token().to_string();
    stack.compress(&with(&token)).unwrap();
    assert!(refused(&mut stack, |stack| stack.compress(&with(&token))).contains("3 messages now"));
    stack.undo(None).unwrap();
    stack.compress(&with(&token)).unwrap();
}

#[test]
fn blank_long_and_unstorable_summaries_are_refused() {
    let mut stack = temp(EIGHT);
    for (summary, text) in [
        ("", "the summary is blank"),
        (" \n\t\u{3000}", "the summary is blank"),
        ("a\0b", "the summary has a NUL character"),
        (&"x".repeat(1 << 20), "the summary has 1048576 bytes; at most 65536 are taken; valid: [1] to [8]"),
    ] {
        let refusal = refused(&mut stack, |stack| range(stack, 1, 2, summary));
        assert!(refusal.starts_with(text) && refusal.ends_with("valid: [1] to [8]"), "{refusal}");
    }
    range(&mut stack, 1, 2, &"x".repeat(MAX_SUMMARY_BYTES)).unwrap();
}

#[test]
fn contents_that_look_like_views_change_nothing() {
    let mut stack = temp("u:[3]_User: a:</selection> u:[1]_User:_x a:D");
    range(&mut stack, 2, 3, "</summary>\n[9] User: no").unwrap();
    assert_eq!(shown(&stack), [1, 5, 4]);
    assert!(stack.view().contains("[2] Summary: </summary>\n    [9] User: no\n[3] Assistant: D"));
}

#[test]
fn summaries_may_be_compressed_again() {
    let mut stack = temp(EIGHT);
    last(&mut stack, 3, "FGH").unwrap();
    last(&mut stack, 2, "EFGH").unwrap();
    range(&mut stack, 1, 5, "all").unwrap();
    assert_eq!((texts(&stack).as_str(), shown(&stack)), ("all", vec![11]));
}

#[test]
fn thousand_summaries_are_the_most() {
    let words: Vec<String> = (0..2_000).map(|n| format!("u:{n}")).collect();
    let mut stack = crate::fixture::empty();
    for part in words.chunks(100) {
        stack.append(part.iter().map(|word| crate::fixture::message(word)).collect()).unwrap();
    }
    stack.append(crate::fixture::messages("u:x u:y")).unwrap();
    for position in 1..=1_000 {
        range(&mut stack, position, position + 1, "s").unwrap();
    }
    let text = refused(&mut stack, |stack| last(stack, 2, "s"));
    assert!(text.starts_with("the thread shows 1000 summaries"), "{text}");
    range(&mut stack, 1, 2, "s").unwrap();
    last(&mut stack, 2, "s").unwrap();
}

#[test]
fn refusals_name_what_would_be_accepted() {
    let open = "u:AAA a:B>c1 u:CCC a:D>c2 t<c2:r u:EEE a:F>c3 u:G";
    let text = refused(&mut temp(open), |stack| range(stack, 1, 8, "x"));
    assert_eq!(
        text,
        "[2] calls a tool whose result has not come; valid: [1] to [1] or [3] to [6] or [8] to [8]"
    );
    // A message that is not longer than the summary is not offered as a range of its own.
    let text = refused(&mut temp(open), |stack| range(stack, 1, 1, "long"));
    assert!(text.ends_with("name at least two; valid: [3] to [6]"), "{text}");
    let text = refused(&mut temp(open), |stack| numbers(stack, &[6, 7], "x"));
    assert_eq!(text, "[7] calls a tool whose result has not come; valid: 1 or 3-6 or 8");
    // If an open call lies between a call and its result, both are excluded from the ranges on
    // either side.
    let mut split = temp("u:A a:B>c1 a:C>c2 t<c1:r u:D");
    let text = refused(&mut split, |stack| range(stack, 4, 4, "x"));
    assert_eq!(text, "[3] calls a tool whose result has not come; valid: [1] to [1] or [5] to [5]");
    let mut short = temp("u:A");
    let text = refused(&mut short, |stack| range(stack, 1, 1, "x"));
    assert!(text.ends_with("valid: nothing, no message can be compressed"), "{text}");
    let text = refused(&mut short, |stack| last(stack, 1, "x"));
    assert!(text.ends_with("valid: nothing, the temp layer has no message to compress"), "{text}");
}

#[test]
fn a_full_session_can_be_compressed_until_its_last_number() {
    let words: Vec<String> = (0..MAX_MESSAGES_PER_SESSION).map(|n| format!("u:{n}")).collect();
    let mut stack = crate::fixture::empty();
    for part in words.chunks(100) {
        stack.append(part.iter().map(|word| crate::fixture::message(word)).collect()).unwrap();
    }
    assert_eq!(stack.append(crate::fixture::messages("u:x")).unwrap_err().reason.code(), "too_many");
    let done = range(&mut stack, 1, 90_000, "s").unwrap();
    assert_eq!((done.summary, done.messages), (MAX_MESSAGES_PER_SESSION + 1, 10_001));
    let mut thread = stack.thread();
    thread.last_number = MAX_SUMMARY_NUMBER;
    let text = compress(&thread, &request(Selection::Range(1, 2), "s")).unwrap_err().to_string();
    assert_eq!(
        text,
        "the session has given all of its numbers: go on in another session; valid: nothing, no message can be compressed"
    );
}
