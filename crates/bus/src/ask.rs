//! Questions of gateways to the owner of a partition.

use std::time::Duration;

use async_nats::{Client, Request, RequestErrorKind, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use model::PartitionId;
use wire::subject;

use crate::connection::Bus;
use crate::error::BusError;

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The partition has no owner at the moment.
    #[error("the partition has no owner")]
    NoOwner,
    /// The owner did not answer in time.
    #[error("the owner did not answer in time")]
    Timeout,
    /// There is no connection, or the question cannot be sent.
    #[error("NATS is away")]
    Away,
}

impl Bus {
    /// Asks the owner of a partition.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask(
        &self,
        partition: PartitionId,
        question: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, AskError> {
        let answer = tokio::time::timeout(timeout, self.ask_owner(partition, question, timeout)).await;
        answer.unwrap_or(Err(AskError::Timeout))
    }

    async fn ask_owner(
        &self,
        partition: PartitionId,
        question: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, AskError> {
        let link = self.listening().await.map_err(|_| AskError::Away)?;
        if !link.is_connected() {
            return Err(AskError::Away);
        }
        let request = Request::new().payload(question).timeout(Some(timeout));
        match link.client.send_request(subject::ask(partition), request).await {
            Ok(answer) => Ok(answer.payload),
            Err(error) => Err(match error.kind() {
                RequestErrorKind::NoResponders => AskError::NoOwner,
                RequestErrorKind::TimedOut => AskError::Timeout,
                RequestErrorKind::InvalidSubject
                | RequestErrorKind::MaxPayloadExceeded
                | RequestErrorKind::Other => AskError::Away,
            }),
        }
    }

    /// Receives the questions to a partition that this process owns.
    ///
    /// # Errors
    /// The connection has ended for good.
    pub async fn serve_asks(&self, partition: PartitionId) -> Result<AskServer, BusError> {
        let client = self.shared.control.client.clone();
        let subscriber = client.subscribe(subject::ask(partition)).await?;
        Ok(AskServer { client, subscriber })
    }
}

/// The questions to one partition. Dropping it ends the subscription: askers are then told that there is no owner.
#[derive(Debug)]
pub struct AskServer {
    client: Client,
    subscriber: Subscriber,
}

impl AskServer {
    /// The next question; `None` when the connection has ended for good. Cancel-safe.
    pub async fn next(&mut self) -> Option<AskRequest> {
        loop {
            let message = self.subscriber.next().await?;
            // One without a place for the answer is not a question.
            if let Some(reply) = message.reply {
                return Some(AskRequest { client: self.client.clone(), reply, payload: message.payload });
            }
        }
    }
}

/// One question.
#[derive(Debug)]
pub struct AskRequest {
    client: Client,
    reply: Subject,
    /// What is asked.
    pub payload: Bytes,
}

impl AskRequest {
    /// Answers. Whether the asker gets it is not known.
    ///
    /// # Errors
    /// The answer is too large, or there is no connection.
    pub async fn respond(self, answer: Bytes) -> Result<(), BusError> {
        Ok(self.client.publish(self.reply, answer).await?)
    }
}
