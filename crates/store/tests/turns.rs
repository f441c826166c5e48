//! The rows that are stored for finished turns, queues and commands.

use model::{Seq, TurnId};
use partition::{BackoffChange, Commit, OutboxBatch, Outgoing, TurnEnded, TurnStatus};
use store::{Committed, Disposition};

use crate::fixture::{Database, Owner, message, submission, thread, thread_of};
use crate::values::{act, agent, at, backs_off, completes, failed_turn, finishes, mark, task, turn};

const TABLES: [&str; 11] = [
    "threads",
    "messages",
    "agents",
    "tasks",
    "task_ids",
    "failed_tasks",
    "failed_turns",
    "spilled_turns",
    "outbox",
    "audit_log",
    "dead_letters",
];

async fn contents(database: &Database) -> Vec<String> {
    let mut rows = Vec::new();
    for table in TABLES {
        rows.extend(database.rows(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3")).await);
    }
    rows
}

/// A commit with every kind of change. The agent `a` must have tasks at 5 and 6.
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
    // The repeated statement is fenced.
    assert_eq!(owner.writer.commit(&[submission(&commit, 1)]).await.unwrap(), [Committed::Fenced]);
    assert_eq!(contents(&database).await, once);
    // The same commit is decided again from the stream: the head of `a` is already where the commit
    // puts it. Only failures are counted again.
    commit.agents.retain(|write| !matches!(write.wait, BackoffChange::Start(_)));
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Stale);
    assert_eq!(contents(&database).await, once);
    let counts = ["threads", "messages", "agents", "tasks", "task_ids", "failed_tasks", "failed_turns"];
    let mut found = Vec::new();
    for table in counts {
        found.push(database.number(&format!("SELECT count(*) FROM {table}")).await);
    }
    assert_eq!(found, [3, 9, 3, 5, 5, 2, 1]);
}

/// Completes the task of `a` at 5 with a run of its turn.
fn completes_five(owner: &Owner, run: u32, position: i64) -> Commit {
    let mut commit = owner.empty();
    commit.agents = vec![completes("a", 5)];
    commit.turns = vec![finishes("a", &TurnId::of_task(&agent("a"), at(5)), run, position, Some(0))];
    commit
}

#[tokio::test]
async fn of_two_writers_one_completes_a_task() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let other =
        Owner { writer: store.writer("a").unwrap(), grant: owner.grant.clone(), store: store.clone() };
    // In the first ten rounds the agent has no row, in the others it has one.
    for round in 0..20 {
        if round >= 10 {
            let mut commit = owner.empty();
            commit.tasks = vec![task("a", "t5", 5)];
            assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
        }
        let [one, two] = [completes_five(&owner, 0, 50), completes_five(&other, 1, 60)];
        let (first, second) = tokio::join!(owner.commit(&one), other.commit(&two));
        let mut outcomes = [first.unwrap(), second.unwrap()];
        let answer = if outcomes[0] == Committed::Applied { "-a" } else { "-a1" };
        outcomes.sort_by_key(|outcome| *outcome != Committed::Applied);
        // The second commit was decided without knowing the first, or knows it and fails the guard.
        assert!(
            matches!(outcomes, [Committed::Applied, Committed::Fenced | Committed::Stale]),
            "{outcomes:?}"
        );
        let of_winner = format!(
            "SELECT count(*) FROM messages WHERE message_id LIKE '%{answer}' OR message_id LIKE '%-q'"
        );
        assert_eq!(database.number(&of_winner).await, 2);
        assert_eq!(database.number("SELECT count(*) FROM messages").await, 4);
        database.execute("TRUNCATE messages, threads, agents, tasks, task_ids").await;
    }
}

#[tokio::test]
async fn stale_queue_write_changes_nothing_of_its_turn() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.agents = vec![completes("a", 5)];
    owner.commit(&commit).await.unwrap();
    let before = contents(&database).await;
    let mut commit = completes_five(&owner, 0, 50);
    commit.failed_tasks = vec![mark("a", 5)];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Stale);
    assert_eq!(contents(&database).await, before);
    // Changes that do not belong to the stale queue are written, in every commit of the group.
    commit.turns.push(finishes("u", &turn("u", "x"), 0, 70, None));
    commit.agents.push(completes("b", 8));
    commit.failed_tasks.push(mark("b", 8));
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Stale);
    assert_eq!(database.number("SELECT count(*) FROM messages").await, 4);
    let marks = database.rows("SELECT agent_id AS a, position AS p FROM failed_tasks").await;
    assert_eq!(marks, [r#"{"a":"b","p":8}"#]);
    // A head never moves backwards. A turn whose index names no agent is not written.
    let mut commit = owner.empty();
    let mut write = completes("b", i64::MAX);
    (write.head, write.paused) = (at(3), true);
    commit.agents = vec![write];
    commit.turns = vec![finishes("v", &turn("v", "x"), 0, 80, Some(1))];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let rows = database.rows("SELECT head_position AS h, paused FROM agents ORDER BY agent_id").await;
    assert_eq!(rows, [r#"{"h":5,"paused":false}"#, r#"{"h":8,"paused":true}"#]);
    assert_eq!(database.number("SELECT count(*) FROM threads WHERE thread_id = 'v'").await, 0);
}

#[tokio::test]
async fn items_of_several_commits_do_not_mix() {
    let (database, store) = Database::new(2).await;
    let writer = store.writer("a").unwrap();
    let grants = store.acquire("a", crate::fixture::TTL, 2).await.unwrap();
    let [one, two] = [0, 1].map(|p| thread_of(model::PartitionId(p), 2, 0));
    let mut stale = crate::fixture::commit(grants[0].partition, grants[0].epoch);
    stale.agents = vec![completes(&one, 9)];
    let first = submission(&stale, 0);
    assert_eq!(writer.commit(&[first]).await.unwrap(), [Committed::Applied]);

    stale.agents = vec![completes(&one, 7)];
    stale.turns = vec![finishes(&one, &TurnId::of_task(&agent(&one), at(7)), 0, 10, Some(0))];
    let mut good = crate::fixture::commit(grants[1].partition, grants[1].epoch);
    good.agents = vec![completes(&two, 7)];
    good.turns = vec![finishes(&two, &TurnId::of_task(&agent(&two), at(7)), 0, 10, Some(0))];
    good.failed_tasks = vec![mark(&two, 3)];
    let mut fenced = good.clone();
    (fenced.partition, fenced.epoch) = (model::PartitionId(9), 1);
    let group = [submission(&stale, 1), submission(&good, 0), submission(&fenced, 0)];
    let outcomes = writer.commit(&group).await.unwrap();
    assert_eq!(outcomes, [Committed::Stale, Committed::Applied, Committed::Fenced]);
    let written = database.rows("SELECT DISTINCT thread_id AS t FROM messages").await;
    assert_eq!(written, [format!(r#"{{"t":"{two}"}}"#)]);
    assert_eq!(database.number("SELECT count(*) FROM failed_tasks").await, 1);
}

#[tokio::test]
async fn a_turn_is_written_whole_or_not_at_all() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let [x, y] = ["x", "y"].map(|unique| turn("u", unique));
    let mut commit = owner.empty();
    // A message that belongs to no turn already has the id of an answer.
    commit.messages = vec![message("u", y.answer(0).as_str(), 3)];
    commit.turns = vec![finishes("u", &x, 0, 10, None)];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    commit.messages.clear();
    commit.turns =
        vec![finishes("u", &x, 1, 20, None), finishes("u", &y, 0, 30, None), finishes("u", &y, 1, 40, None)];
    commit.turns.remove(1);
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let ids = database.rows("SELECT message_id AS m, parent_id AS p FROM messages ORDER BY position").await;
    assert_eq!(ids.len(), 1 + 4 + 4, "{ids:?}");
    assert!(ids[8].contains(y.answer(1).as_str()), "{ids:?}");
    commit.turns = vec![finishes("u", &y, 0, 50, None)];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    assert_eq!(database.number("SELECT count(*) FROM messages").await, 9);
    let calls =
        "SELECT count(*) FROM messages WHERE role = 'tool' AND tool_call_id = 'c1' AND sequence_num = 2";
    assert_eq!(database.number(calls).await, 2);
    let one_batch = "SELECT count(DISTINCT batch_id) FROM messages WHERE batch_type = 'user_request'";
    assert_eq!(database.number(one_batch).await, 2);
}

#[tokio::test]
async fn fallback_is_written_in_place_of_a_refused_turn() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = completes_five(&owner, 0, 50);
    commit.turns.push(finishes("u", &turn("u", "x"), 0, 70, None));
    commit.turns[0].messages[3].content = "NUL \0 that slipped past".to_owned();
    let error = owner.commit(&commit).await.unwrap_err();
    assert_eq!(error.disposition(), Disposition::Data);
    assert_eq!(database.number("SELECT count(*) FROM agents").await, 0);
    // The refused rows are isolated. First the turn without its messages, with the mark and its
    // head; then the other changes.
    let mut instead = commit.clone();
    instead.turns.truncate(1);
    instead.turns[0].messages.clear();
    instead.failed_tasks = vec![partition::FailedTask { text: error.to_string() + "\0", ..mark("a", 5) }];
    let mut others = commit.clone();
    others.agents.clear();
    others.turns.remove(0);
    for part in [&instead, &others] {
        assert_eq!(owner.commit(part).await.unwrap(), Committed::Applied);
    }
    assert_eq!(database.number("SELECT count(*) FROM messages WHERE thread_id = 'u'").await, 4);
    assert_eq!(database.number("SELECT count(*) FROM messages WHERE thread_id = 'a'").await, 0);
    assert_eq!(database.number("SELECT head_position FROM agents").await, 5);
    assert_eq!(database.number("SELECT count(*) FROM failed_tasks WHERE position = 5").await, 1);
}

#[tokio::test]
async fn repeated_commit_keeps_the_backoff_and_its_error() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.agents = vec![backs_off("a", 0, 9, 1, 60_000)];
    owner.commit(&commit).await.unwrap();
    let state = "SELECT extract(epoch FROM backoff_next_run_at - clock_timestamp())::bigint FROM agents";
    assert!((55..=60).contains(&database.number(state).await));
    let row = database.rows("SELECT * FROM agents").await;
    assert!(row[0].contains(r#""error_code":"stalled","error_text":"failure 1","error_at":"2"#), "{row:?}");
    assert_eq!(owner.writer.commit(&[submission(&commit, 0)]).await.unwrap(), [Committed::Fenced]);
    assert_eq!(database.rows("SELECT * FROM agents").await, row);
    // The next failure restarts the backoff; a pause keeps it.
    commit.agents = vec![backs_off("a", 0, 9, 2, 1_000_000)];
    owner.commit(&commit).await.unwrap();
    assert!((990..=1_000).contains(&database.number(state).await));
    let mut pause = backs_off("a", 0, i64::MAX, 2, 0);
    (pause.wait, pause.error, pause.paused) = (BackoffChange::Keep, None, true);
    commit.agents = vec![pause];
    owner.commit(&commit).await.unwrap();
    assert!((980..=1_000).contains(&database.number(state).await));
    assert_eq!(
        database.number("SELECT count(*) FROM agents WHERE paused AND error_text = 'failure 2'").await,
        1
    );
    commit.agents = vec![completes("a", 9)];
    owner.commit(&commit).await.unwrap();
    let clear = "SELECT count(*) FROM agents WHERE backoff_next_run_at IS NULL AND error_code IS NULL AND error_text IS NULL
                 AND error_at IS NULL AND backoff_attempt_count = 0 AND head_run = 0 AND head_position = 9";
    assert_eq!(database.number(clear).await, 1);
}

#[tokio::test]
async fn failed_turn_is_kept_until_retried_or_dropped() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let [x, y] = ["x", "y"].map(|unique| turn("u", unique));
    let mut commit = owner.empty();
    commit.failed_turns = vec![failed_turn("u", &x, 0), failed_turn("u", &y, 0)];
    owner.commit(&commit).await.unwrap();
    commit.failed_turns.clear();
    [1, 2].into_iter().for_each(|run| commit.fail_turn(failed_turn("u", &x, run)));
    owner.commit(&commit).await.unwrap();
    let rows = database
        .rows("SELECT turn_id AS t, run, text, options->>'busy_policy' AS policy, agent_id AS a FROM failed_turns ORDER BY 1")
        .await;
    let row = |turn: &TurnId, run| {
        format!(r#"{{"t":"{turn}","run":{run},"text":"run {run}","policy":"interrupt","a":"someone"}}"#)
    };
    assert_eq!(rows, [row(&x, 2), row(&y, 0)]);
    let mut commit = owner.empty();
    commit.turns = vec![finishes("u", &x, 3, 10, None)];
    commit.turns[0].ends_failed = Some(thread("u"));
    commit.dropped_turns = vec![(thread("u"), y)];
    owner.commit(&commit).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM failed_turns").await, 0);
}
