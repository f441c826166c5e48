//! Replies to gateways: one consistent cut of a thread.

use super::*;

fn id(text: &str) -> MessageId {
    MessageId::parse(text).unwrap()
}

fn thread(text: &str) -> ThreadId {
    ThreadId::parse(text).unwrap()
}

fn gateway() -> GatewayId {
    GatewayId::parse("g1").unwrap()
}

fn has(message: &MessageId, attempt: u32, next: u32) -> KnownMessage {
    KnownMessage { message: message.clone(), attempt, next, has_input: false }
}

/// A request for all of the thread `t`.
fn anything() -> SnapshotRequest {
    SnapshotRequest {
        token: 7,
        gateway: gateway(),
        thread: thread("t"),
        known: Vec::new(),
        max_messages: 64,
        max_bytes: 1 << 20,
    }
}

fn answer(script: &mut ChunkScript, ask: SnapshotRequest) -> SnapshotReply {
    let mut actions = script.machine.handle(Input::Snapshot(ask), script.now);
    assert_eq!(actions.len(), 1, "{actions:?}");
    match actions.pop() {
        Some(Action::Snapshot(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

fn committed(script: &mut ChunkScript) -> Position {
    answer(script, anything()).cut.committed
}

/// The text of each open message: `a:xy`.
fn texts(answer: &SnapshotReply) -> String {
    let text = |open: &PartialText| {
        let text: String = open.chunks.iter().map(|chunk| &*chunk.text).collect();
        format!("{}:{text}", open.message)
    };
    answer.open.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[test]
fn snapshot_lists_known_then_oldest_and_marks_left_out() {
    let mut script = ChunkScript::new();
    script.run("a:0x b:0y c:0z d:0w");
    let mut ask = |known: &[&str], max_messages: usize| {
        let known = known.iter().map(|name| has(&id(name), 0, 0)).collect();
        let answer = answer(&mut script, SnapshotRequest { known, max_messages, ..anything() });
        (texts(&answer), answer.left_out)
    };
    assert_eq!(ask(&[], 4), ("a:x b:y c:z d:w".into(), false));
    assert_eq!(ask(&[], 3), ("a:x b:y c:z".into(), true));
    assert_eq!(ask(&["d"], 2), ("d:w a:x".into(), true));
    assert_eq!(ask(&["d"], 3), ("d:w a:x b:y".into(), true));
    assert_eq!(ask(&["d"], 4), ("d:w a:x b:y c:z".into(), false));
    assert_eq!(ask(&["c", "d"], 1), ("c:z d:w".into(), true), "all that it has, however few it wants");
    assert_eq!(ask(&["a", "b", "c", "d"], 1), ("a:x b:y c:z d:w".into(), false));
    assert_eq!(ask(&["gone", "d"], 2), ("d:w a:x".into(), true), "a message that is not open takes no place");
    assert_eq!(ask(&[], 0), (String::new(), true));
}

#[test]
fn full_snapshot_says_more_and_continues_by_page() {
    let mut script = ChunkScript::new();
    script.run("a:0x a:1y b:0z");
    let mut known: Vec<KnownMessage> = Vec::new();
    let mut pages = Vec::new();
    loop {
        let answer =
            answer(&mut script, SnapshotRequest { known: known.clone(), max_bytes: 1, ..anything() });
        // Every message is named with its next chunk, even if its text does not fit.
        let next: Vec<u32> = answer.open.iter().map(|open| open.next).collect();
        assert_eq!((answer.open.len(), next, answer.left_out), (2, vec![2, 1], false));
        pages.push(texts(&answer));
        let seen = |open: &PartialText| {
            let before =
                known.iter().find(|known| known.message == open.message).map_or(0, |known| known.next);
            has(&open.message, open.attempt, before + open.chunks.len() as u32)
        };
        known = answer.open.iter().map(seen).collect();
        if !answer.more {
            break;
        }
    }
    assert_eq!(pages, ["a:x b:", "a:y b:", "a: b:z"]);
}

#[test]
fn message_not_looked_up_is_shown_only_when_known() {
    let mut script = ChunkScript::new();
    script.auto_found = false;
    script.run("a:0x");
    let nothing = answer(&mut script, anything());
    assert_eq!((nothing.open.len(), nothing.left_out), (0, false));
    let known = answer(&mut script, SnapshotRequest { known: vec![has(&id("a"), 0, 1)], ..anything() });
    assert_eq!(texts(&known), "a:", "so that it is not taken for lost, and is not shown");
}

#[test]
fn committed_position_excludes_commit_in_flight() {
    let mut script = ChunkScript::new();
    let before = committed(&mut script);
    script.run("a:0x!");
    let first = script.last_commit().messages[0].placement.position;
    assert!(committed(&mut script) < first && committed(&mut script) >= before, "the store has not answered");
    script.run("b:0y!");
    assert!(committed(&mut script) < first);
    // The end is sent with the commit that follows, which contains the next message.
    assert_eq!(script.run("ok"), r#"complete commit(b:"y" @2)"#);
    let second = script.last_commit().messages[0].placement.position;
    let between = committed(&mut script);
    assert!(first <= between && between < second, "{first} {between} {second}");
    script.run("ok");
    assert!(committed(&mut script) >= second);
    // Later positions are above the mark, even in the same millisecond.
    let now = committed(&mut script);
    script.run("c:0z!");
    assert!(script.last_commit().messages[0].placement.position > now);
    assert_eq!(committed(&mut script), now);
}

#[test]
fn a_failure_is_committed_in_its_place_like_a_message() {
    let mut script = ChunkScript::new();
    script.run("a:0x a:1y?");
    let failed = script.last_commit().failed_messages.clone();
    assert_eq!(failed.len(), 1);
    assert!(committed(&mut script) < failed[0].position);
    script.run("ok");
    assert!(committed(&mut script) >= failed[0].position);
}

#[test]
fn new_owner_reports_positions_of_earlier_owners_committed() {
    let mut script = ChunkScript::new();
    script.run("0a! ok");
    let first = script.last_commit().clone();
    let takeover =
        Takeover { checkpoint: Seq(1), position_high_water: first.position_high_water, ..takeover() };
    let mut second = ChunkScript::with(PartitionLimits::default(), takeover);
    assert!(committed(&mut second) >= first.messages[0].placement.position);
}

#[test]
fn snapshot_is_current_when_caught_up_and_nothing_waits() {
    let mut script = ChunkScript::new();
    let is_current = |script: &mut ChunkScript| answer(script, anything()).cut.is_current;
    assert!(is_current(&mut script));
    script.run("behind");
    assert!(!is_current(&mut script));
    script.handle(Input::CaughtUp(true));
    assert!(is_current(&mut script));
    script.room = 0;
    assert_eq!(script.run("a:0x"), "deferring(1)");
    assert!(!is_current(&mut script), "what waits in the stream may be what the gateway has");
    let mut fresh = ChunkScript::new();
    fresh.machine = Partition::new(takeover(), PartitionLimits::default(), 7, fresh.now);
    assert!(!is_current(&mut fresh), "nothing has been read yet");
}

/// Frame numbers in the machine's actions.
fn frames(actions: &[Action]) -> Vec<FrameNumber> {
    let number = |action: &Action| match action {
        Action::Publish(release) => Some(release.frame),
        Action::End(ending) => Some(ending.frame),
        _ => None,
    };
    actions.iter().filter_map(number).collect()
}

#[test]
fn frames_are_numbered_and_cut_names_the_last() {
    let limits = PartitionLimits { frame_bytes: 1, ..PartitionLimits::default() };
    let mut script = ChunkScript::with(limits, takeover());
    let mut all = Vec::new();
    let mut step = |script: &mut ChunkScript, input: Input| {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let actions = script.machine.handle(input, script.now);
            all.extend(frames(&actions));
            inputs.extend(actions.into_iter().filter_map(|action| match action {
                Action::Lookup(keys) => {
                    Some(Input::Found(keys.into_iter().map(|key| (key, Lookup::Absent)).collect()))
                }
                _ => None,
            }));
        }
    };
    let entry = |seq: u64, word: &str| Input::Entries {
        entries: vec![StreamEntry { seq: Seq(seq), stored_at: Timestamp(0), bytes: 1, body: body(word) }],
        room: 9,
    };
    for (seq, word) in [(1, "a:1y"), (2, "a:0x"), (3, "b:0z"), (4, "a:2w!")] {
        step(&mut script, entry(seq, word));
    }
    step(&mut script, Input::Committed(Vec::new()));
    // Two chunks that do not fit into one frame; then the others, and the end.
    let expected = (1..=5).map(|number| FrameNumber { epoch: 1, number, after: number - 1 });
    assert_eq!(all, expected.collect::<Vec<_>>());
    let cut = answer(&mut script, anything()).cut;
    assert_eq!((cut.epoch, cut.number), (1, 5));
    let mut sent = |epoch: u64, number: u64| {
        let ask = ChangedThreadsQuery { token: 3, gateway: gateway(), unfollowed: Vec::new(), epoch, number };
        match script.machine.handle(Input::ChangedThreads(ask), script.now).as_slice() {
            [Action::ChangedThreads(sent)] => sent.clone(),
            other => panic!("{other:?}"),
        }
    };
    let all = vec![(thread("t"), 5)];
    assert_eq!(
        sent(1, 4),
        ChangedThreads { token: 3, epoch: 1, number: 5, threads: all.clone(), is_complete: true }
    );
    assert_eq!(sent(1, 5).threads, []);
    assert_eq!(sent(0, 9).threads, all, "another epoch's numbers say nothing");
    assert_eq!(sent(u64::MAX, 9).threads, all, "there is no such epoch");
    // A gateway that knows a later owner ignores replies of this one.
    let ask =
        ChangedThreadsQuery { token: 3, gateway: gateway(), unfollowed: Vec::new(), epoch: 2, number: 0 };
    let actions = script.machine.handle(Input::ChangedThreads(ask), script.now);
    assert_eq!(actions, [Action::CheckLease(2)]);
}

#[test]
fn a_gateway_follows_what_it_was_shown() {
    let mut script = ChunkScript::new();
    let of = |script: &ChunkScript, name: &str| script.machine.followers(&thread(name)).to_vec();
    assert_eq!(of(&script, "t"), []);
    let ask = |script: &mut ChunkScript, unfollowed: Vec<ThreadId>| {
        let ask = ChangedThreadsQuery { token: 3, gateway: gateway(), unfollowed, epoch: 1, number: 0 };
        match script.machine.handle(Input::ChangedThreads(ask), script.now).as_slice() {
            [Action::ChangedThreads(sent)] => sent.is_complete,
            other => panic!("{other:?}"),
        }
    };
    assert!(
        !ask(&mut script, Vec::new()),
        "the gateway may follow threads of which this owner does not know"
    );
    assert!(ask(&mut script, Vec::new()));
    answer(&mut script, anything());
    assert_eq!((of(&script, "t"), of(&script, "u")), (vec![gateway()], Vec::new()));
    assert!(ask(&mut script, vec![thread("t")]));
    assert_eq!(of(&script, "t"), []);
    answer(&mut script, anything());
    script.now = script.now.plus_ms(crate::FOLLOWER_EXPIRY_MS);
    script.machine.handle(Input::Tick, script.now);
    assert_eq!(of(&script, "t"), [], "a gateway that asks no more");
    assert!(!ask(&mut script, Vec::new()));
}

#[test]
fn restored_message_is_published_before_it_is_shown() {
    let mut script = ChunkScript::with(super::saving::soon(), takeover());
    script.run("0a 2c x:0!");
    let spilled_messages = script.saves[0].messages.clone();
    let takeover = Takeover { epoch: 2, checkpoint: Seq(2), spilled_messages, ..takeover() };
    let mut machine = Partition::new(takeover, PartitionLimits::default(), 7, script.now);
    let actions = machine.handle(Input::Snapshot(anything()), script.now);
    let [Action::Publish(release), Action::Snapshot(answer)] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert_eq!((release.frame.epoch, release.frame.number), (2, 1));
    assert_eq!((answer.cut.epoch, answer.cut.number, texts(answer).as_str()), (2, 1, "a:a"));
}

#[test]
fn every_published_end_has_a_row() {
    let mut script = ChunkScript::new();
    script.run("a:0x! ok b:0y b:1no? ok c:1z +31s");
    let actions = script.machine.handle(Input::Committed(Vec::new()), script.now);
    let gap = actions.iter().find_map(|action| match action {
        Action::End(ending) => Some(ending.clone()),
        _ => None,
    });
    let gap = gap.expect("an end");
    let failed: Vec<_> = script.commits.iter().flat_map(|commit| commit.failed_messages.clone()).collect();
    let codes: Vec<_> =
        failed.iter().map(|failed| (failed.key.message.as_str(), failed.failure.code())).collect();
    assert_eq!(codes, [("b", "producer_error"), ("c", "gap_timeout")]);
    let row = &failed[1];
    assert_eq!((&row.key, row.position, row.attempt), (&gap.key, gap.position, gap.attempt));
    assert_eq!((row.role, row.batch_type), (gap.role, gap.batch_type));
    assert_eq!(gap.outcome, MessageOutcome::Failed(row.failure.clone()));
    let messages = script.commits.iter().flat_map(|commit| &commit.messages);
    let places: Vec<_> = messages.map(|message| message.placement.position).collect();
    assert!(places[0] < failed[0].position && failed[0].position < row.position, "one order for both");
}
