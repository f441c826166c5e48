//! Timers: set, fired and ended by commits, and loaded by owners. Also the values that decide about
//! due timers.

use std::time::{Duration, Instant};

use model::{
    Metadata, PartitionId, Position, Role, TaskId, TimerId, TimerKind, Timestamp, TurnId, TurnOrigin,
};
use partition::{
    ArmedTimer, AuditWrite, CommandKey, CommandVerdict, Fallback, NextDue, TimerEnd, TimerWrite, TurnWrite,
};
use serde_json::json;
use sqlx::Row;
use store::{Applied, CleanupKind, CleanupLimit, Committed, DueTimer, Store, StoreError, TimerState};

use crate::fixture::{Database, Owner, TTL, message, metadata, thread, thread_of};
use crate::values::{agent, failed_turn};

fn id(of: &str, position: i64) -> TimerId {
    TimerId::follow_up(&thread(of), Position::from_stored(position))
}

fn arm(of: &str, position: i64, wait_ms: i64) -> TimerWrite {
    TimerWrite::Arm(ArmedTimer {
        id: id(of, position),
        thread: Some(thread(of)),
        agent: agent("helper"),
        wait_ms,
        body: metadata(json!({
            "trigger_type": "check_in", "reason": "quiet", "armed_position": position.to_string(),
        })),
        armed_by: Some(TurnId::foreground(&thread(of), &format!("i{position}")).unwrap()),
    })
}

fn fire(of: &str, position: i64) -> TimerWrite {
    TimerWrite::Fire { id: id(of, position), turn: id(of, position).turn().ok(), next: None }
}

fn end(of: &str, position: i64, state: TimerEnd, by: &str) -> TimerWrite {
    TimerWrite::End { id: id(of, position), state, by: by.to_owned() }
}

async fn write(owner: &Owner, timers: Vec<TimerWrite>) {
    let mut commit = owner.empty();
    commit.timers = timers;
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
}

async fn states(database: &Database) -> Vec<String> {
    database
        .rows("SELECT timer_id AS t, state AS s, ended_by AS by, fired_turn AS turn FROM timers ORDER BY created_at, timer_id")
        .await
}

/// A turn with an input and its answer.
fn turn(of: &str, position: i64, said: Metadata) -> TurnWrite {
    let turn = TurnId::foreground(&thread(of), &format!("i{position}")).unwrap();
    let at = |offset: i64, id: model::MessageId, role: Role| {
        let mut one = message(of, id.as_str(), position + offset);
        (one.role, one.metadata) = (role, said.clone());
        one.placement.batch_type = model::BatchType::UserRequest;
        one
    };
    TurnWrite {
        messages: vec![at(0, turn.input(), Role::User), at(1, turn.answer(0), Role::Assistant)],
        agent: None,
        answered_by: None,
        ends_failed: None,
        on_refusal: Fallback::Turn(Box::new(failed_turn(of, &turn, 0))),
        turn,
    }
}

async fn due(store: &Store, of: &str, position: i64) -> DueTimer {
    store.due_timers(None, &[id(of, position)]).await.unwrap().remove(0).unwrap()
}

/// The timer fired, and that commit was applied before the client's command was processed.
#[tokio::test]
async fn the_audit_says_when_a_timer_did_not_wait_any_more() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    write(&owner, vec![arm("t", 1, 60_000), arm("u", 2, 0)]).await;
    write(&owner, vec![fire("u", 2)]).await;
    let mut commit = owner.empty();
    let timers = [("t", 1), ("u", 2)];
    let act = |(of, n): (&str, i64), action: &str| {
        let target = Some(id(of, n).to_string());
        AuditWrite { action: action.to_owned(), target, ..crate::values::act(of, &format!("{action}-{of}")) }
    };
    commit.timers = timers.iter().map(|(of, n)| end(of, *n, TimerEnd::Cancelled, "client")).collect();
    commit.audit = timers.into_iter().map(|timer| act(timer, "cancel_timer")).collect();
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let mut commit = owner.empty();
    commit.audit = vec![
        act(("t", 1), "snooze_timer"),
        AuditWrite { error: Some("x".to_owned()), ..act(("u", 2), "snooze_timer") },
    ];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let rows = database.rows("SELECT command_id AS c, error AS e FROM audit_log ORDER BY 1").await;
    let late = r#""the timer does not wait any more""#;
    let row = |act: &str, error: &str| format!(r#"{{"c":"{act}","e":{error}}}"#);
    assert_eq!(
        rows,
        [
            row("cancel_timer-t", "null"),
            row("cancel_timer-u", late),
            row("snooze_timer-t", late),
            row("snooze_timer-u", r#""x""#)
        ]
    );
}

#[tokio::test]
async fn timers_are_set_fired_and_ended_by_commits() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    write(&owner, vec![arm("t", 1, 60_000)]).await;
    write(&owner, vec![arm("t", 1, 1)]).await;
    let wait_ms = store.load(&owner.grant, 8).await.unwrap().timers.timers[0].wait_ms;
    assert!((50_000..=60_000).contains(&wait_ms), "set once: {wait_ms}");
    // A newer timer replaces it, in one commit with timers of other threads.
    write(&owner, vec![arm("t", 2, 60_000), arm("u", 3, 0)]).await;
    write(&owner, vec![fire("t", 1), fire("u", 3), end("t", 2, TimerEnd::Refused, "cooldown")]).await;
    let f = |of: &str, n| id(of, n).to_string();
    let row = |t: String, s: &str, by: &str, turn: &str| {
        json!({ "t": t, "s": s, "by": (by != "-").then_some(by), "turn": (turn != "-").then_some(turn) })
            .to_string()
    };
    let fired = id("u", 3).turn().unwrap().to_string();
    let read = |rows: Vec<String>| -> Vec<serde_json::Value> {
        rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect()
    };
    let expected = |last: String| {
        let all =
            [row(f("t", 1), "cancelled", "replaced", "-"), row(f("t", 2), "refused", "cooldown", "-"), last];
        let mut all = read(all.to_vec());
        all.sort_by_key(|row| row["t"].to_string());
        all
    };
    let sorted = |rows| {
        let mut rows = read(rows);
        rows.sort_by_key(|row| row["t"].to_string());
        rows
    };
    assert_eq!(sorted(states(&database).await), expected(row(f("u", 3), "fired", "-", &fired)));
    // A timer that has fired can be withdrawn; a timer that has ended stays ended.
    write(&owner, vec![end("u", 3, TimerEnd::Withdrawn, "message"), fire("t", 2)]).await;
    write(&owner, vec![fire("u", 3), end("u", 3, TimerEnd::Cancelled, "x")]).await;
    let last = row(f("u", 3), "withdrawn", "message", &fired);
    assert_eq!(sorted(states(&database).await), expected(last));
    assert_eq!(store.load(&owner.grant, 8).await.unwrap().timers.timers, []);
}

/// The input of a follow-up is sent at least once, and a withdrawn follow-up leaves no other trace.
#[tokio::test]
async fn a_follow_up_that_was_taken_back_is_known() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    write(&owner, vec![arm("t", 1, 0), arm("u", 2, 0)]).await;
    write(&owner, vec![fire("t", 1), fire("u", 2)]).await;
    let keys = [("t", 1), ("u", 2)].map(|(of, n)| CommandKey::Turn(thread(of), id(of, n).turn().unwrap(), 0));
    let verdicts = async || {
        let found = store.check(None, &keys, true).await.unwrap();
        found.into_iter().map(|(_, verdict)| verdict).collect::<Vec<_>>()
    };
    assert_eq!(verdicts().await, [CommandVerdict::New, CommandVerdict::New]);
    write(&owner, vec![end("u", 2, TimerEnd::Withdrawn, "producer_error")]).await;
    assert_eq!(verdicts().await, [CommandVerdict::New, CommandVerdict::Known { digest: 0 }]);
}

#[tokio::test]
async fn each_follow_up_is_changed_once_in_a_statement() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    write(&owner, vec![arm("t", 1, 60_000), arm("u", 2, 60_000)]).await;
    let next = NextDue { at: Timestamp(1_900_000_000_000), wait_ms: 60_000 };
    let later = |of: &str, n| TimerWrite::Postpone { id: id(of, n), next, by: Some("quiet_hours".into()) };
    write(&owner, vec![arm("t", 3, 60_000), later("t", 1), later("u", 2)]).await;
    let state = async |of: &str, n| {
        let sql = format!(
            "SELECT state || ' ' || coalesce(ended_by, '-') || ' ' || (due_at > '2029-01-01') AS state FROM timers WHERE timer_id = '{}'",
            id(of, n)
        );
        let row: serde_json::Value = serde_json::from_str(&database.rows(&sql).await.remove(0)).unwrap();
        row["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state("t", 1).await, "cancelled replaced false");
    assert_eq!(state("t", 3).await, "pending - false");
    assert_eq!(state("u", 2).await, "pending quiet_hours true");
    // A timer that this commit fires or ends is not replaced. Its turn is still sent, and detects
    // that it is late.
    let over = TimerWrite::End { id: id("u", 2), state: TimerEnd::Withdrawn, by: "message".into() };
    write(&owner, vec![fire("t", 3), arm("t", 4, 60_000), over, arm("u", 5, 60_000)]).await;
    assert_eq!(state("t", 3).await, "fired - false");
    assert_eq!(state("t", 4).await, "pending - false");
    assert_eq!(state("u", 2).await, "withdrawn message true");
    assert_eq!(state("u", 5).await, "pending - false");
    // A person has written in one of two threads, and the turn fails. The pending follow-up of that
    // thread is cancelled.
    let mut commit = owner.empty();
    commit.failed_turns = vec![failed_turn("t", &TurnId::foreground(&thread("t"), "x").unwrap(), 0)];
    commit.timers = vec![later("t", 4), later("u", 5)];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    assert_eq!(state("t", 4).await, "cancelled message false");
    assert_eq!(state("u", 5).await, "pending quiet_hours true");
}

#[tokio::test]
async fn a_timer_of_an_owner_that_lost_its_lease_is_not_written() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    write(&owner, vec![arm("t", 1, 0)]).await;
    let known = owner.applied().await;
    store.reclaim("a", &known, 0, TTL).await.unwrap();
    let mut late = owner.empty();
    late.timers = vec![fire("t", 1), arm("u", 2, 0)];
    assert_eq!(owner.commit(&late).await.unwrap(), Committed::Fenced);
    assert_eq!(database.number("SELECT count(*) FROM timers WHERE state = 'pending'").await, 1);
    let asks = store.due_timers(Some(Applied::from(&owner.grant)), &[id("t", 1)]).await;
    assert!(matches!(asks, Err(StoreError::NotOwner)), "{asks:?}");
    let asks = store.load_timers(Applied::from(&owner.grant), None, 8).await;
    assert!(matches!(asks, Err(StoreError::NotOwner)), "{asks:?}");
}

#[tokio::test]
async fn rules_are_asked_with_what_is_stored() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let real = || metadata(json!({"time_zone": "Europe/Berlin", "synthetic": "true"}));
    let made_up = || metadata(json!({"synthetic": true}));
    let mut commit = owner.empty();
    commit.turns = vec![turn("t", 10, real()), turn("t", 20, made_up()), turn("t", 30, made_up())];
    commit.timers = vec![arm("t", 11, 0)];
    owner.commit(&commit).await.unwrap();
    write(&owner, vec![fire("t", 11)]).await;
    write(&owner, vec![arm("t", 21, 0)]).await;
    write(&owner, vec![fire("t", 21)]).await;
    write(&owner, vec![arm("t", 31, 0)]).await;
    let timer = due(&store, "t", 31).await;
    assert_eq!((timer.state, timer.is_due, timer.kind), (TimerState::Pending, true, TimerKind::FollowUp));
    assert_eq!(timer.armed_position(), Position::from_stored(31));
    let (position, _, said) = timer.real_input.clone().unwrap();
    assert_eq!((position, said), (Position::from_stored(10), real()), "only true is synthetic");
    assert_eq!((timer.fired_since_real_input, timer.fired_at.len()), (2, 2));
    assert!(timer.fired_at[0] >= timer.fired_at[1] && !timer.is_answered() && !timer.is_superseded());
    // Only the input of a person restarts the count; tasks do not.
    let mut of_a_task = turn("t", 35, Metadata::EMPTY);
    of_a_task.messages.iter_mut().for_each(|one| one.placement.batch_type = model::BatchType::AgentToAgent);
    let mut commit = owner.empty();
    commit.turns = vec![of_a_task];
    owner.commit(&commit).await.unwrap();
    assert!(!due(&store, "t", 31).await.is_answered());
    let mut commit = owner.empty();
    commit.turns = vec![turn("t", 40, Metadata::EMPTY)];
    owner.commit(&commit).await.unwrap();
    let timer = due(&store, "t", 31).await;
    assert!(timer.is_answered() && timer.is_superseded());
    assert_eq!(timer.fired_since_real_input, 0);
    write(&owner, vec![arm("u", 50, 60_000)]).await;
    assert!(!due(&store, "u", 50).await.is_due);
    // Settings, pause and backoff of the agent are read, whatever its partition.
    let bucket = model::Bucket::of_key("helper").get();
    database
        .execute(&format!(
            "INSERT INTO agent_settings (bucket, agent_id, workflow, settings) VALUES ({bucket}, 'helper', 'w', '{{\"a\": 1}}');
             INSERT INTO agents (bucket, agent_id, paused, backoff_next_run_at)
             VALUES ({bucket}, 'helper', true, now() + interval '1 hour')"
        ))
        .await;
    let timer = due(&store, "u", 50).await;
    assert_eq!(timer.settings.get("a"), Some(&json!(1)));
    assert!(timer.paused && timer.backoff_until.unwrap() > timer.now);
    assert_eq!(store.due_timers(None, &[id("t", 99)]).await.unwrap(), [None]);
}

/// Ids of tasks have a certain form, which ids from other systems may only resemble.
#[tokio::test]
async fn a_message_of_a_person_counts_whatever_its_id_looks_like() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let of_a_task = TurnId::of_task(&agent("helper"), Position::from_stored(7)).input();
    let ids = ["teams-1234", "t-1", "task-0a1f", "tface-1", "tface-1-quiz", "T0a1f-7-q", "t0a1f7-q"];
    for (at, id) in ids.into_iter().chain([of_a_task.as_str()]).enumerate() {
        let of = format!("thread{at}");
        let mut said = message(&of, id, 20);
        (said.role, said.placement.batch_type) = (Role::User, model::BatchType::UserRequest);
        let mut commit = owner.empty();
        commit.turns = vec![turn(&of, 10, Metadata::EMPTY)];
        commit.timers = vec![arm(&of, 11, 0)];
        owner.commit(&commit).await.unwrap();
        let mut commit = owner.empty();
        commit.messages = vec![said];
        owner.commit(&commit).await.unwrap();
        let is_person = id != of_a_task.as_str();
        assert_eq!(due(&store, &of, 11).await.is_answered(), is_person, "{id}");
        let listed = store.follow_ups(&thread(&of), None, 10).await.unwrap().remove(0);
        assert_eq!(listed.status.name() == "cancelled", is_person, "{id}: {listed:?}");
        assert_eq!(listed.ended_at.is_some(), is_person, "{id}");
    }
}

#[tokio::test]
async fn messages_whose_rows_are_gone_keep_follow_ups_back() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    // A turn failed and was dropped before the timer is due.
    write(&owner, vec![arm("u", 50, 60_000)]).await;
    let failed = TurnId::foreground(&thread("u"), "x").unwrap();
    let mut commit = owner.empty();
    commit.failed_turns = vec![failed_turn("u", &failed, 0)];
    owner.commit(&commit).await.unwrap();
    let mut commit = owner.empty();
    commit.dropped_turns = vec![(thread("u"), failed)];
    owner.commit(&commit).await.unwrap();
    let ended =
        "SELECT count(*) FROM timers WHERE thread_id = 'u' AND state = 'cancelled' AND ended_by = 'message'";
    assert_eq!(database.number(ended).await, 1);
    // A message of a person was deleted by retention.
    let mut commit = owner.empty();
    commit.turns = vec![turn("t", 40, Metadata::EMPTY)];
    commit.timers = vec![arm("t", 41, 0)];
    owner.commit(&commit).await.unwrap();
    let mut commit = owner.empty();
    commit.turns = vec![turn("t", 60, metadata(json!({"synthetic": true})))];
    owner.commit(&commit).await.unwrap();
    let timer = due(&store, "t", 41).await;
    assert!(!timer.is_history_gone && !timer.is_answered());
    database.execute("DELETE FROM messages WHERE thread_id = 't'").await;
    let timer = due(&store, "t", 41).await;
    assert!(timer.real_input.is_none() && timer.is_history_gone && timer.is_superseded());
}

#[tokio::test]
async fn a_failed_message_of_a_person_ends_follow_ups() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    // Thread t has three follow-ups: one was fired and answered, one was fired, and one waits. In
    // x, a turn without input of a person has failed.
    let of_t = vec![arm("t", 1, 0), arm("t", 3, 0), arm("t", 5, 60_000)];
    for armed in of_t.into_iter().chain([arm("u", 1, 60_000), arm("x", 1, 60_000)]) {
        // A newer follow-up of a thread replaces the pending one.
        let is_fired = matches!(&armed, TimerWrite::Arm(armed) if armed.wait_ms == 0);
        let id = armed.id().clone();
        write(&owner, vec![armed]).await;
        if is_fired {
            let turn = id.turn().ok();
            write(&owner, vec![TimerWrite::Fire { id, turn, next: None }]).await;
        }
    }
    let mut answered = turn("t", 1, metadata(json!({"synthetic": true})));
    answered.turn = id("t", 1).turn().unwrap();
    for (one, id) in answered.messages.iter_mut().zip([answered.turn.input(), answered.turn.answer(0)]) {
        one.key.message = id;
    }
    let mut commit = owner.empty();
    commit.turns = vec![answered];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let failed = |of: &str| failed_turn(of, &TurnId::foreground(&thread(of), "f").unwrap(), 0);
    let mut commit = owner.empty();
    commit.failed_turns = vec![failed("t"), failed("x")];
    commit.failed_turns[1].opened.origin = TurnOrigin::Heartbeat { batch: Position::from_stored(1) };
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let row = |of: &str, position: i64, state: &str, by: Option<&str>| {
        (id(of, position).to_string(), state.to_owned(), by.map(str::to_owned))
    };
    let expected = [
        row("t", 1, "fired", None),
        row("t", 3, "withdrawn", Some("message")),
        row("t", 5, "cancelled", Some("message")),
        row("u", 1, "pending", None),
        row("x", 1, "pending", None),
    ];
    let rows = async || -> Vec<(String, String, Option<String>)> {
        sqlx::query_as("SELECT timer_id, state, ended_by FROM timers ORDER BY thread_id, (body ->> 'armed_position')::int")
            .fetch_all(&mut database.session().await)
            .await
            .unwrap()
    };
    assert_eq!(rows().await, expected);
    assert!(due(&store, "t", 3).await.is_superseded() && due(&store, "t", 5).await.is_superseded());
    // The result does not depend on the failed turn, which may be dropped, retried or deleted by
    // age.
    let mut commit = owner.empty();
    commit.dropped_turns = vec![(thread("t"), TurnId::foreground(&thread("t"), "f").unwrap())];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    assert_eq!(rows().await, expected);
}

#[tokio::test]
async fn a_delayed_task_written_again_keeps_its_time() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let task = TaskId::parse("k").unwrap();
    let armed = ArmedTimer {
        id: TimerId::of_task(&agent("helper"), &task),
        thread: None,
        agent: agent("helper"),
        // The delay as computed by a worker whose clock is an hour behind.
        wait_ms: 3_600_000,
        body: metadata(json!({"task": {"id": "k", "content": "x"}, "not_before_ms": 4_102_444_800_123_i64})),
        armed_by: None,
    };
    write(&owner, vec![TimerWrite::Arm(armed)]).await;
    let due = "SELECT floor(extract(epoch FROM due_at) * 1000)::bigint FROM timers";
    assert_eq!(database.number(due).await, 4_102_444_800_123);
}

/// Like the id of any other task: it is free a week after its use, once its task is completed.
#[tokio::test]
async fn the_id_of_a_delayed_task_is_taken_as_that_of_other_tasks() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let timer = TimerId::of_task(&agent("helper"), &TaskId::parse("k").unwrap());
    let armed = ArmedTimer {
        id: timer.clone(),
        thread: None,
        agent: agent("helper"),
        wait_ms: 0,
        body: metadata(json!({"task": {"id": "k", "content": "x"}})),
        armed_by: None,
    };
    write(&owner, vec![TimerWrite::Arm(armed)]).await;
    let bucket = model::Bucket::of_key("helper").get();
    let is_taken = async |change: &str| {
        database.execute(change).await;
        store.due_timers(None, std::slice::from_ref(&timer)).await.unwrap().remove(0).unwrap().is_taken
    };
    assert!(!is_taken("SELECT 1").await);
    let used = format!("INSERT INTO task_ids VALUES ({bucket}, 'helper', 'k', 7, 0)");
    assert!(is_taken(&used).await);
    let completed =
        format!("INSERT INTO agents (bucket, agent_id, head_position) VALUES ({bucket}, 'helper', 7)");
    assert!(is_taken(&completed).await, "it was used a moment ago");
    assert!(!is_taken("UPDATE task_ids SET created_at = now() - interval '8 days'").await);
    assert!(is_taken("UPDATE agents SET head_position = 6").await, "its task is pending");
}

#[tokio::test]
async fn a_timer_that_goes_on_is_due_again() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let timer = TimerId::of_agent(TimerKind::Schedule, &agent("helper"), "daily").unwrap();
    write(
        &owner,
        vec![TimerWrite::Arm(ArmedTimer {
            id: timer.clone(),
            thread: None,
            agent: agent("helper"),
            wait_ms: 0,
            body: metadata(json!({"schedule": "daily"})),
            armed_by: Some(TurnId::foreground(&thread("t"), "x").unwrap()),
        })],
    )
    .await;
    let bucket = model::Bucket::of_key("helper").get();
    database
        .execute(&format!(
            "INSERT INTO schedules (bucket, agent_id, name, cron, content, created_by, timer_id)
             VALUES ({bucket}, 'helper', 'daily', '0 9 * * *', 'report', 'anna', '{timer}');
             INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content)
             VALUES ({bucket}, 'helper', 1, '{timer}-5', 'task', 'x'), ({bucket}, 'helper', 2, 'other', 'task', 'x')"
        ))
        .await;
    let found = store.due_timers(None, std::slice::from_ref(&timer)).await.unwrap().remove(0).unwrap();
    let schedule = found.schedule.unwrap();
    assert_eq!((schedule.cron.as_deref(), schedule.at, schedule.unfinished), (Some("0 9 * * *"), None, 1));
    let next = NextDue { at: Timestamp(4_000_000_000_000), wait_ms: 1 };
    write(&owner, vec![TimerWrite::Fire { id: timer.clone(), turn: None, next: Some(next) }]).await;
    let found = store.due_timers(None, std::slice::from_ref(&timer)).await.unwrap().remove(0).unwrap();
    assert_eq!((found.due, found.state, found.is_due), (next.at, TimerState::Pending, false));
    database.execute("UPDATE schedules SET enabled = false").await;
    let found = store.due_timers(None, &[timer]).await.unwrap().remove(0).unwrap();
    assert_eq!(found.schedule, None);
}

#[tokio::test]
async fn old_timers_go_and_threads_take_theirs_along() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    write(&owner, vec![arm("t", 1, 0), arm("u", 2, 0)]).await;
    write(&owner, vec![fire("t", 1), fire("u", 2)]).await;
    write(&owner, vec![arm("u", 3, 60_000)]).await;
    database
        .execute("UPDATE timers SET ended_at = ended_at - interval '91 days' WHERE ended_at IS NOT NULL")
        .await;
    let age = Duration::from_secs(90 * 86_400);
    assert_eq!(
        store.clean_up(CleanupKind::Timers, CleanupLimit::Age(age), 100).await.unwrap(),
        1,
        "those of a thread with one that waits are counted"
    );
    let threads = [thread("u")];
    assert_eq!(store.rows_of_threads(&threads).await.unwrap()["timers"], 2);
    store.mark_erased(&threads, "anna", "run", None).await.unwrap();
    assert!(due(&store, "u", 3).await.is_superseded());
    assert_eq!(store.erase_some(&threads).await.unwrap()["timers"], 2);
    assert_eq!(database.number("SELECT count(*) FROM timers").await, 0);
}

/// With 10,000 timers in one partition: the timers that a takeover reads, and the time it takes.
#[tokio::test]
async fn a_window_of_thousands_is_read_in_time() {
    let (database, store) = Database::new(8).await;
    let owner = Owner::new(&store, "a").await;
    // Timers of partition 0, with many in some of its buckets, and timers of another partition.
    // Four times as many timers have ended.
    let ids: Vec<String> = (0..40).map(|n| thread_of(PartitionId(0), 8, n)).collect();
    let other = thread_of(PartitionId(1), 8, 0);
    for (n, of) in ids.iter().chain([&other]).enumerate() {
        let bucket = thread(of).bucket().get();
        database
            .execute(&format!(
                "INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at)
                 SELECT {bucket}, 'f{bucket:04x}-{n}' || lpad(p::text, 6, '0'), 'follow_up', '{of}', 'helper', 0,
                        clock_timestamp() + p * interval '1 minute'
                 FROM generate_series(1, 250) AS p;
                 INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at, state, ended_at)
                 SELECT {bucket}, 'f{bucket:04x}-e{n}' || lpad(p::text, 6, '0'), 'follow_up', '{of}', 'helper', 0, now(), 'fired', now()
                 FROM generate_series(1, 1000) AS p"
            ))
            .await;
    }
    database.execute("VACUUM ANALYZE timers").await;
    let mut best = Duration::MAX;
    let mut page = partition::TimerPage::NONE;
    for _ in 0..5 {
        let start = Instant::now();
        page = store.load_timers(Applied::from(&owner.grant), None, 4_096).await.unwrap();
        best = best.min(start.elapsed());
    }
    println!("10,000 timers, a window of {}: {best:?}", page.timers.len());
    assert!(best < Duration::from_millis(200), "{best:?}");
    assert!(!page.is_all && page.timers.windows(2).all(|pair| pair[0].wait_ms <= pair[1].wait_ms));
    // Reading the later windows returns each timer exactly once.
    let mut all: std::collections::BTreeSet<TimerId> =
        page.timers.iter().map(|timer| timer.id.clone()).collect();
    while !page.is_all {
        let from = page.timers.last().unwrap().wait_ms;
        page = store.load_timers(Applied::from(&owner.grant), Some(from - 1_000), 4_096).await.unwrap();
        all.extend(page.timers.iter().map(|timer| timer.id.clone()));
    }
    assert_eq!(all.len(), 10_000);
    let plan = sqlx::query(sqlx::AssertSqlSafe(format!(
        "EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) {}",
        include_str!("../src/timers/window.sql")
            .replace("$1", "ARRAY(SELECT n::smallint FROM generate_series(0, 1023, 8) AS n)")
            .replace("$2", "NULL")
            .replace("$3", "128")
            .replace("$4", "4096"),
    )));
    let plan = plan.fetch_all(&mut database.session().await).await.unwrap();
    let lines: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    println!("{}", lines.join("\n"));
    assert!(lines.iter().any(|line| line.contains("timers_due")), "the partial index serves it");
}
