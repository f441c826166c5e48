//! The stream `TURNS`, as an integrator reads it.

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::{self, stream::RawMessageErrorKind};
use wire::{subject, work::TurnEvent};

/// The stored end of one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTurnEvent {
    pub subject: String,
    /// Its `Nats-Msg-Id`.
    pub id: String,
    pub said: TurnEvent,
}

/// All entries of the stream, in order.
pub async fn all(context: &jetstream::Context) -> Result<Vec<StoredTurnEvent>> {
    let mut stream = context.get_stream(subject::TURNS_STREAM).await?;
    let state = stream.info().await?.state.clone();
    let mut ends = Vec::new();
    // Entries are read one by one, because a consumer whose pull is lost while a server restarts
    // delivers nothing for half a minute.
    for seq in state.first_sequence..=state.last_sequence {
        let entry = match stream.get_raw_message(seq).await {
            Ok(entry) => entry,
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => continue,
            Err(error) => return Err(error).with_context(|| format!("entry {seq}")),
        };
        ends.push(StoredTurnEvent {
            subject: entry.subject.to_string(),
            id: entry.headers.get("Nats-Msg-Id").map(|id| id.as_str().to_owned()).unwrap_or_default(),
            said: serde_json::from_slice(&entry.payload)?,
        });
    }
    ensure!(ends.len() as u64 == state.messages, "{} of {} entries", ends.len(), state.messages);
    Ok(ends)
}
