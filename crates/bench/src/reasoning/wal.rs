//! The growth of the WAL with each turn.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::{
    BatchType, Message, MessageId, MessageKey, Metadata, ModelCall, Placement, Position, Role, Seq, ThreadId,
    Timestamp, TurnId, UsageKind,
};
use partition::{Commit, UsageWrite};
use sqlx::{Connection as _, PgConnection};
use store::{Committed, Store, Submission};

use crate::table::Row;

const THREADS: u32 = 50;
/// Bytes of a message.
const TEXT: usize = 400;

/// Turns of an input and an answer, one and twenty per commit.
pub(super) async fn rows(store: &Store, url: &str, turns: u32) -> Result<Vec<Row>> {
    let grant = store.acquire("bench", Duration::from_secs(600), 1).await?.pop().context("no partition")?;
    let writer = store.writer("bench")?;
    let mut session = PgConnection::connect(url).await?;
    let (mut rows, mut commits, mut turn) = (Vec::new(), grant.commits, 0);
    for (per_commit, has_usage) in [(1, false), (1, true), (20, false), (20, true)] {
        // Full page images are written with the first change after a checkpoint, and do not belong
        // to a turn.
        sqlx::query("CHECKPOINT").execute(&mut session).await?;
        let before = place(&mut session).await?;
        for first in (0..turns).step_by(per_commit) {
            let mut commit = Commit::empty(grant.partition, grant.epoch, Seq(u64::from(turn)), Timestamp(0));
            for _ in first..(first + per_commit as u32).min(turns) {
                commit.messages.extend(messages(turn)?);
                if has_usage {
                    commit.usage.push(used(&commit.messages)?);
                }
                turn += 1;
            }
            let submission = Submission {
                commit: &commit,
                commits,
                saves: 0,
                incarnation: "bench",
                read: None,
                gone: &[],
            };
            ensure!(writer.commit(&[submission]).await? == [Committed::Applied], "not applied");
            commits += 1;
        }
        let bytes = (place(&mut session).await? - before) as f64 / f64::from(turns);
        let used = if has_usage { " and one call of a model" } else { "" };
        let what = format!("a turn of two messages of {TEXT} bytes{used}, {per_commit} to a commit");
        rows.push(Row::new('d', what, format!("{bytes:.0} B of WAL")).figure("wal_bytes", bytes));
    }
    session.close().await?;
    Ok(rows)
}

async fn place(session: &mut PgConnection) -> Result<i64> {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
    Ok(sqlx::query_scalar(sql).fetch_one(session).await?)
}

/// The model call that produced the last message.
fn used(messages: &[Message]) -> Result<UsageWrite> {
    let answer = messages.last().context("an answer")?.key.clone();
    Ok(UsageWrite {
        turn: TurnId::of_answer(&answer.message).context("a turn's answer")?.0,
        number: 0,
        agent: answer.thread.agent(),
        kind: UsageKind::Turn,
        call: ModelCall {
            model: Some("model-1".into()),
            input_tokens: 1_200,
            output_tokens: 80,
            ..ModelCall::default()
        },
        is_partial: false,
        finish_reason: None,
        answer,
    })
}

fn messages(turn: u32) -> Result<[Message; 2]> {
    let thread = ThreadId::parse(&format!("thread-{}", turn % THREADS))?;
    let first = 1_000 * (i64::from(turn) + 1);
    let message = |number: i64, role: Role, suffix: &str| -> Result<Message> {
        Ok(Message {
            key: MessageKey {
                thread: thread.clone(),
                message: MessageId::parse(&format!("u0001-{turn:016x}-{suffix}"))?,
            },
            placement: Placement {
                position: Position::from_stored(first + number),
                batch_id: Position::from_stored(first),
                sequence_num: number as i32,
                batch_type: BatchType::UserRequest,
            },
            role,
            content: text(first + number),
            tool_calls: None,
            tool_call_id: None,
            metadata: Metadata::EMPTY,
            token_count: None,
            attempt: 0,
            times: model::MessageTimes::default(),
        })
    };
    Ok([message(0, Role::User, "q")?, message(1, Role::Assistant, "a")?])
}

/// A text that differs in every message, so that it cannot be compressed away.
fn text(seed: i64) -> String {
    let words = (0..TEXT as i64 / 5).map(|n| format!("{:05}", (seed * 7_919 + n * 104_729) % 99_991));
    words.collect()
}
