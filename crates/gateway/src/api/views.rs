//! JSON forms of the HTTP API's resources, which the operators' commands print as well.

use std::collections::HashMap;

use auth::Permission;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use batches::Item;
use model::{
    ActiveTurn, AgentId, AnswerReport, BusyPolicy, FinishReason, FollowUpHint, OpenMessageStatus, Position,
    RequestInfo, Role, ThreadId, Timestamp, TurnId, WaitReason, WaitingTurn, WorkflowName, is_withheld_tool,
};
use protocols::native::RememberedFact;
use protocols::{AnswerUsage, withheld};
use serde::Serialize;
use serde_json::{Value, json};
use store::{Feedback, FeedbackRow, KeyRow, Listing, StoredMessage, ThreadRow};
use utoipa::ToSchema;

use crate::backend::Backend;
use crate::commands::control::ControlOutcome;
use crate::openapi::error_codes::PUBLISH;
use crate::openapi::operation::Operation;
use crate::openapi::schemas;

mod batch;

pub(crate) use batch::{BatchView, WholeBatch};
pub(crate) use wire::rfc3339;

/// Workflow of an agent without settings.
pub(crate) const DEFAULT_WORKFLOW: &str = "default";

/// A thread and its counters.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ThreadView {
    #[schema(value_type = schemas::ThreadIdSchema)]
    pub(crate) thread_id: String,
    /// Set by a client or by the workflow; otherwise the beginning of the first message. Null until
    /// a person writes.
    #[schema(required)]
    pub(crate) title: Option<String>,
    /// The agent that answers.
    #[schema(value_type = schemas::AgentIdSchema)]
    pub(crate) agent_id: String,
    /// The workflow whose services answer for the agent.
    #[schema(value_type = schemas::WorkflowNameSchema)]
    pub(crate) workflow: String,
    #[schema(value_type = schemas::BusyPolicySchema)]
    pub(crate) busy_policy: &'static str,
    /// The user whose thread it is: `user_id` of the metadata.
    #[schema(required)]
    pub(crate) user_id: Option<String>,
    #[schema(value_type = Object)]
    pub(crate) metadata: Value,
    pub(crate) archived: bool,
    /// Rises by one with each `PATCH`.
    pub(crate) version: u32,
    /// Number of messages, without those that the system generated.
    #[schema(minimum = 0)]
    pub(crate) message_count: i64,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub(crate) last_position: Option<Position>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) created_at: Option<String>,
    /// When a message was last sent or answered; outside of lists, at most a minute too early.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) last_activity_at: Option<String>,
}

impl ThreadView {
    /// The view for clients of the thread's tenant. `workflow`: that of the agent's settings.
    pub(crate) fn new(row: &ThreadRow, agent: &AgentId, workflow: Option<&WorkflowName>) -> Self {
        let (named, listing) = (&row.named, row.listing.as_ref());
        Self {
            thread_id: named.thread.name().to_owned(),
            title: listing.and_then(|listing| listing.title.as_ref()).map(|title| title.text.clone()),
            agent_id: agent.name().to_owned(),
            workflow: workflow.map_or(DEFAULT_WORKFLOW, WorkflowName::as_str).to_owned(),
            busy_policy: named.policy.unwrap_or_default().name(),
            user_id: named.metadata.get("user_id").and_then(Value::as_str).map(str::to_owned),
            metadata: named.metadata.to_value(),
            archived: listing.is_some_and(|listing| listing.is_archived),
            version: listing.map_or(0, |listing| listing.version),
            message_count: (row.messages - row.hidden).max(0),
            last_position: row.head,
            created_at: rfc3339(row.created_at),
            last_activity_at: listing.and_then(last_activity),
        }
    }

    /// The view of a thread that no request created and that has no turn in its history.
    pub(crate) fn begun(
        thread: &ThreadId,
        agent: &AgentId,
        listing: Option<&Listing>,
        workflow: Option<&WorkflowName>,
    ) -> Self {
        Self {
            thread_id: thread.name().to_owned(),
            title: listing.and_then(|listing| listing.title.as_ref()).map(|title| title.text.clone()),
            agent_id: agent.name().to_owned(),
            workflow: workflow.map_or(DEFAULT_WORKFLOW, WorkflowName::as_str).to_owned(),
            busy_policy: BusyPolicy::default().name(),
            user_id: None,
            metadata: json!({}),
            archived: false,
            version: 0,
            message_count: 0,
            last_position: None,
            created_at: None,
            last_activity_at: listing.and_then(last_activity),
        }
    }
}

fn last_activity(listing: &Listing) -> Option<String> {
    rfc3339(Timestamp(listing.active_us / 1_000))
}

/// A message of a history.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageView {
    /// Null while its turn is in progress.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub(crate) position: Option<Position>,
    #[schema(value_type = schemas::MessageIdSchema)]
    pub(crate) message_id: String,
    /// The batch that the message belongs to; null while its turn is in progress, unless that turn
    /// continues a batch.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub(crate) batch_id: Option<Position>,
    pub(crate) sequence_num: i32,
    /// The message's number in the thread, from 1, counting hidden messages. It never changes.
    #[schema(minimum = 1, required)]
    pub(crate) number: Option<u64>,
    #[schema(value_type = schemas::BatchTypeSchema)]
    pub(crate) batch_type: &'static str,
    #[schema(value_type = schemas::RoleSchema)]
    pub(crate) role: &'static str,
    pub(crate) content: String,
    #[schema(value_type = Option<Vec<Object>>, required)]
    pub(crate) tool_calls: Option<Value>,
    #[schema(required)]
    pub(crate) tool_call_id: Option<String>,
    #[schema(value_type = Object)]
    pub(crate) metadata: Value,
    #[schema(required)]
    pub(crate) token_count: Option<i64>,
    /// Why the answer ended; set on the last message of an answer only.
    #[schema(value_type = Option<protocols::schemas::FinishReasonSchema>, required)]
    pub(crate) finish_reason: Option<&'static str>,
    /// Total use of the answer's model calls; set on the last message of an answer, where known.
    #[schema(required)]
    pub(crate) usage: Option<AnswerUsage>,
    /// Facts that the agent has remembered since this answer, and how to undo that. Set in
    /// histories and batches; absent when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) remembered: Vec<RememberedFact>,
    /// What users say about the message. Set in histories and batches; absent when there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) feedback: Vec<MessageFeedback>,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    pub(crate) parent_id: Option<Position>,
    /// For an input: when it was accepted. For other messages: when the message was complete; null
    /// while it is in progress.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) created_at: Option<String>,
    /// For an input: when the run that answered it began. For other messages: when the first chunk
    /// came. Null when unknown.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) started_at: Option<String>,
}

impl From<StoredMessage> for MessageView {
    fn from(message: StoredMessage) -> Self {
        let StoredMessage { item, parent } = message;
        let report = answer_report(&item).unwrap_or_default();
        Self {
            finish_reason: report.finish_reason.map(FinishReason::name),
            usage: report.usage.as_deref().map(AnswerUsage::from),
            position: Some(item.position),
            message_id: item.message_id.into(),
            batch_id: Some(item.batch_id),
            sequence_num: item.sequence_num,
            number: item.number,
            batch_type: item.batch_type.name(),
            role: item.role.name(),
            content: item.content,
            tool_calls: item.tool_calls,
            tool_call_id: item.tool_call_id,
            metadata: FollowUpHint::hidden_in(&item.metadata).to_value(),
            token_count: item.token_count.and_then(|count| count.try_into().ok()),
            remembered: Vec::new(),
            feedback: Vec::new(),
            parent_id: parent,
            created_at: rfc3339(item.created_at),
            started_at: item.started_at.and_then(rfc3339),
        }
    }
}

/// Removes the parts of messages that people are not shown: calls and results of the agent's
/// reasoning tools and memory searches.
pub(crate) fn withhold(messages: &mut [StoredMessage]) {
    let mut ids = HashMap::new();
    for StoredMessage { item, .. } in messages {
        if let Some(calls) = &mut item.tool_calls {
            for (id, result) in withheld::withhold_calls(calls) {
                // An id may now belong to another call.
                match result {
                    Some(result) => ids.insert(id, result),
                    None => ids.remove(&id),
                };
            }
        }
        let named = item.metadata.get("tool_name").and_then(Value::as_str);
        let of_call = item.tool_call_id.as_ref().and_then(|id| ids.get(id)).copied();
        let of_tool = |tool: &str| is_withheld_tool(tool).then(|| withheld::result_of(tool));
        if item.role == Role::Tool
            && let Some(shown) = named.map_or(of_call, of_tool)
        {
            shown.clone_into(&mut item.content);
        }
    }
}

/// The report in the last message of an answer; `None` for other messages.
fn answer_report(item: &Item) -> Option<AnswerReport> {
    let id = &item.message_id;
    let is_last = TurnId::of_answer(id).is_some() || !TurnId::is_reserved(id);
    (item.role == Role::Assistant && is_last).then(|| AnswerReport::of_stored(&item.metadata))
}

/// An API key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeyView {
    #[schema(value_type = schemas::KeyIdSchema)]
    pub key_id: String,
    /// The key's tenant; null: the default tenant.
    #[schema(required)]
    pub tenant: Option<String>,
    pub name: String,
    #[schema(value_type = schemas::CredentialRole)]
    pub role: &'static str,
    #[schema(value_type = Vec<schemas::ScopeSchema>)]
    pub scopes: Vec<&'static str>,
    pub created_by: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub created_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub expires_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub revoked_at: Option<String>,
    #[schema(required)]
    pub revoked_by: Option<String>,
    /// When the key got its present secret; null: it has its first one.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub rotated_at: Option<String>,
    /// Time until which the previous secret works; null without one.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub previous_valid_until: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub last_used_at: Option<String>,
}

impl From<&KeyRow> for KeyView {
    fn from(row: &KeyRow) -> Self {
        let key = &row.key;
        let scopes = key.scopes.unwrap_or_else(|| key.role.permissions());
        Self {
            key_id: key.id.to_string(),
            tenant: key.tenant.as_str().map(str::to_owned),
            name: key.name.clone(),
            role: key.role.name(),
            scopes: scopes.iter().map(Permission::scope).collect(),
            created_by: row.created_by.clone(),
            created_at: rfc3339(row.created_at),
            expires_at: key.expires_at.and_then(rfc3339),
            revoked_at: key.revoked_at.and_then(rfc3339),
            revoked_by: row.revoked_by.clone(),
            rotated_at: row.rotated_at.and_then(rfc3339),
            previous_valid_until: key.previous.as_ref().and_then(|previous| rfc3339(previous.valid_until)),
            last_used_at: row.last_used_at.and_then(rfc3339),
        }
    }
}

/// A turn in progress.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TurnView {
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: String,
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    /// Number of the run, from 0; rises by one after each failure.
    run: u32,
    /// The id of the answer.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    /// The reason why the turn waits; null while chunks come.
    #[schema(required)]
    waiting: Option<ReasonView>,
    /// Time since the last progress, in milliseconds.
    idle_ms: i64,
    /// When the turn fails unless a chunk of the answer comes.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    fails_at: Option<String>,
    request: RequestView,
}

/// What the services of the workflow have done with the request of a turn, as far as known. NATS
/// does not report which service it was.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RequestView {
    /// Number of deliveries of the request; 0: none, or unknown.
    deliveries: u32,
    /// Number of times that a service handed the request back.
    handed_back: u32,
    /// When the request is delivered again after it was handed back; null when it was not.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    again_at: Option<String>,
    /// When a service last reported that it works on the request; null when none has.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    alive_at: Option<String>,
}

impl TurnView {
    pub(crate) fn new(context: &Backend, active: &ActiveTurn) -> Self {
        let RequestInfo { deliveries, handed_back, again_ms, alive_ms, fails_ms } = active.request;
        let at = |ms: Option<i64>| rfc3339(context.now().plus_ms(ms?));
        let (again_at, alive_at) = (at(again_ms), at(alive_ms.map(|ms| -ms)));
        let request = RequestView { deliveries, handed_back, again_at, alive_at };
        Self {
            fails_at: at(fails_ms),
            request,
            turn_id: active.turn.as_str().to_owned(),
            thread_id: active.thread.name().to_owned(),
            run: active.run,
            message_id: active.message.as_str().to_owned(),
            waiting: active.waits_for.map(|reason| ReasonView::of_request(context, reason, fails_ms)),
            idle_ms: active.idle_ms,
        }
    }
}

/// An input that waits for its thread.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InputView {
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: String,
    /// The reason why its turn does not begin.
    waiting: ReasonView,
    #[schema(required)]
    place: Option<PlaceView>,
    /// Time for which the owner has known the input, in milliseconds.
    #[schema(minimum = 0)]
    age_ms: i64,
}

impl InputView {
    pub(crate) fn new(context: &Backend, waiting: &WaitingTurn, place: Option<PlaceView>) -> Self {
        Self {
            turn_id: waiting.turn.as_str().to_owned(),
            waiting: ReasonView::new(context, waiting.reason),
            place,
            age_ms: waiting.age_ms,
        }
    }
}

/// The place in line of what waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PlaceView {
    /// Of a turn: number of turns that end before it begins, the one in progress included. Of a
    /// task: number of pending tasks before it; counting stops at 10,000.
    #[schema(minimum = 0)]
    pub(crate) ahead: u64,
    /// When it is expected to begin, from the median duration of the thread's last turns. Null when
    /// no turn has ended yet, or when the turn waits for something whose end is not known.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) expected_at: Option<String>,
}

/// What a user says about a message.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct MessageFeedback {
    #[schema(required)]
    user_id: Option<String>,
    /// From -1 (bad) to 1 (good).
    #[schema(required)]
    score: Option<f64>,
    #[schema(required)]
    label: Option<String>,
    #[schema(required)]
    comment: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    updated_at: Option<String>,
}

impl From<&FeedbackRow> for MessageFeedback {
    fn from(row: &FeedbackRow) -> Self {
        let Feedback { user, score, label, comment, .. } = row.feedback.clone();
        let updated_at = Timestamp(row.updated_us.div_euclid(1_000));
        Self {
            user_id: user,
            score,
            label,
            comment,
            created_at: rfc3339(row.created_at),
            updated_at: rfc3339(updated_at),
        }
    }
}

/// A message in progress.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OpenMessageView {
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    /// The number of the chunk that is released next.
    expected: u32,
    /// Number of received chunks.
    received: u32,
    /// Number of received chunks that were released.
    released: u32,
    /// Missing chunks below the highest received one; at most 64 ranges.
    missing: Vec<RangeView>,
    /// Time at which the message fails if the missing chunk has not come; null if none is missing.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    until: Option<String>,
}

/// A range of chunk numbers, both ends included.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RangeView {
    first: u32,
    last: u32,
}

impl OpenMessageView {
    pub(crate) fn new(context: &Backend, open: &OpenMessageStatus) -> Self {
        let range = |ids: &model::IdRange| RangeView { first: ids.first, last: ids.last };
        Self {
            message_id: open.message.as_str().to_owned(),
            expected: open.expected,
            received: open.received,
            released: open.released,
            missing: open.missing.iter().map(range).collect(),
            until: open.gap_for_ms.and_then(|for_ms| rfc3339(context.now().plus_ms(for_ms))),
        }
    }
}

/// The reason why something waits.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReasonView {
    #[schema(value_type = schemas::WaitReasonSchema)]
    reason: &'static str,
    /// When the wait ends, if known; else null.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    until: Option<String>,
    /// The reason as readable text.
    message: &'static str,
}

impl ReasonView {
    pub(crate) fn new(context: &Backend, reason: WaitReason) -> Self {
        let until = reason.for_ms().and_then(|for_ms| rfc3339(context.now().plus_ms(for_ms)));
        Self { reason: reason.name(), until, message: reason.message() }
    }

    /// The reason why a turn in progress waits. A turn that waits for its request waits until the
    /// turn fails.
    fn of_request(context: &Backend, reason: WaitReason, fails_ms: Option<i64>) -> Self {
        let is_of_request = matches!(
            reason,
            WaitReason::NoWorkflow | WaitReason::Requested | WaitReason::Taken | WaitReason::Unanswered(_)
        );
        let fails_at = fails_ms.filter(|_| is_of_request).and_then(|ms| rfc3339(context.now().plus_ms(ms)));
        let waits = Self::new(context, reason);
        Self { until: waits.until.or(fails_at), ..waits }
    }

    /// The reason of a paused agent, from stored data.
    pub(crate) fn paused() -> Self {
        Self { reason: WaitReason::Paused.name(), until: None, message: WaitReason::Paused.message() }
    }

    /// The reason of an agent that backs off, from stored data.
    pub(crate) fn backoff(until: Option<String>) -> Self {
        let reason = WaitReason::Backoff { for_ms: 0 };
        Self { reason: reason.name(), until, message: reason.message() }
    }
}

/// The outcome of a control command.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ControlResult {
    #[schema(value_type = schemas::CommandIdSchema)]
    command_id: String,
    #[schema(value_type = schemas::CommandStatusSchema)]
    status: &'static str,
    /// The reason of the rejection; absent unless the owner rejected the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
}

impl IntoResponse for ControlOutcome {
    fn into_response(self) -> Response {
        let status = if self.is_pending() { StatusCode::ACCEPTED } else { StatusCode::OK };
        (status, Json(ControlResult::from(&self))).into_response()
    }
}

impl From<&ControlOutcome> for ControlResult {
    fn from(outcome: &ControlOutcome) -> Self {
        let (command_id, error) = (outcome.id().as_str().to_owned(), outcome.refused().map(str::to_owned));
        Self { command_id, status: outcome.status(), error }
    }
}

impl Operation {
    /// The answers of an act.
    pub(crate) fn acts(self) -> Self {
        let act = |status: &str| json!({ "command_id": "0198c4d2e5f5", "status": status });
        self.response::<ControlResult>(200, "Done, or rejected by the owner", act("done"))
            .response::<ControlResult>(
                202,
                "Not confirmed yet: it will be executed, and the audit log shows it",
                act("pending"),
            )
            .errors(&PUBLISH)
    }
}
