//! What a new owner makes of what it finds.

use super::*;

#[test]
fn after_a_crash_the_answer_goes_on_without_a_second_request() {
    let mut script = Script::new();
    script.open("x");
    script.say(0, &["Hel"]);
    let log = script.log.clone();
    let start = script.last_start();
    let mut next = Script::with(quiet(), bare());
    next.machine = Partition::new(bare(), quiet(), 9, T0);
    (next.log, next.seq, next.auto) = (log.clone(), 2, false);
    assert!(next.handle(Input::Entries { entries: log, room: 1_000 }).is_empty());
    let keys = std::mem::take(&mut next.checks);
    next.handle(Input::Checked(keys.into_iter().map(|key| (key, Verdict::New)).collect()));
    next.auto = true;
    assert_eq!(next.handle(Input::CaughtUp(true)), ["start x run 0 adopted"]);
    next.say_as(&start, 0, 1, &["lo!"]);
    assert_eq!(next.history(), [r#"user "ask x", assistant "Hello""#]);
}

#[test]
fn after_a_crash_a_silent_turn_is_requested_again_under_a_higher_attempt() {
    let mut script = Script::new();
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
    let mut next = Script::with(quiet(), takeover);
    assert!(next.starts.is_empty(), "the wait is the stored one");
    assert!(next.later(4_999).is_empty());
    assert_eq!(next.later(1), ["start task run 2"]);
    assert_eq!(next.last_start().attempt, 16);
}

#[test]
fn an_input_that_waits_for_long_is_saved_and_restored() {
    let limits = Limits { straggler_ms: 5_000, ..quiet() };
    let mut script = Script::with(limits, bare());
    script.open("x");
    script.open("y");
    script.later(6_000);
    let saved: Vec<OpenTurn> = script.commits.iter().flat_map(|commit| commit.open_turns.clone()).collect();
    assert_eq!(saved.iter().map(|saved| saved.seq.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(script.last_commit().checkpoint, Seq(2));
    let start = script.last_start();
    let takeover = Takeover { open_turns: saved, ..next_takeover(&script) };
    let mut next = Script::with(quiet(), takeover);
    assert_eq!(next.last_start().turn, turn("x"));
    assert_eq!(next.say_as(&start, 0, 0, &["ok!"]), ["end x run 0 complete", "start y run 0"]);
    assert_eq!(next.commits[0].ended_turns, [(thread("t"), turn("x"))]);
}

#[test]
fn a_failure_that_comes_before_the_rules_is_judged_by_them() {
    let mut script = Script::new();
    script.task("t0");
    script.auto = false;
    script.say(0, &["ok!"]);
    script.handle(Input::Committed(Vec::new()));
    script.task("t1");
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, Verdict::New)]));
    script.handle(Input::Committed(Vec::new()));
    let start = script.last_start();
    let commits = script.commits.len();
    script.say(0, &["error:{}"]);
    assert_eq!(script.commits.len(), commits, "how long to wait is not known yet");
    let rules = TurnRules { backoff_base_ms: 1_000, ..TurnRules::default() };
    script.handle(Input::Started { turn: start.turn, run: 0, started: Started::Requested(rules) });
    let Wait::Start(delay) = script.last_commit().agents[0].wait else { panic!() };
    assert!((1_000..=2_000).contains(&delay), "{delay}");
}
