//! JSON forms of batches.

use batches::{Batch, BatchState, IncompleteReason, tokens};
use model::{AnswerReport, BatchType, FinishReason, ModelCall, Position, Timestamp, TurnId};
use protocols::AnswerUsage;
use serde::Serialize;
use store::StoredMessage;
use utoipa::ToSchema;

use super::{MessageView, answer_report, rfc3339};
use crate::api::schemas;

/// Characters of a batch's first message that are shown as its preview.
const PREVIEW_CHARS: usize = 120;

/// A batch, without its messages.
#[derive(Debug, Serialize, ToSchema)]
pub struct BatchView {
    /// The id of the batch, assigned by the commit; null while its first turn is in progress.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub batch_id: Option<Position>,
    /// The id of the batch's first turn, which names the batch before and after its commit; null
    /// when no turn has begun it.
    #[schema(value_type = Option<schemas::TurnIdSchema>, required)]
    pub turn_id: Option<String>,
    #[schema(value_type = Option<schemas::BatchTypeSchema>, required)]
    pub batch_type: Option<&'static str>,
    #[schema(value_type = schemas::BatchStateSchema)]
    pub state: &'static str,
    #[schema(value_type = Option<String>, required)]
    pub incomplete_code: Option<&'static str>,
    #[schema(required)]
    pub incomplete: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub abandoned_since: Option<String>,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub parent_batch: Option<Position>,
    pub message_count: usize,
    pub tokens: u64,
    /// Why its last answer ended; null while it has none.
    #[schema(value_type = Option<protocols::schemas::FinishReasonSchema>, required)]
    pub finish_reason: Option<&'static str>,
    /// Total use of the model calls of all its answers, where known.
    #[schema(required)]
    pub usage: Option<AnswerUsage>,
    #[schema(required)]
    pub input: Option<String>,
    /// When its input was accepted.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub created_at: Option<String>,
    /// When the run that answered its input began; null when unknown.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub started_at: Option<String>,
    /// When the last of its messages was complete.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub last_at: Option<String>,
}

impl BatchView {
    /// The batch as of `now`. It is abandoned after `timeout_ms` without progress, unless its own
    /// messages set another time.
    pub fn new(batch: &Batch, now: Timestamp, timeout_ms: i64) -> Self {
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
pub struct WholeBatch {
    #[serde(flatten)]
    pub batch: BatchView,
    pub calls: Vec<CallView>,
    pub messages: Vec<MessageView>,
    /// Set only for an open batch: its texts exceed the limit of a reply, and their ends are left
    /// out.
    pub is_cut: bool,
}

impl WholeBatch {
    /// The batch as shown, with its stored messages except synthetic ones.
    pub fn new(shown: BatchView, batch: &Batch, messages: Vec<StoredMessage>) -> Self {
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
pub struct CallView {
    pub tool_call_id: String,
    pub name: String,
    /// The position of the call; null while its turn is in progress.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub call_at: Option<Position>,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub result_at: Option<Position>,
    pub is_answered: bool,
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
