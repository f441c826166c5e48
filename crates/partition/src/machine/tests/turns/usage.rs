//! What ended turns have used, whatever became of them.

use super::*;

/// The rows of all commits: answer, number, kind, model, input, output, whether it is partial.
fn ledger(script: &TurnScript) -> Vec<String> {
    let line = |used: &UsageWrite| {
        let UsageWrite { answer, number, kind, call, is_partial, .. } = used;
        let model = call.model.as_deref().unwrap_or("-");
        let (input, output) = (call.input_tokens, call.output_tokens);
        let end = if *is_partial { " partial" } else { "" };
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
    // The one before comes later: calls are numbered as chunks are.
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
