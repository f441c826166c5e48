//! Converts the tables' rows to the types of the shared checker. An invalid row is a violation.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use model::{Chunk, MessageId, MessageKey, Metadata, PartitionId, Role, ThreadId};
use serde_json::{Map, Value};
use simulation::checker;

use super::evidence::Findings;
use testkit::db_snapshot::{DeadLetterRow, EndRow, MessageRow};

const RULE: &str = "a row makes sense";

pub(super) fn messages(rows: &[MessageRow], findings: &mut Findings) -> Vec<checker::MessageRow> {
    let read = |row: &MessageRow| {
        let place = format!("{}/{}", row.thread_id, row.message_id);
        message(row).map_err(|error| findings.add(RULE, place, format!("{error:#}"))).ok()
    };
    rows.iter().filter_map(read).collect()
}

pub(super) fn dead_letters(rows: &[DeadLetterRow], findings: &mut Findings) -> Vec<checker::DeadLetterRow> {
    let read = |row: &DeadLetterRow| {
        let place = format!("dead letter of partition {} sequence {}", row.partition_id, row.stream_seq);
        dead_letter(row).map_err(|error| findings.add(RULE, place, format!("{error:#}"))).ok()
    };
    rows.iter().filter_map(read).collect()
}

pub(super) fn ends(rows: &[EndRow], findings: &mut Findings) -> Vec<(MessageKey, i64)> {
    let read = |row: &EndRow| {
        let place = format!("end of {}/{}", row.thread_id, row.message_id);
        let key = key(&row.thread_id, &row.message_id);
        key.map_err(|error| findings.add(RULE, place, format!("{error:#}")))
            .ok()
            .map(|key| (key, row.position))
    };
    rows.iter().filter_map(read).collect()
}

fn message(row: &MessageRow) -> Result<checker::MessageRow> {
    Ok(checker::MessageRow {
        key: key(&row.thread_id, &row.message_id)?,
        position: row.position,
        parent: row.parent_id,
        number: row.number.context("no number")?,
        role: Role::from_name(&row.role).with_context(|| format!("role {}", row.role))?,
        content: row.content.clone(),
        metadata: metadata(row.metadata.as_object().context("metadata is no object")?.clone())?,
        attempt: u32::try_from(row.attempt)?,
    })
}

fn dead_letter(row: &DeadLetterRow) -> Result<checker::DeadLetterRow> {
    match row.kind.as_str() {
        "entry" => Ok(checker::DeadLetterRow::Entry {
            partition: PartitionId(u16::try_from(row.partition_id)?),
            seq: u64::try_from(row.stream_seq)?,
            payload: row.raw.clone().into(),
        }),
        "message" => {
            let (Some(thread), Some(message)) = (&row.thread_id, &row.message_id) else {
                bail!("of a message, but does not say which");
            };
            let kept: Vec<Chunk> = serde_json::from_slice(&row.raw).context("the kept chunks")?;
            Ok(checker::DeadLetterRow::Message {
                key: key(thread, message)?,
                attempt: u32::try_from(row.attempt.context("no attempt")?)?,
                code: row.reason.clone(),
                chunks: kept.into_iter().map(Arc::new).collect(),
            })
        }
        kind => bail!("kind {kind}"),
    }
}

fn key(thread: &str, message: &str) -> Result<MessageKey> {
    Ok(MessageKey { thread: ThreadId::parse(thread)?, message: MessageId::parse(message)? })
}

fn metadata(map: Map<String, Value>) -> Result<Metadata> {
    Ok(if map.is_empty() { Metadata::EMPTY } else { Metadata::new(map)? })
}
