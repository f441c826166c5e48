//! Usage of ended turns, whatever their outcome.

use super::*;

/// The rows of all commits: answer, number, kind, model, input, output, whether it is partial.
fn ledger(script: &TurnScript) -> Vec<String> {
    let line = |used: &UsageWrite| {
        let UsageWrite { answer, number, kind, call, is_partial, .. } = used;
        let model = call.model.as_deref().unwrap_or("-");
        let (input, output) = (call.input_tokens, call.output_tokens);
        let end = if *is_partial { " partial" } else { "" };
        let end = if call.is_estimated { format!("{end} estimated") } else { end.to_owned() };
        format!("{} {number} {} {model} {input}+{output}{end}", answer.message, kind.name())
    };
    script.commits.iter().flat_map(|commit| &commit.usage).map(line).collect()
}

#[test]
fn every_call_of_an_answer_is_a_row_of_its_commit() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &["call:c:{}", "used:m:5:2", "result:c:ok", "so", "used:m:9:4!"]);
    let answer = turn("x").answer(0);
    assert_eq!(ledger(&script), [format!("{answer} 0 turn m 5+2"), format!("{answer} 1 turn m 9+4")]);
    assert_eq!(script.last_commit().usage.len(), 2);
    assert_eq!(script.last_commit().turns[0].turn, script.last_commit().usage[0].turn);
    assert_eq!(script.last_commit().usage[0].agent, script.last_start().agent);
}

#[test]
fn answer_without_list_counts_as_one_and_without_counts_as_none() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &["hm", "sum:m:7:3!"]);
    script.open("y");
    script.say(0, &["nothing is said of it!"]);
    assert_eq!(ledger(&script), [format!("{} 0 turn m 7+3", turn("x").answer(0))]);
}

#[test]
fn of_a_turn_that_failed_or_was_stopped_is_kept_what_is_known() {
    let mut script = TurnScript::new();
    script.open("x");
    // The chunk with the lower id comes later: calls are numbered in the order of chunk ids.
    script.say(1, &["used:m:2:2"]);
    script.say(0, &["used:m:1:1"]);
    script.say(2, &["error:{}"]);
    script.open("y");
    script.say(0, &["I am", "used:m:3:1"]);
    script.command(control("s", ControlKind::StopTurn(turn("y"))));
    let (x, y) = (turn("x").answer(0), turn("y").answer(0));
    assert_eq!(
        ledger(&script),
        [
            format!("{x} 0 turn m 1+1 partial"),
            format!("{x} 1 turn m 2+2 partial"),
            format!("{y} 0 turn m 3+1 partial"),
        ]
    );
}

#[test]
fn an_attempt_that_was_given_up_has_used_what_it_has_used() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    script.say_as(&start, 0, 0, &["used:m:5:1", "first "]);
    script.say_as(&start, 1, 0, &["used:m:5:2", "second!"]);
    let answer = turn("x").answer(0);
    assert_eq!(ledger(&script), [format!("{answer} 0 turn m 5+1"), format!("{answer} 1 turn m 5+2")]);
}

#[test]
fn a_task_says_what_its_calls_were_for() {
    let mut script = TurnScript::new();
    for (kind, name) in [(TaskKind::Compaction, "summary"), (TaskKind::Memory, "memory")] {
        let agent = agent().queue_of(kind);
        script.command(Command::Task(Task { kind, agent, ..task_of(name, "do") }));
        let start = script.last_start();
        script.say_as(&start, 0, 0, &["sum:m:7:3!"]);
        let last = ledger(&script).pop().unwrap();
        assert!(last.ends_with(&format!("0 {name} m 7+3")), "{last}");
    }
}

#[test]
fn rows_of_an_answer_are_bounded_and_keep_its_sum() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    for attempt in 0..2 {
        for chunk in 0..1_000 {
            script.say_as(&start, attempt, chunk, &["used:m:2:1"]);
        }
    }
    script.say_as(&start, 1, 1_000, &["so!"]);
    let usage = &script.last_commit().usage;
    let numbers: Vec<u16> = usage.iter().map(|used| used.number).collect();
    assert_eq!(numbers, (0..1_024).collect::<Vec<_>>());
    assert_eq!(usage.iter().map(|used| used.call.input_tokens).sum::<u64>(), 4_000);
}

const BEGINS: &str = r#"calls:{"model_calls":[{"id":"a","model":"m","input_tokens":100,"estimated":true}]}"#;
const ENDS: &str = r#"calls:{"model_calls":[{"id":"a","model":"m","input_tokens":90,"output_tokens":7}]}"#;
/// About five tokens.
const TEXT: &str = "sixteen bytes...";

#[test]
fn a_call_that_was_cut_is_estimated_however_its_turn_ends() {
    type End = fn(&mut TurnScript);
    let ends: [(&str, End); 5] = [
        ("a stop", |script| drop(script.command(control("s", ControlKind::StopTurn(turn("x")))))),
        ("an error", |script| drop(script.say(2, &["error:{}"]))),
        ("silence", |script| drop(script.later(script.rules.deadline_ms + 1_000))),
        ("a message that interrupts it", |script| {
            drop(script.command(opened("y", 0, BusyPolicy::Interrupt)))
        }),
        ("a message that replaces it", |script| drop(script.command(opened("y", 0, BusyPolicy::Rollback)))),
    ];
    for (what, end) in ends {
        let mut script = TurnScript::new();
        script.rules.deadline_ms = 5_000;
        script.open("x");
        script.say(0, &[BEGINS, TEXT]);
        end(&mut script);
        let expected = format!("{} 0 turn m 100+5 partial estimated", turn("x").answer(0));
        assert_eq!(ledger(&script), [expected], "after {what}");
    }
}

#[test]
fn provider_counts_replace_an_estimate_after_a_takeover() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &[BEGINS, TEXT]);
    let (log, start) = (script.log.clone(), script.last_start());
    script.say(2, &[ENDS, "so!"]);
    let row = format!("{} 0 turn m 90+7", turn("x").answer(0));
    assert_eq!(ledger(&script), std::slice::from_ref(&row));
    let mut next = TurnScript::with(quiet(), bare());
    (next.machine, next.seq) = (Partition::new(bare(), quiet(), 9, T0), 2);
    next.handle(Input::Entries { entries: log, room: 1_000 });
    next.handle(Input::CaughtUp(true));
    next.say_as(&start, 0, 2, &[ENDS, "so!"]);
    assert_eq!(ledger(&next), [row]);
}

#[test]
fn call_of_an_attempt_that_died_is_counted_as_well() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    script.say_as(&start, 0, 0, &[BEGINS, TEXT]);
    script.say_as(&start, 1, 0, &[BEGINS, TEXT, ENDS, "so!"]);
    let answer = turn("x").answer(0);
    assert_eq!(
        ledger(&script),
        [format!("{answer} 0 turn m 100+5 estimated"), format!("{answer} 1 turn m 90+7")]
    );
}

#[test]
fn workflow_that_goes_on_after_the_end_is_stopped_and_counted() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    script.say(0, &[BEGINS, TEXT]);
    script.command(control("s", ControlKind::StopTurn(turn("x"))));
    let rows = ledger(&script);
    let late = |script: &TurnScript| ledger(script).split_off(rows.len());
    assert!(script.say_as(&start, 0, 2, &[TEXT]).is_empty(), "it was stopped a moment ago");
    script.later(5_000);
    assert_eq!(script.say_as(&start, 0, 3, &[TEXT]), ["abandon x run 0"]);
    assert!(script.say_as(&start, 0, 4, &[ENDS]).is_empty(), "not for each chunk");
    assert!(script.say_as(&start, 0, 0, &[BEGINS]).is_empty(), "a repetition begins nothing");
    assert!(late(&script).is_empty(), "the call began in time, and has a row");
    let said = script.say_as(
        &start,
        1,
        0,
        &[BEGINS, TEXT, ENDS, r#"calls:{"model_calls":[{"model":"m","input_tokens":3}]}"#],
    );
    assert_eq!(said, ["abandon x run 0"], "who has taken the request later has heard no stop");
    script.say_as(&start, 1, 4, &[TEXT]);
    let [first, second] = &late(&script)[..] else { panic!("two calls: {:?}", late(&script)) };
    assert!(first.ends_with(" turn m 100+0 partial estimated"), "{first}");
    assert!(second.ends_with(" turn m 3+0 partial"), "{second}");
    let numbers: Vec<u16> = script.last_commit().usage.iter().map(|used| used.number).collect();
    assert!(numbers.iter().all(|number| *number >= UsageWrite::FIRST_LATE), "{numbers:?}");
    assert_eq!(script.last_commit().usage[0].agent, start.agent);
    assert_eq!((script.machine.take_counters().late_stops, late(&script).len()), (2, 2));
}

#[test]
fn what_is_read_again_counts_nothing_twice_and_stops_nothing() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &[BEGINS, TEXT]);
    script.command(control("s", ControlKind::StopTurn(turn("x"))));
    let log = script.log.clone();
    let mut next = TurnScript::with(quiet(), bare());
    next.commits.clone_from(&script.commits);
    next.machine = Partition::new(bare(), quiet(), 9, T0);
    let said = next.handle(Input::Entries { entries: log, room: 1_000 });
    assert!(said.is_empty(), "{said:?}");
    assert!(next.handle(Input::CaughtUp(true)).is_empty());
    // The previous owner may have counted a repeated frame. A workflow that continues is stopped
    // anyway.
    next.seq = 3;
    assert_eq!(next.say_as(&script.last_start(), 0, 0, &[BEGINS]), ["abandon x run 0"]);
    assert_eq!(ledger(&next), ledger(&script));
}

#[test]
fn an_owner_that_does_not_know_of_a_run_stops_nothing() {
    let mut script = TurnScript::new();
    script.task("t1");
    let start = script.last_start();
    let later_run = Start {
        run: 1,
        token: script.machine.table.token_keys.token(&start.thread, &start.turn, 1),
        ..start.clone()
    };
    assert!(script.say_as(&later_run, 0, 0, &[BEGINS]).is_empty(), "another owner has begun the next run");
    // This owner has read a task, and does not know yet whether another owner has stored it.
    script.auto = false;
    script.command(Command::Task(Task { agent: AgentId::parse("other").unwrap(), ..task_of("t2", "do") }));
    let other = AgentId::parse("other").unwrap();
    let turn = TurnId::of_task(&other, Position::from_stored(1 << 40));
    let token = script.machine.table.token_keys.token(&other.thread(), &turn, 0);
    let unknown = Start { turn, run: 0, thread: other.thread(), agent: other, token, ..start };
    assert!(script.say_as(&unknown, 0, 0, &[BEGINS]).is_empty());
    assert!(script.commits.iter().all(|commit| commit.usage.is_empty()));
}

#[test]
fn end_and_last_message_report_the_reason_and_the_sum_of_calls() {
    let mut script = TurnScript::new();
    let usage_of = |script: &TurnScript| {
        let turn = script.commits.iter().flat_map(|commit| &commit.turns).last().unwrap();
        turn.messages.last().unwrap().metadata.get("usage").cloned()
    };
    let reasons = |script: &TurnScript| {
        script.last_commit().usage.iter().map(|used| used.finish_reason).collect::<Vec<_>>()
    };
    script.open("x");
    script.say(0, &["used:m:5:2", "so", "used:m:9:4!"]);
    assert_eq!(usage_of(&script), Some(json!({"input_tokens": 14, "output_tokens": 6})));
    assert_eq!(reasons(&script), [Some(FinishReason::Stop); 2]);
    let report = script.endings.last().unwrap().report.clone();
    assert_eq!(report.finish_reason, Some(FinishReason::Stop));
    assert_eq!(report.usage.map(|sum| (sum.input_tokens, sum.output_tokens)), Some((14, 6)));
    script.open("y");
    script.say(0, &["I am", "used:m:3:1"]);
    script.command(control("s", ControlKind::StopTurn(turn("y"))));
    assert_eq!(usage_of(&script), Some(json!({"input_tokens": 3, "output_tokens": 1})));
    assert_eq!(reasons(&script), [Some(FinishReason::Stopped)]);
    assert_eq!(script.endings.last().unwrap().report.finish_reason, Some(FinishReason::Stopped));
    script.open("z");
    script.say(0, &["used:m:3:1", "error:{}"]);
    assert_eq!(reasons(&script), [None]);
    assert_eq!(script.endings.last().unwrap().report, AnswerReport::default(), "it has failed");
}
