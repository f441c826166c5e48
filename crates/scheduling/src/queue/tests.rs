use model::{AgentId, Metadata, Task, TaskEdit, TaskKind, TaskOrigin};

use super::*;

const NOW: Timestamp = Timestamp(1_000_000);

fn task(position: i64) -> QueuedTask {
    let task = Task {
        agent: AgentId::parse("a").unwrap(),
        id: TaskId::parse(&format!("t{position}")).unwrap(),
        kind: TaskKind::Task,
        content: "x".into(),
        origin: TaskOrigin::SENT,
        metadata: Metadata::EMPTY,
    };
    QueuedTask { position: Position::from_stored(position), task }
}

fn first(queue: &AgentQueue) -> Option<i64> {
    queue.first().map(|queued| queued.position.get())
}

#[test]
fn first_in_first_out_one_at_a_time() {
    let mut queue = AgentQueue::default();
    assert_eq!(queue.head_state(NOW), HeadState::None);
    (1..=3).for_each(|n| queue.push(task(n), 8));
    for n in 1..=3 {
        assert_eq!((queue.head_state(NOW), first(&queue)), (HeadState::Ready, Some(n)));
        queue.begin();
        assert_eq!(queue.head_state(NOW), HeadState::Running);
        queue.advance();
        queue.rest();
    }
    assert_eq!(queue.head, Some(Position::from_stored(3)));
    assert!(queue.is_forgettable());
}

#[test]
fn a_failed_head_stays_and_the_agent_waits() {
    let mut queue = AgentQueue::default();
    (1..=2).for_each(|n| queue.push(task(n), 8));
    for n in 1..=3 {
        queue.begin();
        queue.fail();
        queue.wait_until(NOW.plus_ms(60));
        queue.rest();
        assert_eq!((queue.run, queue.failures, first(&queue)), (n, n, Some(1)));
    }
    assert_eq!(queue.head_state(NOW.plus_ms(59)), HeadState::Waits(NOW.plus_ms(60)));
    assert_eq!(queue.head_state(NOW.plus_ms(60)), HeadState::Ready);
    queue.clear_backoff();
    assert_eq!((queue.head_state(NOW), queue.run), (HeadState::Ready, 3), "the run goes on counting");
    queue.begin();
    assert!(!queue.advance(), "there was no backoff left to clear");
    assert_eq!((queue.run, queue.failures, first(&queue)), (0, 0, Some(2)));
}

#[test]
fn beyond_the_window_the_store_has_them() {
    let mut queue = AgentQueue::default();
    (1..=4).for_each(|n| queue.push(task(n), 2));
    assert_eq!((queue.len(), queue.has_more()), (2, true));
    assert_eq!(queue.load_after(), None, "there are enough here");
    for _ in 0..2 {
        queue.begin();
        queue.advance();
        queue.rest();
    }
    assert_eq!(queue.head_state(NOW), HeadState::NotLoaded);
    let after = queue.load_after().unwrap();
    assert_eq!((after.get(), queue.load_after()), (2, None), "once");
    queue.push(task(5), 2);
    queue.loaded(after, vec![task(3), task(4)], true);
    assert_eq!((first(&queue), queue.has_more()), (Some(3), true));
}

fn drained_of(first_position: i64) -> AgentQueue {
    let mut queue = AgentQueue::default();
    (first_position..first_position + 2).for_each(|n| queue.push(task(n), 1));
    queue.begin();
    queue.advance();
    queue.rest();
    queue
}

#[test]
fn forgotten_queue_does_not_restart_at_first_task() {
    let mut queue = AgentQueue::default();
    queue.expect(Position::from_stored(9));
    assert!(!queue.is_pending(Position::from_stored(8)), "it is done");
    assert_eq!(queue.load_after(), None, "the change is not stored yet");
    queue.settle();
    assert_eq!(queue.load_after(), Some(Position::from_stored(8)));
    let mut queue = AgentQueue::default();
    queue.expect(Position::from_stored(9));
    queue.push(task(7), 8);
    queue.settle();
    assert_eq!(queue.load_after(), Some(Position::from_stored(6)), "its commit was under way");
    let mut queue = AgentQueue::default();
    (5..=6).for_each(|n| queue.push(task(n), 1));
    assert!(queue.remove(Position::from_stored(5)));
    assert_eq!(queue.load_after(), Some(Position::from_stored(4)));
}

#[test]
fn task_arriving_during_load_is_kept_once() {
    let mut queue = drained_of(5);
    let after = queue.load_after().unwrap();
    queue.push(task(7), 8);
    queue.loaded(after, vec![task(6)], false);
    assert!(queue.has_more());
    let mut queue = drained_of(5);
    let after = queue.load_after().unwrap();
    queue.loaded(after, vec![task(6), task(7)], false);
    queue.push(task(7), 8);
    assert_eq!((queue.len(), queue.has_more()), (2, false));
}

#[test]
fn what_was_read_before_a_change_was_stored_does_not_count() {
    let mut queue = drained_of(5);
    let after = queue.load_after().unwrap();
    queue.mark_unknown();
    queue.loaded(after, vec![task(6)], false);
    assert_eq!((queue.len(), queue.has_more(), queue.load_after()), (0, true, None));
    queue.settle();
    assert_eq!(queue.load_after(), Some(after));
}

#[test]
fn large_tasks_wait_in_the_store() {
    let large = |position| {
        let mut queued = task(position);
        queued.task.content = "x".repeat(WINDOW_BYTES);
        queued
    };
    let mut queue = AgentQueue::default();
    (1..=3).for_each(|n| queue.push(large(n), 8));
    assert_eq!((queue.len(), queue.has_more()), (1, true), "one is always here");
    queue.edit(Position::from_stored(1), &TaskEdit { content: Some("y".to_owned()), metadata: None });
    queue.begin();
    queue.advance();
    assert_eq!(queue.bytes(), 0);
    let after = queue.load_after().unwrap();
    queue.loaded(after, vec![large(2), large(3)], false);
    assert_eq!((queue.len(), queue.has_more()), (1, true));
}

#[test]
fn what_is_under_way_is_not_taken_out() {
    let mut queue = AgentQueue::default();
    (1..=3).for_each(|n| queue.push(task(n), 8));
    queue.begin();
    assert!(!queue.remove(Position::from_stored(1)) && queue.remove(Position::from_stored(2)));
    assert!(queue.get(Position::from_stored(1)).is_none());
    assert!(queue.get(Position::from_stored(3)).is_some());
    queue.advance();
    queue.rest();
    assert_eq!(first(&queue), Some(3));
}

#[test]
fn a_restored_queue_is_as_it_was_saved() {
    let (head, until) = (Position::from_stored(4), NOW.plus_ms(60));
    let queue = AgentQueue::restore(head, 2, 3, true, Some(until), vec![task(5), task(6)], true);
    assert_eq!((queue.head, queue.run, queue.failures, queue.paused), (Some(head), 2, 3, true));
    assert_eq!((queue.waits_until(), queue.len(), queue.has_more()), (Some(until), 2, true));
    assert_eq!((queue.bytes(), queue.is_empty(), queue.is_busy()), (2 * task(5).task.size(), false, false));
    assert!(AgentQueue::default().is_empty());
}

#[test]
fn nothing_starts_before_a_change_is_stored() {
    let mut queue = AgentQueue::default();
    queue.push(task(1), 8);
    queue.mark_unknown();
    queue.mark_unknown();
    queue.settle();
    assert_eq!(queue.head_state(NOW), HeadState::Unsettled);
    queue.settle();
    assert_eq!(queue.head_state(NOW), HeadState::Ready);
}

#[test]
fn the_window_holds_tasks_up_to_its_last_byte() {
    let sized = |position, bytes: usize| {
        let mut queued = task(position);
        queued.task.content = "x".repeat(bytes - (queued.task.size() - 1));
        queued
    };
    for (bytes, is_here) in [(WINDOW_BYTES - 1_000, true), (WINDOW_BYTES - 999, false)] {
        let mut queue = AgentQueue::default();
        queue.push(sized(1, 1_000), 8);
        queue.push(sized(2, bytes), 8);
        assert_eq!((queue.len() == 2, queue.has_more()), (is_here, !is_here), "{bytes}");
    }
}

#[test]
fn a_late_answer_of_the_store_brings_no_finished_task_back() {
    let mut queue = drained_of(5);
    let after = queue.load_after().unwrap();
    queue.loaded(after, vec![task(6)], false);
    queue.loaded(after, vec![task(6), task(7)], false);
    assert_eq!(queue.len(), 1, "what it was asked for is here");
    queue.begin();
    queue.advance();
    queue.rest();
    queue.loaded(after, vec![task(6)], false);
    assert_eq!(first(&queue), None);
}

#[test]
fn advance_reports_a_backoff_that_ends() {
    let of = |change: fn(&mut AgentQueue)| {
        let mut queue = AgentQueue::default();
        queue.push(task(1), 8);
        change(&mut queue);
        assert!(!queue.is_forgettable());
        queue.advance()
    };
    assert!(!of(|_| ()) && of(AgentQueue::fail) && of(|queue| queue.wait_until(NOW)));
    assert!(!of(AgentQueue::requeue_head), "it has not failed");
}

#[test]
fn removal_and_edits_count_bytes_and_only_the_first_has_runs() {
    let mut queue = AgentQueue::default();
    (1..=3).for_each(|n| queue.push(task(n), 8));
    queue.fail();
    queue.requeue_head();
    queue.wait_until(NOW);
    assert!(queue.remove(Position::from_stored(2)));
    assert_eq!((queue.run, queue.failures, queue.waits_until()), (2, 1, Some(NOW)));
    queue.edit(Position::from_stored(3), &TaskEdit { content: Some("xyz".to_owned()), metadata: None });
    assert_eq!(queue.get(Position::from_stored(3)).unwrap().task.content, "xyz");
    assert_eq!(queue.bytes(), 2 * task(1).task.size() + 2);
    assert!(queue.remove(Position::from_stored(1)));
    assert_eq!((queue.run, queue.failures, queue.waits_until()), (0, 0, None));
    assert_eq!(queue.bytes(), task(1).task.size() + 2);
}

#[test]
fn the_first_task_is_under_way_once_it_has_begun() {
    let mut queue = AgentQueue::default();
    (1..=2).for_each(|n| queue.push(task(n), 8));
    let is_under_way = |queue: &AgentQueue| [1, 2].map(|n| queue.is_under_way(&task(n).task.id));
    assert_eq!((is_under_way(&queue), queue.is_busy()), ([false, false], false));
    queue.begin();
    assert_eq!((is_under_way(&queue), queue.is_busy()), ([true, false], true));
}

#[test]
fn tasks_are_pending_from_the_first_on() {
    let is_pending = |queue: &AgentQueue| [4, 5, 6].map(|n| queue.is_pending(Position::from_stored(n)));
    let mut queue = AgentQueue::default();
    assert_eq!(is_pending(&queue), [false; 3]);
    queue.push(task(5), 8);
    assert_eq!(is_pending(&queue), [false, true, true]);
    assert_eq!(is_pending(&drained_of(5)), [false, false, true], "those that are stored alone as well");
}

#[test]
fn a_queue_with_a_state_of_its_own_is_not_forgotten() {
    assert!(AgentQueue::default().is_forgettable());
    let changes: [fn(&mut AgentQueue); 6] = [
        |queue| queue.failures = 1,
        |queue| queue.run = 1,
        |queue| queue.paused = true,
        |queue| queue.wait_until(NOW),
        |queue| {
            queue.push(task(5), 8);
            queue.begin();
            queue.advance();
        },
        AgentQueue::mark_unknown,
    ];
    for change in changes {
        let mut queue = AgentQueue::default();
        change(&mut queue);
        assert!(!queue.is_forgettable(), "{queue:?}");
    }
}

#[test]
fn paused_agents_start_nothing() {
    let mut queue = AgentQueue::default();
    queue.push(task(1), 8);
    queue.paused = true;
    assert_eq!(queue.head_state(NOW), HeadState::Paused);
    assert!(!queue.is_forgettable());
}
