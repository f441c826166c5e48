//! Queues of agents, and commands of operators on them.

use super::*;

/// An operator's command comes directly after the task: the store did not know the task when it was
/// asked.
#[test]
fn what_is_wanted_of_a_task_waits_until_it_is_stored() {
    let edit = |content: &str| ControlKind::EditTask {
        task: TaskId::parse("t1").unwrap(),
        edit: TaskEdit { content: Some(content.into()), metadata: None },
    };
    for is_commit_under_way in [false, true] {
        let mut script = TurnScript::new();
        script.command(control("pause", ControlKind::Pause));
        script.auto = false;
        if is_commit_under_way {
            script.command(control("other", ControlKind::ClearBackoff));
            let key = script.checks.pop().unwrap();
            script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
        }
        script.command(Command::Task(task_of("t1", "old")));
        script.command(control("e", edit("new")));
        script.command(control("d", ControlKind::DropTask(TaskId::parse("t1").unwrap())));
        script.command(control("none", ControlKind::DropTask(TaskId::parse("t2").unwrap())));
        let keys: Vec<_> = script.checks.drain(..).collect();
        script.handle(Input::Checked(keys.into_iter().map(|key| (key, CommandVerdict::New)).collect()));
        for _ in 0..4 {
            script.handle(Input::Committed(Vec::new()));
        }
        let audits: Vec<_> = script.commits.iter().flat_map(|commit| &commit.audit).collect();
        let of = |id: &str| audits.iter().find(|audit| audit.id.as_str() == id).unwrap().error.clone();
        assert_eq!((of("e"), of("d")), (None, None));
        assert!(of("none").unwrap().contains("there is no task t2"));
        let changes: Vec<_> = script.commits.iter().flat_map(|commit| &commit.task_changes).collect();
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(changes[0].position, Some(changes[0].stored), "it is only edited");
        let marks: Vec<_> = script.commits.iter().flat_map(|commit| &commit.failed_tasks).collect();
        assert_eq!(marks.len(), 1, "it is dropped");
    }
}

/// The store answers the check before it answers the commit.
#[test]
fn a_task_is_dropped_that_the_store_knows_before_its_owner() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.auto = false;
    script.command(Command::Task(task_of("t2", "x")));
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    let position = script.last_commit().tasks[0].queued.position;
    script.command(control("d", ControlKind::DropTask(TaskId::parse("t2").unwrap())));
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::Task { position, is_failed: false })]));
    script.auto = true;
    script.handle(Input::Committed(Vec::new()));
    assert_eq!(script.last_commit().failed_tasks[0].position, position);
    let actions = script.say(0, &["done!"]);
    assert!(!actions.iter().any(|action| action.starts_with("start")), "{actions:?}");
}

/// The end of a task is being stored, and the next one has not started.
#[test]
fn the_next_task_can_be_changed_while_an_end_is_stored() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.task("t2");
    let position = script.commits.iter().flat_map(|commit| &commit.tasks).last().unwrap().queued.position;
    script.auto = false;
    script.say(0, &["done!"]);
    script.command(control("d", ControlKind::DropTask(TaskId::parse("t2").unwrap())));
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::Task { position, is_failed: false })]));
    script.handle(Input::Committed(Vec::new()));
    assert_eq!(script.last_commit().audit[0].error, None);
    assert_eq!(script.last_commit().failed_tasks[0].position, position);
}

#[test]
fn a_failure_that_is_not_stored_yet_can_be_answered() {
    let answers = [
        ("error:{}", ControlKind::ClearBackoff, "clear_backoff"),
        (r#"error:{"class": "auth"}"#, ControlKind::Resume, "resume"),
    ];
    for (error, kind, action) in answers {
        for is_other_commit_under_way in [false, true] {
            let mut script = TurnScript::new();
            script.task("t1");
            script.auto = false;
            let act = |script: &mut TurnScript, id: &str, kind: &ControlKind| {
                script.command(control(id, kind.clone()));
                let key = script.checks.pop().unwrap();
                script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
            };
            if is_other_commit_under_way {
                act(&mut script, "first", &ControlKind::Resume);
            }
            script.say(0, &[error]);
            act(&mut script, "answer", &kind);
            script.auto = true;
            let actions = script.handle(Input::Committed(Vec::new()));
            assert!(actions.contains(&"start task run 1".to_owned()), "{error}: {actions:?}");
            let audit = script.commits.iter().flat_map(|commit| &commit.audit).last().unwrap();
            assert_eq!((audit.action.as_str(), &audit.error), (action, &None));
            assert_eq!(script.machine.stats(script.now).backing_off, 0);
        }
    }
}

#[test]
fn an_edit_keeps_what_a_task_follows() {
    let mut script = TurnScript::new();
    let origin = TaskOrigin::AfterTurn(followed());
    let follows = origin.metadata().to_value();
    let queue = agent().queue_of(TaskKind::Memory);
    let memory = |id: &str| Task {
        agent: queue.clone(),
        kind: TaskKind::Memory,
        origin: origin.clone(),
        ..task_of(id, "note")
    };
    script.command(Command::Task(memory("m0")));
    script.command(Command::Task(memory("m1")));
    let position = script.commits.iter().flat_map(|commit| &commit.tasks).last().unwrap().queued.position;
    let task = TaskId::parse("m1").unwrap();
    let edit = ControlKind::EditTask {
        task,
        edit: TaskEdit { content: Some("new".into()), metadata: Some(Metadata::EMPTY) },
    };
    script.auto = false;
    script.command(Command::Control(Control {
        id: CommandId::parse("e").unwrap(),
        actor: "operator".into(),
        subject: queue,
        kind: edit,
    }));
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::Task { position, is_failed: false })]));
    script.handle(Input::Committed(Vec::new()));
    script.auto = true;
    script.say(0, &["{\"facts\": []}!"]);
    let start = script.last_start();
    assert_eq!((start.content.as_str(), start.metadata.to_value()), ("new", follows));
}

#[test]
fn tasks_run_in_order_one_at_a_time() {
    let mut script = TurnScript::new();
    assert_eq!(script.task("t1"), ["start task run 0"]);
    assert!(script.task("t2").is_empty() && script.task("t3").is_empty());
    for (n, next) in [(1, Some("start task run 0")), (2, Some("start task run 0")), (3, None)] {
        let said = script.say(0, &["ok!"]);
        assert_eq!(said.get(1).map(String::as_str), next, "{n}");
    }
    let command: Vec<_> = script.starts.iter().map(started_task).collect();
    assert_eq!(command, ["t1", "t2", "t3"]);
    assert_eq!(script.history().len(), 3);
    let commit = script.last_commit();
    assert_eq!(commit.turns[0].messages[0].placement.batch_type, BatchType::UserRequest);
    assert_eq!(commit.turns[0].messages[0].metadata.get("task_id"), Some(&json!("t3")));
    let write = &commit.agents[commit.turns[0].agent.unwrap()];
    assert_eq!((write.head, write.guard), (write.guard, write.head), "the head moves with its turn");
    assert_eq!((write.wait, write.failures), (BackoffChange::Keep, 0));
}

#[test]
fn a_failing_task_stays_at_the_head_and_its_agent_backs_off() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.task("t2");
    script.say(0, &["error:{}"]);
    let write = script.last_commit().agents[0].clone();
    let BackoffChange::Start(delay) = write.wait else { panic!("{write:?}") };
    assert!((60_000..=120_000).contains(&delay), "{delay}");
    assert_eq!((write.failures, write.run, write.head), (1, 1, Position::from_stored(0)));
    assert!(script.last_commit().failed_tasks.is_empty());
    assert!(script.later(delay - 1).is_empty(), "nothing of this agent starts while it waits");
    assert_eq!(script.later(1), ["start task run 1"]);
    assert_eq!(started_task(&script.last_start()), "t1");
    let said = script.say(0, &["ok!"]);
    assert_eq!(said, ["end task run 1 complete", "start task run 0"]);
    let write = &script.commits[script.commits.len() - 1].agents[0];
    assert_eq!((write.wait, write.failures, write.run), (BackoffChange::Clear, 0, 0));
}

#[test]
fn a_persons_message_passes_a_backoff() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.say(0, &["error:{}"]);
    let mut command = opened("x", 0, BusyPolicy::Enqueue);
    if let Command::Turn(opened) = &mut command {
        opened.thread = agent().thread();
        opened.turn = TurnId::foreground(&agent().thread(), "x").unwrap();
    }
    assert_eq!(script.command(command), ["start x run 0"]);
}

#[test]
fn retry_after_is_a_floor() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.say(0, &[r#"error:{"retry_after": 7200}"#]);
    assert_eq!(script.last_commit().agents[0].wait, BackoffChange::Start(7_200_000));
}

#[test]
fn a_permanent_error_fails_the_task_and_the_next_one_runs() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.task("t2");
    let said = script.say(0, &[r#"error:{"retryable": false}"#]);
    assert_eq!(said, ["end task run 0 producer_error", "start task run 0"]);
    let failed = script.commits.iter().flat_map(|commit| &commit.failed_tasks).next().unwrap();
    assert_eq!((failed.code.as_str(), failed.text.as_str()), ("producer_error", "broken"));
    assert_eq!(started_task(&script.last_start()), "t2");
}

#[test]
fn auth_error_pauses_the_agent_until_it_is_resumed() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.say(0, &[r#"error:{"class": "auth"}"#]);
    let write = &script.last_commit().agents[0];
    assert!(write.paused && write.failures == 0 && write.wait == BackoffChange::Keep);
    assert!(script.later(200_000).is_empty());
    assert_eq!(script.command(control("r", ControlKind::Resume)), ["start task run 1"]);
    assert!(!script.last_commit().agents[0].paused);
}

#[test]
fn with_max_attempts_a_task_is_given_up() {
    let mut script = TurnScript::new();
    script.rules.max_attempts = Some(2);
    script.task("t1");
    script.say(0, &["error:{}"]);
    assert!(script.last_commit().failed_tasks.is_empty());
    script.later(120_000);
    script.say(0, &["error:{}"]);
    assert_eq!(script.last_commit().failed_tasks.len(), 1);
}

#[test]
fn a_stopped_task_keeps_its_answer_and_is_marked() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.say(0, &["half"]);
    script.command(control("s", ControlKind::StopTurn(script.last_start().turn)));
    let commit = script.last_commit();
    assert_eq!(commit.failed_tasks[0].code, "stopped");
    assert_eq!(commit.turns[0].messages.len(), 2);
    assert!(commit.turns[0].agent.is_some());
}

#[test]
fn operators_pause_resume_and_clear() {
    let mut script = TurnScript::new();
    script.command(control("p", ControlKind::Pause));
    assert!(script.task("t1").is_empty());
    assert_eq!(script.command(control("r", ControlKind::Resume)), ["start task run 0"]);
    script.say(0, &["error:{}"]);
    assert_eq!(script.command(control("c", ControlKind::ClearBackoff)), ["start task run 1"]);
    let write = &script.last_commit().agents[0];
    assert_eq!((write.wait, write.failures, write.run), (BackoffChange::Clear, 0, 1));
    assert!(script.command(control("p", ControlKind::Pause)).is_empty(), "the same act again does nothing");
    let audit: Vec<_> = script.commits.iter().flat_map(|commit| &commit.audit).collect();
    assert_eq!(
        audit.iter().map(|a| a.action.as_str()).collect::<Vec<_>>(),
        ["pause", "resume", "clear_backoff"]
    );
    assert!(audit.iter().all(|audit| audit.actor == "op" && audit.error.is_none()));
}

#[test]
fn operators_retry_drop_and_edit_tasks() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.task("t2");
    script.task("t3");
    let positions: Vec<Position> =
        script.commits.iter().flat_map(|commit| &commit.tasks).map(|task| task.queued.position).collect();
    script.auto = false;
    let act_on = |script: &mut TurnScript, id: &str, what, is_failed, position| {
        script.command(control(id, what));
        let key = script.checks.pop().unwrap();
        let verdict = CommandVerdict::Task { position, is_failed };
        script.handle(Input::Checked(vec![(key, verdict)]));
        let commit = script.last_commit().clone();
        script.handle(Input::Committed(Vec::new()));
        commit
    };
    let task = |id| TaskId::parse(id).unwrap();
    let edit = ControlKind::EditTask {
        task: task("t3"),
        edit: TaskEdit { content: Some("new".into()), metadata: None },
    };
    let commit = act_on(&mut script, "e", edit, false, positions[2]);
    assert_eq!(commit.task_changes[0].edit.content.as_deref(), Some("new"));
    let commit = act_on(&mut script, "d1", ControlKind::DropTask(task("t1")), false, positions[0]);
    assert!(commit.audit[0].error.as_ref().unwrap().contains("under way"), "{:?}", commit.audit);
    let commit = act_on(&mut script, "d2", ControlKind::DropTask(task("t2")), false, positions[1]);
    assert_eq!(
        (commit.failed_tasks[0].position, commit.failed_tasks[0].code.as_str()),
        (positions[1], "dropped")
    );
    let commit = act_on(&mut script, "r", ControlKind::RetryTask(task("t0")), true, Position::from_stored(5));
    let retried = &commit.task_changes[0];
    assert_eq!(retried.stored.get(), 5);
    assert!(retried.position.unwrap().get() > 5, "it has a new place");
    let commit = act_on(&mut script, "r2", ControlKind::RetryTask(task("t3")), false, positions[2]);
    assert!(commit.audit[0].error.is_some());
    script.auto = true;
    script.say(0, &["ok!"]);
    let start = script.last_start();
    assert_eq!((started_task(&start), start.content.as_str()), ("t3", "new"), "t2 was dropped");
    assert_eq!(
        script.say(0, &["ok!"])[1..],
        [format!("load after {}", positions[2])],
        "t0 waits in the store"
    );
}

#[test]
fn the_same_task_is_taken_once_and_another_payload_is_refused() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.task("t1");
    script.command(Command::Task(task_of("t1", "something else")));
    let tasks: usize = script.commits.iter().map(|commit| commit.tasks.len()).sum();
    assert_eq!(tasks, 1);
    let letters: Vec<_> = script.commits.iter().flat_map(|commit| &commit.dead_letters).collect();
    let DeadLetterSource::Entry { refusal, payload, .. } = &letters[0].source else { panic!("{letters:?}") };
    assert_eq!((refusal.code, &payload[..], letters.len()), ("task_conflict", &b"p"[..], 1));
}

fn delayed(id: &str, wait_ms: i64) -> Command {
    let not_before = T0.plus_ms(wait_ms);
    Command::DelayedTask(Box::new(DelayedTask { task: task_of(id, "call back"), not_before }))
}

#[test]
fn an_entry_is_done_once_its_delayed_task_is_stored() {
    let mut script = TurnScript::new();
    assert_eq!(script.command(delayed("t1", 1_000)), ["delay t1 of 1"]);
    script.task("t2");
    let commit = script.last_commit();
    let tasks: Vec<_> = commit.tasks.iter().map(|write| write.queued.task.id.as_str()).collect();
    assert_eq!(
        (tasks, commit.checkpoint),
        (vec!["t2"], Seq(0)),
        "t1 is in no queue, and is read again after a crash"
    );
    let loads = script.handle(Input::TaskDelayed { seq: Seq(1), outcome: Some(TaskDelay::Stored) });
    assert_eq!(loads, ["load timers"], "it may be due before all that are known");
    let [TimerWrite::Arm(armed)] = &script.last_commit().timers[..] else { panic!() };
    let (wait_ms, body) = (armed.wait_ms, Value::Object(armed.body.as_map().unwrap().clone()));
    let Command::DelayedTask(sent) = delayed("t1", 1_000) else { panic!() };
    assert_eq!((wait_ms, body), (1_000, sent.timer_body()), "a store that went back meanwhile has it again");
    assert_eq!(script.last_commit().checkpoint, Seq(2));
    script.task("t3");
    assert_eq!(script.last_commit().checkpoint, Seq(3));
    assert_eq!(script.command(delayed("t2", -1_000)), Vec::<String>::new());
    let refusal = |script: &TurnScript| match &script.last_commit().dead_letters[0].source {
        DeadLetterSource::Entry { refusal, payload, .. } => (refusal.code, payload.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(&script).0, "task_conflict", "t2 is in the queue with another text");
}

#[test]
fn a_delayed_task_that_cannot_wait_becomes_a_dead_letter() {
    for (outcome, code) in [
        (Some(TaskDelay::Conflict), "task_conflict"),
        (Some(TaskDelay::Full), "too_many_delayed_tasks"),
        (None, "rejected_by_database"),
    ] {
        let mut script = TurnScript::new();
        script.command(delayed("t1", 1_000));
        script.handle(Input::TaskDelayed { seq: Seq(1), outcome });
        let DeadLetterSource::Entry { refusal, payload, .. } = &script.last_commit().dead_letters[0].source
        else {
            panic!()
        };
        assert_eq!((refusal.code, &payload[..]), (code, &b"p"[..]));
    }
    let mut script = TurnScript::new();
    assert!(script.command(delayed("t1", DelayedTask::MOST_DELAY_MS + 1)).is_empty());
    let DeadLetterSource::Entry { refusal, .. } = &script.last_commit().dead_letters[0].source else {
        panic!()
    };
    assert_eq!(refusal.code, "invalid_not_before");
    let mut script = TurnScript::new();
    script.command(delayed("t1", 1_000));
    script.handle(Input::TaskDelayed { seq: Seq(1), outcome: Some(TaskDelay::Erased) });
    script.task("t2");
    assert_eq!((script.last_commit().dead_letters.len(), script.last_commit().checkpoint), (0, Seq(2)));
}

#[test]
fn unknown_and_unreadable_commands_are_refused() {
    for (verdict, code) in
        [(CommandVerdict::Unknown, "unknown_agent"), (CommandVerdict::Refused, "rejected_by_database")]
    {
        let mut script = TurnScript::new();
        script.auto = false;
        script.task("t1");
        let key = script.checks.pop().unwrap();
        script.handle(Input::Checked(vec![(key, verdict)]));
        let DeadLetterSource::Entry { refusal, .. } = &script.last_commit().dead_letters[0].source else {
            panic!()
        };
        assert_eq!(refusal.code, code);
    }
}

#[test]
fn of_orders_of_erased_threads_nothing_is_kept() {
    let mut script = TurnScript::new();
    script.auto = false;
    script.task("t1");
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::Erased)]));
    script.task("t2");
    let key = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    assert_eq!(script.machine.take_counters().erased_commands, 1);
    let commit = script.last_commit();
    let tasks: Vec<_> = commit.tasks.iter().map(|task| task.queued.task.id.as_str()).collect();
    assert_eq!((tasks, commit.dead_letters.len()), (vec!["t2"], 0));
}

#[test]
fn a_task_repeated_while_its_first_is_written_is_taken_once() {
    let mut script = TurnScript::new();
    script.auto = false;
    let new = |script: &mut TurnScript| {
        let keys = std::mem::take(&mut script.checks);
        script.handle(Input::Checked(keys.into_iter().map(|key| (key, CommandVerdict::New)).collect()))
    };
    script.task("t1");
    new(&mut script);
    // The store is asked before the commit is applied, and answers after it.
    script.task("t1");
    script.task("t2");
    script.handle(Input::Committed(Vec::new()));
    new(&mut script);
    let tasks = |commit: &Commit| commit.tasks.iter().map(|task| task.queued.task.id.to_string()).collect();
    let written: Vec<Vec<String>> = script.commits.iter().map(tasks).collect();
    assert_eq!(written, [["t1"], ["t2"]]);
    assert_eq!(script.machine.take_counters().duplicate_commands, 1);
}

#[test]
fn orders_are_remembered_only_until_the_store_knows_them() {
    let limits = PartitionLimits { checkpoint_ms: 1_000, ..quiet() };
    let mut script = TurnScript::with(limits, bare());
    for number in 0..50 {
        script.task(&format!("t{number}"));
        script.command(control(&format!("p{number}"), ControlKind::Pause));
    }
    script.later(2_000);
    assert_eq!(script.machine.stats(script.now).remembered_bytes, 0);
    // An active input is kept only in the stream, and so is everything after it.
    script.open("x");
    let one = script.machine.stats(script.now).remembered_bytes;
    assert!(one > 0);
    script.task("t50");
    script.later(2_000);
    assert!(script.machine.stats(script.now).remembered_bytes > one);
    script.command(control("stop", ControlKind::StopTurn(turn("x"))));
    script.later(2_000);
    assert_eq!(script.machine.stats(script.now).remembered_bytes, 0);
}

/// An unknown agent gets no row and no dead letter; the sender learns the reason from the audit.
#[test]
fn acts_on_unknown_agents_are_refused_and_make_nothing() {
    for kind in [ControlKind::Pause, ControlKind::Resume, ControlKind::ClearBackoff] {
        let mut script = TurnScript::new();
        script.auto = false;
        script.command(control("p", kind.clone()));
        let key = script.checks.pop().unwrap();
        script.handle(Input::Checked(vec![(key, CommandVerdict::Unknown)]));
        let commit = script.last_commit();
        assert_eq!(commit.audit[0].error.as_deref(), Some("there is no such agent"), "{kind:?}");
        assert_eq!((commit.agents.len(), commit.dead_letters.len()), (0, 0), "{kind:?}");
        // An earlier task has created the agent, even if that task is not stored yet.
        for is_commit_under_way in [false, true] {
            let mut script = TurnScript::new();
            script.auto = false;
            script.task("t1");
            let task = (script.checks.pop().unwrap(), CommandVerdict::New);
            if is_commit_under_way {
                script.handle(Input::Checked(vec![task.clone()]));
            }
            script.command(control("p", kind.clone()));
            let act = (script.checks.pop().unwrap(), CommandVerdict::Unknown);
            let verdicts = if is_commit_under_way { vec![act] } else { vec![task, act] };
            script.handle(Input::Checked(verdicts));
            script.handle(Input::Committed(Vec::new()));
            let audits: Vec<_> = script.commits.iter().flat_map(|commit| &commit.audit).collect();
            assert!(matches!(&audits[..], [audit] if audit.error.is_none()), "{kind:?}: {audits:?}");
        }
    }
}

/// A look-up of due timers does not know of the task that came after it had begun.
#[test]
fn a_delayed_task_is_not_added_to_one_that_came_first() {
    let id = TimerId::of_task(&agent(), &TaskId::parse("k").unwrap());
    let timers = TimerPage { timers: vec![PendingTimer { id: id.clone(), wait_ms: 0 }], is_all: true };
    let mut script = TurnScript::with(quiet(), Takeover { timers, ..bare() });
    script.later(1_000);
    assert_eq!(script.due, std::slice::from_ref(&id));
    script.task("k");
    script.say(0, &["done!"]);
    let work = NewWork::Task(task_of("k", "do k"));
    let verdict = TimerVerdict::Fire { work, next: None };
    script.handle(Input::TimersDecided(vec![TimerDecision { id, thread: None, verdict }]));
    let entered = script.commits.iter().flat_map(|commit| &commit.tasks);
    assert_eq!(entered.count(), 1);
}
