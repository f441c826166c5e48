use model::{
    AgentId, ContinuedBatch, FollowedTurn, Metadata, QueuedTask, Task, TaskEdit, TaskId, TaskKind,
    TaskOrigin, TurnOpened, TurnOptions, TurnOrigin,
};

use super::*;
use crate::types::Fallback;

fn commit() -> Commit {
    Commit::empty(PartitionId(0), 1, Seq(0), Timestamp(0))
}

fn at(number: i64) -> Position {
    Position::from_stored(number)
}

fn agent() -> AgentId {
    AgentId::parse("a").unwrap()
}

fn mark(number: i64, code: &str) -> FailedTask {
    FailedTask { agent: agent(), position: at(number), code: code.to_owned(), text: String::new() }
}

fn edit(number: i64, content: &str) -> TaskChange {
    let edit = TaskEdit { content: Some(content.to_owned()), metadata: None };
    TaskChange::edit(agent(), at(number), edit)
}

/// Each change as `stored>new content`; `-`: the task is deleted, or its content stays.
fn changed(changes: Vec<TaskChange>) -> String {
    let mut commit = commit();
    changes.into_iter().for_each(|change| commit.change_task(change));
    let text = |change: &TaskChange| {
        let new = change.position.map_or("-".to_owned(), |new| new.get().to_string());
        format!("{}>{new} {}", change.stored.get(), change.edit.content.as_deref().unwrap_or("-"))
    };
    commit.task_changes.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[test]
fn changes_of_one_task_are_one_row() {
    let requeue = |from, to| TaskChange::requeue(agent(), at(from), at(to));
    let remove = |number| TaskChange::remove(agent(), at(number));
    // Also under the position that the task had when two acts were checked together.
    assert_eq!(changed(vec![requeue(1, 11), requeue(1, 12), edit(12, "x"), edit(1, "y")]), "1>12 y");
    assert_eq!(changed(vec![requeue(1, 11), edit(11, "x"), remove(11), requeue(1, 12)]), "1>- x");
    assert_eq!(changed(vec![edit(1, "x"), edit(2, "y"), requeue(1, 3)]), "1>3 x, 2>2 y");
    let metadata = TaskEdit { content: None, metadata: Some(Metadata::EMPTY) };
    let mut both = edit(1, "x");
    both.then(TaskChange::edit(agent(), at(1), metadata));
    assert_eq!((both.edit.content.as_deref(), both.edit.metadata), (Some("x"), Some(Metadata::EMPTY)));
}

#[test]
fn mark_that_an_operator_lifts_is_not_written() {
    for is_lifted_first in [false, true] {
        let mut commit = commit();
        let lift = |commit: &mut Commit| commit.change_task(TaskChange::remove(agent(), at(1)));
        if is_lifted_first {
            lift(&mut commit);
        }
        [mark(1, "x"), mark(2, "first"), mark(2, "second")].into_iter().for_each(|it| commit.fail_task(it));
        lift(&mut commit);
        commit.change_task(edit(2, "an edit lifts nothing"));
        assert_eq!(commit.failed_tasks, [mark(2, "first")]);
    }
}

#[test]
fn last_failure_of_a_turn_is_written_unless_it_is_over() {
    let thread = ThreadId::parse("t").unwrap();
    let turn = |unique: &str| TurnId::foreground(&thread, unique).unwrap();
    let failed = |unique: &str, run| FailedTurn {
        opened: TurnOpened {
            turn: turn(unique),
            thread: thread.clone(),
            agent: thread.agent(),
            run,
            content: String::new(),
            origin: TurnOrigin::PERSON,
            metadata: Metadata::EMPTY,
            actor: None,
            options: TurnOptions::default(),
        },
        code: String::new(),
        text: String::new(),
        is_retryable: false,
        partial: String::new(),
    };
    let succeeded = |unique: &str| TurnWrite {
        turn: turn(unique),
        messages: Vec::new(),
        agent: None,
        answered_by: None,
        ends_failed: Some(thread.clone()),
        on_refusal: Fallback::Turn(Box::new(failed(unique, 0))),
    };
    let fail = |commit: &mut Commit| {
        for (unique, run) in [("x", 1), ("x", 2), ("dropped", 0), ("retried", 0)] {
            commit.fail_turn(failed(unique, run));
        }
    };
    let mut commit = commit();
    fail(&mut commit);
    commit.dropped_turns.push((thread.clone(), turn("dropped")));
    commit.add_turn(succeeded("retried"));
    let left = |commit: &Commit| {
        let stays = |failed: &&FailedTurn| !commit.drops(failed);
        commit.failed_turns.iter().filter(stays).cloned().collect::<Vec<_>>()
    };
    assert_eq!(left(&commit), [failed("x", 2)]);
    fail(&mut commit);
    assert_eq!(left(&commit), [failed("x", 2)], "in either order");
}

fn task(id: &str, position: i64, origin: TaskOrigin) -> TaskWrite {
    let (content, metadata) = (String::new(), Metadata::EMPTY);
    let id = TaskId::parse(id).unwrap();
    let task = Task { agent: agent(), id, kind: TaskKind::Task, content, origin, metadata };
    TaskWrite { seq: Seq(0), queued: QueuedTask { position: at(position), task }, digest: 0 }
}

#[test]
fn a_turn_is_written_with_the_task_that_continues_it() {
    let thread = ThreadId::parse("t").unwrap();
    let turn = TurnId::foreground(&thread, "x").unwrap();
    let (answer, batch) = (turn.answer(0), at(5));
    let continued = ContinuedBatch { batch, number: 1, turn: turn.clone() };
    let followed = FollowedTurn { thread, turn: turn.clone(), answer, batch };
    let mut commit = commit();
    commit.add_task(task("next", 1, TaskOrigin::Continuation(continued)));
    // Sent through the outbox of an earlier commit of the turn, which the store may have lost.
    commit.add_task(task("work", 2, TaskOrigin::AfterTurn(followed)));
    let ids = |commit: &Commit| {
        commit.tasks.iter().map(|write| write.queued.task.id.as_str().to_owned()).collect::<Vec<_>>()
    };
    let single = Single::Turn(&turn, None);
    assert_eq!(ids(&commit.rows_with(single)), ["next"]);
    commit.remove_with(single);
    assert_eq!(ids(&commit), ["work"]);
}

#[test]
fn the_same_task_comes_once() {
    let mut commit = commit();
    for position in [1, 2] {
        commit.add_task(task("k", position, TaskOrigin::SENT));
    }
    assert_eq!((commit.tasks.len(), commit.tasks[0].queued.position), (1, at(1)));
    assert_eq!((commit.weight(), commit.is_empty()), (1, false));
}
