//! Tools by which an agent remembers, searches, corrects and forgets facts that apply to one
//! thread.

use batches::memory::{Fact, MOST_OF_TURN};
use model::{AgentId, CommandId, MessageId, ReasoningSessionId, ThreadId, quoting};
use rmcp::model::JsonObject;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::{FactCommand, FactOutcome, FactScope, FoundFact, NotedFact};

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::{MAX_FACT_ID_BYTES, MAX_FOUND, MAX_QUERY_CHARS, ToolArguments, hex};
use crate::context::ToolContext;
use crate::tools::ToolName;

/// The agent and the thread of a call.
struct MemoryScope {
    agent: AgentId,
    thread: ThreadId,
}

impl MemoryScope {
    /// The scope of a turn in the thread, or of a reasoning session over one thread. The agent is
    /// the thread's unless the call names one.
    async fn of(context: &ToolContext, arguments: &ToolArguments) -> Result<Self, ToolError> {
        // A workflow service answers turns of all tenants with the key of one tenant.
        let own = context.tenant.as_ref().map_or("", |tenant| tenant.as_str());
        if arguments.text("tenant")?.is_some_and(|tenant| tenant != own) {
            return Err(ToolError::new(
                "other_tenant",
                "the turn is of another tenant than the key of the caller: its memory is not reached from here",
            ));
        }
        let session = arguments.text("session_id")?;
        match (arguments.text("thread_id")?, arguments.text("agent_id")?, session) {
            (Some(thread), agent, None) => {
                let thread = ThreadId::of_tenant(context.tenant.as_ref(), thread)
                    .map_err(|error| ToolError::argument(format!("thread_id: {error}")))?;
                let agent = match agent {
                    Some(name) => AgentId::of_tenant(context.tenant.as_ref(), name)
                        .map_err(|error| ToolError::argument(format!("agent_id: {error}")))?,
                    None => {
                        // Until its first turn has ended, only the list knows the thread.
                        let named = context.store.thread(&thread).await?.and_then(|row| row.named.agent);
                        let listing = match named {
                            Some(_) => None,
                            None => context.store.listing(&thread).await?,
                        };
                        let noted = listing.and_then(|listing| listing.agent);
                        named.or(noted).unwrap_or_else(|| thread.agent())
                    }
                };
                Ok(Self { agent, thread })
            }
            (None, None, Some(_)) => {
                Self::of_session(context, arguments.session(context.tenant.as_ref())?).await
            }
            _ => Err(ToolError::argument("give either thread_id, with or without agent_id, or session_id")),
        }
    }

    async fn of_session(context: &ToolContext, id: ReasoningSessionId) -> Result<Self, ToolError> {
        let seen =
            context.store.reasoning_thread(&id, false, None).await?.ok_or_else(ToolError::no_session)?;
        let session = seen.session;
        match (session.applies_to, &session.sources[..]) {
            (Some(thread), _) => Ok(Self { agent: session.agent, thread }),
            (None, [one]) => Ok(Self { agent: session.agent, thread: one.thread.clone() }),
            (None, _) => Err(ToolError::argument(
                "the session is not over one thread, so nothing says whose memory it is: give thread_id",
            )),
        }
    }
}

pub(crate) async fn search(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::MemorySearch.known())?;
    let scope = MemoryScope::of(context, &arguments).await?;
    let query = arguments.required_text("query")?;
    if query.chars().count() > MAX_QUERY_CHARS {
        return Err(ToolError::argument(format!("query must have at most {MAX_QUERY_CHARS} characters")));
    }
    let limit = arguments.integer("limit")?.unwrap_or(MOST_OF_TURN.into());
    let limit = u32::try_from(limit)
        .ok()
        .filter(|limit| (1..=MAX_FOUND).contains(limit))
        .ok_or_else(|| ToolError::argument(format!("limit must be from 1 to {MAX_FOUND}")))?;
    let vector = match &context.embeddings {
        Some(embeddings) => embeddings.of_question(context.store.vectors_of().await?.as_deref(), query).await,
        None => None,
    };
    // As for a turn: if there are only a few facts, all are returned.
    let (agent, thread) = (&scope.agent, &scope.thread);
    let found = context.store.facts_of_turn(agent, thread, query, vector.as_deref(), limit).await?;
    let lines = found.iter().map(|found| (found.fact.text.as_str(), Some(found.fact.id.as_str())));
    let text = quoting::facts_text(lines).unwrap_or_else(|| "Nothing is remembered that fits.".to_owned());
    let facts: Vec<Value> = found.iter().map(fact_json).collect();
    Ok(ToolAnswer { text, json: json!({ "facts": facts }) })
}

fn fact_json(FoundFact { fact, .. }: &FoundFact) -> Value {
    let scope = match fact.scope {
        FactScope::User(_) => "user",
        FactScope::Thread(_) => "thread",
        FactScope::Agent => "agent",
    };
    json!({
        "fact_id": fact.id, "text": fact.text, "kind": fact.kind, "confidence": fact.confidence, "scope": scope,
        "thread_id": fact.thread.as_ref().map(ThreadId::name), "message_id": fact.assistant_message_id,
    })
}

pub(crate) async fn remember(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::MemoryRemember.known())?;
    note(context, ToolName::MemoryRemember, &arguments, None).await
}

pub(crate) async fn correct(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::MemoryCorrect.known())?;
    let corrected = fact_id(&arguments)?.to_owned();
    note(context, ToolName::MemoryCorrect, &arguments, Some(&corrected)).await
}

async fn note(
    context: &ToolContext,
    tool: ToolName,
    arguments: &ToolArguments,
    corrects: Option<&str>,
) -> Result<ToolAnswer, ToolError> {
    let text = quoting::one_line(arguments.required_text("text")?).into_owned();
    let kind = arguments.text("kind")?;
    let confidence = arguments.number("confidence")?.map(|confidence| confidence as f32);
    check(&text, kind, confidence)?;
    let answer = arguments.text("message_id")?.map(MessageId::parse).transpose();
    let answer = answer.map_err(|error| ToolError::argument(format!("message_id: {error}")))?;
    let scope = MemoryScope::of(context, arguments).await?;
    let command = command(tool, &scope, arguments)?;
    // The same request id with other arguments must be another fact, so that the reuse is detected.
    // A retried turn has another answer, so the answer is not part of the id.
    let wanted = json!([text, kind, confidence, corrects]).to_string();
    let id = format!("{command}-{}", hex(&Sha256::digest(wanted.as_bytes())[..4]));
    let of = FactCommand {
        agent: &scope.agent,
        thread: &scope.thread,
        answer: answer.as_ref(),
        command: &command,
        actor: &context.actor,
    };
    let noted = NotedFact { id: &id, text: &text, kind, confidence, corrects };
    let outcome = context.store.note_fact(&of, &noted).await?;
    let done = |id: String, again: &str, is_new: bool| {
        let (shown, what) =
            (quoting::quoted(&text), if corrects.is_some() { "Corrected" } else { "Remembered" });
        ToolAnswer {
            text: format!("{what}{again}: {shown} (id {id})."),
            json: json!({ "fact_id": id, "replaces": corrects, "repeated": !is_new }),
        }
    };
    match outcome {
        FactOutcome::Done => Ok(done(id, "", true)),
        FactOutcome::Before => Ok(done(id, " before, with the same request_id", false)),
        FactOutcome::Known(known) => Ok(done(known, " before, in the same words", false)),
        other => Err(refused(&other, arguments)),
    }
}

pub(crate) async fn forget(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::MemoryForget.known())?;
    let id = fact_id(&arguments)?;
    let scope = MemoryScope::of(context, &arguments).await?;
    let command = command(ToolName::MemoryForget, &scope, &arguments)?;
    let of = FactCommand {
        agent: &scope.agent,
        thread: &scope.thread,
        answer: None,
        command: &command,
        actor: &context.actor,
    };
    let done = |again: &str| {
        let id = quoting::one_line(id);
        ToolAnswer {
            text: format!("Forgotten{again}: the fact {id}."),
            json: json!({ "fact_id": id, "repeated": !again.is_empty() }),
        }
    };
    match context.store.forget_fact(&of, id).await? {
        FactOutcome::Done => Ok(done("")),
        FactOutcome::Before => Ok(done(" before, with the same request_id")),
        other => Err(refused(&other, &arguments)),
    }
}

fn refused(outcome: &FactOutcome, arguments: &ToolArguments) -> ToolError {
    match outcome {
        FactOutcome::Reused => {
            let request = arguments.text("request_id").ok().flatten().unwrap_or_default().to_owned();
            reasoning::Refusal::from(reasoning::Reason::RequestReused(request)).into()
        }
        FactOutcome::NoThread => {
            ToolError::new("unknown_thread", "the thread was erased: nothing is remembered of it")
        }
        FactOutcome::OfAllThreads => ToolError::new(
            "fact_of_all_threads",
            "the fact counts in all threads of the agent: an operator corrects it or forgets it",
        ),
        FactOutcome::NoFact | FactOutcome::Done | FactOutcome::Before | FactOutcome::Known(_) => {
            ToolError::new(
                "unknown_fact",
                "no fact of that id counts in this thread, or another one has taken its place: find it with memory_search",
            )
        }
    }
}

/// The command id of a request, or a new one. A request id applies to its tool, agent and thread.
fn command(tool: ToolName, scope: &MemoryScope, arguments: &ToolArguments) -> Result<CommandId, ToolError> {
    let made = match arguments.name("request_id")? {
        None => uuid::Uuid::now_v7().simple().to_string(),
        Some(request) => {
            let named = format!("{}\n{}\n{}\n{request}", tool.as_str(), scope.agent, scope.thread);
            hex(&Sha256::digest(named.as_bytes())[..16])
        }
    };
    CommandId::parse(&made).map_err(|error| ToolError::argument(format!("request_id: {error}")))
}

fn fact_id(arguments: &ToolArguments) -> Result<&str, ToolError> {
    let id = arguments.required_text("fact_id")?;
    match (1..=MAX_FACT_ID_BYTES).contains(&id.len()) && !id.chars().any(char::is_control) {
        true => Ok(id),
        false => Err(ToolError::argument(format!(
            "fact_id must have 1 to {MAX_FACT_ID_BYTES} bytes and no control characters"
        ))),
    }
}

fn check(text: &str, kind: Option<&str>, confidence: Option<f32>) -> Result<(), ToolError> {
    let (kind, confidence) = (kind.unwrap_or("note").to_owned(), confidence.unwrap_or(1.0));
    let fact = Fact { text: text.to_owned(), kind, confidence, supersedes: Vec::new() };
    fact.fault().map_or(Ok(()), |fault| Err(ToolError::new("invalid_fact", fault)))
}
