//! Shows that each rule can fail, because a check that cannot fail proves nothing.

use serde_json::json;
use wire::work::TurnEvent;

use super::*;

const TURN: &str = "u0001-x";
const TOLD: &str = "each end is published once, and as it is";

fn message(thread: &str, id: &str, position: i64, first: i64, parent: Option<i64>) -> TurnMessage {
    let is_input = id.ends_with("-q");
    TurnMessage {
        thread_id: thread.into(),
        message_id: id.into(),
        position,
        parent_id: parent,
        batch_id: first,
        sequence_num: (position - first) as i32,
        batch_type: "user_request".into(),
        role: if is_input { "user" } else { "assistant" }.into(),
        content: if is_input { "hello" } else { "hi" }.into(),
        tool_calls: None,
        tool_call_id: None,
        metadata: json!({}),
        attempt: 0,
        transaction: 7,
    }
}

fn task(position: i64, status: &str) -> StoredTask {
    StoredTask {
        agent_id: "ann".into(),
        position,
        task_id: format!("k-{position}"),
        kind: "task".into(),
        status: status.into(),
        content: "hello".into(),
        metadata: json!({}),
        failure_code: (status == "failed").then(|| "producer_error".into()),
    }
}

fn end(turn: &str, thread: &str, status: &str, batch: i64) -> StoredTurnEvent {
    let whole = status != "failed";
    let said = TurnEvent {
        turn_id: turn.into(),
        thread_id: thread.into(),
        agent_id: thread.into(),
        status: status.into(),
        task_id: None,
        message_id: whole.then(|| format!("{turn}-a")),
        batch_id: whole.then(|| batch.to_string()),
        code: None,
    };
    StoredTurnEvent { subject: format!("turns.{thread}"), id: format!("{turn}.{status}"), said }
}

fn of_task(position: i64) -> String {
    task_turn(&task(position, "completed"))
}

/// One turn of a person in `talk`, two tasks of `ann`, and a failed turn and task.
fn good() -> TurnEvidence {
    let promise = |place: &str| Promise { place: place.into(), content: "hello".into() };
    let (one, two) = (of_task(1), of_task(2));
    let failed = StoredFailedTurn {
        thread_id: "talk".into(),
        turn_id: "u0001-lost".into(),
        agent_id: "talk".into(),
        run: 0,
        content: "hello".into(),
        code: "producer_error".into(),
        text: String::new(),
        is_retryable: true,
    };
    let agent = StoredAgent {
        agent_id: "ann".into(),
        head_position: 3,
        head_run: 0,
        backoff_attempt_count: 0,
        next_run_ms: None,
        left_ms: None,
        delay_ms: None,
        paused: false,
        error_code: None,
        transaction: 7,
    };
    let turns = [TURN, "u0001-lost"].map(|turn| (turn.to_owned(), promise("talk")));
    let tasks = (1..=3).map(|position| (("ann".to_owned(), format!("k-{position}")), promise("ann")));
    TurnEvidence {
        turns: turns.into(),
        tasks: tasks.collect(),
        messages: vec![
            message("ann", &format!("{one}-q"), 10, 10, None),
            message("ann", &format!("{one}-a"), 11, 10, Some(10)),
            message("ann", &format!("{two}-q"), 12, 12, Some(11)),
            message("ann", &format!("{two}-a"), 13, 12, Some(12)),
            message("talk", &format!("{TURN}-q"), 10, 10, None),
            message("talk", &format!("{TURN}-a"), 11, 10, Some(10)),
        ],
        agents: vec![agent],
        stored_tasks: vec![task(1, "completed"), task(2, "completed"), task(3, "failed")],
        failed_turns: vec![failed],
        dead_letters: Vec::new(),
        ends: vec![
            end(TURN, "talk", "completed", 10),
            end("u0001-lost", "talk", "failed", 0),
            end(&one, "ann", "completed", 10),
            end(&two, "ann", "completed", 12),
            end(&of_task(3), "ann", "failed", 0),
        ],
        acts: 0,
        usage: Vec::new(),
    }
}

/// The rules that are violated after `spoil` has changed the evidence.
fn broken(spoil: impl FnOnce(&mut TurnEvidence)) -> Vec<&'static str> {
    let mut evidence = good();
    spoil(&mut evidence);
    let mut rules: Vec<_> = verify_turns(&evidence).into_iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

#[test]
fn what_is_right_breaks_no_rule() {
    assert_eq!(verify_turns(&good()), []);
}

#[test]
fn calls_that_the_ledger_lacks_or_has_twice_are_found() {
    let rule = "the ledger has what answers used";
    let used = |message_id: String, output_tokens: i64, is_partial: bool| StoredUsage {
        thread_id: "talk".into(),
        message_id,
        output_tokens,
        is_partial,
    };
    let of_attempt = |attempt: i64, rows: Vec<StoredUsage>| {
        broken(|all| {
            all.messages[5].metadata = json!({"tokens_used": 7});
            all.messages[5].attempt = attempt;
            all.usage = rows;
        })
    };
    let with = |rows: Vec<StoredUsage>| of_attempt(0, rows);
    let answer = || format!("{TURN}-a");
    let twice = || vec![used(answer(), 7, false), used(answer(), 7, false)];
    let failed = || "u0001-lost-a".to_owned();
    assert_eq!(with(vec![used(answer(), 7, false), used(failed(), 3, true)]), Vec::<&str>::new());
    assert_eq!(with(vec![]), [rule], "no row");
    assert_eq!(with(vec![used(answer(), 6, false)]), [rule], "a token less");
    assert_eq!(with(twice()), [rule], "twice");
    assert_eq!(of_attempt(1, twice()), Vec::<&str>::new(), "the attempt before had made its call");
    assert_eq!(of_attempt(1, [twice(), twice()].concat()), [rule], "more calls than attempts");
    assert_eq!(
        of_attempt(1, vec![used(answer(), 7, false), used(answer(), 3, false)]),
        [rule],
        "another call last"
    );
    assert_eq!(with(vec![used(answer(), 7, true)]), [rule], "partial");
    assert_eq!(with(vec![used(answer(), 7, false), used(failed(), 3, false)]), [rule], "of no answer");
}

#[test]
fn half_turns_are_found() {
    let whole = "a turn is in the history whole";
    assert!(broken(|all| drop(all.messages.remove(5))).contains(&whole), "an input alone");
    assert!(broken(|all| drop(all.messages.remove(4))).contains(&whole), "an answer alone");
    assert!(broken(|all| all.messages[5].transaction = 8).contains(&whole), "two transactions");
    assert!(broken(|all| all.messages[5].sequence_num = 2).contains(&whole), "a hole");
    let chain = "a message names its predecessor";
    assert_eq!(broken(|all| all.messages[2].parent_id = Some(10)), [chain]);
}

#[test]
fn doubles_and_disorder_are_found() {
    let second = |all: &mut TurnEvidence| {
        all.messages.push(message("talk", &format!("{TURN}-q"), 12, 12, Some(11)));
        all.messages.push(message("talk", &format!("{TURN}-a1"), 13, 12, Some(12)));
    };
    assert!(broken(second).contains(&"a turn is committed at most once"));
    let swapped = |all: &mut TurnEvidence| {
        let (one, two) = (of_task(1), of_task(2));
        for row in &mut all.messages {
            row.message_id = match row.message_id.strip_prefix(&one) {
                Some(rest) => format!("{two}{rest}"),
                None => row.message_id.replace(&two, &one),
            };
        }
        all.ends[2].said.batch_id = Some("12".into());
        all.ends[3].said.batch_id = Some("10".into());
    };
    assert_eq!(broken(swapped), ["tasks run in the order of their queue"]);
}

#[test]
fn tasks_and_their_turns_are_compared() {
    let rule = "a task is completed when its turn is in the history";
    assert!(broken(|all| all.stored_tasks[0].status = "pending".into()).contains(&rule));
    assert!(broken(|all| all.stored_tasks[2].status = "completed".into()).contains(&rule));
    assert!(broken(|all| drop(all.stored_tasks.remove(0))).contains(&"a task's turn has its task"));
    assert!(broken(|all| all.stored_tasks.push(task(1, "completed"))).contains(&"a task is stored once"));
    assert!(broken(|all| drop(all.stored_tasks.remove(2))).contains(&"a task that was accepted is stored"));
    let named = "a task that follows a turn names its persisted answer";
    assert_eq!(broken(|all| all.stored_tasks[0].kind = "memory".into()), [named]);
    let backoff = "an agent without tasks does not back off";
    assert_eq!(broken(|all| all.agents[0].backoff_attempt_count = 1), [backoff]);
}

#[test]
fn lost_inputs_are_found() {
    let lost = "a message that was accepted ends as a turn, a failed turn or a dead letter";
    assert_eq!(broken(|all| drop(all.failed_turns.pop())), [lost]);
    let both = "a turn is in the history or failed, not both";
    assert_eq!(broken(|all| all.failed_turns[0].turn_id = TURN.into()), [lost, both, TOLD]);
    assert_eq!(broken(|all| all.messages[4].content = "bye".into()), ["an input is kept as it was said"]);
    assert_eq!(broken(|all| drop(all.turns.remove(TURN))), ["what was not said is not answered"]);
}

#[test]
fn wrongly_published_ends_are_found() {
    let rule = [TOLD];
    assert_eq!(broken(|all| drop(all.ends.remove(0))), rule);
    assert_eq!(broken(|all| drop(all.ends.remove(1))), rule);
    assert_eq!(broken(|all| all.ends.push(all.ends[0].clone())), rule);
    assert_eq!(broken(|all| all.ends[0].said.message_id = Some("other".into())), rule);
    assert_eq!(broken(|all| all.ends[0].said.status = "stopped".into()), rule);
}
