//! Questions of gateways, and the answers on the wire.

use std::collections::HashMap;

use bus::AskRequest;
use partition::{Answer, Ask};
use wire::ask::{AskReply, decode_ask, encode_reply};

/// Bytes of chunks in one page: with what surrounds them they fit into a NATS message of 1 MB.
const PAGE_BYTES: usize = 256 << 10;

/// Requests whose answer the machine has not given yet.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    waiting: HashMap<u64, AskRequest>,
    next_token: u64,
}

impl Asks {
    /// What to ask the machine; `None` when the question cannot be understood.
    pub(crate) fn accept(&mut self, request: AskRequest) -> Option<Ask> {
        let ask = match decode_ask(&request.payload) {
            Ok(ask) => ask,
            Err(error) => {
                tracing::warn!(%error, "a gateway's question cannot be read");
                return None;
            }
        };
        let token = self.next_token;
        self.next_token += 1;
        self.waiting.insert(token, request);
        Some(Ask { token, thread: ask.thread, have: ask.have, max_bytes: PAGE_BYTES })
    }

    /// Sends an answer. One that is lost is asked for again.
    pub(crate) async fn answer(&mut self, answer: Answer) {
        let Some(request) = self.waiting.remove(&answer.token) else { return };
        let reply = AskReply { epoch: answer.epoch, open: answer.open, more: answer.more };
        if let Err(error) = request.respond(encode_reply(&reply)).await {
            tracing::debug!(%error, "an answer to a gateway was not sent");
        }
    }
}
