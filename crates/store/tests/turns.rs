//! What finished turns, queues and orders leave in the tables.

use model::{Seq, TurnId};
use partition::{Commit, OutboxBatch, Outgoing, TurnEnded, TurnStatus};
use store::Committed;

use crate::fixture::{Database, Owner, message, thread};
use crate::words::{
    act, agent, at, backs_off, completes, failed_turn, finishes, mark, open_turn, task, turn,
};

const TABLES: [&str; 11] = [
    "threads",
    "messages",
    "agents",
    "tasks",
    "task_ids",
    "failed_tasks",
    "failed_turns",
    "open_turns",
    "outbox",
    "audit",
    "dead_letters",
];

async fn contents(database: &Database) -> Vec<String> {
    let mut rows = Vec::new();
    for table in TABLES {
        rows.extend(database.rows(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3")).await);
    }
    rows
}

/// Something of everything. The agent `a` must have tasks at 5 and 6.
fn everything(commit: &mut Commit) {
    let [u, v] = ["u", "v"].map(|thread| turn(thread, "x"));
    commit.messages = vec![message("t", "bare", 40)];
    commit.agents = vec![completes("a", 5), backs_off("b", 0, 9, 1, 60_000)];
    let of_task = TurnId::of_task(&agent("a"), at(5));
    commit.turns = vec![finishes("u", &u, 0, 50, None), finishes("a", &of_task, 0, 60, Some(0))];
    commit.turns[0].ends_failed = Some(thread("u"));
    commit.tasks = vec![task("c", "t1", 70), task("a", "t7", 71), task("b", "t8", 72)];
    commit.failed_tasks = vec![mark("a", 6), mark("z", 1)];
    commit.failed_turns = vec![failed_turn("v", &v, 2)];
    commit.open_turns = vec![open_turn("w", &turn("w", "x"), 0, 8)];
    commit.audit = vec![act("a", "act-1")];
    let ended = TurnEnded {
        turn: u.clone(),
        thread: thread("u"),
        agent: agent("u"),
        status: TurnStatus::Completed,
        task: None,
        message: Some(u.answer(0)),
        batch: Some(at(50)),
        code: None,
    };
    let outgoing = vec![Outgoing::TurnEnded(ended), Outgoing::Task(task("q", "next", 0).queued.task)];
    commit.outbox = Some(OutboxBatch { id: at(80), outgoing });
    commit.checkpoint = Seq(9);
}

#[tokio::test]
async fn everything_twice_is_once() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut before = owner.empty();
    before.tasks = vec![task("a", "t5", 5), task("a", "t6", 6)];
    before.failed_turns = vec![failed_turn("u", &turn("u", "x"), 0)];
    assert_eq!(owner.commit(&before).await.unwrap(), Committed::Applied);
    let mut commit = owner.empty();
    everything(&mut commit);
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let once = contents(&database).await;
    // The head of `a` is where the commit wanted it: its owner must see that it has been here already.
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Stale);
    assert_eq!(contents(&database).await, once);
    let counts =
        ["threads", "messages", "agents", "tasks", "task_ids", "failed_tasks", "failed_turns", "open_turns"];
    let mut found = Vec::new();
    for table in counts {
        found.push(database.number(&format!("SELECT count(*) FROM {table}")).await);
    }
    assert_eq!(found, [3, 9, 3, 5, 5, 2, 1, 1]);
}
