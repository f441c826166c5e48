//! A workflow service that a test controls: it takes turn requests and publishes what the test
//! wants.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream::{
    self, AckKind,
    consumer::{AckPolicy, Consumer, pull},
};
use futures_util::StreamExt;
use model::WorkflowName;
use serde_json::{Value, json};
use tokio::time::timeout;
use wire::{subject, work::TurnRequest};

use crate::nats_addresses;

/// Takes the requests of one workflow.
#[derive(Debug, Clone)]
pub struct ManualWorkflow {
    client: async_nats::Client,
    context: jetstream::Context,
    consumer: Consumer<pull::Config>,
}

/// One delivery of a turn request.
#[derive(Debug)]
pub struct DeliveredRequest {
    pub request: TurnRequest,
    /// The payload as received.
    pub raw: Value,
    /// The attempt of this delivery, counted as in the contract of workflows.
    pub attempt: u32,
    context: jetstream::Context,
    message: jetstream::Message,
    next_id: u32,
}

impl ManualWorkflow {
    /// Connects, and creates the workflow's consumer if there is none. An unanswered request is
    /// redelivered after `ack_wait`.
    pub async fn connect(nats_url: &str, workflow: &str, ack_wait: Duration) -> Result<Self> {
        let client = async_nats::connect(nats_addresses(nats_url)?).await?;
        let context = jetstream::new(client.clone());
        let workflow = WorkflowName::parse(workflow)?;
        let config = pull::Config {
            durable_name: Some(subject::work_consumer(&workflow)),
            filter_subject: subject::work(&workflow),
            ack_policy: AckPolicy::Explicit,
            ack_wait,
            max_deliver: 16,
            ..pull::Config::default()
        };
        let consumer = context.create_consumer_on_stream(config, subject::WORK_STREAM).await?;
        Ok(Self { client, context, consumer })
    }

    /// The next request.
    ///
    /// # Errors
    /// No request arrives within `limit`.
    pub async fn next(&self, limit: Duration) -> Result<DeliveredRequest> {
        self.next_within(limit).await?.with_context(|| format!("no turn request within {limit:?}"))
    }

    /// The next request, if one arrives within `limit`.
    pub async fn next_within(&self, limit: Duration) -> Result<Option<DeliveredRequest>> {
        let mut batch = self.consumer.fetch().max_messages(1).expires(limit).messages().await?;
        let Ok(Some(message)) = timeout(limit + Duration::from_secs(1), batch.next()).await else {
            return Ok(None);
        };
        let message = message.map_err(|error| anyhow::anyhow!(error))?;
        let delivered = message.info().map_err(|error| anyhow::anyhow!(error))?.delivered;
        let raw: Value = serde_json::from_slice(&message.payload)?;
        let request: TurnRequest = serde_json::from_value(raw.clone())?;
        let attempt = request.attempt + u32::try_from(delivered)?.saturating_sub(1);
        Ok(Some(DeliveredRequest {
            request,
            raw,
            attempt,
            context: self.context.clone(),
            message,
            next_id: 0,
        }))
    }

    /// Counts of requests that are not taken yet, and of those being answered.
    pub async fn standing(&self) -> Result<(u64, usize)> {
        let info = self.consumer.clone().info().await?.clone();
        Ok((info.num_pending, info.num_ack_pending))
    }

    /// The sequence of the newest request of any workflow.
    pub async fn last_request(&self) -> Result<u64> {
        Ok(self.context.get_stream(subject::WORK_STREAM).await?.cached_info().state.last_sequence)
    }

    /// Subscribes to the message that stops a run.
    pub async fn stops(&self, asked: &DeliveredRequest) -> Result<async_nats::Subscriber> {
        let subscriber = self.client.subscribe(asked.request.stop_subject.clone()).await?;
        self.client.flush().await?;
        Ok(subscriber)
    }
}

impl DeliveredRequest {
    /// The sequence in the stream of requests.
    pub fn seq(&self) -> Result<u64> {
        Ok(self.message.info().map_err(|error| anyhow::anyhow!(error))?.stream_sequence)
    }

    /// The next chunk of the answer as JSON, with the token.
    pub fn chunk(&mut self, text: &str, more: Value) -> Value {
        let mut chunk = json!({
            "session_id": self.request.thread_id, "message_id": self.request.message_id, "attempt": self.attempt,
            "turn_token": self.request.turn_token, "chunk_id": self.next_id, "chunk": text,
        });
        self.next_id += 1;
        if let (Some(chunk), Some(more)) = (chunk.as_object_mut(), more.as_object()) {
            chunk.extend(more.clone());
        }
        chunk
    }

    /// Publishes a payload to the chunk subject, and waits until it is stored.
    pub async fn publish(&self, payload: Vec<u8>) -> Result<()> {
        self.context.publish(self.request.subject.clone(), payload.into()).await?.await?;
        Ok(())
    }

    pub async fn say(&mut self, text: &str) -> Result<()> {
        self.say_with(text, json!({})).await
    }

    /// Publishes a chunk with additional fields.
    pub async fn say_with(&mut self, text: &str, more: Value) -> Result<()> {
        let chunk = self.chunk(text, more);
        self.publish(serde_json::to_vec(&chunk)?).await
    }

    /// Publishes the last chunk.
    pub async fn finish(&mut self, text: &str) -> Result<()> {
        self.say_with(text, json!({"is_final": true})).await
    }

    /// Ends the answer with an error; `hint` is its metadata.
    pub async fn fail(&mut self, text: &str, hint: Value) -> Result<()> {
        self.say_with(text, json!({"chunk_type": "error", "is_final": true, "metadata": hint})).await
    }

    /// Publishes the last chunk and acknowledges the request.
    pub async fn answer(mut self, text: &str) -> Result<()> {
        self.finish(text).await?;
        self.ack().await
    }

    /// Acknowledges the request as done.
    pub async fn ack(self) -> Result<()> {
        self.message.double_ack().await.map_err(|error| anyhow::anyhow!(error))
    }

    /// Reports progress, so that the request is not redelivered.
    pub async fn work_goes_on(&self) -> Result<()> {
        self.message.ack_with(AckKind::Progress).await.map_err(|error| anyhow::anyhow!(error))
    }

    /// Hands the request back, so that it is redelivered at once.
    pub async fn hand_back(self) -> Result<()> {
        self.message.ack_with(AckKind::Nak(None)).await.map_err(|error| anyhow::anyhow!(error))
    }
}
