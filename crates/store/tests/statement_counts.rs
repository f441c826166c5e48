//! The cost of turns for the database.

use model::{Message, ModelCall, Seq, TurnId, UsageKind};
use partition::{Commit, OutboxBatch, Outgoing, TurnEnded, TurnStatus, UsageWrite};
use sqlx::{PgConnection, Row};
use store::{Committed, Store};

use crate::fixture::{Database, Owner, thread};
use crate::values::{agent, at, completes, finishes, task};

/// Number of turns per statement, as under load.
const TURNS: i64 = 16;
/// Number of rounds; each completes one task of every agent's queue.
const ROUNDS: i64 = 50;

fn agent_id(number: i64) -> String {
    format!("agent-{number}")
}

/// A commit that completes one task of each agent, as the worker writes it, with texts of 400
/// bytes.
fn round(owner: &Owner, round: i64) -> Commit {
    let mut commit = owner.empty();
    let first = 1_000_000 * (round + 1);
    let mut outgoing = Vec::new();
    for number in 0..TURNS {
        let id = agent_id(number);
        let position = 100 * (round + 1) + number;
        let turn = TurnId::of_task(&agent(&id), at(position));
        let mut write = finishes(&id, &turn, 0, first + 10 * number, Some(number as usize));
        write.messages.iter_mut().for_each(|message| message.content = text(message));
        outgoing.push(Outgoing::TurnEnded(TurnEnded {
            turn: turn.clone(),
            thread: thread(&id),
            agent: agent(&id),
            status: TurnStatus::Completed,
            task: Some(task(&id, &format!("task-{position}"), position).queued.task.id),
            message: Some(turn.answer(0)),
            batch: Some(at(first + 10 * number)),
            code: None,
        }));
        commit.agents.push(completes(&id, position));
        commit.turns.push(write);
    }
    commit.outbox = Some(OutboxBatch { id: at(first), outgoing });
    commit.sent = vec![at(first - 1_000_000)];
    commit.checkpoint = Seq(round.unsigned_abs());
    commit
}

/// 400 bytes that differ in every message and do not compress well.
fn text(message: &Message) -> String {
    let seed = message.placement.position.get();
    let words = (0..80).map(|n| format!("{:05}", (seed * 7_919 + n * 104_729) % 99_991));
    words.collect::<Vec<_>>().concat()
}

async fn wal(session: &mut PgConnection) -> i64 {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    sqlx::query(sql).fetch_one(session).await.unwrap().get(0)
}

/// CPU time in microseconds of the server process whose session last ran a statement like `what`;
/// `None` if the process is not visible.
async fn computed(session: &mut PgConnection, what: &str) -> Option<u64> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE $1";
    let pid: i32 = sqlx::query(sql).bind(what).fetch_optional(session).await.unwrap()?.get(0);
    let times = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    Some(times.split(' ').next()?.parse::<u64>().ok()? / 1_000)
}

/// Inserts the same rows in one plain batched insert into a table like `messages`.
async fn insert_raw(session: &mut PgConnection, messages: &[&Message]) {
    let sql = "INSERT INTO raw (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content,
                                tool_calls, tool_call_id, metadata, token_count, parent_id, attempt)
               SELECT b, t, p, m, i, s, y, r, c, l::jsonb, k, d::jsonb, n, a, 0
               FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::integer[], $7::text[],
                           $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::bigint[])
                    AS u (b, t, p, m, i, s, y, r, c, l, k, d, n, a)";
    macro_rules! column {
        ($value:expr) => {
            messages.iter().map(|m| $value(*m)).collect::<Vec<_>>()
        };
    }
    sqlx::query(sql)
        .bind(column!(|m: &Message| m.bucket().get() as i16))
        .bind(column!(|m: &Message| m.key.thread.to_string()))
        .bind(column!(|m: &Message| m.placement.position.get()))
        .bind(column!(|m: &Message| m.key.message.to_string()))
        .bind(column!(|m: &Message| m.placement.batch_id.get()))
        .bind(column!(|m: &Message| m.placement.sequence_num))
        .bind(column!(|m: &Message| m.placement.batch_type.name()))
        .bind(column!(|m: &Message| m.role.name()))
        .bind(column!(|m: &Message| m.content.clone()))
        .bind(column!(|m: &Message| m.tool_calls.as_ref().map(ToString::to_string)))
        .bind(column!(|m: &Message| m.tool_call_id.clone()))
        .bind(column!(|m: &Message| m.metadata.to_value().to_string()))
        .bind(column!(|m: &Message| m.token_count))
        .bind(column!(|m: &Message| Some(m.placement.position.get() - 1)))
        .execute(session)
        .await
        .unwrap();
}

async fn queues(store: &Store, owner: &Owner) {
    let mut commit = owner.empty();
    for round in 0..ROUNDS {
        for number in 0..TURNS {
            let position = 100 * (round + 1) + number;
            commit.tasks.push(task(&agent_id(number), &format!("task-{position}"), position));
        }
    }
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    assert_eq!(store.load(&owner.grant, 8).await.unwrap().agents.len(), TURNS as usize);
}

#[tokio::test]
async fn a_turn_writes_little_more_than_its_messages() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    queues(&store, &owner).await;
    database.execute("CREATE TABLE raw (LIKE messages INCLUDING ALL)").await;
    // A checkpoint now, because full page images are written with the first change of a page after
    // a checkpoint.
    database.execute("CHECKPOINT").await;
    let (mut session, mut raw_session) = (database.session().await, database.session().await);
    // Other tests write to this server at the same time, and their writes count too. So the cost of
    // a commit is the minimum of many rounds.
    let (mut ours, mut raw) = (i64::MAX, i64::MAX);
    let mut rounds = 0;
    while rounds < ROUNDS || (rounds < 10 * ROUNDS && ours * 4 > raw * 5) {
        let commit = round(&owner, rounds);
        let start = wal(&mut session).await;
        assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
        let middle = wal(&mut session).await;
        let messages: Vec<&Message> = commit.turns.iter().flat_map(|turn| &turn.messages).collect();
        insert_raw(&mut raw_session, &messages).await;
        let end = wal(&mut session).await;
        (ours, raw) = (ours.min(middle - start), raw.min(end - middle));
        rounds += 1;
    }
    if let (Some(commits), Some(inserts)) = (
        computed(&mut session, "-- Applies commits of%").await,
        computed(&mut session, "INSERT INTO raw%").await,
    ) {
        let turns = rounds.unsigned_abs() * TURNS.unsigned_abs();
        let (commit, insert) = (commits / turns, inserts / turns);
        println!("CPU a turn: {commit} us, of its messages alone {insert} us");
    }
    let ratio = ours as f64 / raw as f64;
    println!("WAL a turn: {} B, of its messages alone {} B, ratio {ratio:.3}", ours / TURNS, raw / TURNS);
    assert!(ratio <= 1.25, "{ratio} after {rounds} rounds");
    assert_eq!(database.number("SELECT count(*) FROM messages").await, 4 * TURNS * rounds);
}

/// The same round, with a model call per turn in the ledger.
fn round_with_usage(owner: &Owner, number: i64) -> Commit {
    let mut commit = round(owner, number);
    let answers = commit.turns.iter().filter_map(|turn| {
        let answer = turn.messages.last()?;
        Some(UsageWrite {
            turn: turn.turn.clone(),
            answer: answer.key.clone(),
            number: 0,
            agent: answer.key.thread.agent(),
            kind: UsageKind::Turn,
            call: ModelCall {
                model: Some("gpt-4o-mini".into()),
                input_tokens: 1_200,
                output_tokens: 300,
                ..ModelCall::default()
            },
            is_partial: false,
            finish_reason: None,
        })
    });
    commit.usage = answers.collect();
    commit
}

#[tokio::test]
async fn the_ledger_adds_little_to_what_a_turn_writes() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    queues(&store, &owner).await;
    database.execute("CHECKPOINT").await;
    let mut session = database.session().await;
    // As above, others write at the same time and begin checkpoints.
    let (mut without, mut with) = (i64::MAX, i64::MAX);
    let mut rounds = 0;
    while rounds < ROUNDS || (rounds < 50 * ROUNDS && with * 10 > without * 11) {
        let has_usage = rounds % 2 == 1;
        let commit = if has_usage { round_with_usage(&owner, rounds) } else { round(&owner, rounds) };
        rounds += 1;
        let start = wal(&mut session).await;
        assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
        let written = wal(&mut session).await - start;
        let least = if has_usage { &mut with } else { &mut without };
        *least = written.min(*least);
    }
    let ratio = with as f64 / without as f64;
    println!(
        "WAL a turn: {} B, with its call of a model {} B, ratio {ratio:.3}",
        without / TURNS,
        with / TURNS
    );
    assert!(ratio <= 1.10, "{ratio}");
    assert_eq!(database.number("SELECT count(*) FROM usage").await, TURNS * (rounds / 2));
}

#[tokio::test]
async fn queues_move_in_place_and_tasks_are_never_touched() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    queues(&store, &owner).await;
    for number in 0..ROUNDS {
        assert_eq!(owner.commit(&round(&owner, number)).await.unwrap(), Committed::Applied);
    }
    // A session reports its statistics at the latest when it ends.
    drop(owner);
    let completed = TURNS * ROUNDS;
    let of = |table: &str, column: &str| {
        format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = '{table}'")
    };
    while database.number(&of("agents", "n_tup_upd")).await < completed {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(database.number(&of("agents", "n_tup_upd")).await, completed);
    let in_place = database.number(&of("agents", "n_tup_hot_upd")).await;
    // A page is not pruned while a starting session anywhere on the server holds back the horizon.
    // So on a busy server some updates leave their page. With an index over an updated column, all
    // of them would.
    assert!(in_place >= completed / 2, "{in_place} of {completed}");
    let untouched = "n_tup_upd + n_tup_del + n_dead_tup";
    for table in ["tasks", "task_ids", "messages"] {
        assert_eq!(database.number(&of(table, untouched)).await, 0, "{table}");
    }
}
