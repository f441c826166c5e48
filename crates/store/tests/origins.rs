//! Origins of turns and tasks in rows of this build, of earlier builds, and after the migration.

use model::{
    ContinuedBatch, FollowedTurn, Metadata, TaskId, TaskKind, TaskOrigin, TimerId, TriggerType, TurnId,
    TurnOpened, TurnOrigin,
};
use partition::{FailedTurn, OpenTurn, OutboxBatch, Outgoing, Save, TaskWrite};
use serde_json::json;
use store::{Applied, Committed, Store};

use crate::fixture::{Database, Owner, metadata, thread};
use crate::values::{agent, at, failed_turn, input, mark, task};

fn continued(turn: TurnId) -> ContinuedBatch {
    ContinuedBatch { batch: at(2_124_241_668_164_038_656), number: 2, turn }
}

fn inputs() -> Vec<TurnOpened> {
    let (t, batch) = (thread("t"), at(2_124_241_668_164_038_656));
    let x = TurnId::foreground(&t, "x").unwrap();
    let timer = TimerId::follow_up(&t, batch);
    let fired = timer.turn().unwrap();
    let follow_up = TurnOrigin::FollowUp { timer, trigger: TriggerType::CheckIn, reason: "quiet".into() };
    [
        (x.clone(), TurnOrigin::PERSON),
        (TurnId::foreground(&t, "y").unwrap(), TurnOrigin::of_person(&metadata(json!({"continues": "7"})))),
        (TurnId::heartbeat(&t, "01f3").unwrap(), TurnOrigin::Heartbeat { batch }),
        (TurnId::continuation(&t, batch).unwrap(), TurnOrigin::Continuation(continued(x))),
        (fired, follow_up),
    ]
    .into_iter()
    .map(|(turn, origin)| {
        let own = if origin.continues() == Some(at(7)) { json!({"continues": "7"}) } else { json!({}) };
        TurnOpened { origin, metadata: metadata(own), actor: None, ..input("t", &turn, 0) }
    })
    .collect()
}

fn tasks() -> Vec<TaskWrite> {
    let agent = agent("a");
    let t = thread("t");
    let x = TurnId::foreground(&t, "x").unwrap();
    let (answer, batch) = (x.answer(1), at(2_124_241_668_164_038_656));
    let followed = FollowedTurn { thread: t.clone(), turn: x, answer: answer.clone(), batch };
    let before = TurnId::of_task(&agent, at(5));
    let work =
        TaskOrigin::ContinuationAfterTurn { thread: t.clone(), answer, continued: continued(before.clone()) };
    let occurrence = format!("s0001-{}-1795950000000", "0".repeat(24));
    [
        ("k1", TaskKind::Task, TaskOrigin::SENT),
        (&occurrence, TaskKind::Task, TaskOrigin::of_schedule(&Metadata::EMPTY)),
        ("k3", TaskKind::WorkRequest, TaskOrigin::AfterTurn(followed.clone())),
        ("k4", TaskKind::Memory, TaskOrigin::AfterTurn(followed)),
        ("k5", TaskKind::Compaction, TaskOrigin::Summary { thread: t, compaction: batch }),
        ("k6", TaskKind::Task, TaskOrigin::Continuation(continued(before))),
        ("k7", TaskKind::WorkRequest, work),
    ]
    .into_iter()
    .zip(1..)
    .map(|((id, kind, origin), position)| {
        let mut write = task("a", "k", position);
        (write.queued.task.id, write.queued.task.kind) = (TaskId::parse(id).unwrap(), kind);
        write.queued.task.origin = origin;
        write
    })
    .collect()
}

/// Rows of all tables with an origin.
async fn stored(store: &Store) -> Owner {
    let owner = Owner::new(store, "a").await;
    let mut commit = owner.empty();
    commit.tasks = tasks();
    commit.failed_tasks = vec![mark("a", 7)];
    let failed = |opened| FailedTurn { opened, ..failed_turn("t", &inputs()[0].turn, 0) };
    commit.failed_turns = inputs().into_iter().map(failed).collect();
    let outgoing = tasks().into_iter().map(|write| Outgoing::Task(write.queued.task)).collect();
    commit.outbox = Some(OutboxBatch { id: at(3), outgoing });
    let open = |(seq, opened)| OpenTurn { opened, seq: model::Seq(seq), age_ms: 0 };
    let mut open: Vec<OpenTurn> = (1..).zip(inputs()).map(open).collect();
    // Inputs that the commit opens itself, and inputs that are saved.
    let turns = open.split_off(2);
    commit.opened = open;
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let save = Save { messages: Vec::new(), turns };
    let applied = owner.applied().await;
    store.save(Applied { saves: 0, ..applied }, "i", &save).await.unwrap();
    owner
}

async fn check_loaded(store: &Store, owner: &Owner) {
    let takeover = store.load(&owner.grant, 10).await.unwrap();
    let queued: Vec<_> = takeover.agents[0].tasks.iter().map(|queued| queued.task.clone()).collect();
    let sent: Vec<_> = tasks().into_iter().map(|write| write.queued.task).collect();
    assert_eq!(queued, sent[..6]);
    let saved: Vec<_> = takeover.open_turns.into_iter().map(|open| open.opened).collect();
    assert_eq!(saved, inputs());
    for expected in inputs() {
        let failed = store.failed_turn(&expected.thread, &expected.turn).await.unwrap().unwrap();
        assert_eq!(failed.opened, expected);
    }
    let sent: Vec<_> = sent.into_iter().map(Outgoing::Task).collect();
    assert_eq!(takeover.outbox[0].outgoing, sent);
}

const ORIGINS: &str = "SELECT o::text AS o FROM (
    SELECT 1 AS place, position::text AS name, origin AS o FROM tasks
    UNION ALL SELECT 2, turn_id, origin FROM spilled_turns
    UNION ALL SELECT 3, turn_id, origin FROM failed_turns) AS o
    ORDER BY place, name";

#[tokio::test]
async fn origins_come_back_also_from_rows_of_earlier_builds() {
    let (database, store) = Database::new(1).await;
    let owner = stored(&store).await;
    check_loaded(&store, &owner).await;
    for table in ["tasks", "spilled_turns", "failed_turns"] {
        database.execute(&format!("UPDATE {table} SET origin = NULL")).await;
    }
    database
        .execute(
            "UPDATE outbox SET entries = (
                 SELECT jsonb_agg(jsonb_build_object(k.key, k.value - 'origin') ORDER BY e.place)
                 FROM jsonb_array_elements(entries) WITH ORDINALITY AS e (entry, place), jsonb_each(e.entry) AS k)",
        )
        .await;
    check_loaded(&store, &owner).await;
}

#[tokio::test]
async fn the_migration_reads_origins_from_metadata() {
    let (database, store) = Database::new(1).await;
    stored(&store).await;
    let before = database.rows(ORIGINS).await;
    assert_eq!((before.len(), before.iter().filter(|row| row.contains("null")).count()), (17, 5));
    for table in ["tasks", "spilled_turns", "failed_turns"] {
        database.execute(&format!("ALTER TABLE {table} DROP COLUMN origin")).await;
    }
    database.execute("DROP FUNCTION antiphon_edited_task(text, jsonb, jsonb)").await;
    // Metadata that the system has not written stay what they are.
    for wrong in [r#"{"synthetic": true}"#, r#"{"synthetic": true, "continues": 7, "timer_id": "x"}"#] {
        database
            .execute(&format!(
                "INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content, metadata)
                 SELECT bucket, agent_id, position + 1000 * length('{wrong}'), 'z' || position + 1000 * length('{wrong}'), kind, content, '{wrong}'
                 FROM tasks WHERE position IN (1, 3, 5)"
            ))
            .await;
    }
    database.execute("DELETE FROM _sqlx_migrations WHERE version = 44").await;
    store::migrate(&database.url, model::PartitionCount::new(1).unwrap()).await.unwrap();
    let wrong =
        database.number("SELECT count(*) FROM tasks WHERE position > 100 AND origin IS NOT NULL").await;
    assert_eq!(wrong, 0);
    database.execute("DELETE FROM tasks WHERE position > 100").await;
    assert_eq!(database.rows(ORIGINS).await, before);
}
