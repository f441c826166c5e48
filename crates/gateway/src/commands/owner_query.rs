//! Asking owners why something waits.

use std::time::Duration;

use model::{
    ActiveTurn, Bucket, OpenMessageStatus, QueryTarget, QueueStatus, ThreadId, TurnId, WaitReason,
    WaitingTurn,
};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::error::Problem;
use crate::forms;
use crate::streaming::registry::Context;
use crate::metrics;
use crate::shown;

/// Whoever owns nothing answers at once that it does not; an owner may be far away.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at what it has read.
const PAUSE: Duration = Duration::from_millis(50);

/// What the owner of the bucket knows; `None` when it does not answer.
pub(crate) async fn why(context: &Context, bucket: Bucket, about: &QueryTarget) -> Option<QueueStatus> {
    let question = wire::status::encode_query(about);
    let reply = match context.bus.ask(bucket.partition(context.count), question, PATIENCE).await {
        Ok(reply) => reply,
        Err(error) => {
            metrics::ask(error.into());
            return None;
        }
    };
    match wire::status::decode_reply(&reply) {
        Ok(status) => {
            metrics::ask(metrics::Asked::Answered);
            Some(status)
        }
        Err(error) => {
            metrics::ask(metrics::Asked::Undecodable);
            tracing::warn!(%error, "an status reply of an owner cannot be read");
            None
        }
    }
}

/// What the owner knows of a thread once it has read all that had been stored when it was asked: so whatever a client was told is there
/// is known. An owner that dies is waited for, for longer than a takeover lasts.
///
/// # Errors
/// Nobody owns the thread, its owner does not come to what is stored, or NATS does not answer.
pub(crate) async fn knows(context: &Context, thread: &ThreadId) -> Result<QueueStatus, Problem> {
    let bucket = Bucket::of(thread);
    let about = QueryTarget::Thread(thread.clone());
    let stored = match context.bus.stream_state(bucket.partition(context.count)).await {
        Ok(state) => state.last_seq,
        Err(error) => {
            tracing::debug!(%error, "a stream was not seen");
            return Err(Problem::unavailable("nats_unavailable", "NATS does not answer at the moment"));
        }
    };
    let began = Instant::now();
    let patience = Duration::from_millis(context.limits.owner_patience_ms);
    loop {
        let detail = match why(context, bucket, &about).await {
            Some(explained) if explained.applied_seq >= stored => return Ok(explained),
            Some(_) => "the thread's owner has not read everything yet",
            None => "nobody owns the thread at the moment",
        };
        if began.elapsed() + PAUSE > patience {
            return Err(Problem::unavailable("no_owner", detail));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The owner has not read everything yet, and so does not know of everything.
pub(crate) fn is_catching_up(status: &QueueStatus) -> bool {
    status.reason == Some(WaitReason::CatchingUp)
}

/// Whether the turn is under way or waits.
pub(crate) fn has_turn(explained: &QueueStatus, turn: &TurnId) -> bool {
    explained.active.as_ref().is_some_and(|active| active.turn == *turn)
        || explained.waiting.iter().any(|waiting| waiting.turn == *turn)
}

/// A turn under way, as clients see it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownTurn {
    #[schema(value_type = forms::TurnName)]
    turn_id: String,
    #[schema(value_type = forms::ThreadName)]
    thread_id: String,
    /// One more after each failure, from 0.
    run: u32,
    /// The answer's id.
    #[schema(value_type = forms::MessageName)]
    message_id: String,
    /// What it waits for; null while chunks come.
    #[schema(required)]
    waiting: Option<ShownReason>,
    /// For how long nothing has come, ms.
    idle_ms: i64,
}

impl ShownTurn {
    pub(crate) fn new(context: &Context, active: &ActiveTurn) -> Self {
        Self {
            turn_id: active.turn.as_str().to_owned(),
            thread_id: active.thread.name().to_owned(),
            run: active.run,
            message_id: active.message.as_str().to_owned(),
            waiting: active.waits_for.map(|reason| ShownReason::new(context, reason)),
            idle_ms: active.idle_ms,
        }
    }
}

/// An input that waits for its thread, as clients see it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownInput {
    #[schema(value_type = forms::TurnName)]
    turn_id: String,
    /// Why it does not begin.
    waiting: ShownReason,
    /// For how long the owner has known of it, ms.
    #[schema(minimum = 0)]
    age_ms: i64,
}

impl ShownInput {
    pub(crate) fn new(context: &Context, waiting: &WaitingTurn) -> Self {
        Self {
            turn_id: waiting.turn.as_str().to_owned(),
            waiting: ShownReason::new(context, waiting.reason),
            age_ms: waiting.age_ms,
        }
    }
}

/// A message that has begun and not ended, as clients see it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownOpenMessage {
    #[schema(value_type = forms::MessageName)]
    message_id: String,
    /// The chunk that is released next.
    expected: u32,
    /// How many chunks have come.
    received: u32,
    /// How many of them were released.
    released: u32,
    /// Chunks that are missing below the highest that has come; at most 64 ranges.
    missing: Vec<ShownRange>,
    /// While a chunk is missing: when the message is given up without it.
    #[schema(value_type = Option<forms::Moment>, required)]
    until: Option<String>,
}

/// Ids of chunks, both included.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownRange {
    first: u32,
    last: u32,
}

impl ShownOpenMessage {
    pub(crate) fn new(context: &Context, open: &OpenMessageStatus) -> Self {
        let range = |ids: &model::IdRange| ShownRange { first: ids.first, last: ids.last };
        Self {
            message_id: open.message.as_str().to_owned(),
            expected: open.expected,
            received: open.received,
            released: open.released,
            missing: open.missing.iter().map(range).collect(),
            until: open.gap_for_ms.and_then(|for_ms| shown::rfc3339(context.now().plus_ms(for_ms))),
        }
    }
}

/// Why something waits, as clients see it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownReason {
    #[schema(value_type = forms::WaitReasonText)]
    reason: &'static str,
    /// Until when it waits, if that is known.
    #[schema(value_type = Option<forms::Moment>, required)]
    until: Option<String>,
    /// For people.
    message: &'static str,
}

impl ShownReason {
    pub(crate) fn new(context: &Context, reason: WaitReason) -> Self {
        let until = reason.for_ms().and_then(|for_ms| shown::rfc3339(context.now().plus_ms(for_ms)));
        Self { reason: reason.name(), until, message: reason.message() }
    }

    /// That the agent is paused, as it is stored.
    pub(crate) fn paused() -> Self {
        Self { reason: WaitReason::Paused.name(), until: None, message: WaitReason::Paused.message() }
    }

    /// That the agent backs off, as it is stored.
    pub(crate) fn backoff(until: Option<String>) -> Self {
        let reason = WaitReason::Backoff { for_ms: 0 };
        Self { reason: reason.name(), until, message: reason.message() }
    }
}

/// Whether the owner answered, for clients.
pub(crate) fn presence(is_here: bool) -> &'static str {
    if is_here { "present" } else { "away" }
}
