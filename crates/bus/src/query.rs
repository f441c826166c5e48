//! Queries of gateways to the owner of a partition.

use std::time::Duration;

use async_nats::{Request, RequestErrorKind, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use model::PartitionId;
use wire::subject;

use crate::connection::Bus;
use crate::error::BusError;

/// The reason why a query has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The partition has no owner at the moment.
    #[error("the partition has no owner")]
    NoOwner,
    #[error("the owner did not answer in time")]
    Timeout,
    /// There is no connection, or the query cannot be sent.
    #[error("NATS is away")]
    Away,
}

impl Bus {
    /// Sends a query to the owner of a partition, and returns its reply.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn query_owner(
        &self,
        partition: PartitionId,
        query: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, QueryError> {
        let answer = tokio::time::timeout(timeout, self.request_reply(partition, query, timeout)).await;
        answer.unwrap_or(Err(QueryError::Timeout))
    }

    async fn request_reply(
        &self,
        partition: PartitionId,
        query: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, QueryError> {
        let link = self.listening().await.map_err(|_| QueryError::Away)?;
        if !link.is_connected() {
            return Err(QueryError::Away);
        }
        let mut watch = link.watch();
        let request = Request::new().payload(query).timeout(Some(timeout));
        let answer = tokio::select! {
            answer = link.client.send_request(subject::query(partition), request) => answer,
            // A query sent over a lost connection never gets an answer, so the caller should send
            // it again at once.
            _ = watch.lost() => return Err(QueryError::Away),
        };
        match answer {
            Ok(answer) => Ok(answer.payload),
            Err(error) => Err(match error.kind() {
                RequestErrorKind::NoResponders => QueryError::NoOwner,
                RequestErrorKind::TimedOut => QueryError::Timeout,
                RequestErrorKind::InvalidSubject
                | RequestErrorKind::MaxPayloadExceeded
                | RequestErrorKind::Other => QueryError::Away,
            }),
        }
    }

    /// Receives the queries to a partition that this process owns.
    ///
    /// # Errors
    /// The connection has ended for good.
    pub async fn serve_queries(&self, partition: PartitionId) -> Result<QueryServer, BusError> {
        let subscriber = self.shared.control.client.subscribe(subject::query(partition)).await?;
        Ok(QueryServer { bus: self.clone(), subscriber })
    }
}

/// The queries to one partition. Dropping it ends the subscription: queries then fail with
/// [`QueryError::NoOwner`].
#[derive(Debug)]
pub struct QueryServer {
    bus: Bus,
    subscriber: Subscriber,
}

impl QueryServer {
    /// The next query; `None` when the connection has ended for good. Cancel-safe.
    pub async fn next(&mut self) -> Option<QueryRequest> {
        loop {
            let message = self.subscriber.next().await?;
            // A message without a reply subject is not a query.
            if let Some(reply) = message.reply {
                return Some(QueryRequest { bus: self.bus.clone(), reply, payload: message.payload });
            }
        }
    }
}

#[derive(Debug)]
pub struct QueryRequest {
    bus: Bus,
    reply: Subject,
    pub payload: Bytes,
}

impl QueryRequest {
    /// Sends the reply. Whether the gateway receives it is not known.
    ///
    /// # Errors
    /// The reply is too large, or there is no connection.
    pub async fn respond(self, answer: Bytes) -> Result<(), BusError> {
        Ok(self.bus.shared.control.client.publish(self.reply, answer).await?)
    }

    /// Sends the reply on the connection of the live frames, so that the gateway receives it after
    /// the frames sent before.
    ///
    /// # Errors
    /// [`BusError::Away`] or [`BusError::Timeout`]: the reply is dropped, like frames.
    /// [`BusError::TooLarge`].
    pub async fn respond_behind_frames(self, answer: Bytes) -> Result<(), BusError> {
        self.bus.shared.publishing.publish_unstored(self.reply, answer).await
    }
}
