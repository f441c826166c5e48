//! Tools that create sessions, show them and append to them.

use auth::Permission;
use model::{AgentId, ReasoningSessionId, ThreadId};
use reasoning::{
    ContextSource, NewMessage, Plan, PlanItem, PlanState, Reason, ReasoningRole, ReasoningSession, Refusal,
    SessionCall, message_id,
};
use rmcp::model::JsonObject;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::{Appended, CreatedReasoning, RequestId};

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::{ToolArguments, hex};
use crate::context::ToolContext;
use crate::tools::ToolName;

pub(crate) async fn create(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::CreateSession.known())?;
    let tenant = context.tenant.as_ref();
    let agent = AgentId::of_tenant(tenant, arguments.required_text("agent_id")?)
        .map_err(|error| ToolError::argument(format!("agent_id: {error}")))?;
    let request = arguments.name("request_id")?;
    let made = request.map_or_else(
        || uuid::Uuid::now_v7().simple().to_string(),
        // A repeated request finds the session that it created.
        |request| session_of_request(&agent, &context.actor, request),
    );
    let name = arguments.text("session_id")?.unwrap_or(&made);
    let id = ReasoningSessionId::of_tenant(tenant, name)
        .map_err(|error| ToolError::argument(format!("session_id: {error}")))?;
    let sources = sources(context, &arguments)?;
    let applied = match (arguments.flag("applies_to_thread")?, &sources[..]) {
        (false, _) => None,
        (true, [one]) => Some(&one.thread),
        (true, _) => return Err(ToolError::argument("applies_to_thread needs exactly one source")),
    };
    if applied.is_some() {
        // The session's compressions hide messages from the models of the thread.
        context.require(Permission::WriteThreads)?;
    }
    if !sources.is_empty() {
        // Otherwise a session would show messages that its creator is not allowed to read.
        context.require(Permission::ReadThreads)?;
    }
    ReasoningSession::check(&id, &agent, &sources)?;
    let digest = arguments.digest(ToolName::CreateSession.as_str());
    let once = request.map(|id| RequestId { id, digest: &digest });
    let created = context.store.create_reasoning(&id, &agent, &sources, once, &context.actor).await?;
    let is_there = matches!(created, CreatedReasoning::Made(_) | CreatedReasoning::Before(_));
    if let Some(thread) = applied.filter(|_| is_there) {
        context.store.set_reasoning_thread(&id, thread).await?;
    }
    let answer = |count: u64, again: &str| ToolAnswer {
        text: format!("Created reasoning session {} with {count} base messages{again}.", id.name()),
        json: json!({ "session_id": id.name(), "base_messages": count, "repeated": !again.is_empty() }),
    };
    match created {
        CreatedReasoning::Made(count) => Ok(answer(count, "")),
        CreatedReasoning::Before(count) => Ok(answer(count, " before, with the same request_id")),
        CreatedReasoning::Reused => {
            let request = request.unwrap_or_default().to_owned();
            Err(Refusal::from(Reason::RequestReused(request)).into())
        }
        CreatedReasoning::Exists => Err(ToolError::new(
            "session_exists",
            "there is a session of that name already: use it, or another name",
        )),
        CreatedReasoning::Nothing(thread) => {
            let name = ThreadId::parse(&thread).map_or(thread, |thread| thread.name().to_owned());
            Err(Refusal::from(Reason::Source(name)).into())
        }
        CreatedReasoning::TooMany(max) => {
            let what = "base messages";
            Err(Refusal::from(Reason::TooMany { what, count: max + 1, max }).into())
        }
    }
}

/// The name of a session requested without one. Requests of two callers with the same id get two
/// sessions.
fn session_of_request(agent: &AgentId, actor: &str, request: &str) -> String {
    let digest = Sha256::digest(format!("{}\n{actor}\n{request}", agent.name()).as_bytes());
    hex(&digest[..16])
}

fn sources(context: &ToolContext, arguments: &ToolArguments) -> Result<Vec<ContextSource>, ToolError> {
    let known = ["thread_id", "from_batch", "to_batch"];
    let given = arguments.objects("sources", &known)?.unwrap_or_default();
    let source = |source: &ToolArguments| {
        let name = source.required_text("thread_id")?;
        let unknown = |_| ToolError::from(Refusal::from(Reason::Source(name.chars().take(128).collect())));
        Ok(ContextSource {
            thread: ThreadId::of_tenant(context.tenant.as_ref(), name).map_err(unknown)?,
            from_batch: source.position("from_batch")?,
            to_batch: source.position("to_batch")?,
            as_of: None,
            numbers: None,
        })
    };
    given.iter().map(source).collect()
}

pub(crate) async fn view(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::ViewThread.known())?;
    let id = arguments.session(context.tenant.as_ref())?;
    let shows_plan = arguments.flag("showPlan")?;
    let seen = context.store.reasoning_thread(&id, true, None).await?.ok_or_else(ToolError::no_session)?;
    // The answer has no JSON, because clients that show their model the JSON alone would hide the
    // view.
    Ok(ToolAnswer { text: seen.view(shows_plan), json: Value::Null })
}

pub(crate) async fn append(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::Append.known())?;
    let id = arguments.session(context.tenant.as_ref())?;
    let known =
        ["role", "content", "thinking", "thinking_signature", "tool_calls", "tool_call_id", "tool_name"];
    let given = arguments.objects("messages", &known)?;
    let given = given.ok_or_else(|| ToolError::argument("messages is missing"))?;
    let messages = given.iter().map(new_message).collect::<Result<Vec<_>, _>>()?;
    let new = reasoning::append(messages)?;
    // A message that contains only thinking is not counted, because it gets no number.
    let count = new.messages.len() as u64;
    let digest = arguments.digest(ToolName::Append.as_str());
    let request = arguments.name("request_id")?.map(|id| RequestId { id, digest: &digest });
    let (first, again) = match context.store.append_reasoning(&id, &new, request).await? {
        Appended::Done(first) => (first, ""),
        Appended::Before(first) => (first, " before, with the same request_id"),
        Appended::Refused(refusal) => return Err(refusal.into()),
        Appended::NoSession => return Err(ToolError::no_session()),
    };
    let ids: Vec<String> = (first..first + count).map(message_id).collect();
    let plural = if count == 1 { "message" } else { "messages" };
    Ok(ToolAnswer {
        text: format!("Appended {count} {plural}{again}: {}.", ids.join(", ")),
        json: json!({ "message_ids": ids, "first_number": first, "repeated": !again.is_empty() }),
    })
}

fn new_message(given: &ToolArguments) -> Result<NewMessage, ToolError> {
    let roles = || ReasoningRole::ALL[..4].iter().map(|role| role.name()).collect::<Vec<_>>().join(", ");
    let role = ReasoningRole::from_name(given.required_text("role")?)
        .ok_or_else(|| ToolError::argument(format!("role must be one of {}", roles())))?;
    let calls = given.objects("tool_calls", &["id", "name", "arguments", "signature"])?.unwrap_or_default();
    let call = |call: &ToolArguments| {
        let text = |name| call.required_text(name).map(str::to_owned);
        Ok::<_, ToolError>(SessionCall {
            id: text("id")?,
            name: text("name")?,
            arguments: call.text_or_object("arguments")?,
            signature: call.text("signature")?.map(str::to_owned),
        })
    };
    let owned = |name| Ok::<_, ToolError>(given.text(name)?.map(str::to_owned));
    Ok(NewMessage {
        role,
        content: owned("content")?.unwrap_or_default(),
        thinking: owned("thinking")?,
        signature: owned("thinking_signature")?,
        calls: calls.iter().map(call).collect::<Result<_, _>>()?,
        answers: owned("tool_call_id")?,
        tool: owned("tool_name")?,
    })
}

pub(crate) async fn plan(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::Plan.known())?;
    let id = arguments.session(context.tenant.as_ref())?;
    let plan = match arguments.objects("items", &["text", "state"])? {
        Some(items) => {
            let plan = Plan::new(items.iter().map(plan_item).collect::<Result<_, _>>()?)?;
            let is_there = context.store.plan_reasoning(&id, &plan).await?;
            is_there.then_some(plan).ok_or_else(ToolError::no_session)?
        }
        None => {
            let seen = context.store.reasoning_thread(&id, false, None).await?;
            seen.ok_or_else(ToolError::no_session)?.plan
        }
    };
    Ok(ToolAnswer { text: reasoning::plan_text(&plan), json: json!({ "plan": plan_json(&plan) }) })
}

fn plan_item(given: &ToolArguments) -> Result<PlanItem, ToolError> {
    let states = || PlanState::ALL.map(PlanState::name).join(", ");
    let state = PlanState::from_name(given.required_text("state")?)
        .ok_or_else(|| ToolError::argument(format!("state must be one of {}", states())))?;
    Ok(PlanItem { text: given.required_text("text")?.to_owned(), state })
}

fn plan_json(plan: &Plan) -> Value {
    plan.items().iter().map(|item| json!({ "text": item.text, "state": item.state.name() })).collect()
}
