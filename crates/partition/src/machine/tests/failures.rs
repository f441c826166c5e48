//! Failing messages and rejected chunks.

use super::*;

#[test]
fn contradicting_finals_fail_the_message() {
    assert_eq!(run("0a 5f! 6g ok"), "a | - | given-up commit(dead:final_conflict/2 @3) | final_conflict");
    assert_eq!(run("7h 5f! ok"), "- | given-up commit(dead:final_conflict/1 @2) | final_conflict");
    assert_eq!(run("0a 5f! 3d! ok"), "a | - | given-up commit(dead:final_conflict/2 @3) | final_conflict");
}

#[test]
fn an_error_chunk_ends_the_message_as_failed_in_its_turn() {
    assert_eq!(
        run("0a 2no-model? 1b ok 3d"),
        "a | - | given-up b commit(dead:producer_error/3 @3) | producer_error | -"
    );
}

#[test]
fn a_gap_fails_after_its_time_whatever_comes_later() {
    assert_eq!(
        run("0a 2c +10s 3d +10s 4e +9s +1s ok"),
        "a | - | - | - | - | - | - | given-up commit(dead:gap_timeout/4 @4) | gap_timeout"
    );
}

#[test]
fn a_gap_fails_whether_or_not_the_final_is_known() {
    let mut script = ChunkScript::new();
    assert_eq!(script.run("1b! +31s"), "- | given-up commit(dead:gap_timeout/1 @1)");
    let DeadLetterSource::Message { failure, .. } = &script.last_commit().dead_letters[0].source else {
        panic!()
    };
    assert_eq!(failure, &MessageFailure::GapTimeout { missing: vec![IdRange { first: 0, last: 0 }] });
}

#[test]
fn no_gap_fails_while_the_missing_chunk_may_stand_unread() {
    assert_eq!(
        run("0a 2c behind +100s +100s 1b!"),
        "a | - | - | - | - | given-up commit(dead:final_conflict/2 @3)",
        "1 as final contradicts 2, which shows that it was still open"
    );
}

#[test]
fn silence_fails_as_stalled_at_a_sweep() {
    assert_eq!(run("0a +290s +9s +30s ok"), "a | - | - | given-up commit(dead:stalled/1 @1) | stalled");
}

#[test]
fn repeated_chunks_keep_no_message_open() {
    let mut script = ChunkScript::new();
    assert_eq!(
        script.run("0a +200s 0a +50s 0a 0x +49s 0a +1s"),
        "a | - | - | - | - | conflict | - | - | given-up commit(dead:stalled/1 @5)"
    );
}

#[test]
fn what_is_missing_is_reported_with_a_message_that_is_given_up() {
    let state = |words: &str| {
        let mut script = ChunkScript::new();
        script.run(words);
        script.reports.pop().map(|report| match report {
            MachineReport::GivenUp { buffer, .. } => buffer,
            other => panic!("{other:?}"),
        })
    };
    let stalled = state("0a 1b +330s").unwrap();
    assert_eq!((stalled.expected, stalled.received, stalled.released), (2, 2, 2));
    assert_eq!(stalled.missing, []);
    let gap = state("0a 2c 5f 6g +31s").unwrap();
    assert_eq!((gap.expected, gap.received, gap.released), (1, 4, 1));
    assert_eq!(gap.missing, [IdRange { first: 1, last: 1 }, IdRange { first: 3, last: 4 }]);
}

#[test]
fn accepted_chunk_repeated_as_final_fails_message() {
    assert_eq!(
        run("0a 1b 2c 3d 2c! ok"),
        "a | b | c | d | given-up commit(dead:final_conflict/4 @5) | final_conflict"
    );
    assert_eq!(run("0a 0a! ok"), "a | given-up commit(dead:final_conflict/1 @2) | final_conflict");
}

#[test]
fn rejected_entries_become_dead_letters_and_reading_goes_on() {
    assert_eq!(run("garbage 0a! ok ok"), r#"commit(dead:malformed @1) | a | commit("a" @2) | complete"#);
}

#[test]
fn more_refused_entries_than_the_store_takes_are_not_read() {
    let limits = PartitionLimits { refused_bytes: 600, ..PartitionLimits::default() };
    let mut script = ChunkScript::with(limits, takeover());
    script.run("garbage");
    assert!(script.machine.wants_entries(), "its commit is under way");
    script.run("garbage garbage");
    assert!(script.machine.wants_entries());
    script.run("garbage");
    assert!(!script.machine.wants_entries(), "three wait");
    script.run("ok");
    assert!(script.machine.wants_entries(), "they are in the next commit");
}

#[test]
fn message_of_unknown_thread_fails_without_auto_create() {
    let mut script = ChunkScript::new();
    script.auto_found = false;
    assert_eq!(
        script.run("0a nothread ok"),
        "look-up(1) | given-up commit(dead:unknown_thread/1 @1) | unknown_thread"
    );
}

#[test]
fn a_message_that_cannot_be_looked_up_fails() {
    let mut script = ChunkScript::new();
    script.auto_found = false;
    assert_eq!(
        script.run("0a refused ok"),
        "look-up(1) | given-up commit(dead:rejected_by_database/1 @1) | rejected_by_database"
    );
}

#[test]
fn a_restored_gap_keeps_its_age() {
    let mut script = ChunkScript::with(super::saving::soon(), takeover());
    script.run("0a 2c +20s x:0!");
    let spilled_messages = script.saves[0].messages.clone();
    let mut second = ChunkScript::with(
        PartitionLimits::default(),
        Takeover { checkpoint: Seq(2), spilled_messages, ..takeover() },
    );
    assert_eq!(second.run("+9s +1s"), "- | given-up commit(dead:gap_timeout/2 @2)");
}

#[test]
fn too_many_chunks_or_bytes_fail_the_message() {
    let limits = PartitionLimits { chunks_per_message: 2, message_bytes: 3, ..PartitionLimits::default() };
    let run = |script: &str| ChunkScript::with(limits, takeover()).run(script);
    assert_eq!(run("0a 1b 1b 2c"), "a | b | - | given-up commit(dead:too_many_chunks/2 @4)");
    assert_eq!(run("0aa 1bb"), "aa | given-up commit(dead:message_too_large/1 @2)");
}
