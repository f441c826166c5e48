//! Schedules and delayed tasks that gateways write while the owner fires them.

use model::{
    CommandId, DelayedTask, Metadata, ScheduleName, Task, TaskId, TaskKind, TaskOrigin, TimerId, Timestamp,
};
use partition::{NextDue, TimerEnd, TimerWrite};
use store::{Committed, PutOutcome, PutSchedule, Store, StoredSchedule, TaskDelay, TimerState};

use crate::fixture::{Database, Owner};
use crate::values::agent;

fn put(command: &str, cron: &str, next_due: Option<i64>) -> PutSchedule {
    PutSchedule {
        agent: agent("helper"),
        name: ScheduleName::parse("daily").unwrap(),
        schedule: StoredSchedule {
            cron: Some(cron.to_owned()),
            at: None,
            time_zone: "UTC".to_owned(),
            overlap: "skip".to_owned(),
            missed: "skip".to_owned(),
            content: "report".to_owned(),
            metadata: Metadata::EMPTY,
            enabled: true,
        },
        next_due: next_due.map(Timestamp),
        command: CommandId::parse(command).unwrap(),
        actor: "anna".to_owned(),
    }
}

fn timer(command: &str) -> TimerId {
    let name = ScheduleName::parse("daily").unwrap();
    TimerId::of_schedule(&agent("helper"), &name, &CommandId::parse(command).unwrap())
}

async fn write(owner: &Owner, timers: Vec<TimerWrite>) {
    let mut commit = owner.empty();
    commit.timers = timers;
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
}

async fn next_due(store: &Store) -> Option<Timestamp> {
    store.schedule(&agent("helper"), &ScheduleName::parse("daily").unwrap()).await.unwrap().unwrap().next_due
}

#[tokio::test]
async fn a_schedule_put_anew_is_due_by_its_new_version_alone() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    assert_eq!(
        store.put_schedule(&put("c1", "0 9 * * *", Some(1_000))).await.unwrap(),
        PutOutcome::Stored(1)
    );
    let first = timer("c1");
    let due = store.due_timers(None, std::slice::from_ref(&first)).await.unwrap().remove(0).unwrap();
    assert!(due.is_due && due.schedule.is_some());
    // The owner has decided about the first version, but commits after the second was written.
    let later = 4_000_000_000_000;
    assert_eq!(
        store.put_schedule(&put("c2", "0 10 * * *", Some(later))).await.unwrap(),
        PutOutcome::Stored(2)
    );
    let next = NextDue { at: Timestamp(5_000), wait_ms: 1 };
    for late in [
        TimerWrite::Fire { id: first.clone(), turn: None, next: Some(next) },
        TimerWrite::Postpone { id: first.clone(), next, by: Some("overlap".to_owned()) },
        TimerWrite::End { id: first.clone(), state: TimerEnd::Refused, by: "missed".to_owned() },
    ] {
        write(&owner, vec![late]).await;
        assert_eq!(next_due(&store).await, Some(Timestamp(later)));
    }
    let stale = store.due_timers(None, std::slice::from_ref(&first)).await.unwrap().remove(0).unwrap();
    assert_eq!((stale.state, stale.schedule), (TimerState::Ended, None));
    // Each occurrence of the new version sets the next one.
    let next = NextDue { at: Timestamp(later + 5), wait_ms: 1 };
    write(&owner, vec![TimerWrite::Fire { id: timer("c2"), turn: None, next: Some(next) }]).await;
    assert_eq!(next_due(&store).await, Some(next.at));
    // Both versions are pending, as when two are written concurrently. The timer of the lost one
    // does nothing.
    database
        .execute("UPDATE timers SET state = 'pending', ended_at = NULL WHERE due_at < '2000-01-01'")
        .await;
    let lost = store.due_timers(None, std::slice::from_ref(&first)).await.unwrap().remove(0).unwrap();
    assert_eq!((lost.state, lost.schedule), (TimerState::Pending, None));
    let name = ScheduleName::parse("daily").unwrap();
    assert!(store.delete_schedule(&agent("helper"), &name).await.unwrap());
    assert!(!store.delete_schedule(&agent("helper"), &name).await.unwrap());
    assert_eq!(database.number("SELECT count(*) FROM timers WHERE state = 'pending'").await, 0);
    write(&owner, vec![TimerWrite::Fire { id: timer("c2"), turn: None, next: Some(next) }]).await;
    assert_eq!(database.number("SELECT count(*) FROM timers WHERE state = 'pending'").await, 0);
}

#[tokio::test]
async fn unfinished_tasks_count_for_all_versions_of_a_schedule() {
    let (database, store) = Database::new(1).await;
    store.put_schedule(&put("c1", "0 9 * * *", Some(1_000))).await.unwrap();
    store.put_schedule(&put("c2", "0 10 * * *", Some(2_000))).await.unwrap();
    let bucket = model::Bucket::of_key("helper").get();
    let series = timer("c1").series().to_owned();
    database
        .execute(&format!(
            "INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content)
             VALUES ({bucket}, 'helper', 1, '{series}-1000', 'task', 'x'), ({bucket}, 'helper', 2, '{series}x-1', 'task', 'x')"
        ))
        .await;
    let due = store.due_timers(None, &[timer("c2")]).await.unwrap().remove(0).unwrap();
    assert_eq!(due.schedule.unwrap().unfinished, 1, "of this schedule, and of no other");
}

#[tokio::test]
async fn a_schedule_and_what_waits_of_an_agent_end_with_it() {
    let (database, store) = Database::new(1).await;
    store.put_schedule(&put("c1", "0 9 * * *", Some(1_000))).await.unwrap();
    let delayed = DelayedTask {
        task: Task {
            agent: agent("helper"),
            id: TaskId::parse("k").unwrap(),
            kind: TaskKind::Task,
            content: "a secret".to_owned(),
            origin: TaskOrigin::SENT,
            metadata: Metadata::EMPTY,
        },
        not_before: Timestamp(4_000_000_000_000),
    };
    assert_eq!(store.delay_task(&delayed).await.unwrap(), TaskDelay::Stored);
    let waiting = store.delayed_tasks(&agent("helper"), None, 8).await.unwrap();
    assert_eq!(waiting, std::slice::from_ref(&delayed));
    let threads = [agent("helper").thread()];
    store.mark_erased(&threads, "anna", "run", None).await.unwrap();
    assert_eq!(store.put_schedule(&put("c2", "0 9 * * *", Some(1_000))).await.unwrap(), PutOutcome::Erased);
    assert_eq!(store.delay_task(&delayed).await.unwrap(), TaskDelay::Erased);
    let erased = store.erase_some(&threads).await.unwrap();
    assert_eq!((erased["timers"], erased["schedules"]), (2, 1));
    assert_eq!(
        database.number("SELECT (SELECT count(*) FROM timers) + (SELECT count(*) FROM schedules)").await,
        0
    );
}

#[tokio::test]
async fn many_requests_for_one_delayed_task_store_it_once() {
    let (database, store) = Database::new(1).await;
    let delayed = |content: &str| DelayedTask {
        task: Task {
            agent: agent("helper"),
            id: TaskId::parse("k").unwrap(),
            kind: TaskKind::Task,
            content: content.to_owned(),
            origin: TaskOrigin::SENT,
            metadata: Metadata::EMPTY,
        },
        not_before: Timestamp(4_000_000_000_000),
    };
    let all = futures_util::future::join_all((0..16).map(|_| {
        let (store, delayed) = (store.clone(), delayed("one"));
        async move { store.delay_task(&delayed).await.unwrap() }
    }));
    assert_eq!(all.await, [TaskDelay::Stored; 16]);
    assert_eq!(store.delay_task(&delayed("another")).await.unwrap(), TaskDelay::Conflict);
    assert_eq!(database.number("SELECT count(*) FROM timers").await, 1);
}
