//! Every end has a position: that of the answer, or of a row that records why there is none.

use super::*;

/// Ends of the turns of a script, `x:stopped/user_request`, in the order in which they were sent.
/// Each is compared with what was committed.
fn ends(script: &TurnScript) -> Vec<String> {
    let rows: Vec<_> = script.commits.iter().flat_map(|commit| &commit.failed_messages).collect();
    let messages: Vec<_> =
        script.commits.iter().flat_map(|commit| &commit.turns).flat_map(|turn| &turn.messages).collect();
    for ending in &script.endings {
        let place = (&ending.key, ending.position, ending.attempt, ending.role, ending.batch_type);
        match &ending.outcome {
            MessageOutcome::Failed(failure) => {
                let row = rows.iter().find(|row| row.key == ending.key).expect("a row");
                assert_eq!((&row.key, row.position, row.attempt, row.role, row.batch_type), place);
                assert_eq!(row.failure, *failure);
                assert!(messages.iter().all(|message| message.placement.position != row.position));
            }
            MessageOutcome::Complete | MessageOutcome::Stopped => {
                let answer = messages.iter().find(|message| message.key == ending.key).expect("an answer");
                let (at, is) = (answer.placement, answer);
                assert_eq!((&is.key, at.position, is.attempt, is.role, at.batch_type), place);
                assert!(rows.iter().all(|row| row.position != at.position));
            }
        }
    }
    assert!(script.endings.is_sorted_by(|a, b| a.position < b.position), "{:?}", script.endings);
    let with_end = rows.iter().filter(|row| script.endings.iter().any(|ending| ending.key == row.key));
    assert_eq!(with_end.count(), rows.len(), "every row that is kept has its end");
    let line = |ending: &MessageEnded| {
        let (turn, run) = TurnId::of_answer(&ending.key.message).unwrap();
        let how = match &ending.outcome {
            MessageOutcome::Complete => "complete",
            MessageOutcome::Stopped => "stopped",
            MessageOutcome::Failed(failure) => failure.code(),
        };
        format!("{}{run}:{how}/{}", name(&turn), ending.batch_type.name())
    };
    script.endings.iter().map(line).collect()
}

#[test]
fn inputs_end_in_one_order_however_they_do() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &["look", "call:c:{}", "result:c:42", "done!"]);
    script.open("y");
    script.say(0, &["par", "error:{}"]);
    script.open("z");
    script.say(0, &["half"]);
    script.command(opened("busy", 0, BusyPolicy::Reject));
    script.command(opened("next", 0, BusyPolicy::Interrupt));
    script.say(0, &["more"]);
    script.command(opened("last", 0, BusyPolicy::Rollback));
    script.later(121_000);
    let wanted = [
        "x0:complete",
        "y0:producer_error",
        "busy0:busy",
        "z0:stopped",
        "next0:rolled_back",
        "last0:deadline",
    ];
    let wanted: Vec<_> = wanted.iter().map(|end| format!("{end}/user_request")).collect();
    assert_eq!(ends(&script), wanted);
}

#[test]
fn stopped_silent_turn_has_an_empty_answer() {
    let mut script = TurnScript::new();
    script.open("x");
    script.command(control("s", ControlKind::StopTurn(turn("x"))));
    assert_eq!(ends(&script), ["x0:stopped/user_request"]);
    let mut waits = TurnScript::new();
    waits.open("x");
    waits.open("y");
    waits.command(control("s", ControlKind::StopTurn(turn("y"))));
    assert_eq!(waits.endings[0].key.message, turn("y").answer(0));
    ends(&waits);
}

#[test]
fn each_run_of_a_task_that_fails_has_a_row_of_its_own() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.say(0, &["error:{}"]);
    script.later(120_000);
    script.say_as(&script.last_start(), 2, 0, &["par", r#"error:{"retryable":false}"#]);
    script.task("t2");
    script.say(0, &["ok!"]);
    let wanted = ["task0:producer_error", "task1:producer_error", "task0:complete"];
    let wanted: Vec<_> = wanted.iter().map(|end| format!("{end}/user_request")).collect();
    assert_eq!(ends(&script), wanted);
    assert_eq!((script.endings[0].attempt, script.endings[1].attempt), (0, 2));
}

#[test]
fn what_the_store_refuses_fails_where_it_would_have_stood() {
    let mut script = TurnScript::new();
    script.open("x");
    script.auto = false;
    script.say(0, &["no!"]);
    let answer = script.last_commit().turns[0].messages.last().cloned().unwrap();
    let refused = vec![(turn("x"), "22P05".to_owned())];
    assert_eq!(script.handle(Input::Committed(refused)), ["end x run 0 rejected_by_database"]);
    let ending = &script.endings[0];
    assert_eq!((&ending.key, ending.position), (&answer.key, answer.placement.position));
    // The writer of the commit writes this row instead of the answer.
    let row = FailedMessage::unstorable(&answer, "22P05".to_owned());
    assert_eq!(MessageOutcome::Failed(row.failure), ending.outcome);
    assert_eq!((row.key, row.position, row.batch_type), (answer.key, ending.position, ending.batch_type));
}

/// The commit says how many tokens the turn used. If its place were free before, another turn could
/// begin although the tokens are owed.
#[test]
fn a_turn_is_active_until_its_end_is_committed() {
    let mut script = TurnScript::new();
    script.open("x");
    let x = turn("x");
    assert!(script.machine.is_active(&x));
    script.auto = false;
    script.say(0, &["done!"]);
    assert!(script.machine.is_active(&x), "its commit is under way");
    script.handle(Input::Committed(Vec::new()));
    assert!(!script.machine.is_active(&x));
}

#[test]
fn a_turn_that_waits_again_is_not_active() {
    let mut script = TurnScript::new();
    script.auto = false;
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    let start = script.last_start();
    assert!(script.machine.is_active(&start.turn));
    let started = Started::NotNow(NotNow::Budget { for_ms: 60_000 });
    script.handle(Input::Started { turn: start.turn.clone(), run: 0, started });
    assert!(!script.machine.is_active(&start.turn));
}
