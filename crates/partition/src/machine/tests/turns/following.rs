//! What follows a turn: tasks and continuations.

use super::*;

#[test]
fn what_follows_a_turn_leaves_with_its_commit() {
    let mut script = TurnScript::new();
    (script.rules.work_request, script.rules.memory) = (true, true);
    script.open("x");
    script.auto = false;
    script.say(0, &["yes!"]);
    let batch = script.last_commit().outbox.clone().unwrap();
    let tasks: Vec<&Task> = batch
        .outgoing
        .iter()
        .filter_map(|out| match out {
            Outgoing::Task(task) => Some(task),
            Outgoing::TurnEnded(_) | Outgoing::Pause(_) => None,
        })
        .collect();
    assert_eq!(
        tasks.iter().map(|task| task.kind).collect::<Vec<_>>(),
        [TaskKind::WorkRequest, TaskKind::Memory]
    );
    for task in tasks {
        let answer = turn("x").answer(0);
        assert_eq!(task.task_metadata().get("assistant_message_id"), Some(&json!(answer.as_str())));
        let TaskOrigin::AfterTurn(followed) = &task.origin else { panic!("{task:?}") };
        assert_eq!((&followed.turn, &followed.thread, &followed.answer), (&turn("x"), &thread("t"), &answer));
    }
    let sent = script.machine.handle(Input::Committed(Vec::new()), script.now);
    assert!(sent.contains(&Action::Send(batch.clone())), "not before the commit is applied");
    script.handle(Input::Sent(batch.id));
    script.auto = true;
    script.open("y");
    script.say(0, &["z!"]);
    assert_eq!(script.last_commit().sent, [batch.id]);
}

#[test]
fn continuation_continues_its_batch() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.say(0, &["ok!"]);
    let batch = script.last_commit().turns[0].messages[0].placement.position;
    let continuation = |id: &str, continues: Value| {
        let metadata = Metadata::new(json!({ "continues": continues }).as_object().unwrap().clone()).unwrap();
        Command::Task(Task { origin: TaskOrigin::of_sender(&metadata), metadata, ..task_of(id, "go on") })
    };
    script.command(continuation("t2", json!(batch.to_string())));
    script.say(0, &["more!"]);
    let places: Vec<_> = script.last_commit().turns[0].messages.iter().map(|m| m.placement).collect();
    assert!(
        places.iter().all(|place| place.batch_id == batch && place.batch_type == BatchType::Continuation)
    );
    for nonsense in [json!("9223372036854775807"), json!("-1"), json!(5), json!("x")] {
        script.command(continuation(&format!("t{}", script.seq), nonsense));
        script.say(0, &["own!"]);
        let first = script.last_commit().turns[0].messages[0].placement;
        assert_eq!((first.batch_id, first.batch_type), (first.position, BatchType::UserRequest));
    }
}

#[test]
fn a_failed_turn_is_followed_by_nothing() {
    let mut script = TurnScript::new();
    script.rules.work_request = true;
    script.open("x");
    script.say(0, &["error:{}"]);
    let outgoing = &script.last_commit().outbox.as_ref().unwrap().outgoing;
    assert!(matches!(&outgoing[..], [Outgoing::TurnEnded(ended)] if ended.status == TurnStatus::Failed));
}

#[test]
fn auth_failure_of_foreground_turn_pauses_its_agent() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &[r#"error:{"class": "auth"}"#]);
    let commit = script.last_commit().clone();
    assert!(commit.agents.is_empty(), "nothing of another partition is written here");
    assert!(commit.failed_turns[0].is_retryable, "it may succeed once the credentials are mended");
    let outgoing = commit.outbox.unwrap().outgoing;
    let [Outgoing::TurnEnded(_), Outgoing::Pause(pause)] = &outgoing[..] else { panic!("{outgoing:?}") };
    assert_eq!((pause.agent.clone(), pause.id.as_str()), (agent(), &*format!("{}-auth0", turn("x"))));
    // In the agent's partition, the pause is a control command like an operator's, and a task
    // waits.
    script.task("t1");
    script.say(0, &["error:{}"]);
    for _ in 0..2 {
        script.command(Command::Control(pause.control()));
    }
    assert!(script.later(200_000).is_empty(), "paused, also after its backoff");
    let audited: Vec<_> = script.commits.iter().flat_map(|commit| &commit.audit).collect();
    let [audit] = &audited[..] else { panic!("{audited:?}") };
    assert_eq!((audit.action.as_str(), audit.actor.as_str()), ("pause", Pause::ACTOR));
    for hint in ["{}", r#"{"class": "permanent"}"#, r#"{"class": "transient"}"#] {
        let mut script = TurnScript::new();
        script.open("x");
        script.say(0, &[&format!("error:{hint}")]);
        let outgoing = &script.last_commit().outbox.as_ref().unwrap().outgoing;
        assert!(matches!(&outgoing[..], [Outgoing::TurnEnded(_)]), "{hint}: {outgoing:?}");
    }
}

/// What the last commit that ended a turn sends, without ends of turns.
fn sent(script: &TurnScript) -> Vec<Outgoing> {
    let batch = script.commits.iter().rev().find_map(|commit| commit.outbox.clone()).unwrap();
    batch.outgoing.into_iter().filter(|outgoing| !matches!(outgoing, Outgoing::TurnEnded(_))).collect()
}

#[test]
fn answer_asking_for_continuation_gets_one() {
    let mut script = TurnScript::new();
    script.rules.work_request = true;
    script.command(opened("x", 0, BusyPolicy::Reject));
    let mut batches = Vec::new();
    for number in 1..=2 {
        script.say(0, &["more:first part!"]);
        let commit = script.last_commit();
        let answer = commit.turns[0].messages.last().unwrap().clone();
        batches.push(answer.placement.batch_id);
        let [OpenTurn { opened: next, .. }] = &commit.opened[..] else { panic!("{commit:?}") };
        assert_eq!(sent(&script), [], "nothing travels");
        assert_eq!(next.turn, turn(&format!("h{}", answer.placement.position)));
        let shown = next.input_metadata();
        assert_eq!(shown.get("continues"), Some(&json!(answer.placement.batch_id.to_string())));
        assert_eq!(shown.get("synthetic"), Some(&json!(true)));
        assert_eq!(shown.get("continuation_number"), Some(&json!(number)));
        assert_eq!((next.options.busy_policy, next.run), (BusyPolicy::Enqueue, 0));
        assert_eq!(script.last_start().turn, next.turn, "it begins with the commit");
    }
    script.say(0, &["the end!"]);
    let [Outgoing::Task(work)] = &sent(&script)[..] else { panic!("{:?}", sent(&script)) };
    assert_eq!(work.kind, TaskKind::WorkRequest, "what follows a batch follows its end");
    let last = script.last_commit().turns[0].messages.last().unwrap().placement;
    batches.push(last.batch_id);
    batches.dedup();
    assert_eq!(batches.len(), 1, "all of it is one batch");
    assert_eq!(last.batch_type, BatchType::Continuation);
}

#[test]
fn a_task_goes_on_with_a_task() {
    let mut script = TurnScript::new();
    script.task("t1");
    let turn = script.last_start().turn;
    script.say(0, &["more:first part!"]);
    let next = &script.last_commit().tasks[0].queued.task;
    assert_eq!(next.id.as_str(), format!("{turn}-h"));
    assert_eq!((next.agent.clone(), next.kind), (agent(), TaskKind::Task));
    assert_eq!(next.task_metadata().get("turn_id"), Some(&json!(turn.as_str())));
    let TurnCause::Task { id, .. } = script.last_start().cause else { panic!("a task begins") };
    assert_eq!(id, next.id, "the continuation begins with the commit");
}

#[test]
fn a_continuation_of_a_task_carries_text_of_the_same_thread() {
    let continued = |kind: TaskKind| {
        let mut script = TurnScript::new();
        let origin = TaskOrigin::AfterTurn(followed());
        let task = Task { agent: agent().queue_of(kind), kind, origin, ..task_of("m", "note") };
        script.command(Command::Task(task));
        let turn = script.last_start().turn;
        script.say(0, &["more:first part!"]);
        let tasks = script.last_commit().tasks.iter().map(|write| write.queued.task.clone());
        let tasks: Vec<Task> = tasks.collect();
        (turn, tasks, script.machine.take_counters().continuations_rejected)
    };
    let (turn, next, _) = continued(TaskKind::WorkRequest);
    let [next] = &next[..] else { panic!("{next:?}") };
    assert_eq!(next.origin.source_thread(), ThreadId::parse("t").ok().as_ref());
    let shown = next.task_metadata();
    assert_eq!(shown.get("turn_id"), Some(&json!(turn.as_str())), "what follows a turn names it");
    assert_eq!(shown.get("assistant_message_id"), Some(&json!(followed().answer.as_str())));
    assert_eq!(shown.get("batch_id"), None);
    for kind in [TaskKind::Memory, TaskKind::Compaction] {
        let (_, next, rejected) = continued(kind);
        assert_eq!((next, rejected), (vec![], 1), "what it gives is read from one answer");
    }
}

#[test]
fn continuations_in_a_row_are_limited() {
    let mut script = TurnScript::new();
    let mut command = opened("x", 0, BusyPolicy::Enqueue);
    if let Command::Turn(opened) = &mut command {
        opened.origin = TurnOrigin::Continuation(ContinuedBatch {
            batch: Position::from_stored(7),
            number: 50,
            turn: turn("w"),
        });
    }
    script.rules.memory = true;
    script.command(command);
    script.say(0, &["more:and on!"]);
    let [Outgoing::Task(memory)] = &sent(&script)[..] else { panic!("{:?}", sent(&script)) };
    assert_eq!(memory.kind, TaskKind::Memory, "the batch has ended here");
    let counters = script.machine.take_counters();
    assert_eq!((counters.continuations, counters.continuations_rejected), (0, 1));
}

#[test]
fn stopping_a_turn_prevents_its_continuation() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &["more:on"]);
    script.command(control("s1", ControlKind::StopTurn(turn("x"))));
    assert_eq!((sent(&script), &script.last_commit().opened), (vec![], &vec![]));
}

#[test]
fn continuation_of_a_refused_turn_does_not_begin() {
    let mut script = TurnScript::new();
    script.open("x");
    script.auto = false;
    script.say(0, &["more:on!"]);
    assert_eq!(script.last_commit().opened.len(), 1);
    let starts = script.starts.len();
    script.handle(Input::Committed(vec![(turn("x"), "refused".to_owned())]));
    assert_eq!(script.starts.len(), starts);
    assert_eq!(script.machine.load().0, 0, "nothing is left of it");
}

#[test]
fn a_continuation_asked_for_twice_begins_once() {
    let mut script = TurnScript::new();
    script.open("x");
    script.auto = false;
    script.say(0, &["more:on!"]);
    let next = script.last_commit().opened[0].opened.clone();
    // A client asks for the same continuation while the commit is under way.
    script.command(Command::Turn(Box::new(next.clone())));
    let verdicts = script.checks.drain(..).map(|key| (key, CommandVerdict::New)).collect();
    script.handle(Input::Checked(verdicts));
    script.auto = true;
    script.handle(Input::Committed(Vec::new()));
    script.say(0, &["the end!"]);
    let begun = script.starts.iter().filter(|start| start.turn == next.turn).count();
    assert_eq!((begun, script.machine.take_counters().duplicate_commands), (1, 1));
}

#[test]
fn a_new_owner_finds_what_a_commit_has_opened() {
    let mut script = TurnScript::new();
    script.open("x");
    script.auto = false;
    script.say(0, &["more:on!"]);
    let commit = script.last_commit().clone();
    let (open_turns, checkpoint) = (commit.opened.clone(), commit.checkpoint);
    let mut script = TurnScript::with(quiet(), Takeover { open_turns, checkpoint, ..bare() });
    script.handle(Input::CaughtUp(true));
    assert_eq!(script.last_start().turn, commit.opened[0].opened.turn);
    script.say(0, &["the end!"]);
    let ended = (thread("t"), commit.opened[0].opened.turn.clone());
    assert_eq!(script.last_commit().ended_turns, [ended], "its row goes with its end");
}

/// An owner that has lost its partition without knowing it may read the answer to a turn that a
/// commit of the next owner has opened: no entry of the stream says so.
#[test]
fn only_an_owner_that_is_certain_stops_a_continuation() {
    let mut owner = TurnScript::new();
    owner.open("x");
    owner.say(0, &["more:first part!"]);
    let continuation = owner.last_start();
    let mut stale = TurnScript::new();
    assert_eq!(stale.say_as(&continuation, 0, 0, &["goes on"]), [] as [&str; 0]);
    owner.say(0, &["the end!"]);
    let mut next = TurnScript::with(quiet(), next_takeover(&owner));
    let stopped = format!("abandon {} run 0", name(&continuation.turn));
    assert_eq!(next.say_as(&continuation, 1, 0, &["late"]), [stopped], "its end is stored");
}

/// The input waited before the continuation was opened, so it begins first under a new owner, too.
#[test]
fn an_input_that_waits_precedes_a_restored_continuation() {
    let mut owner = TurnScript::new();
    owner.open("x");
    owner.open("y");
    owner.say(0, &["more:first part!"]);
    assert_eq!(owner.last_start().turn, turn("y"));
    let takeover = next_takeover(&owner);
    let entries = owner.log.iter().filter(|entry| entry.seq > takeover.checkpoint).cloned().collect();
    let mut next = TurnScript::with(quiet(), bare());
    next.commits.clone_from(&owner.commits);
    (next.machine, next.seq) = (Partition::new(takeover, quiet(), 9, T0), owner.seq);
    next.handle(Input::Entries { entries, room: 1_000 });
    next.handle(Input::CaughtUp(true));
    assert_eq!(next.last_start().turn, turn("y"));
    next.say(0, &["yes!"]);
    assert!(next.last_start().turn.is_continuation());
}
