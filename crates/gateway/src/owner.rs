//! Asking owners why something waits.

use std::time::Duration;

use model::Bucket;
use serde::Serialize;
use utoipa::ToSchema;
use wire::explain::{About, ActiveTurn, Explanation, WaitReason};

use crate::forms;
use crate::hub::Context;
use crate::metrics;
use crate::shown;

const PATIENCE: Duration = Duration::from_millis(700);

/// What the owner of the bucket knows; `None` when it does not answer.
pub(crate) async fn why(context: &Context, bucket: Bucket, about: &About) -> Option<Explanation> {
    let question = wire::explain::encode_question(about);
    let reply = match context.bus.ask(bucket.partition(context.count), question, PATIENCE).await {
        Ok(reply) => reply,
        Err(error) => {
            metrics::ask(error.into());
            return None;
        }
    };
    match wire::explain::decode_explanation(&reply) {
        Ok(explanation) => {
            metrics::ask(metrics::Asked::Answered);
            Some(explanation)
        }
        Err(error) => {
            metrics::ask(metrics::Asked::Undecodable);
            tracing::warn!(%error, "an explanation of an owner cannot be read");
            None
        }
    }
}

/// The owner has not read everything yet, and so does not know of everything.
pub(crate) fn is_catching_up(explanation: &Explanation) -> bool {
    explanation.reason == Some(WaitReason::CatchingUp)
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

/// Why something waits, as clients see it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownReason {
    #[schema(value_type = forms::WaitReasonText)]
    reason: &'static str,
    /// Until when it waits, if somebody knows.
    #[schema(value_type = Option<forms::Moment>, required)]
    until: Option<String>,
}

impl ShownReason {
    pub(crate) fn new(context: &Context, reason: WaitReason) -> Self {
        let until = match reason {
            WaitReason::Backoff { for_ms } => shown::rfc3339(context.now().plus_ms(for_ms)),
            WaitReason::HeadOfLine
            | WaitReason::Gap
            | WaitReason::Paused
            | WaitReason::NoWorkflow
            | WaitReason::Capacity
            | WaitReason::CatchingUp => None,
        };
        Self { reason: reason.name(), until }
    }

    /// That the agent is paused, as it is stored.
    pub(crate) fn paused() -> Self {
        Self { reason: WaitReason::Paused.name(), until: None }
    }

    /// That the agent backs off, as it is stored.
    pub(crate) fn backoff(until: Option<String>) -> Self {
        Self { reason: WaitReason::Backoff { for_ms: 0 }.name(), until }
    }
}

/// Whether the owner answered, for clients.
pub(crate) fn presence(is_here: bool) -> &'static str {
    if is_here { "present" } else { "away" }
}
