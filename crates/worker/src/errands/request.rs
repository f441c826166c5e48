//! From a turn that begins to the request that its workflow gets: pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use batches::ContextRow;
use model::{Chunk, PartitionCount, WorkflowName};
use partition::{Start, TurnRules};
use serde_json::{Map, Value};
use store::{StartContext, StoredMessage};
use wire::subject;
use wire::work::{ContextMessage, TaskOfTurn, ToolCall, TurnRequest};

/// A day: no deadline and no backoff is longer.
const MOST_MS: i64 = 86_400_000;

/// Bytes of the turns before the input: with the input and what JSON adds they fit into one message of NATS.
const CONTEXT_BYTES: usize = 384 << 10;

/// Answers a turn inside this process: all chunks of the answer, with consecutive ids from 0, the last one final.
pub type LocalWorkflow = Arc<dyn Fn(&TurnRequest) -> Vec<Arc<Chunk>> + Send + Sync>;

/// Workflows inside this process: for benches, which measure the fleet and not what it waits for.
#[derive(Clone, Default)]
pub struct LocalWorkflows(Arc<BTreeMap<WorkflowName, LocalWorkflow>>);

impl LocalWorkflows {
    /// These, by name; requests for others are published.
    pub fn new(workflows: impl IntoIterator<Item = (WorkflowName, LocalWorkflow)>) -> Self {
        Self(Arc::new(workflows.into_iter().collect()))
    }

    pub(crate) fn get(&self, name: &WorkflowName) -> Option<&LocalWorkflow> {
        self.0.get(name)
    }
}

impl fmt::Debug for LocalWorkflows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How the agent's turns are run. What its settings say of it and makes no sense counts as absent, with a warning.
pub(super) fn rules(start: &Start, settings: &Map<String, Value>, defaults: &TurnRules) -> TurnRules {
    let number = |key: &str, most: i64| {
        let said = settings.get(key).filter(|value| !value.is_null())?;
        let number = whole(said).filter(|number| (1..=most).contains(number));
        if number.is_none() {
            tracing::warn!(agent = %start.agent, key, value = %said, most,
                "a setting is no whole number from 1 to the most that is allowed; the default counts");
        }
        number
    };
    let attempts = number("max_attempts", u32::MAX.into()).and_then(|most| u32::try_from(most).ok());
    TurnRules {
        deadline_ms: number("deadline_ms", MOST_MS).unwrap_or(defaults.deadline_ms),
        backoff_base_ms: number("backoff_base_ms", MOST_MS).unwrap_or(defaults.backoff_base_ms),
        backoff_cap_ms: number("backoff_cap_ms", MOST_MS).unwrap_or(defaults.backoff_cap_ms),
        max_attempts: attempts.or(defaults.max_attempts),
    }
}

/// 60000 and 60000.0 are the same in JSON.
fn whole(value: &Value) -> Option<i64> {
    let from_float = || value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e15);
    value.as_i64().or_else(|| from_float().map(|float| float as i64))
}

/// The workflow that thinks for the agent.
///
/// # Errors
/// Its settings name none that there may be.
pub(super) fn workflow(context: &StartContext, default: &WorkflowName) -> Result<WorkflowName, String> {
    match &context.workflow {
        None => Ok(default.clone()),
        Some(name) => WorkflowName::parse(name)
            .map_err(|error| format!("the agent's settings name the workflow {name:?}: {error}")),
    }
}

/// The request itself.
pub(super) fn request(
    start: &Start,
    context: StartContext,
    workflow: &WorkflowName,
    rules: &TurnRules,
    partitions: PartitionCount,
) -> TurnRequest {
    let task = |(id, kind): &(model::TaskId, model::TaskKind)| TaskOfTurn {
        task_id: id.as_str().to_owned(),
        kind: kind.name().to_owned(),
    };
    let mut messages = history(context.messages);
    messages.push(input(start));
    TurnRequest {
        turn_id: start.turn.as_str().to_owned(),
        run: start.run,
        attempt: start.attempt,
        workflow: workflow.as_str().to_owned(),
        agent_id: start.agent.as_str().to_owned(),
        thread_id: start.thread.as_str().to_owned(),
        message_id: start.turn.answer(start.run).as_str().to_owned(),
        turn_token: start.token.as_str().to_owned(),
        subject: subject::chunks_exact(partitions, &start.thread),
        stop_subject: subject::stop(&start.turn, start.run),
        deadline_ms: rules.deadline_ms.unsigned_abs(),
        task: start.task.as_ref().map(task),
        context: messages,
        settings: context.settings,
        correlation_id: start.correlation_id.as_deref().map(str::to_owned),
    }
}

fn input(start: &Start) -> ContextMessage {
    ContextMessage {
        role: "user".to_owned(),
        content: start.content.clone(),
        tool_calls: Vec::new(),
        tool_call_id: None,
        message_id: start.turn.input().as_str().to_owned(),
        metadata: start.metadata.as_map().cloned().unwrap_or_default(),
    }
}

/// The complete turns among the last messages of the thread.
fn history(messages: Vec<StoredMessage>) -> Vec<ContextMessage> {
    let calls: Vec<Vec<ToolCall>> =
        messages.iter().map(|message| calls(message.tool_calls.as_ref())).collect();
    let rows: Vec<ContextRow> = messages
        .iter()
        .zip(&calls)
        .map(|(message, calls)| ContextRow {
            batch_id: message.batch_id,
            sequence_num: message.sequence_num,
            role: message.role,
            calls: calls.iter().map(|call| call.id.clone()).collect(),
            answers: message.tool_call_id.clone(),
            size: message.content.len() + message.tool_calls.as_ref().map_or(0, size) + 256,
        })
        .collect();
    let mut rest: Vec<_> = messages.into_iter().zip(calls).map(Some).collect();
    let kept = batches::complete_turns(&rows, CONTEXT_BYTES).into_iter();
    kept.filter_map(|index| rest.get_mut(index)?.take())
        .map(|(message, calls)| shown(message, calls))
        .collect()
}

/// About as many bytes as the calls take in a request.
fn size(calls: &Value) -> usize {
    calls.as_array().into_iter().flatten().map(|call| call.to_string().len()).sum()
}

fn shown(message: StoredMessage, tool_calls: Vec<ToolCall>) -> ContextMessage {
    ContextMessage {
        role: message.role.name().to_owned(),
        content: message.content,
        tool_calls,
        tool_call_id: message.tool_call_id,
        message_id: message.message_id.as_str().to_owned(),
        metadata: match message.metadata {
            Value::Object(map) => map,
            _ => Map::new(),
        },
    }
}

/// As the fold of a turn has written them.
fn calls(stored: Option<&Value>) -> Vec<ToolCall> {
    let text = |call: &Value, key: &str| call.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let call = |call: &Value| ToolCall {
        id: text(call, "id"),
        name: text(call, "name"),
        arguments: text(call, "arguments"),
    };
    stored.and_then(Value::as_array).map(|calls| calls.iter().map(call).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
