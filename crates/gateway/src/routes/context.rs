//! What a model would see of a thread, and why.

use axum::http::HeaderMap;
use axum::response::Response;
use batches::compaction::live_at;
use batches::context::{Builder, ContextRules, Decision, MOST_TOKENS, Older, Verdict};
use batches::render::{self, Mend, Rendered, Repair};
use batches::{Compaction, Context};
use model::{AgentId, Position, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{fresh, threads};
use crate::body::Empty;
use crate::desk::Desk;
use crate::hub::Hub;
use crate::params::{self, Asked, Params};
use crate::problem::Problem;
use crate::shown;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ContextQuery {
    /// `openai` or `anthropic`.
    format: Option<String>,
    /// Whose settings count; the thread's agent without it.
    agent: Option<String>,
    /// Another budget than that of the settings.
    tokens: Option<String>,
    /// As it was when the message at this position had just been written.
    at: Option<String>,
}

pub(super) async fn show(
    desk: Desk,
    Params(thread): Params<String>,
    Asked(query): Asked<ContextQuery>,
) -> Result<Response, Problem> {
    let (thread, hub) = (desk.thread(&thread)?, desk.hub()?);
    let render = format(query.format.as_deref())?;
    let (at, budget) = (params::position("at", query.at)?, budget(query.tokens.as_deref())?);
    let row = hub.store().thread(&thread).await?.ok_or_else(threads::unknown)?;
    let agent = match query.agent {
        Some(id) => desk.agent(&id)?,
        None => row.named.agent.unwrap_or_else(|| thread.agent()),
    };
    let (mut rules, complaints) = rules(hub, &agent).await?;
    rules.tokens = budget.unwrap_or(rules.tokens);
    let stored = hub.store().compactions(&thread).await?;
    let done = stored.into_iter().filter(|one| !one.is_pending);
    let compactions: Vec<_> = done.map(|one| one.compaction).collect();
    let compaction = live_at(&compactions, at.unwrap_or(Position::MAX)).cloned();
    let now = Timestamp(time::OffsetDateTime::now_utc().unix_timestamp_nanos() as i64 / 1_000_000);
    let mut request = rules.request(None, compaction.clone(), now);
    request.until = at;
    let counter = rules.tokenizer.counter();
    let mut builder = Builder::new(request, counter.as_ref());
    hub.store().fill(&thread, &mut builder).await?;
    let context = builder.build();
    let rendered = without_ending(render(&context));
    Ok(fresh(json!({
        "thread_id": thread.name(),
        "agent_id": agent.name(),
        "at": at,
        "tokens": context.tokens,
        "budget": context.budget,
        "tokenizer": rules.tokenizer.name(),
        "compaction": compaction.as_ref().map(shown_compaction),
        "older": shown_older(&context),
        "batches": context.decisions.iter().rev().map(shown_decision).collect::<Vec<_>>(),
        "system": rendered.system,
        "messages": rendered.messages,
        "repairs": rendered.repairs.iter().map(shown_repair).collect::<Vec<_>>(),
        "complaints": complaints,
    })))
}

/// Every compaction of the thread, newest first.
pub(super) async fn compactions(desk: Desk, Params(thread): Params<String>) -> Result<Response, Problem> {
    let (thread, hub) = (desk.thread(&thread)?, desk.hub()?);
    let stored = hub.store().compactions(&thread).await?;
    if stored.is_empty() && hub.store().thread(&thread).await?.is_none() {
        return Err(threads::unknown());
    }
    let done: Vec<_> =
        stored.iter().filter(|one| !one.is_pending).map(|one| one.compaction.clone()).collect();
    let live = live_at(&done, Position::MAX).map(|live| live.id);
    let shown = stored.iter().rev().map(|one| {
        let mut shown = shown_compaction(&one.compaction);
        shown["state"] = json!(match (one.is_pending, live == Some(one.compaction.id)) {
            (true, _) => "waiting for its summary",
            (_, true) => "counts",
            (false, false) if one.compaction.undone_at.is_some() => "undone",
            (false, false) => "replaced",
        });
        shown["actor"] = json!(one.actor);
        shown["created_at"] = json!(shown::rfc3339(one.created_at));
        shown
    });
    let shown: Vec<_> = shown.collect();
    Ok(fresh(json!({ "thread_id": thread.name(), "compactions": shown })))
}

/// The newest does not count any more.
pub(super) async fn undo(
    desk: Desk,
    Params(thread): Params<String>,
    headers: HeaderMap,
    _: Empty,
) -> Result<Response, Problem> {
    let (thread, actor, hub) = (desk.thread(&thread)?, desk.actor(&headers)?, desk.hub()?);
    let none = || Problem::not_found("no_compaction", "there is no compaction in this thread that counts");
    let undone = hub.store().undo_compaction(&thread, &actor).await?.ok_or_else(none)?;
    Ok(fresh(json!({ "thread_id": thread.name(), "undone": undone })))
}

type Render = fn(&Context) -> Rendered;

fn format(name: Option<&str>) -> Result<Render, Problem> {
    match name.unwrap_or("openai") {
        "openai" => Ok(render::openai),
        "anthropic" => Ok(render::anthropic),
        _ => Err(Problem::bad_request("invalid_format", "format must be openai or anthropic")),
    }
}

/// What a model sees ends with the next input, which is not there yet: nothing has to stand for it.
fn without_ending(mut rendered: Rendered) -> Rendered {
    let is_ending = rendered.repairs.last().is_some_and(|repair| repair.mend == Mend::EndedWithUser);
    if is_ending {
        rendered.repairs.pop();
        rendered.messages.pop();
    }
    rendered
}

fn budget(text: Option<&str>) -> Result<Option<u64>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let budget = text.parse().ok().filter(|tokens| (1..=MOST_TOKENS).contains(tokens));
    let invalid =
        || Problem::bad_request("invalid_tokens", format!("tokens must be from 1 to {MOST_TOKENS}"));
    budget.ok_or_else(invalid).map(Some)
}

async fn rules(hub: &Hub, agent: &AgentId) -> Result<(ContextRules, Vec<String>), Problem> {
    let row = hub.store().agent(agent).await?;
    let settings = row.and_then(|row| row.settings).map(|settings| settings.settings).unwrap_or_default();
    Ok(ContextRules::of(&settings))
}

fn shown_decision(decision: &Decision) -> Value {
    let (is_in, reason) = match &decision.verdict {
        Verdict::In => (true, None),
        Verdict::Out(reason) => (false, Some(reason)),
    };
    json!({
        "batch_id": decision.batch,
        "in": is_in,
        "code": reason.map(batches::context::Reason::code),
        "why": reason.map(ToString::to_string),
        "message_count": decision.messages,
        "tokens": decision.tokens,
    })
}

fn shown_older(context: &Context) -> Value {
    match context.older {
        Older::Nothing => json!({ "code": "nothing" }),
        Older::Compacted { through } => json!({ "code": "compacted", "through": through }),
        Older::Unread { before } => json!({ "code": "unread", "before": before }),
    }
}

fn shown_compaction(compaction: &Compaction) -> Value {
    json!({
        "compaction_id": compaction.id,
        "strategy": compaction.strategy.name(),
        "through": compaction.through,
        "kept": compaction.kept,
        "summary": compaction.summary,
        "batches": compaction.provenance.batches.len(),
        "messages": compaction.provenance.messages,
        "tokens_before": compaction.provenance.tokens_before,
        "tokens_after": compaction.provenance.tokens_after,
        "previous": compaction.previous,
        "undone_at": compaction.undone_at,
    })
}

fn shown_repair(repair: &Repair) -> Value {
    json!({ "position": repair.message, "code": repair.mend.code(), "what": repair.mend.to_string() })
}
