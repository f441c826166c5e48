//! Questions of gateways, and the answers on the wire.

use std::collections::HashMap;

use bus::QueryRequest;
use bytes::Bytes;
use partition::{About, Answer, AskSent, BufferState, Explanation, Input, Query, Sent, WaitReason};
use wire::explain::{self, encode_explanation};
use wire::query::{self, QueryReply, Question, decode_question, encode_reply};

/// Bytes of chunks in one page: with what surrounds them they fit into a NATS message of 1 MB.
const PAGE_BYTES: usize = 256 << 10;

/// Requests whose answer the machine has not given yet.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    waiting: HashMap<u64, QueryRequest>,
    next_token: u64,
}

impl Asks {
    /// What to tell the machine; `None` when the question cannot be understood.
    pub(crate) fn accept(&mut self, request: QueryRequest) -> Option<Input> {
        let question = match decode_question(&request.payload) {
            Ok(question) => question,
            Err(error) => {
                tracing::warn!(%error, "a gateway's question cannot be read");
                return None;
            }
        };
        let token = self.next_token;
        self.next_token += 1;
        self.waiting.insert(token, request);
        Some(match question {
            Question::Open(ask) => Input::Query(Query {
                token,
                thread: ask.thread,
                have: ask.have,
                most_messages: ask.most_messages as usize,
                max_bytes: PAGE_BYTES,
            }),
            Question::Sent(after) => {
                Input::AskSent(AskSent { token, epoch: after.epoch, number: after.number })
            }
            Question::Why(about) => Input::Question(partition::Question { token, about: asked(about) }),
        })
    }

    /// Sends what is open. An answer that is lost is asked for again.
    pub(crate) async fn answer(&mut self, answer: Answer) {
        let Answer { token, cut, open, left_out, more } = answer;
        self.respond(token, encode_reply(&QueryReply { cut, open, left_out, more })).await;
    }

    /// Sends what was sent lately.
    pub(crate) async fn sent(&mut self, sent: Sent) {
        let Sent { token, epoch, number, threads, are_all } = sent;
        self.respond(token, query::encode_sent(&query::Sent { epoch, number, threads, are_all })).await;
    }

    /// Sends why something waits.
    pub(crate) async fn explain(&mut self, epoch: u64, explanation: Explanation) {
        let token = explanation.token;
        self.respond(token, encode_explanation(epoch, &explained(explanation))).await;
    }

    async fn respond(&mut self, token: u64, reply: Bytes) {
        let Some(request) = self.waiting.remove(&token) else { return };
        if let Err(error) = request.respond(reply).await {
            tracing::debug!(%error, "an answer to a gateway was not sent");
        }
    }
}

fn asked(about: explain::About) -> About {
    match about {
        explain::About::Agent(agent) => About::Agent(agent),
        explain::About::Thread(thread) => About::Thread(thread),
        explain::About::Turn(turn) => About::Turn(turn),
    }
}

fn explained(explanation: Explanation) -> explain::Explanation {
    let active = explanation.active.map(|active| explain::ActiveTurn {
        turn: active.turn,
        thread: active.thread,
        run: active.run,
        message: active.message,
        waits_for: active.waits_for.map(reason),
        idle_ms: active.idle_ms,
    });
    explain::Explanation {
        active,
        waiting: explanation.waiting.into_iter().map(waiting).collect(),
        reason: explanation.reason.map(reason),
        paused: explanation.paused,
        head: explanation.head,
        known_up_to: explanation.known_up_to,
        open: explanation.open.into_iter().map(open).collect(),
    }
}

fn open(open: partition::OpenMessage) -> explain::OpenMessage {
    let BufferState { expected, received, released, missing, idle_ms: _ } = open.buffer;
    let (message, gap_for_ms) = (open.message, open.gap_for_ms);
    explain::OpenMessage { message, expected, received, released, missing, gap_for_ms }
}

fn waiting(waiting: partition::WaitingInput) -> explain::WaitingTurn {
    explain::WaitingTurn {
        turn: waiting.turn,
        reason: reason(waiting.reason),
        age_ms: waiting.age_ms,
        steps_aside: waiting.steps_aside,
    }
}

fn reason(reason: WaitReason) -> explain::WaitReason {
    match reason {
        WaitReason::Backoff { for_ms } => explain::WaitReason::Backoff { for_ms },
        WaitReason::HeadOfLine => explain::WaitReason::HeadOfLine,
        WaitReason::Gap => explain::WaitReason::Gap,
        WaitReason::Paused => explain::WaitReason::Paused,
        WaitReason::NoWorkflow => explain::WaitReason::NoWorkflow,
        WaitReason::Capacity => explain::WaitReason::Capacity,
        WaitReason::CatchingUp => explain::WaitReason::CatchingUp,
    }
}
