//! Turns that their agent cannot start yet. The agent may live in another partition.

use super::*;

/// The driver's answer that the turn must not start yet.
fn not_now(script: &mut TurnScript, why: NotNow) -> Vec<String> {
    let start = script.last_start();
    script.handle(Input::Started { turn: start.turn, run: start.run, started: Started::NotNow(why) })
}

fn begun(script: &mut TurnScript, start: &Start) {
    let started = Started::Requested(script.rules);
    script.handle(Input::Started { turn: start.turn.clone(), run: start.run, started });
}

fn names(script: &TurnScript) -> Vec<(String, u32)> {
    script.starts.iter().map(|start| (start.turn.as_str().to_owned(), start.attempt)).collect()
}

fn reason_of(script: &mut TurnScript, turn: TurnId) -> Option<WaitReason> {
    let query = StatusQuery { token: 0, target: QueryTarget::Turn(turn) };
    let actions = script.machine.handle(Input::Status(query), script.now);
    let [Action::Status(reply)] = &actions[..] else { panic!("{actions:?}") };
    reply.status.reason
}

#[test]
fn inputs_of_persons_wait_in_their_order() {
    let mut script = TurnScript::new();
    script.auto = false;
    script.open("x");
    script.open("y");
    let checked =
        [turn("x"), turn("y")].map(|id| (CommandKey::Turn(thread("t"), id, 0), CommandVerdict::New));
    script.handle(Input::Checked(checked.to_vec()));
    for round in 1..=3 {
        not_now(&mut script, NotNow::Backoff { for_ms: 25_000 });
        assert_eq!(script.starts.len(), round, "those behind it wait with it");
        let reason = reason_of(&mut script, turn("x"));
        assert_eq!(reason, Some(WaitReason::Backoff { for_ms: 25_000 }));
        script.later(4_999);
        assert_eq!(reason_of(&mut script, turn("x")), Some(WaitReason::Backoff { for_ms: 20_001 }));
        assert_eq!(script.starts.len(), round);
        script.later(1);
    }
    assert_eq!(names(&script), vec![(turn("x").as_str().to_owned(), 0); 4]);
    script.auto = true;
    let start = script.last_start();
    begun(&mut script, &start);
    script.say(0, &["one!"]);
    assert_eq!(script.last_start().turn, turn("y"));
    script.say(0, &["two!"]);
    assert_eq!(script.history(), ["user \"ask x\", assistant \"one\"", "user \"ask y\", assistant \"two\""]);
}

#[test]
fn turn_that_no_client_waits_for_yields() {
    let mut script = TurnScript::new();
    let mut command = opened("h1", 0, BusyPolicy::Enqueue);
    if let Command::Turn(opened) = &mut command {
        opened.origin = TurnOrigin::Heartbeat { batch: Position::MAX };
    }
    script.auto = false;
    script.command(command);
    script.handle(Input::Checked(vec![(CommandKey::Turn(thread("t"), turn("h1"), 0), CommandVerdict::New)]));
    not_now(&mut script, NotNow::Paused);
    assert_eq!(reason_of(&mut script, turn("h1")), Some(WaitReason::Paused));
    script.auto = true;
    script.command(opened("x", 0, BusyPolicy::Reject));
    assert_eq!(script.last_start().turn, turn("x"), "a person is not refused for it");
    script.say(0, &["one!"]);
    script.later(5_000);
    assert_eq!(script.last_start().turn, turn("h1"));
    script.say(0, &["two!"]);
    assert_eq!(script.history().len(), 2);
}

#[test]
fn what_follows_turns_waits_without_a_failure() {
    let mut script = TurnScript::new();
    script.auto = false;
    let queue = agent().queue_of(TaskKind::Memory);
    let task = Task { agent: queue.clone(), kind: TaskKind::Memory, ..task_of("m", "note") };
    script.command(Command::Task(task.clone()));
    script
        .handle(Input::Checked(vec![(CommandKey::Task(queue.clone(), task.id, None), CommandVerdict::New)]));
    script.handle(Input::Committed(Vec::new()));
    let first = script.last_start();
    assert_eq!((first.agent, first.thread), (queue.clone(), queue.thread()));
    let commits = script.commits.len();
    let why = |script: &mut TurnScript| {
        let query = StatusQuery { token: 0, target: QueryTarget::Agent(agent().queue_of(TaskKind::Memory)) };
        let actions = script.machine.handle(Input::Status(query), script.now);
        let [Action::Status(reply)] = &actions[..] else { panic!("{actions:?}") };
        reply.status.reason
    };
    not_now(&mut script, NotNow::Paused);
    assert_eq!(why(&mut script), Some(WaitReason::Paused), "its agent is");
    script.later(5_000);
    not_now(&mut script, NotNow::Backoff { for_ms: 500 });
    assert_eq!(why(&mut script), Some(WaitReason::Backoff { for_ms: 500 }));
    script.starts.pop();
    script.later(499);
    assert_eq!(script.starts.len(), 1);
    script.later(1);
    let again = script.last_start();
    assert_eq!((script.starts.len(), &again.turn, again.run), (2, &first.turn, 0), "it has not failed");
    assert_eq!(script.commits.len(), commits, "nothing is written of it");
    script.auto = true;
    begun(&mut script, &again);
    script.say(0, &["ok!"]);
    let messages = &script.last_commit().turns[0].messages;
    assert!(messages.iter().all(|message| message.placement.batch_type == BatchType::SystemTrigger));
    assert_eq!(messages[0].metadata.get("trigger_type"), Some(&json!("memory")));
    assert_eq!(messages[0].metadata.get("synthetic"), Some(&json!(true)));
}

#[test]
fn an_answer_that_has_come_meanwhile_is_gone_on_with() {
    let mut script = TurnScript::new();
    script.auto = false;
    script.open("x");
    script.handle(Input::Checked(vec![(CommandKey::Turn(thread("t"), turn("x"), 0), CommandVerdict::New)]));
    script.say(0, &["one"]);
    not_now(&mut script, NotNow::Paused);
    let start = script.last_start();
    assert!(start.is_adopted, "only its rules are wanted");
    begun(&mut script, &start);
    script.auto = true;
    script.say(1, &["two!"]);
    assert_eq!(script.history(), ["user \"ask x\", assistant \"onetwo\""]);
}

#[test]
fn more_inputs_than_may_wait_for_their_agents_fail_and_are_kept() {
    let mut script = TurnScript::with(PartitionLimits { postponed_turns: 1, ..quiet() }, bare());
    script.auto = false;
    let elsewhere = |thread_name: &str| {
        let thread = thread(thread_name);
        let Command::Turn(opened) = opened("x", 0, BusyPolicy::Enqueue) else { panic!() };
        let id = TurnId::foreground(&thread, "x").unwrap();
        (thread.clone(), id.clone(), Command::Turn(Box::new(TurnOpened { turn: id, thread, ..*opened })))
    };
    let mut turns = Vec::new();
    for thread_name in ["t1", "t2"] {
        let (thread, id, command) = elsewhere(thread_name);
        script.command(command);
        script.handle(Input::Checked(vec![(CommandKey::Turn(thread, id.clone(), 0), CommandVerdict::New)]));
        not_now(&mut script, NotNow::Paused);
        turns.push(id);
    }
    let failed = &script.last_commit().failed_turns;
    assert_eq!(failed.iter().map(|failed| &failed.opened.turn).collect::<Vec<_>>(), [&turns[1]]);
    assert_eq!(failed[0].code, "request_invalid");
    assert_eq!(
        reason_of(&mut script, turns[0].clone()),
        Some(WaitReason::Paused),
        "the first goes on waiting"
    );
}

#[test]
fn a_task_waits_for_its_budget_without_a_failure() {
    const WEEK_MS: i64 = 7 * 86_400_000;
    let mut script = TurnScript::new();
    script.auto = false;
    script.command(Command::Task(task_of("k", "work")));
    let key = CommandKey::Task(agent(), task_of("k", "work").id, None);
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    script.handle(Input::Committed(Vec::new()));
    let (first, commits) = (script.last_start(), script.commits.len());
    not_now(&mut script, NotNow::Budget { for_ms: WEEK_MS });
    let why = |script: &mut TurnScript| {
        let query = StatusQuery { token: 0, target: QueryTarget::Agent(agent()) };
        let actions = script.machine.handle(Input::Status(query), script.now);
        let [Action::Status(reply)] = &actions[..] else { panic!("{actions:?}") };
        reply.status.reason
    };
    assert_eq!(why(&mut script), Some(WaitReason::Budget { for_ms: WEEK_MS }));
    // The budget may be raised at any time.
    script.later(14_999);
    assert_eq!(script.starts.len(), 1);
    assert_eq!(why(&mut script), Some(WaitReason::Budget { for_ms: WEEK_MS - 14_999 }));
    script.later(1);
    assert_eq!(script.starts.len(), 2, "it is looked at again");
    not_now(&mut script, NotNow::Limited { for_ms: 900 });
    assert_eq!(why(&mut script), Some(WaitReason::Limited { for_ms: 900 }));
    script.later(900);
    assert_eq!(script.starts.len(), 3, "it is tried again");
    not_now(&mut script, NotNow::Budget { for_ms: 700 });
    script.later(700);
    let again = script.last_start();
    assert_eq!((script.starts.len(), &again.turn, again.run), (4, &first.turn, 0), "its period has ended");
    assert_eq!(script.commits.len(), commits, "nothing is written of it");
    script.auto = true;
    begun(&mut script, &again);
    script.say(0, &["ok!"]);
    assert_eq!(script.history().len(), 1);
}
