//! Builds the request that a workflow gets from a turn that starts (no I/O).

use batches::context::{Builder, ContextRules, input};
use batches::{Item, TokenCounter, render};
use bytes::Bytes;
use model::{AgentSetting, PartitionCount, Role, TaskKind, Timestamp, WorkflowName};
use partition::{NotNow, Start, TurnCause, TurnRules};
use scheduling::follow_up::FollowUpRules;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use store::{Gate, StartContext};
use wire::subject;
use wire::work::{ContextMessage, MaybeEncoded, TaskRef, ToolCall, TurnRequest};

/// Rules for the agent's turns: from its settings, or else the defaults.
pub(super) fn rules(settings: &Map<String, Value>, defaults: &TurnRules) -> TurnRules {
    let ms = |setting: AgentSetting| setting.number(settings).and_then(|ms| i64::try_from(ms).ok());
    let attempts = AgentSetting::MAX_ATTEMPTS.number(settings).and_then(|most| u32::try_from(most).ok());
    TurnRules {
        deadline_ms: ms(AgentSetting::DEADLINE_MS).unwrap_or(defaults.deadline_ms),
        backoff_base_ms: ms(AgentSetting::BACKOFF_BASE_MS).unwrap_or(defaults.backoff_base_ms),
        backoff_cap_ms: ms(AgentSetting::BACKOFF_CAP_MS).unwrap_or(defaults.backoff_cap_ms),
        max_attempts: attempts.or(defaults.max_attempts),
        work_request: AgentSetting::WORK_REQUEST.is_true(settings),
        memory: AgentSetting::MEMORY.is_true(settings),
        // Invalid rules were not written over HTTP; they arm nothing.
        follow_ups: FollowUpRules::of(settings).ok().and_then(|rules| rules.arming()),
    }
}

/// Removes the settings by which other work follows a turn, or facts of other threads get into it.
pub(super) fn remove_later_work(settings: &mut Map<String, Value>) {
    for name in [AgentSetting::WORK_REQUEST.name, AgentSetting::MEMORY.name, FollowUpRules::KEY] {
        settings.remove(name);
    }
    // Without the setting, its default would apply.
    settings.insert("compaction".to_owned(), Value::Null);
}

/// Which checks apply to this turn: the agent's backoff, its pause, both or neither.
pub(super) fn gate(start: &Start) -> Gate {
    match &start.cause {
        TurnCause::Task { kind: TaskKind::Task, .. } => Gate::Queue,
        TurnCause::Task { .. } => Gate::Background,
        TurnCause::Input(origin) if origin.is_synthetic() => Gate::Background,
        TurnCause::Input(_) => Gate::Foreground,
    }
}

/// Why the turn must not start, according to the data that was read through its [`gate`].
pub(super) fn not_now(found: &StartContext) -> Option<NotNow> {
    if found.paused {
        return Some(NotNow::Paused);
    }
    // The budget applies to tasks of the agent's own queue as well, because every turn calls a
    // model.
    let budget = found.over_budget_ms.map(|for_ms| NotNow::Budget { for_ms });
    budget.or(found.wait_ms.map(|for_ms| NotNow::Backoff { for_ms }))
}

/// The agent's workflow.
///
/// # Errors
/// Its settings name an invalid workflow.
pub(super) fn workflow(context: &StartContext, default: &WorkflowName) -> Result<WorkflowName, String> {
    match &context.workflow {
        None => Ok(default.clone()),
        Some(name) => WorkflowName::parse(name)
            .map_err(|error| format!("the agent's settings name the workflow {name:?}: {error}")),
    }
}

/// Starts building the context of the turn: its input is the last message, in the active batch.
pub(super) fn builder<'a>(
    start: &Start,
    found: &StartContext,
    rules: &ContextRules,
    counter: &'a dyn TokenCounter,
    now: Timestamp,
) -> Builder<'a> {
    let input = input(
        start.turn.input(),
        start.content.clone(),
        start.metadata.clone(),
        start.cause.continues(),
        now,
    );
    let active = Some(input.batch_id);
    // A self-contained input needs no compaction.
    let compaction = found.compaction.clone().filter(|_| !says_all(start));
    let mut builder = Builder::new(rules.request(active, compaction, now), counter);
    builder.page([input]);
    if says_all(start) {
        builder.end();
    }
    builder
}

/// True if the input is self-contained: earlier messages in its thread concern other turns.
pub(super) fn says_all(start: &Start) -> bool {
    matches!(start.cause.task_kind(), Some(TaskKind::Memory | TaskKind::Compaction))
}

/// Rules for building the context, and complaints about the settings. The context's size includes
/// the client's instructions.
pub(super) fn context_rules(start: &Start, settings: &Map<String, Value>) -> (ContextRules, Vec<String>) {
    let (mut rules, complaints) = ContextRules::of(settings);
    if let Some(more) = start.options.parameters.get("instructions").and_then(Value::as_str) {
        rules.system =
            Some(rules.system.map_or_else(|| more.to_owned(), |system| format!("{system}\n\n{more}")));
    }
    (rules, complaints)
}

/// The agent's settings for this turn. A turn that writes a summary needs neither the agent's
/// instructions nor its tools.
pub(super) fn settings(start: &Start, settings: &Map<String, Value>) -> Map<String, Value> {
    let mut settings = settings.clone();
    if start.cause.task_kind() == Some(TaskKind::Compaction) {
        settings.remove("system");
        settings.insert("tools".to_owned(), Value::Array(Vec::new()));
    }
    settings
}

/// The request with these context messages.
pub(super) fn request<M>(
    start: &Start,
    settings: Map<String, Value>,
    workflow: &WorkflowName,
    rules: &TurnRules,
    context: &batches::Context,
    messages: Vec<M>,
    partitions: PartitionCount,
) -> TurnRequest<M> {
    let task = match &start.cause {
        TurnCause::Input(_) => None,
        TurnCause::Task { id, kind, .. } => {
            Some(TaskRef { task_id: id.as_str().to_owned(), kind: kind.name().to_owned() })
        }
    };
    TurnRequest {
        turn_id: start.turn.as_str().to_owned(),
        run: start.run,
        attempt: start.attempt,
        workflow: workflow.as_str().to_owned(),
        agent_id: start.agent.agent().as_str().to_owned(),
        thread_id: start.thread.as_str().to_owned(),
        message_id: start.turn.answer(start.run).as_str().to_owned(),
        turn_token: start.token.as_str().to_owned(),
        subject: subject::partition_chunks(partitions, &start.thread),
        stop_subject: subject::stop(&start.turn, start.run),
        deadline_ms: rules.deadline_ms.unsigned_abs(),
        // Set when the request is published: see `stamped`.
        expires_at: None,
        task,
        context: messages,
        summary: context.summary.clone(),
        memory: Vec::new(),
        context_tokens: context.tokens,
        settings,
        parameters: start.options.parameters.as_map().cloned().unwrap_or_default(),
        correlation_id: start.options.correlation_id.as_deref().map(str::to_owned),
    }
}

/// Adds the time after which the request must not be started. NATS may have been away since the
/// request was made, so each try to publish sets a new time.
pub(super) fn stamped(request: &[u8], expires_at: Timestamp) -> Bytes {
    match (request.strip_prefix(b"{"), wire::rfc3339(expires_at)) {
        (Some(rest), Some(at)) => [format!("{{\"expires_at\":\"{at}\",").as_bytes(), rest].concat().into(),
        _ => Bytes::copy_from_slice(request),
    }
}

/// The messages in a form that any provider accepts.
pub(super) fn messages(context: &batches::Context) -> Vec<ContextMessage> {
    render::view(context, &render::Rules::ANY).messages.into_iter().map(context_message).collect()
}

/// Like [`messages`], but messages that are shown as stored are not encoded again.
pub(super) fn shown_messages(context: &batches::Context) -> Vec<MaybeEncoded<'_>> {
    render::view(context, &render::Rules::ANY).messages.into_iter().map(shown).collect()
}

fn shown(said: render::ViewMessage<'_>) -> MaybeEncoded<'_> {
    match said.as_stored().and_then(|stored| stored.json(encoded)) {
        Some(json) => MaybeEncoded::Json(json),
        None => MaybeEncoded::Message(Box::new(context_message(said))),
    }
}

fn context_message(said: render::ViewMessage<'_>) -> ContextMessage {
    let call = |call: render::SaidCall| ToolCall { id: call.id, name: call.name, arguments: call.arguments };
    ContextMessage {
        tool_calls: said.calls.into_iter().map(call).collect(),
        tool_call_id: said.answers,
        ..plain_message(said.role, said.text.into_owned(), said.source.map(|source| &**source))
    }
}

/// Encodes a message whose role and text are shown as stored.
fn encoded(item: &Item) -> Option<Box<RawValue>> {
    to_raw_value(&plain_message(item.role, item.content.clone(), Some(item))).ok()
}

/// A message that contains no calls and answers none.
fn plain_message(role: Role, content: String, source: Option<&Item>) -> ContextMessage {
    ContextMessage {
        role: role.name().to_owned(),
        content,
        tool_calls: Vec::new(),
        tool_call_id: None,
        message_id: source.map(|source| source.message_id.as_str().to_owned()).unwrap_or_default(),
        metadata: source.and_then(|source| source.metadata.as_map().cloned()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
