//! Failed runs: what is written of them, how they are reported, and how a retry ends.

use super::*;

#[test]
fn failed_turn_is_out_of_history_and_can_be_retried() {
    let mut script = TurnScript::new();
    script.open("x");
    assert_eq!(script.say(0, &["par", "error:{}"]), ["end x run 0 producer_error"]);
    let failed = &script.last_commit().failed_turns[0];
    assert_eq!((failed.opened.content.as_str(), failed.is_retryable), ("ask x", true));
    assert!(script.history().is_empty());
    assert_eq!(script.command(opened("x", 1, BusyPolicy::Enqueue)), ["start x run 1"]);
    assert_eq!(script.last_start().turn.answer(1).as_str(), format!("{}-a1", turn("x")));
    assert_eq!(script.say(0, &["yes!"]), ["end x run 1 complete"]);
    assert_eq!(script.last_commit().turns[0].ends_failed, Some(thread("t")));
    assert_eq!(script.history(), [r#"user "ask x", assistant "yes""#]);
    assert!(script.command(opened("x", 1, BusyPolicy::Enqueue)).is_empty(), "a second retry is the same");
    assert_eq!(script.machine.take_counters().duplicate_commands, 1);
}

#[test]
fn retry_before_the_failure_is_committed_waits() {
    let mut script = TurnScript::new();
    script.open("x");
    script.auto = false;
    script.say(0, &["error:{}"]);
    script.command(opened("x", 1, BusyPolicy::Enqueue));
    let key = script.checks.pop().unwrap();
    assert!(script.handle(Input::Checked(vec![(key, CommandVerdict::New)])).is_empty());
    let actions = script.handle(Input::Committed(Vec::new()));
    assert_eq!(actions, ["end x run 0 producer_error", "start x run 1"]);
}

#[test]
fn without_progress_for_the_deadline_a_run_fails() {
    let mut script = TurnScript::new();
    script.rules.deadline_ms = 10_000;
    script.open("x");
    script.later(8_000);
    script.say(0, &["still here"]);
    assert!(script.later(9_000).is_empty(), "progress counts");
    assert_eq!(script.later(2_000), ["abandon x run 0", "end x run 0 deadline"]);
    assert_eq!(script.last_commit().failed_turns[0].code, "deadline");
    assert!(script.say(1, &["late!"]).is_empty(), "what comes now counts for nothing");
}

#[test]
fn failing_turn_is_reported_once_with_its_buffer() {
    let mut script = TurnScript::new();
    let Command::Turn(mut traced) = opened("x", 0, BusyPolicy::Enqueue) else { panic!("a turn") };
    traced.options.correlation_id = Some("c-1".into());
    script.command(Command::Turn(traced));
    script.say(0, &["one"]);
    script.say(2, &["three"]);
    let mut reports = Vec::new();
    for second in 0..60 {
        script.now = script.now.plus_ms(1_000);
        let input = if second == 45 { Input::Committed(Vec::new()) } else { Input::Tick };
        for action in script.machine.handle(input, script.now) {
            if let Action::Report(report) = action {
                reports.push(report);
            }
        }
    }
    let buffer = BufferState {
        expected: 1,
        received: 2,
        released: 1,
        missing: vec![IdRange { first: 1, last: 1 }],
        idle_ms: 30_000,
    };
    let failed = MachineReport::TurnFailed {
        turn: turn("x"),
        run: 0,
        thread: thread("t"),
        agent: agent(),
        code: "gap_timeout".to_owned(),
        text: "chunks never arrived: 1".to_owned(),
        backoff_ms: None,
        buffer: Some(buffer),
        correlation_id: Some("c-1".into()),
    };
    assert_eq!(reports, [failed]);
}

#[test]
fn a_turn_that_cannot_be_requested_fails_for_good() {
    let mut script = TurnScript::new();
    script.auto = false;
    let said = script.task("t1");
    assert!(said.is_empty(), "{said:?}");
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    assert_eq!(script.handle(Input::Committed(Vec::new())), ["start task run 0"]);
    let Start { turn, run, .. } = script.last_start();
    let started = Started::Refused { rules: TurnRules::default(), text: "too large".to_owned() };
    script.handle(Input::Started { turn, run, started });
    let failed = &script.last_commit().failed_tasks[0];
    assert_eq!(failed.code, "request_invalid");
    assert_eq!(failed.text, "the turn request could not be made: too large");
    let Some(Outgoing::TurnEnded(ended)) =
        script.last_commit().outbox.as_ref().and_then(|batch| batch.outgoing.first())
    else {
        panic!("its end is not sent")
    };
    assert_eq!((ended.status, ended.code.as_deref()), (TurnStatus::Failed, Some("request_invalid")));
}
