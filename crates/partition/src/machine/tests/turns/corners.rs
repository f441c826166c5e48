//! Cases that no scenario reaches: unexpected ends, clocks of a reader that is behind, state left
//! by another owner.

use super::*;

fn failed(actions: &[String]) -> bool {
    actions.iter().any(|action| action.starts_with("end x run 0 deadline"))
}

#[test]
fn deadline_waits_until_stream_after_request_is_read() {
    let mut script = TurnScript::new();
    script.handle(Input::CaughtUp(false));
    assert_eq!(script.open("x"), ["start x run 0"]);
    // A backlog of 300 s that contains nothing of the answer.
    for _ in 0..300 {
        script.now = script.now.plus_ms(1_000);
        script.entry(EntryBody::Refused {
            subject: "s".into(),
            payload: "?".into(),
            refusal: RejectedEntry { code: "malformed", detail: String::new() },
            answer: None,
        });
        assert!(!failed(&script.handle(Input::Tick)));
    }
    script.handle(Input::CaughtUp(true));
    assert!(!failed(&script.later(119_000)));
    assert!(failed(&script.later(1_000)));
}

/// This can happen after a pause of the process: the request is confirmed before the reader notices
/// that there is more to read.
#[test]
fn stream_time_before_a_request_does_not_count_for_its_deadline() {
    let mut script = TurnScript::new();
    script.auto = false;
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    let key = script.checks.pop().unwrap();
    assert_eq!(script.handle(Input::Checked(vec![(key, CommandVerdict::New)])), ["start x run 0"]);
    let (start, started) = (script.last_start(), Started::Requested(script.rules));
    script.handle(Input::Started { turn: start.turn, run: start.run, started });
    script.auto = true;
    script.handle(Input::CaughtUp(false));
    // A backlog of 100 s is read at once.
    let begins_at = script.now;
    for second in 1..=100 {
        script.now = begins_at.plus_ms(second * 1_000);
        let body = EntryBody::Refused {
            subject: "s".into(),
            payload: "?".into(),
            refusal: RejectedEntry { code: "malformed", detail: String::new() },
            answer: None,
        };
        script.seq += 1;
        let entry = StreamEntry { seq: Seq(script.seq), stored_at: script.now, bytes: 1, body };
        script.now = begins_at.plus_ms(second * 10);
        script.handle(Input::Entries { entries: vec![entry], room: 1_000 });
    }
    script.handle(Input::CaughtUp(true));
    // Then nothing is read for a long time, which does not count.
    assert!(!failed(&script.later(30_000)));
    script.handle(Input::CaughtUp(false));
    assert!(!failed(&script.later(200_000)));
    script.handle(Input::CaughtUp(true));
    assert!(!failed(&script.later(80_000)));
    assert!(failed(&script.later(9_500)));
}

/// The reader was set back while the chunk waited behind the message that rolls its turn back. The
/// chunk is read again, and so it waits twice.
#[test]
fn a_late_chunk_that_was_read_twice_is_held() {
    let mut script = TurnScript::new();
    script.task("t1");
    assert_eq!(script.last_start().thread, agent().thread());
    script.auto = false;
    // The end of the run has to wait for the commit after this one.
    script.task("t2");
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    let Command::Turn(mut message) = opened("y", 0, BusyPolicy::Rollback) else { return };
    message.thread = agent().thread();
    message.turn = TurnId::foreground(&message.thread, "y").unwrap();
    script.command(Command::Turn(message));
    let bare = IncomingChunk {
        message: MessageId::parse("m").unwrap(),
        attempt: 0,
        step: 0,
        role: Role::Assistant,
        chunk: chunk(0, "bare", false),
    };
    let frame = Frame { thread: thread("u"), chunks: vec![bare], token: None };
    script.seq += 1;
    let entry =
        StreamEntry { seq: Seq(script.seq), stored_at: script.now, bytes: 1, body: EntryBody::Frame(frame) };
    script.handle(Input::Entries { entries: vec![entry.clone()], room: 0 });
    assert!(script.machine.is_deferring());
    script.say(0, &["hello"]);
    let late = script.log.last().unwrap().clone();
    script.handle(Input::Room);
    script.handle(Input::Entries { entries: vec![entry, late.clone()], room: 1_000 });
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    assert!(script.machine.reading.holds.contains(&(late.seq, crate::reading::NO_SLOT)));
}

/// The store went back in time: it knows neither run.
#[test]
fn an_earlier_run_does_not_replace_a_later_one() {
    let mut script = TurnScript::new();
    assert_eq!(script.command(opened("x", 2, BusyPolicy::Enqueue)), ["start x run 2"]);
    assert_eq!(script.command(opened("x", 1, BusyPolicy::Enqueue)), Vec::<String>::new());
    let ended = script.later(120_000);
    assert!(ended.iter().any(|action| action.starts_with("end x run 2 deadline")), "{ended:?}");
}

#[test]
fn no_deadline_is_judged_while_the_reader_is_behind() {
    let mut script = TurnScript::new();
    assert_eq!(script.open("x"), ["start x run 0"]);
    script.handle(Input::CaughtUp(false));
    for _ in 0..200 {
        script.now = script.now.plus_ms(1_000);
        script.entry(EntryBody::Refused {
            subject: "s".into(),
            payload: "?".into(),
            refusal: RejectedEntry { code: "malformed", detail: String::new() },
            answer: None,
        });
        assert!(!failed(&script.handle(Input::Tick)), "its answer may stand behind what has been read");
    }
    script.handle(Input::CaughtUp(true));
    assert!(failed(&script.handle(Input::Tick)));
}

#[test]
fn an_edit_is_stored_before_its_task_begins() {
    let mut script = TurnScript::new();
    script.command(control("pause", ControlKind::Pause));
    script.task("t1");
    let position = script.last_commit().tasks[0].queued.position;
    script.auto = false;
    let what = |content: &str| ControlKind::EditTask {
        task: TaskId::parse("t1").unwrap(),
        edit: TaskEdit { content: Some(content.to_owned()), metadata: None },
    };
    let judge = |script: &mut TurnScript, verdict| {
        let key = script.checks.pop().unwrap();
        script.handle(Input::Checked(vec![(key, verdict)]))
    };
    script.command(control("edit", what("something else")));
    judge(&mut script, CommandVerdict::Task { position, is_failed: false });
    script.command(control("resume", ControlKind::Resume));
    assert!(judge(&mut script, CommandVerdict::New).is_empty(), "the edit is not stored yet");
    assert_eq!(script.handle(Input::Committed(Vec::new())), ["start task run 0"]);
    assert_eq!(script.last_start().content, "something else");
}

#[test]
fn nothing_waits_for_a_backoff_that_was_cleared() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.say(0, &["error:{}"]);
    assert_eq!(script.machine.stats(script.now).backing_off, 1);
    let actions = script.command(control("clear", ControlKind::ClearBackoff));
    assert_eq!(actions, ["start task run 1"]);
    assert_eq!(script.machine.stats(script.now).backing_off, 0);
}

#[test]
fn request_stored_after_turn_end_is_withdrawn() {
    let mut script = TurnScript::new();
    script.auto = false;
    let new = |script: &mut TurnScript| {
        let key = script.checks.pop().unwrap();
        script.handle(Input::Checked(vec![(key, CommandVerdict::New)]))
    };
    let started = |name: &str| Input::Started {
        turn: turn(name),
        run: 0,
        started: Started::Requested(TurnRules::default()),
    };
    script.open("x");
    assert_eq!(new(&mut script), ["start x run 0"]);
    // The turn is stopped before the driver reports that the request is stored.
    script.command(control("s1", ControlKind::StopTurn(turn("x"))));
    new(&mut script);
    script.handle(started("x"));
    assert_eq!(script.handle(Input::Committed(Vec::new())), ["abandon x run 0", "end x run 0 stopped"]);
    assert_eq!(script.handle(started("x")), ["abandon x run 0"], "its turn is forgotten");
}

#[test]
fn stopped_turn_has_no_continuation() {
    // The answer is complete, but its turn has to wait for the thread under this owner.
    let beats = |command: Option<Command>| {
        let saved = ["x", "y"].map(|name| match opened(name, 0, BusyPolicy::Enqueue) {
            Command::Turn(opened) => OpenTurn { opened: *opened, seq: Seq(0), age_ms: 0 },
            other => panic!("{other:?}"),
        });
        let mut script = TurnScript::new();
        script.open("w");
        let takeover = Takeover { open_turns: saved.to_vec(), ..bare() };
        script.machine = Partition::new(takeover, quiet(), 9, T0);
        let start = |name: &str| Start { turn: turn(name), ..script.starts[0].clone() };
        let token = |name: &str| key().token(&thread("t"), &turn(name), 0);
        let [x, y] = ["x", "y"].map(|name| Start { token: token(name), ..start(name) });
        script.say_as(&x, 0, 0, &["one"]);
        script.say_as(&y, 0, 0, &["more:two!"]);
        command.map(|command| script.command(command));
        script.handle(Input::CaughtUp(true));
        script.say_as(&x, 0, 1, &["three!"]);
        script.commits.iter().map(|commit| commit.opened.len()).sum::<usize>()
    };
    assert_eq!(beats(None), 1);
    assert_eq!(beats(Some(control("stop", ControlKind::StopTurn(turn("y"))))), 0);
}

#[test]
fn what_cannot_succeed_is_not_offered_for_a_retry() {
    let retryable = |hint: &str| {
        let mut script = TurnScript::new();
        script.open("x");
        script.say(0, &[&format!("error:{hint}")]);
        script.last_commit().failed_turns[0].is_retryable
    };
    assert!(!retryable(r#"{"retryable":false}"#));
    assert!(retryable(r#"{"class":"auth"}"#));
    assert!(retryable("{}"));
}

fn saved(message: MessageId, thread: ThreadId, idle_ms: i64) -> SpilledMessage {
    SpilledMessage {
        key: MessageKey { thread, message },
        attempt: 0,
        first_chunk: 0,
        role: Role::Assistant,
        first_seq: Seq(1),
        open_ms: idle_ms,
        gap_ms: None,
        idle_ms,
        chunks: vec![chunk(0, "one", false)],
        earlier_calls: Vec::new(),
    }
}

#[test]
fn what_was_saved_of_an_answer_without_a_turn_goes() {
    let orphan = saved(turn("gone").answer(0), thread("t"), 0);
    let limits = PartitionLimits { checkpoint_ms: 1_000, ..quiet() };
    let mut script = TurnScript::with(limits, Takeover { spilled_messages: vec![orphan.clone()], ..bare() });
    assert_eq!(script.machine.stats(script.now).open, 0);
    script.task("t1");
    assert_eq!(script.last_commit().ended_spills, [orphan.key]);
    script.task("t2");
    assert!(script.last_commit().ended_spills.is_empty(), "once");
}

#[test]
fn the_silence_of_a_message_goes_on_under_another_owner() {
    let actions_after = |idle_ms: i64| {
        let message = MessageId::parse("m").unwrap();
        let takeover = Takeover { spilled_messages: vec![saved(message, thread("t"), idle_ms)], ..bare() };
        let mut script = TurnScript::with(quiet(), takeover);
        script.auto = false;
        script.later(31_000)
    };
    assert_eq!(actions_after(290_000), ["given up"]);
    assert!(actions_after(200_000).is_empty());
}
