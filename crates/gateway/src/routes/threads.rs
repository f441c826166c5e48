//! Threads that clients name.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::{AgentId, Bucket, BusyPolicy, Position, ThreadId, TurnId};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::{NewThread, ThreadRow};
use uuid::Uuid;
use wire::explain::About;

use super::{Desk, fresh, thread_id};
use crate::body::{Bounded, Strict};
use crate::hub::Hub;
use crate::params::{self, Params};
use crate::problem::Problem;
use crate::{input, owner, shown};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ThreadBody {
    thread_id: Option<String>,
    agent_id: Option<String>,
    busy_policy: Option<String>,
    metadata: Option<Map<String, Value>>,
}

impl Bounded for ThreadBody {
    const MAX_BYTES: usize = 512 << 10;
}

pub(super) fn unknown() -> Problem {
    Problem::not_found("unknown_thread", "there is no such thread")
}

/// What a client may say of a second input.
pub(super) fn policy(text: Option<&str>) -> Result<Option<BusyPolicy>, Problem> {
    let known = |name: &str| {
        let all = BusyPolicy::ALL.map(BusyPolicy::name).join(", ");
        let detail = format!("busy_policy must be one of {all}");
        BusyPolicy::from_name(name).ok_or_else(|| Problem::bad_request("invalid_busy_policy", detail))
    };
    text.map(known).transpose()
}

pub(super) async fn create(
    State(desk): State<Desk>,
    Strict(body): Strict<ThreadBody>,
) -> Result<Response, Problem> {
    let thread = match &body.thread_id {
        Some(id) => params::id("thread_id", id, ThreadId::parse)?,
        None => params::id("thread_id", &Uuid::now_v7().simple().to_string(), ThreadId::parse)?,
    };
    let agent = body.agent_id.map(|id| params::id("agent_id", &id, AgentId::parse)).transpose()?;
    let policy = policy(body.busy_policy.as_deref())?;
    let new = NewThread { thread, agent, policy, metadata: input::metadata(body.metadata)? };
    let hub = desk.hub()?;
    let is_new = hub.store().name_thread(&new).await?;
    let row = hub.store().thread(&new.thread).await?.ok_or_else(unknown)?;
    if row.named != new {
        let detail = "there is a thread of that id already, and it is not the same";
        return Err(Problem::conflict("thread_exists", detail));
    }
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let place = [(header::LOCATION, format!("/v1/threads/{}", new.thread))];
    Ok((status, place, fresh(shown_thread(&row))).into_response())
}

pub(super) async fn show(
    State(desk): State<Desk>,
    Params(thread): Params<String>,
) -> Result<Response, Problem> {
    let (thread, hub) = (thread_id(&thread)?, desk.hub()?);
    let row = hub.store().thread(&thread).await?.ok_or_else(unknown)?;
    let mut shown = shown_thread(&row);
    if let Value::Object(fields) = &mut shown {
        fields.extend(standing(hub, &thread).await);
    }
    Ok(fresh(shown))
}

/// What the owner says of the thread's turns.
async fn standing(hub: &Hub, thread: &ThreadId) -> Map<String, Value> {
    let context = hub.context();
    let explained = owner::why(context, Bucket::of(thread), &About::Thread(thread.clone())).await;
    let active = explained.as_ref().and_then(|explained| explained.active.as_ref());
    let waiting: Vec<_> =
        explained.iter().flat_map(|explained| &explained.waiting).map(TurnId::as_str).collect();
    [
        ("owner".to_owned(), json!(owner::presence(explained.is_some()))),
        ("active_turn".to_owned(), json!(active.map(|active| owner::shown_turn(context, active)))),
        ("waiting_turns".to_owned(), json!(waiting)),
    ]
    .into_iter()
    .collect()
}

fn shown_thread(row: &ThreadRow) -> Value {
    let named = &row.named;
    let agent = named.agent.clone().unwrap_or_else(|| named.thread.agent());
    json!({
        "thread_id": named.thread.as_str(),
        "agent_id": agent.as_str(),
        "busy_policy": named.policy.unwrap_or_default().name(),
        "metadata": named.metadata.to_value(),
        "message_count": row.messages,
        "last_position": row.head.as_ref().map(Position::to_string),
        "created_at": shown::rfc3339(row.created_at),
    })
}
