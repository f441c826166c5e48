//! The stream `TURNS`, as an integrator reads it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream::{self, consumer};
use futures_util::StreamExt;
use tokio::time::timeout;
use wire::{subject, work::TurnEvent};

/// How long the stream may keep us waiting for an entry that it has.
const PATIENCE: Duration = Duration::from_secs(10);

/// One turn's end as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnEnd {
    /// Where it was published.
    pub subject: String,
    /// Its `Nats-Msg-Id`.
    pub id: String,
    /// What it says.
    pub said: TurnEvent,
}

/// Everything that the stream holds, in its order.
pub async fn all(context: &jetstream::Context) -> Result<Vec<TurnEnd>> {
    let mut stream = context.get_stream(subject::TURNS_STREAM).await?;
    let count = stream.info().await?.state.messages;
    let config = consumer::pull::Config {
        ack_policy: consumer::AckPolicy::None,
        memory_storage: true,
        inactive_threshold: Duration::from_secs(30),
        ..consumer::pull::Config::default()
    };
    let mut messages = stream.create_consumer(config).await?.messages().await?;
    let mut ends = Vec::new();
    for number in 0..count {
        let next = timeout(PATIENCE, messages.next()).await;
        let message = next.with_context(|| format!("{number} of {count} entries"))?.context("the end")??;
        let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
        ends.push(TurnEnd {
            subject: message.subject.to_string(),
            id: id.map(|id| id.as_str().to_owned()).unwrap_or_default(),
            said: serde_json::from_slice(&message.payload)?,
        });
    }
    Ok(ends)
}
