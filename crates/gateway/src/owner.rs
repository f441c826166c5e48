//! Asking owners why something waits.

use std::time::Duration;

use model::Bucket;
use serde_json::{Value, json};
use wire::explain::{About, ActiveTurn, Explanation, WaitReason};

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
pub(crate) fn shown_turn(context: &Context, active: &ActiveTurn) -> Value {
    json!({
        "turn_id": active.turn.as_str(),
        "thread_id": active.thread.name(),
        "run": active.run,
        "message_id": active.message.as_str(),
        "waiting": active.waits_for.map(|reason| shown_reason(context, reason)),
        "idle_ms": active.idle_ms,
    })
}

/// A reason as clients see it.
pub(crate) fn shown_reason(context: &Context, reason: WaitReason) -> Value {
    let until = match reason {
        WaitReason::Backoff { for_ms } => shown::rfc3339(context.now().plus_ms(for_ms)),
        WaitReason::HeadOfLine
        | WaitReason::Gap
        | WaitReason::Paused
        | WaitReason::NoWorkflow
        | WaitReason::Capacity
        | WaitReason::CatchingUp => None,
    };
    json!({ "reason": reason.name(), "until": until })
}

/// Whether the owner answered, for clients.
pub(crate) fn presence(is_here: bool) -> &'static str {
    if is_here { "present" } else { "away" }
}
