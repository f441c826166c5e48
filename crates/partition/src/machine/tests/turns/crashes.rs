//! State that a new owner restores.

use super::*;

#[test]
fn after_a_crash_the_answer_goes_on_without_a_second_request() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &["Hel"]);
    let log = script.log.clone();
    let start = script.last_start();
    let mut next = TurnScript::with(quiet(), bare());
    next.machine = Partition::new(bare(), quiet(), 9, T0);
    (next.log, next.seq, next.auto) = (log.clone(), 2, false);
    assert!(next.handle(Input::Entries { entries: log, room: 1_000 }).is_empty());
    let keys = std::mem::take(&mut next.checks);
    next.handle(Input::Checked(keys.into_iter().map(|key| (key, CommandVerdict::New)).collect()));
    next.auto = true;
    assert_eq!(next.handle(Input::CaughtUp(true)), ["start x run 0 adopted"]);
    next.say_as(&start, 0, 1, &["lo!"]);
    assert_eq!(next.history(), [r#"user "ask x", assistant "Hello""#]);
}

#[test]
fn silent_turn_is_requested_again_with_higher_attempt() {
    let mut script = TurnScript::new();
    script.task("t1");
    let commit = script.last_commit().clone();
    let queued = commit.tasks[0].queued.clone();
    let saved = SavedAgent {
        agent: agent(),
        head: Position::from_stored(0),
        run: 2,
        failures: 2,
        wait_ms: Some(5_000),
        paused: false,
        tasks: vec![queued],
        more: false,
    };
    let takeover = Takeover { agents: vec![saved], ..next_takeover(&script) };
    let mut next = TurnScript::with(quiet(), takeover);
    assert!(next.starts.is_empty(), "the wait is the stored one");
    assert!(next.later(4_999).is_empty());
    assert_eq!(next.later(1), ["start task run 2"]);
    assert_eq!(next.last_start().attempt, 16);
}

#[test]
fn inputs_that_make_a_replay_long_are_saved_and_restored() {
    let limits = PartitionLimits { replay_entries: 2, checkpoint_ms: 0, ..quiet() };
    let mut script = TurnScript::with(limits, bare());
    script.open("x");
    script.open("y");
    script.command(opened("y", 0, BusyPolicy::Enqueue));
    let saved: Vec<OpenTurn> = script.saves.iter().flat_map(|save| save.turns.clone()).collect();
    assert_eq!(saved.iter().map(|saved| saved.seq.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(script.last_commit().checkpoint, Seq(3));
    let start = script.last_start();
    let takeover = Takeover { open_turns: saved, ..next_takeover(&script) };
    let mut next = TurnScript::with(quiet(), takeover);
    assert_eq!(next.last_start().turn, turn("x"));
    assert_eq!(next.say_as(&start, 0, 0, &["ok!"]), ["end x run 0 complete", "start y run 0"]);
    assert_eq!(next.commits[0].ended_turns, [(thread("t"), turn("x"))]);
}

#[test]
fn a_failure_that_comes_before_the_rules_is_judged_by_them() {
    let mut script = TurnScript::new();
    script.task("t0");
    script.auto = false;
    script.say(0, &["ok!"]);
    script.handle(Input::Committed(Vec::new()));
    script.task("t1");
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    script.handle(Input::Committed(Vec::new()));
    let start = script.last_start();
    let commits = script.commits.len();
    script.say(0, &["error:{}"]);
    assert_eq!(script.commits.len(), commits, "how long to wait is not known yet");
    let rules = TurnRules { backoff_base_ms: 1_000, ..TurnRules::default() };
    script.handle(Input::Started { turn: start.turn, run: 0, started: Started::Requested(rules) });
    let BackoffChange::Start(delay) = script.last_commit().agents[0].wait else { panic!() };
    assert!((1_000..=2_000).contains(&delay), "{delay}");
}

/// An input in another thread, and its command.
fn elsewhere(name: &str) -> (TurnId, ThreadId, Command) {
    let (turn, thread) = (TurnId::foreground(&thread("s"), name).unwrap(), thread("s"));
    let Command::Turn(opened) = opened(name, 0, BusyPolicy::Enqueue) else { panic!() };
    let opened = TurnOpened { turn: turn.clone(), thread: thread.clone(), ..*opened };
    (turn, thread, Command::Turn(Box::new(opened)))
}

fn entry(seq: u64, body: EntryBody) -> StreamEntry {
    StreamEntry { seq: Seq(seq), stored_at: T0, bytes: 1, body }
}

fn command(seq: u64, command: Command) -> StreamEntry {
    entry(seq, EntryBody::Command(command, RawPayload { subject: "s".into(), payload: "p".into() }))
}

fn answer(seq: u64, turn: &TurnId, thread: &ThreadId, word: &str) -> StreamEntry {
    let chunk = chunk(0, word.trim_end_matches('!'), word.ends_with('!'));
    let arrival =
        IncomingChunk { message: turn.answer(0), attempt: 0, step: 0, role: Role::Assistant, chunk };
    let token = Some(key().token(thread, turn, 0));
    entry(seq, EntryBody::Frame(Frame { thread: thread.clone(), chunks: vec![arrival], token }))
}

fn taken_over(takeover: Takeover) -> TurnScript {
    let mut script = TurnScript::new();
    script.machine = Partition::new(takeover, quiet(), 9, T0);
    script
}

#[test]
fn answer_behind_deferred_command_is_not_requested_again() {
    let (turn, thread, opening) = elsewhere("y");
    let entries = [
        command(1, opened("x", 0, BusyPolicy::Enqueue)),
        command(2, opening),
        command(3, opened("z", 0, BusyPolicy::Enqueue)),
        answer(4, &turn, &thread, "Hello!"),
    ];
    let mut script = taken_over(bare());
    script.handle(Input::Entries { entries: entries.to_vec(), room: 1 });
    assert_eq!(script.handle(Input::CaughtUp(true)), ["start x run 0"]);
    script.seq = 4;
    assert_eq!(script.say(0, &["ok!"]), ["end x run 0 complete"]);
    script.handle(Input::Room);
    assert!(script.handle(Input::Entries { entries: entries[1..3].to_vec(), room: 1 }).is_empty());
    assert!(script.machine.is_deferring());
    assert!(script.machine.wants_entries(), "what answers it may be the next entry");
    let actions = script.handle(Input::Entries { entries: entries[3..].to_vec(), room: 0 });
    assert_eq!(actions[0], "start y run 0 adopted");
    assert_eq!(script.history()[1..], [r#"user "ask y", assistant "Hello""#]);
}

#[test]
fn a_stream_that_lost_its_end_is_not_waited_for() {
    let mut script = taken_over(bare());
    let entries =
        [command(1, opened("x", 0, BusyPolicy::Enqueue)), command(2, opened("y", 0, BusyPolicy::Enqueue))];
    script.handle(Input::Entries { entries: entries.to_vec(), room: 0 });
    script.handle(Input::CaughtUp(true));
    script.handle(Input::Room);
    assert!(script.handle(Input::Entries { entries: entries[..1].to_vec(), room: 1 }).is_empty());
    assert_eq!(script.handle(Input::CaughtUp(true)), ["start x run 0"]);
}

#[test]
fn nothing_begins_whose_answer_waits_behind_an_order() {
    let Command::Turn(x) = opened("x", 0, BusyPolicy::Enqueue) else { panic!() };
    let saved = OpenTurn { opened: *x, seq: Seq(0), age_ms: 0 };
    let mut script = taken_over(Takeover { open_turns: vec![saved], ..bare() });
    script.auto = false;
    let read =
        |script: &mut TurnScript, entry| script.handle(Input::Entries { entries: vec![entry], room: 9 });
    read(&mut script, command(1, opened("w", 0, BusyPolicy::Interrupt)));
    script.handle(Input::CaughtUp(true));
    let (_, _, opening) = elsewhere("y");
    read(&mut script, command(2, opening));
    read(&mut script, answer(3, &turn("x"), &thread("t"), "Hello!"));
    let checks = std::mem::take(&mut script.checks);
    let judged = |key: &CommandKey, verdict| Input::Checked(vec![(key.clone(), verdict)]);
    assert!(script.handle(judged(&checks[0], CommandVerdict::Known { digest: 0 })).is_empty());
    let actions = script.handle(judged(&checks[1], CommandVerdict::New));
    assert_eq!(actions, ["start x run 0 adopted", "start y run 0"]);
}

#[test]
fn turn_stopped_before_resuming_is_withdrawn() {
    let Command::Turn(x) = opened("x", 0, BusyPolicy::Enqueue) else { panic!() };
    let saved = OpenTurn { opened: *x, seq: Seq(0), age_ms: 0 };
    let mut script = taken_over(Takeover { open_turns: vec![saved], ..bare() });
    script.seq = 0;
    let actions = script.command(control("stop", ControlKind::StopTurn(turn("x"))));
    assert_eq!(actions, ["abandon x run 0", "end x run 0 stopped"]);
}

#[test]
fn no_time_is_awaited_that_has_passed_while_nothing_may_begin() {
    let commit = {
        let mut script = TurnScript::new();
        script.task("t1");
        script.last_commit().clone()
    };
    let saved = SavedAgent {
        agent: agent(),
        head: Position::from_stored(0),
        run: 1,
        failures: 1,
        wait_ms: Some(100),
        paused: false,
        tasks: vec![commit.tasks[0].queued.clone()],
        more: false,
    };
    let mut script = taken_over(Takeover { agents: vec![saved], ..bare() });
    script.auto = false;
    script.handle(Input::Entries { entries: vec![command(1, opened("w", 0, BusyPolicy::Enqueue))], room: 9 });
    script.handle(Input::CaughtUp(true));
    script.later(5_000);
    assert_eq!(script.machine.poll_timeout(), None, "the store's word is");
}

/// The store went back to before the failure that was retried. This time the run completes while
/// its retry is checked.
#[test]
fn retry_of_run_that_completes_after_all_is_refused() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &["Hel"]);
    script.auto = false;
    script.command(opened("x", 1, BusyPolicy::Enqueue));
    let keys = std::mem::take(&mut script.checks);
    let judged: Vec<_> = keys.into_iter().map(|key| (script.verdict(&key), key)).collect();
    assert_eq!(judged.len(), 1);
    script.say(1, &["lo!"]);
    assert_eq!(script.handle(Input::Committed(Vec::new())), ["end x run 0 complete"]);
    script.auto = true;
    let judged = judged.into_iter().map(|(verdict, key)| (key, verdict)).collect();
    assert!(script.handle(Input::Checked(judged)).is_empty(), "it has an answer");
    script.later(60_000);
    let refused: Vec<_> = script.commits.iter().flat_map(|commit| &commit.dead_letters).collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(script.history(), [r#"user "ask x", assistant "Hello""#]);
}
