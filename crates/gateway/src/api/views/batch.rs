//! JSON forms of batches.

use batches::{Batch, BatchState, IncompleteReason, tokens};
use model::{AnswerReport, BatchType, FinishReason, ModelCall, Position, Timestamp, TurnId};
use protocols::AnswerUsage;
use serde::Serialize;
use store::StoredMessage;
use utoipa::ToSchema;

use super::{MessageView, answer_report, rfc3339};
use crate::openapi::schemas;

/// Characters of a batch's first message that are shown as its preview.
const PREVIEW_CHARS: usize = 120;

/// A batch, without its messages.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchView {
    /// Null while the first turn of the batch is in progress: the commit assigns the id.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub(crate) batch_id: Option<Position>,
    /// The first turn of the batch. It identifies the batch before and after the commit; null where
    /// the batch began without a turn.
    #[schema(value_type = Option<schemas::TurnIdSchema>, required)]
    pub(crate) turn_id: Option<String>,
    #[schema(value_type = Option<schemas::BatchTypeSchema>, required)]
    pub(crate) batch_type: Option<&'static str>,
    #[schema(value_type = schemas::BatchStateSchema)]
    pub(crate) state: &'static str,
    #[schema(value_type = Option<String>, required)]
    pub(crate) incomplete_code: Option<&'static str>,
    #[schema(required)]
    pub(crate) incomplete: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) abandoned_since: Option<String>,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub(crate) parent_batch: Option<Position>,
    pub(crate) message_count: usize,
    pub(crate) tokens: u64,
    /// Why the last answer of the batch ended; null while there is none.
    #[schema(value_type = Option<protocols::schemas::FinishReasonSchema>, required)]
    pub(crate) finish_reason: Option<&'static str>,
    /// Total use of the model calls of all its answers, where known.
    #[schema(required)]
    pub(crate) usage: Option<AnswerUsage>,
    #[schema(required)]
    pub(crate) input: Option<String>,
    /// When its input was accepted.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) created_at: Option<String>,
    /// When the run that answered its input began; null when unknown.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) started_at: Option<String>,
    /// When the last of its messages was complete.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) last_at: Option<String>,
}

impl BatchView {
    /// The batch as of `now`. It is abandoned after `timeout_ms` without progress, unless its own
    /// messages set another time.
    pub(crate) fn new(batch: &Batch, now: Timestamp, timeout_ms: i64) -> Self {
        let abandoned_since = batch.abandoned_since(now, timeout_ms);
        let why = match batch.state() {
            BatchState::Complete => None,
            BatchState::Incomplete(why) => Some(why),
        };
        // Synthetic messages are not for people: they are neither previewed nor counted.
        let begins = batch.items().first();
        let first = begins.filter(|item| !item.is_synthetic());
        let input = first.map(|item| item.content.chars().take(PREVIEW_CHARS).collect());
        let reports: Vec<AnswerReport> =
            batch.items().iter().filter_map(|item| answer_report(item)).collect();
        let used: Vec<ModelCall> =
            reports.iter().filter_map(|report| report.usage.as_deref().cloned()).collect();
        Self {
            batch_id: Some(batch.id()),
            turn_id: begins
                .and_then(|item| TurnId::of_input(&item.message_id))
                .map(|turn| turn.as_str().to_owned()),
            batch_type: batch.batch_type().map(BatchType::name),
            state: match (&why, abandoned_since) {
                (None, _) => "complete",
                (Some(_), None) => "incomplete",
                (Some(_), Some(_)) => "abandoned",
            },
            incomplete_code: why.as_ref().map(IncompleteReason::code),
            incomplete: why.map(|why| why.to_string()),
            abandoned_since: abandoned_since.and_then(rfc3339),
            parent_batch: batch.parent(),
            message_count: batch.items().iter().filter(|item| !item.is_synthetic()).count(),
            tokens: tokens::of_batch(batch, &batches::EstimatingCounter),
            finish_reason: reports.last().and_then(|last| last.finish_reason).map(FinishReason::name),
            usage: ModelCall::sum(&used).as_ref().map(AnswerUsage::from),
            input,
            created_at: begins.and_then(|item| rfc3339(item.created_at)),
            started_at: begins.and_then(|item| item.started_at).and_then(rfc3339),
            last_at: rfc3339(batch.last_at()),
        }
    }
}

/// A batch with its tool calls and messages.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WholeBatch {
    #[serde(flatten)]
    pub(crate) batch: BatchView,
    pub(crate) calls: Vec<CallView>,
    pub(crate) messages: Vec<MessageView>,
    /// For an open batch: its texts exceed the limit of one answer, so their ends are left out.
    pub(crate) is_cut: bool,
}

impl WholeBatch {
    /// `shown`: the batch as clients see it. `messages`: its stored messages; those that the system
    /// generated are left out.
    pub(crate) fn new(shown: BatchView, batch: &Batch, messages: Vec<StoredMessage>) -> Self {
        let messages = messages.into_iter().filter(|message| !message.item.is_synthetic());
        Self {
            batch: shown,
            calls: CallView::all(batch),
            messages: messages.map(MessageView::from).collect(),
            is_cut: false,
        }
    }
}

/// A tool call, and the position of its result.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallView {
    pub(crate) tool_call_id: String,
    pub(crate) name: String,
    /// Null while the turn of the call is in progress.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub(crate) call_at: Option<Position>,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub(crate) result_at: Option<Position>,
    pub(crate) is_answered: bool,
}

impl CallView {
    fn all(batch: &Batch) -> Vec<Self> {
        let exchanges = batch.exchanges();
        let shown = exchanges.iter().map(|exchange| Self {
            tool_call_id: exchange.id.clone(),
            name: exchange.name.clone(),
            call_at: Some(exchange.call_at),
            result_at: exchange.result.map(|(at, _)| at),
            is_answered: exchange.is_answered,
        });
        shown.collect()
    }
}
