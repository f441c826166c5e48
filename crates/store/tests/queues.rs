//! Tasks: how they enter queues and how operators change them. Also checks of commands against the
//! store.

use model::{Metadata, TaskEdit, TaskId, TaskKind};
use partition::{CommandKey, CommandVerdict, Commit, Save, TaskChange};
use store::{Applied, CleanupKind, CleanupLimit, Committed, QueueRead};

use crate::fixture::{Database, Owner, metadata, thread};
use crate::values::{act, agent, at, completes, failed_turn, finishes, mark, open_turn, task, turn};

const WEEK: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);

async fn applied(owner: &Owner, fill: impl FnOnce(&mut Commit)) {
    let mut commit = owner.empty();
    fill(&mut commit);
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
}

/// `id@position` of all tasks, `id=position` of all ids, `!position` of all marks.
async fn state(database: &Database) -> String {
    let rows = database
        .rows(
            "SELECT task_id || '@' || position AS s, 0 AS n, position AS p FROM tasks
             UNION ALL SELECT task_id || '=' || position, 1, position FROM task_ids
             UNION ALL SELECT '!' || position, 2, position FROM failed_tasks ORDER BY n, p",
        )
        .await;
    let text = |row: &String| {
        serde_json::from_str::<serde_json::Value>(row).unwrap()["s"].as_str().unwrap().to_owned()
    };
    rows.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_task_enters_once_for_seven_days() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    applied(&owner, |commit| {
        for write in [task("a", "t1", 1), task("a", "t2", 2), task("a", "t1", 3)] {
            commit.add_task(write);
        }
    })
    .await;
    applied(&owner, |commit| commit.tasks = vec![task("a", "t1", 4), task("b", "t1", 5)]).await;
    assert_eq!(state(&database).await, "t1@1 t2@2 t1@5 t1=1 t2=2 t1=5");
    assert_eq!(database.number("SELECT count(*) FROM agents WHERE head_position = 0").await, 2);
    database
        .execute("UPDATE task_ids SET created_at = created_at - interval '7 days' WHERE position < 5")
        .await;
    // The tasks are pending, failed, completed a week ago, and completed just now. Only the id of
    // the third one is free again.
    let repeated = |commit: &mut Commit| {
        commit.tasks = vec![task("a", "t1", 6), task("a", "t2", 7), task("b", "t1", 8)];
    };
    applied(&owner, repeated).await;
    applied(&owner, |commit| {
        commit.agents = vec![completes("a", 2), completes("b", 5)];
        commit.failed_tasks = vec![mark("a", 2)];
    })
    .await;
    let task_key = |owner: &str, id: &str| CommandKey::Task(agent(owner), TaskId::parse(id).unwrap(), None);
    let keys = [task_key("a", "t1"), task_key("a", "t2"), task_key("b", "t1")];
    let verdicts = store.check(None, &keys, true).await.unwrap();
    let is_new: Vec<bool> = verdicts.iter().map(|(_, verdict)| *verdict == CommandVerdict::New).collect();
    assert_eq!(is_new, [true, false, false]);
    assert_eq!(state(&database).await, "t1@1 t2@2 t1@5 t1=1 t2=2 t1=5 !2");
    applied(&owner, repeated).await;
    assert_eq!(state(&database).await, "t1@1 t2@2 t1@5 t1@6 t2=2 t1=5 t1=6 !2");
    // The task that now has the id keeps it like the first one did.
    applied(&owner, |commit| commit.tasks = vec![task("a", "t1", 9)]).await;
    assert_eq!(state(&database).await, "t1@1 t2@2 t1@5 t1@6 t2=2 t1=5 t1=6 !2");
}

#[tokio::test]
async fn a_first_task_and_a_first_pause_meet_in_one_commit() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    applied(&owner, |commit| {
        let mut pause = completes("a", i64::MAX);
        (pause.head, pause.paused) = (at(0), true);
        commit.agents = vec![pause];
        commit.tasks = vec![task("a", "t1", 1)];
    })
    .await;
    assert_eq!(
        database.rows("SELECT agent_id AS a, paused FROM agents").await,
        [r#"{"a":"a","paused":true}"#]
    );
}

fn requeue(from: i64, to: i64) -> TaskChange {
    TaskChange::requeue(agent("a"), at(from), at(to))
}

fn edit(position: i64, content: &str) -> TaskChange {
    let metadata = metadata(serde_json::json!({"edited": true}));
    let edit = TaskEdit { content: Some(content.to_owned()), metadata: Some(metadata) };
    TaskChange::edit(agent("a"), at(position), edit)
}

fn remove(position: i64) -> TaskChange {
    TaskChange::remove(agent("a"), at(position))
}

#[tokio::test]
async fn operators_requeue_edit_and_remove() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    applied(&owner, |commit| {
        commit.tasks = (1..=4).map(|n| task("a", &format!("t{n}"), n)).collect();
        commit.failed_tasks = (1..=3).map(|n| mark("a", n)).collect();
    })
    .await;
    let mut commit = owner.empty();
    for change in [requeue(1, 11), edit(11, "again"), remove(2), edit(3, "third"), edit(4, "x"), edit(4, "y")]
    {
        commit.change_task(change);
    }
    for _ in 0..2 {
        assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
        assert_eq!(state(&database).await, "t3@3 t4@4 t1@11 t2=2 t3=3 t4=4 t1=11 !3");
    }
    let rows = database.rows("SELECT content AS c, metadata AS m FROM tasks ORDER BY position").await;
    let row = |content: &str| format!(r#"{{"c":"{content}","m":{{"edited": true}}}}"#);
    assert_eq!(rows, ["third", "y", "again"].map(row));
    let verdict = store
        .check(None, &[CommandKey::Task(agent("a"), TaskId::parse("t1").unwrap(), None)], true)
        .await
        .unwrap();
    assert_eq!(verdict[0].1, CommandVerdict::Known { digest: task("a", "t1", 1).digest }, "as it was sent");
    // The statuses match.
    let status = database.rows("SELECT position AS p, status AS s FROM agent_tasks ORDER BY position").await;
    assert_eq!(status, [r#"{"p":3,"s":"failed"}"#, r#"{"p":4,"s":"pending"}"#, r#"{"p":11,"s":"pending"}"#]);
}

#[tokio::test]
async fn an_edit_keeps_what_the_system_wrote_into_a_task() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let follows = serde_json::json!({"thread_id": "t", "turn_id": "u", "assistant_message_id": "u-a"});
    applied(&owner, |commit| {
        commit.tasks = (1..=4).map(|n| task("a", &format!("t{n}"), n)).collect();
        for write in &mut commit.tasks {
            write.queued.task.metadata = metadata(follows.clone());
            write.queued.task.kind = TaskKind::Task;
        }
        commit.tasks[1].queued.task.kind = TaskKind::Memory;
        commit.tasks[2].queued.task.kind = TaskKind::WorkRequest;
        commit.tasks[3].queued.task.metadata =
            metadata(serde_json::json!({"synthetic": true, "continues": "7", "own": 1}));
    })
    .await;
    // Content and metadata separately: the last edit of each takes effect.
    let mut edits: Vec<_> = (1..=4).flat_map(|n| ["", "new"].map(|text| edit(n, text))).collect();
    for (n, change) in edits.iter_mut().enumerate() {
        let edit = &mut change.edit;
        match n {
            4 => *edit = TaskEdit { content: Some("new".to_owned()), metadata: None },
            5 => *edit = TaskEdit { content: None, metadata: Some(Metadata::EMPTY) },
            n if n % 2 == 0 => edit.content = None,
            _ => edit.metadata = None,
        }
    }
    applied(&owner, |commit| edits.into_iter().for_each(|change| commit.change_task(change))).await;
    let rows =
        database.rows("SELECT content || ' ' || metadata::text AS m FROM tasks ORDER BY position").await;
    let row = |text: &str| serde_json::json!({ "m": format!("new {text}") }).to_string();
    let kept = r#""turn_id": "u", "thread_id": "t""#;
    assert_eq!(
        rows,
        [
            row(r#"{"edited": true}"#),
            row(&format!(r#"{{"edited": true, {kept}, "assistant_message_id": "u-a"}}"#)),
            row(&format!(r#"{{{kept}, "assistant_message_id": "u-a"}}"#)),
            row(r#"{"edited": true, "continues": "7", "synthetic": true}"#),
        ]
    );
}

#[tokio::test]
async fn two_acts_that_were_checked_together_end_in_one_place() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    applied(&owner, |commit| {
        commit.tasks = (1..=2).map(|n| task("a", &format!("t{n}"), n)).collect();
        commit.failed_tasks = (1..=2).map(|n| mark("a", n)).collect();
    })
    .await;
    let changes =
        vec![requeue(1, 11), requeue(1, 12), edit(1, "new"), requeue(2, 13), remove(2), requeue(2, 14)];
    applied(&owner, |commit| changes.into_iter().for_each(|change| commit.change_task(change))).await;
    assert_eq!(state(&database).await, "t1@12 t2=2 t1=12");
    assert_eq!(database.number("SELECT count(*) FROM tasks WHERE content = 'new'").await, 1);
}

#[tokio::test]
async fn the_queue_is_read_on_without_what_failed() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    applied(&owner, |commit| {
        commit.tasks = (1..=9).map(|n| task("a", &format!("t{n}"), n)).collect();
        commit.tasks.push(task("b", "other", 5));
        commit.failed_tasks = vec![mark("a", 4)];
    })
    .await;
    let asks = Applied::from(&owner.grant);
    let queue = |of, after, limit| QueueRead { agent: agent(of), after: at(after), limit };
    let queues = [
        queue("a", 0, 3),
        queue("none", 0, 3),
        queue("b", 0, 3),
        queue("a", 3, 5),
        queue("a", 9, 5),
        queue("a", 8, 1),
    ];
    let loaded = store.load_tasks(asks, &queues).await.unwrap();
    let pages: Vec<_> = loaded
        .iter()
        .map(|(tasks, more)| (tasks.iter().map(|queued| queued.position.get()).collect::<Vec<_>>(), *more))
        .collect();
    let expected = [(vec![1, 2, 3], true), (vec![], false), (vec![5], false), (vec![5, 6, 7, 8, 9], false)];
    assert_eq!(pages[..4], expected);
    assert_eq!(pages[4..], [(vec![], false), (vec![9], false)]);
    assert_eq!(loaded[5].0, [task("a", "t9", 9).queued]);
    assert_eq!(store.load_tasks(asks, &queues[4..5]).await.unwrap(), [(vec![], false)]);
}

#[tokio::test]
async fn verdicts_report_what_has_been_taken() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let turns = ["done", "failed", "open", "new"].map(|unique| turn("u", unique));
    applied(&owner, |commit| {
        commit.turns = vec![finishes("u", &turns[0], 2, 10, None)];
        commit.failed_turns = vec![failed_turn("u", &turns[1], 3)];
        commit.tasks = vec![task("a", "t1", 1), task("a", "t2", 2)];
        commit.failed_tasks = vec![mark("a", 2)];
        commit.audit = vec![act("a", "act-1")];
    })
    .await;
    let open = Save { messages: Vec::new(), turns: vec![open_turn("u", &turns[2], 1, 7)] };
    store.save(owner.applied().await, "s", &open).await.unwrap();
    let of_turn = |at: usize, run| CommandKey::Turn(thread("u"), turns[at].clone(), run);
    let of_task = |owner: &str, id: &str| CommandKey::Task(agent(owner), TaskId::parse(id).unwrap(), None);
    let of_act = |id: &str, task: Option<&str>| {
        CommandKey::Control(agent("a"), act("a", id).id, task.map(|id| TaskId::parse(id).unwrap()))
    };
    let keys = [
        of_turn(0, 0),
        of_turn(0, 9),
        of_turn(1, 3),
        of_turn(1, 4),
        of_turn(2, 1),
        of_turn(3, 0),
        CommandKey::Turn(thread("nowhere"), turn("nowhere", "x"), 0),
        of_task("a", "t1"),
        of_task("a", "t9"),
        of_task("unknown", "t1"),
        of_act("act-1", Some("t1")),
        of_act("act-2", Some("t1")),
        of_act("act-2", Some("t2")),
        of_act("act-2", Some("t9")),
        of_act("act-2", None),
        CommandKey::Control(agent("unknown"), act("unknown", "act-3").id, None),
        CommandKey::Control(agent("unknown+memory"), act("unknown", "act-3").id, None),
        CommandKey::Control(agent("a+memory"), act("a", "act-3").id, None),
        CommandKey::Control(agent("u"), act("u", "act-3").id, None),
    ];
    let ask = async |create| {
        let verdicts = store.check(None, &keys, create).await.unwrap();
        assert!(verdicts.iter().map(|(key, _)| key).eq(&keys));
        verdicts.into_iter().map(|(_, verdict)| verdict).collect::<Vec<_>>()
    };
    use CommandVerdict::{Known, New, Task, Unknown};
    let taken = Known { digest: 0 };
    let digest = task("a", "t1", 1).digest;
    let mut expected = vec![
        taken,
        taken,
        taken,
        New,
        taken,
        New,
        New,
        Known { digest },
        New,
        New,
        taken,
        Task { position: at(1), is_failed: false },
        Task { position: at(2), is_failed: true },
        New,
        New,
        // An act never creates an agent, even where use creates agents.
        Unknown,
        Unknown,
        Unknown,
        // This agent has answered in its own thread.
        New,
    ];
    assert_eq!(ask(true).await, expected);
    database
        .execute(&format!(
            "INSERT INTO agent_settings (bucket, agent_id, workflow) VALUES ({}, 'a', 'default')",
            model::Bucket::of_key("a").get()
        ))
        .await;
    (expected[6], expected[9], expected[17]) = (Unknown, Unknown, New);
    assert_eq!(ask(false).await, expected);
    // After seven days the id of a completed task is free, but acts still find the task.
    database.execute("UPDATE task_ids SET created_at = created_at - interval '7 days'").await;
    assert_eq!(ask(false).await, expected);
    applied(&owner, |commit| commit.agents = vec![completes("a", 2)]).await;
    expected[7] = New;
    assert_eq!(ask(false).await, expected);
    assert_eq!(store.check(None, &[], false).await.unwrap(), []);
}

#[tokio::test]
async fn ids_go_after_seven_days_but_for_those_that_operators_need() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    applied(&owner, |commit| {
        commit.tasks = (1..=9).map(|n| task("a", &format!("t{n}"), n)).collect();
        commit.failed_tasks = vec![mark("a", 2)];
    })
    .await;
    applied(&owner, |commit| commit.agents = vec![completes("a", 7)]).await;
    assert_eq!(store.clean_up(CleanupKind::TaskIds, CleanupLimit::Age(WEEK), 100).await.unwrap(), 0);
    let age = "UPDATE task_ids SET created_at = now() - interval '7 days 1 second' WHERE position <> 5";
    database.execute(age).await;
    assert_eq!(store.clean_up(CleanupKind::TaskIds, CleanupLimit::Age(WEEK), 4).await.unwrap(), 4);
    assert_eq!(store.clean_up(CleanupKind::TaskIds, CleanupLimit::Age(WEEK), 4).await.unwrap(), 1);
    assert_eq!(store.clean_up(CleanupKind::TaskIds, CleanupLimit::Age(WEEK), 4).await.unwrap(), 0);
    let left = database.rows("SELECT position AS p FROM task_ids ORDER BY 1").await;
    assert_eq!(left, [2, 5, 8, 9].map(|position| format!(r#"{{"p":{position}}}"#)));
    assert_eq!(database.number("SELECT count(*) FROM tasks").await, 9);
}

#[tokio::test]
async fn unreadable_task_fails_and_the_others_are_read() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let tasks = |of: &'static str| (1..=4).map(move |number| task(of, &format!("t{number}"), number));
    applied(&owner, |commit| commit.tasks = tasks("a").chain(tasks("b")).collect()).await;
    database
        .execute(
            "UPDATE tasks SET metadata = '[]' WHERE position = 2 AND agent_id = 'a';
             UPDATE tasks SET metadata = '[]' WHERE position = 3 AND agent_id = 'b'",
        )
        .await;
    let positions =
        |tasks: &[model::QueuedTask]| tasks.iter().map(|task| task.position.get()).collect::<Vec<_>>();
    // The first read is that of a new owner, the second that of an owner that continues a queue.
    let loaded = store.load(&owner.grant, 2).await.unwrap();
    let found: Vec<_> = loaded.agents.iter().map(|agent| (positions(&agent.tasks), agent.more)).collect();
    assert_eq!(found, [(vec![1], true), (vec![1, 2], true)], "two rows of each are read at first");
    let read = QueueRead { agent: agent("b"), after: at(2), limit: 8 };
    let loaded = store.load_tasks(owner.applied().await, &[read]).await.unwrap();
    assert_eq!((positions(&loaded[0].0), loaded[0].1), (vec![4], false));
    let marks = database.rows("SELECT agent_id, position, code FROM failed_tasks ORDER BY agent_id").await;
    let mark = |agent: &str, position: u32| {
        format!(r#"{{"agent_id":"{agent}","position":{position},"code":"rejected_by_database"}}"#)
    };
    assert_eq!(marks, [mark("a", 2), mark("b", 3)]);
}
