//! Pending queries of gateways.

use std::collections::HashMap;

use bus::{BusError, QueryRequest};
use bytes::Bytes;
use partition::{
    ChangedThreads, ChangedThreadsQuery, Input, SnapshotReply, SnapshotRequest, StatusQuery, StatusReply,
};
use wire::query::{self, Query, decode_query};

/// Requests that the machine has not answered yet.
#[derive(Debug, Default)]
pub(crate) struct PendingQueries {
    waiting: HashMap<u64, QueryRequest>,
    next_token: u64,
    /// Maximum bytes of text in a reply.
    page_bytes: usize,
}

impl PendingQueries {
    /// Converts a query to an input of the machine; `None` if it cannot be decoded. `page_bytes`:
    /// maximum bytes of chunks in the reply.
    pub(crate) fn accept(&mut self, request: QueryRequest, page_bytes: usize) -> Option<Input> {
        let query = match decode_query(&request.payload) {
            Ok(query) => query,
            Err(error) => {
                tracing::warn!(%error, "a query of a gateway cannot be decoded");
                return None;
            }
        };
        let token = self.next_token;
        self.next_token += 1;
        self.page_bytes = page_bytes;
        self.waiting.insert(token, request);
        Some(match query {
            Query::Snapshot(gateway, request) => Input::Snapshot(SnapshotRequest {
                token,
                gateway,
                thread: request.thread,
                known: request.known,
                max_messages: request.max_messages as usize,
                max_bytes: page_bytes,
            }),
            Query::ChangedThreads(gateway, query) => Input::ChangedThreads(ChangedThreadsQuery {
                token,
                gateway,
                unfollowed: query.unfollowed,
                epoch: query.epoch,
                number: query.number,
            }),
            Query::Status(target) => Input::Status(StatusQuery { token, target }),
        })
    }

    /// Sends a snapshot. A gateway asks again if the reply is lost.
    pub(crate) async fn send_snapshot(&mut self, reply: SnapshotReply) {
        let SnapshotReply { token, cut, open, left_out, more } = reply;
        let reply = query::SnapshotReply { cut, open, left_out, more };
        self.respond(token, query::encode_snapshot(&reply)).await;
    }

    /// Sends the changed threads after the frames that they refer to, so that a gateway knows which
    /// frames were lost.
    pub(crate) async fn send_changed_threads(&mut self, changed: ChangedThreads) {
        let ChangedThreads { token, epoch, number, threads, is_complete } = changed;
        let changed = query::ChangedThreads { epoch, number, threads, is_complete };
        let Some(request) = self.waiting.remove(&token) else { return };
        note_unsent(request.respond_behind_frames(query::encode_changed_threads(&changed)).await);
    }

    /// Sends the state of a queue.
    pub(crate) async fn send_status(&mut self, epoch: u64, mut reply: StatusReply) {
        if let Some(batch) = reply.status.active.as_mut().and_then(|active| active.batch.as_mut()) {
            batch.cut_to(self.page_bytes);
        }
        if let Some(inputs) = &mut reply.status.inputs {
            inputs.cut_to(self.page_bytes);
        }
        self.respond(reply.token, wire::status::encode_reply(epoch, &reply.status)).await;
    }

    async fn respond(&mut self, token: u64, reply: Bytes) {
        let Some(request) = self.waiting.remove(&token) else { return };
        note_unsent(request.respond(reply).await);
    }
}

fn note_unsent(sent: Result<(), BusError>) {
    match sent {
        Ok(()) => {}
        Err(error @ BusError::TooLarge(_)) => {
            tracing::warn!(%error, "a reply to a gateway was not sent: its viewers miss text until the messages end");
        }
        Err(error) => tracing::debug!(%error, "the reply to a query of a gateway was not sent"),
    }
}
