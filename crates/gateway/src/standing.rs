//! Where an input stands before it is sent: a new turn, one that is known by its key, or refused.

use axum::http::StatusCode;
use model::{AgentId, Bucket, BusyPolicy, Metadata, ThreadId, TurnId, TurnOpened};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use store::{AgentStanding, KeyClaim, TurnState};
use uuid::Uuid;
use wire::explain::About;

use crate::hub::Hub;
use crate::owner;
use crate::problem::Problem;

/// Bytes of a digest that name a turn: 128 bits.
const NAME_BYTES: usize = 16;

/// An input as a client sent it, checked.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) thread: ThreadId,
    pub(crate) agent: Option<AgentId>,
    pub(crate) policy: Option<BusyPolicy>,
    pub(crate) content: String,
    pub(crate) metadata: Metadata,
    pub(crate) key: Option<String>,
    pub(crate) correlation_id: Option<Box<str>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) enum Standing {
    /// To be opened.
    New(Box<TurnOpened>),
    /// Opened before, under the same key; what is stored of it.
    Known(TurnId, Option<TurnState>),
}

impl Standing {
    pub(crate) fn turn(&self) -> &TurnId {
        match self {
            Self::New(opened) => &opened.turn,
            Self::Known(turn, _) => turn,
        }
    }
}

/// Reads what decides about an input, and takes its key.
pub(crate) async fn of(hub: &Hub, input: &Input) -> Result<Standing, Problem> {
    let store = hub.store();
    let claim = async {
        match &input.key {
            Some(key) => store.key_claim(&input.thread, key).await,
            None => Ok(None),
        }
    };
    let (claim, thread) = tokio::try_join!(claim, store.thread(&input.thread))?;
    if thread.is_none() {
        refuse_erased(hub, &input.thread).await?;
    }
    let digest = digest(input);
    let claimed = claim.map(|claim| same(claim, &digest)).transpose()?;
    if let Some(turn) = &claimed
        && let Some(state) = store.turn_state(&input.thread, turn).await?
    {
        return Ok(Standing::Known(turn.clone(), Some(state)));
    }
    let mut turn = claimed.map_or_else(|| turn_id(input, &digest), Ok)?;
    let named = thread.as_ref().map(|row| &row.named);
    let agent = input.agent.clone().or_else(|| named.and_then(|named| named.agent.clone()));
    let agent = agent.unwrap_or_else(|| input.thread.agent());
    let policy = input.policy.or_else(|| named.and_then(|named| named.policy)).unwrap_or_default();
    let standing = store.agent_standing(&agent).await?;
    refuse_while_backing_off(&agent, &standing)?;
    if policy == BusyPolicy::Reject && is_under_way(hub, &input.thread, &turn).await? {
        return Ok(Standing::Known(turn, None));
    }
    if let Some(key) = &input.key {
        turn = same(store.claim_key(&input.thread, key, &digest, &turn).await?, &digest)?;
    }
    Ok(Standing::New(Box::new(TurnOpened {
        turn,
        thread: input.thread.clone(),
        agent,
        run: 0,
        policy,
        content: input.content.clone(),
        metadata: input.metadata.clone(),
        work_request: flag(&standing.settings, "work_request"),
        memory: flag(&standing.settings, "memory"),
        actor: None,
        correlation_id: input.correlation_id.clone(),
    })))
}

/// Refuses an input to a thread that was erased: its owner would drop it without a word. One that was named again is taken.
pub(crate) async fn refuse_erased(hub: &Hub, thread: &ThreadId) -> Result<(), Problem> {
    if hub.store().erased(thread).await?.is_none() || hub.store().thread(thread).await?.is_some() {
        return Ok(());
    }
    let detail = "the thread was erased; POST /v1/threads names it anew";
    Err(Problem::new(StatusCode::GONE, "thread_erased", detail))
}

/// From the key and the input, so that the same is the same turn whatever becomes of the key's row, and that another
/// input under a key that was forgotten is another turn. Without a key it is new.
fn turn_id(input: &Input, digest: &[u8]) -> Result<TurnId, Problem> {
    let unique = match &input.key {
        Some(key) => {
            // The thread is in it: its bucket alone, which the id has anyway, is shared by many.
            let parts = [input.thread.as_str().as_bytes(), &[0], key.as_bytes(), &[0], digest];
            let hash = parts.iter().fold(Sha256::new(), |hash, part| hash.chain_update(part));
            hash.finalize().iter().take(NAME_BYTES).map(|byte| format!("{byte:02x}")).collect()
        }
        None => Uuid::now_v7().simple().to_string(),
    };
    TurnId::foreground(&input.thread, &unique)
        .map_err(|error| Problem::bad_request("invalid_id", error.to_string()))
}

/// Of everything that a client says of an input.
fn digest(input: &Input) -> Vec<u8> {
    let said = serde_json::json!([
        input.content,
        input.metadata.to_value(),
        input.agent.as_ref().map(AgentId::as_str),
        input.policy.map(BusyPolicy::name),
    ]);
    Sha256::digest(said.to_string()).to_vec()
}

fn same(claim: KeyClaim, digest: &[u8]) -> Result<TurnId, Problem> {
    if claim.digest == digest {
        return Ok(claim.turn);
    }
    Err(Problem::new(
        axum::http::StatusCode::UNPROCESSABLE_ENTITY,
        "idempotency_key_reused",
        "this Idempotency-Key was used with another input in this thread",
    ))
}

fn refuse_while_backing_off(agent: &AgentId, standing: &AgentStanding) -> Result<(), Problem> {
    let refuses =
        standing.settings.get("foreground_during_backoff").and_then(Value::as_str) == Some("refuse");
    let Some(left_ms) = standing.backoff_left_ms.filter(|_| refuses) else { return Ok(()) };
    let seconds = u32::try_from(left_ms.saturating_add(999) / 1_000).unwrap_or(u32::MAX).max(1);
    let detail = format!("agent {agent} backs off after a failure and takes no messages meanwhile");
    Err(Problem::conflict("agent_backing_off", detail).retry_after(seconds))
}

/// Refuses the input when another turn is under way or waits; true when it is this one, which came before.
async fn is_under_way(hub: &Hub, thread: &ThreadId, turn: &TurnId) -> Result<bool, Problem> {
    // Without an answer the owner decides, by the policy that travels with the input.
    let about = About::Thread(thread.clone());
    let Some(explained) = owner::why(hub.context(), Bucket::of(thread), &about).await else {
        return Ok(false);
    };
    let active = explained.active.map(|active| active.turn);
    let mut all = active.iter().chain(&explained.waiting).peekable();
    if all.peek().is_none() {
        return Ok(false);
    }
    match all.any(|known| known == turn) {
        true => Ok(true),
        false => {
            let detail = "the thread has a turn under way, and this message is not to wait for it";
            Err(Problem::conflict("thread_busy", detail).retry_after(1))
        }
    }
}

/// Both are on unless the agent's settings say otherwise.
fn flag(settings: &Map<String, Value>, name: &str) -> bool {
    settings.get(name).and_then(Value::as_bool).unwrap_or(true)
}
