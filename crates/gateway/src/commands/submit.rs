//! Resolves an input before it is sent: it opens a new turn, its key leads to an existing turn, or
//! it is refused.

use std::time::Duration;

use http_server::error::{BudgetProblem, ErrorCode, Problem};
use model::{
    AgentId, AgentSetting, BusyPolicy, MessageId, Metadata, Position, QueryTarget, ThreadId, TurnId,
    TurnOpened, TurnOptions, TurnOrigin,
};
use protocols::Cursor;
use protocols::request::BadRequest;
use scheduling::follow_up::FollowUpRules;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::{AgentAdmission, KeyClaim, OverBudget, Store, StoreError, TurnState};
use uuid::Uuid;

use crate::backend::Backend;
use crate::commands::validate::TurnParameters;
use crate::commands::{digest_name, owner_query, thread_agent};
use crate::stale_cache::ThreadSettings;

/// Bytes of the digest at the end of a turn id without a key: see [`was_opened_by`].
const MARK_BYTES: usize = 4;
/// Input text of a heartbeat, as the model reads it.
const HEARTBEAT: &str = "Another step is wanted. Please go on where you stopped.";
/// Maximum time to read a thread from Postgres when its settings are cached.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// A checked input of a client.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) thread: ThreadId,
    pub(crate) agent: Option<AgentId>,
    /// The user of the thread, if it has none yet.
    pub(crate) user: Option<String>,
    /// Whether a new thread is temporary.
    pub(crate) is_temporary: bool,
    /// Digest of the earlier messages of the request.
    pub(crate) history: Option<[u8; 32]>,
    pub(crate) policy: Option<BusyPolicy>,
    pub(crate) content: String,
    pub(crate) metadata: Metadata,
    pub(crate) parameters: TurnParameters,
    pub(crate) key: Option<String>,
    /// Options that the client sets for the turn, except `policy` and `parameters`, which are
    /// resolved with the settings of thread and agent.
    pub(crate) options: TurnOptions,
}

impl Input {
    /// An input that says nothing else.
    pub(crate) fn new(thread: ThreadId, content: String) -> Self {
        Self {
            thread,
            agent: None,
            user: None,
            is_temporary: false,
            history: None,
            policy: None,
            content,
            metadata: Metadata::EMPTY,
            parameters: TurnParameters::default(),
            key: None,
            options: TurnOptions::default(),
        }
    }
}

/// The resolved input.
#[derive(Debug)]
pub(crate) enum Submission {
    /// A new turn, to be opened.
    New(Box<TurnOpened>),
    /// The turn was opened before under the same key; contains its stored state.
    Duplicate(TurnId, Option<TurnState>),
}

impl Submission {
    pub(crate) fn turn(&self) -> &TurnId {
        match self {
            Self::New(opened) => &opened.turn,
            Self::Duplicate(turn, _) => turn,
        }
    }
}

/// The message whose end ends the stream.
pub(crate) fn answer_of(submission: &Submission) -> Result<MessageId, Problem> {
    let run = match submission {
        Submission::New(opened) => opened.run,
        Submission::Duplicate(_, None) => 0,
        Submission::Duplicate(_, Some(TurnState::Done { answer, .. })) => return Ok(answer.clone()),
        Submission::Duplicate(_, Some(TurnState::Failed { run } | TurnState::Open { run })) => *run,
        Submission::Duplicate(_, Some(TurnState::Dropped)) => {
            let detail = "the turn of this Idempotency-Key failed, and was dropped";
            return Err(Problem::new(ErrorCode::TurnDropped, detail));
        }
    };
    Ok(submission.turn().answer(run))
}

/// Reads the settings that decide about an input, and claims its key. While Postgres is
/// unavailable, cached settings decide, and the input needs only NATS. The turn id is still derived
/// from the key, so the same input is the same turn. The reuse of a key with another input is then
/// not detected.
pub(crate) async fn resolve(backend: &Backend, input: &Input) -> Result<Submission, Problem> {
    let known = backend.settings_cache.get(&settings_key(input), backend.now());
    let Some(known) = known else { return read(backend, input).await };
    match tokio::time::timeout(STORE_TIMEOUT, read(backend, input)).await {
        Ok(Err(problem)) if problem.code() == ErrorCode::DatabaseUnavailable => {
            from_memory(backend, input, known).await
        }
        Err(_) => from_memory(backend, input, known).await,
        Ok(submission) => submission,
    }
}

fn settings_key(input: &Input) -> (ThreadId, Option<AgentId>) {
    (input.thread.clone(), input.agent.clone())
}

async fn from_memory(backend: &Backend, input: &Input, known: ThreadSettings) -> Result<Submission, Problem> {
    let turn = turn_id(input, &digest(input))?;
    refuse_unless_allowed(&input.parameters, &known)?;
    if input.user.is_some() && !known.has_user {
        let detail = "the user of the thread cannot be named while Postgres does not answer";
        return Err(Problem::new(ErrorCode::DatabaseUnavailable, detail));
    }
    tracing::debug!(%turn, "Postgres is away: an input is taken by what was read before");
    let policy = input.policy.unwrap_or(known.policy);
    if policy == BusyPolicy::Reject && is_under_way(backend, &input.thread, &turn).await? {
        return Ok(Submission::Duplicate(turn, None));
    }
    Ok(Submission::New(Box::new(opened(input, turn, policy, known))))
}

async fn read(backend: &Backend, input: &Input) -> Result<Submission, Problem> {
    let store = backend.store();
    let claim = async {
        match &input.key {
            Some(key) => store.key_claim(&input.thread, key).await,
            None => Ok(None),
        }
    };
    let (claim, thread) = tokio::try_join!(claim, store.thread(&input.thread))?;
    if thread.is_none() {
        refuse_erased(backend, &input.thread).await?;
    }
    let digest = digest(input);
    let claimed = claim.map(|claim| same(claim, &digest)).transpose()?;
    if let Some(turn) = &claimed
        && let Some(state) = store.turn_state(&input.thread, turn).await?
    {
        return Ok(Submission::Duplicate(turn.clone(), Some(state)));
    }
    if let Some(turn) = &claimed
        && store.is_expired(&input.thread, &turn.input()).await?
    {
        let detail =
            "the turn of this key was done, and its messages were deleted by the retention of the agent";
        return Err(Problem::new(ErrorCode::TurnDeleted, detail));
    }
    let is_claimed = claimed.is_some();
    let mut turn = claimed.map_or_else(|| turn_id(input, &digest), Ok)?;
    // A temporary thread of a key outlives the key.
    if input.is_temporary && input.key.is_some() && store.is_expired(&input.thread, &turn.input()).await? {
        let detail = "the turn of this key was done, and its temporary thread was emptied; use another key";
        return Err(Problem::new(ErrorCode::TurnDeleted, detail));
    }
    let named = thread.as_ref().map(|row| &row.named);
    let agent = match &input.agent {
        Some(agent) => agent.clone(),
        None => thread_agent::of_thread(backend, &input.thread, thread.as_ref()).await?,
    };
    let admission = store.agent_admission(&agent).await?;
    let settings = settings_of(&agent, named.and_then(|named| named.policy), &admission);
    let policy = input.policy.unwrap_or(settings.policy);
    refuse_unless_allowed(&input.parameters, &settings)?;
    refuse_unknown_parent(store, &input.thread, &input.metadata).await?;
    // The person has written even if the input is refused, so the thread's follow-up is superseded.
    if FollowUpRules::of(&admission.settings).is_ok_and(|rules| rules.enabled) {
        store.supersede_follow_up(&input.thread).await?;
    }
    refuse_while_backing_off(&agent, &admission)?;
    // An input that was accepted before is not refused when it is sent again; it waits until the
    // budget's next period.
    if admission.has_budgets && !is_claimed {
        refuse_over_budget(backend, &input.thread, &agent, input.user.as_deref()).await?;
    }
    if policy == BusyPolicy::Reject && is_under_way(backend, &input.thread, &turn).await? {
        return Ok(Submission::Duplicate(turn, None));
    }
    if let Some(key) = &input.key {
        turn = same(store.claim_key(&input.thread, key, &digest, &turn).await?, &digest)?;
    }
    if input.is_temporary {
        store.create_temporary(&input.thread, &agent).await?;
    }
    // Before the turn begins: its facts and budgets are those of its user.
    let user = named.and_then(|named| named.metadata.get("user_id")).filter(|user| !user.is_null());
    if let Some(user) = input.user.as_ref().filter(|_| user.is_none()) {
        store.name_user(&input.thread, user).await?;
    }
    let settings = ThreadSettings { has_user: user.is_some() || input.user.is_some(), ..settings };
    backend.settings_cache.set(settings_key(input), settings.clone(), backend.now());
    Ok(Submission::New(Box::new(opened(input, turn, policy, settings))))
}

/// True if nothing has been said in this thread, so that earlier messages can be imported. While
/// Postgres is unavailable, a thread that `agent` has answered lately counts as used.
pub(crate) async fn is_unused(
    backend: &Backend,
    thread: &ThreadId,
    agent: Option<&AgentId>,
) -> Result<bool, Problem> {
    let read = backend.store().thread(thread);
    let known = backend.settings_cache.get(&(thread.clone(), agent.cloned()), backend.now());
    let row = match known {
        None => read.await?,
        Some(_) => match tokio::time::timeout(STORE_TIMEOUT, read).await {
            Ok(Ok(row)) => row,
            Ok(Err(_)) | Err(_) => return Ok(false),
        },
    };
    // Retention deletes messages, and the head stays.
    if row.is_some_and(|row| row.head.is_some()) {
        return Ok(false);
    }
    // A turn that has not ended is in no table. An owner that is away has none under way.
    let about = QueryTarget::Thread(thread.clone());
    let explained = owner_query::explain(backend, thread.bucket(), &about).await;
    Ok(explained.is_none_or(|explained| explained.active.is_none() && explained.waiting.is_empty()))
}

/// The input of a heartbeat of `batch` for a thread that is not busy. It is refused like a person's
/// message, and also when a turn begins in the meantime.
pub(crate) async fn heartbeat(
    backend: &Backend,
    thread: &ThreadId,
    named: Option<AgentId>,
    turn: TurnId,
    batch: Position,
) -> Result<TurnOpened, Problem> {
    let agent = named.unwrap_or_else(|| thread.agent());
    let admission = backend.store().agent_admission(&agent).await?;
    refuse_while_backing_off(&agent, &admission)?;
    if admission.has_budgets {
        refuse_over_budget(backend, thread, &agent, None).await?;
    }
    let settings = settings_of(&agent, None, &admission);
    let input = Input { agent: Some(agent), ..Input::new(thread.clone(), HEARTBEAT.to_owned()) };
    let opened = opened(&input, turn, BusyPolicy::Reject, settings);
    Ok(TurnOpened { origin: TurnOrigin::Heartbeat { batch }, ..opened })
}

fn settings_of(agent: &AgentId, policy: Option<BusyPolicy>, admission: &AgentAdmission) -> ThreadSettings {
    ThreadSettings {
        agent: agent.clone(),
        policy: policy.unwrap_or_default(),
        has_user: false,
        appends_instructions: AgentSetting::CLIENT_INSTRUCTIONS.string(&admission.settings) != Some("refuse"),
    }
}

fn opened(input: &Input, turn: TurnId, busy_policy: BusyPolicy, settings: ThreadSettings) -> TurnOpened {
    TurnOpened {
        turn,
        thread: input.thread.clone(),
        agent: settings.agent,
        run: 0,
        content: input.content.clone(),
        origin: TurnOrigin::of_person(&input.metadata),
        metadata: input.metadata.clone(),
        actor: None,
        options: TurnOptions {
            busy_policy,
            parameters: input.parameters.values.clone(),
            ..input.options.clone()
        },
    }
}

/// Finds the turn of an input without a key that a client sends again after following its answer up
/// to `cursor`. Never opens a turn.
///
/// # Errors
/// The cursor names no answer to this input: the client's intent is unknown, and nothing is stored.
pub(crate) async fn repeated(
    backend: &Backend,
    input: &Input,
    cursor: &Cursor,
) -> Result<Submission, Problem> {
    let digest = digest(input);
    let of_answer = |message: &MessageId| {
        let (turn, _) = TurnId::of_answer(message)?;
        was_opened_by(&turn, &input.thread, &digest).then_some(turn)
    };
    // If the same input was sent twice, the later turn is meant: turn ids begin with the time.
    let open = cursor.open().filter_map(|(message, _)| of_answer(message));
    let turn = match open.max_by(|one, other| one.as_str().cmp(other.as_str())) {
        Some(turn) => turn,
        None => {
            let last = ended_at(backend.store(), &input.thread, cursor.base()).await?;
            let detail = "Last-Event-ID means that this is sent again, but names no answer to it; nothing was stored. Send an \
                          Idempotency-Key with every try, or no Last-Event-ID with the first";
            let unknown = || Problem::new(ErrorCode::IdempotencyKeyNeeded, detail);
            last.as_ref().and_then(of_answer).ok_or_else(unknown)?
        }
    };
    let state = backend.store().turn_state(&input.thread, &turn).await?;
    Ok(Submission::Duplicate(turn, state))
}

/// The message that ended at this position of the thread.
async fn ended_at(store: &Store, thread: &ThreadId, at: Position) -> Result<Option<MessageId>, StoreError> {
    let rows = store.ends(thread, Position::from_stored(at.get() - 1), at, 1).await?;
    Ok(rows.rows.into_iter().next().map(|row| row.message_id))
}

/// Whether a turn without a key was opened by an input with this digest: its id ends with the
/// digest's first bytes.
fn was_opened_by(turn: &TurnId, thread: &ThreadId, digest: &[u8]) -> bool {
    let unique = turn.as_str().split_once('-').map(|(_, unique)| unique).unwrap_or_default();
    let id = Uuid::try_parse(unique).ok().filter(|id| id.get_version_num() == 7);
    turn.is_foreground()
        && turn.bucket() == thread.bucket()
        && id.is_some_and(|id| id.as_bytes().ends_with(&digest[..MARK_BYTES]))
}

/// Refuses an input to an erased thread, which its owner would drop silently. An input to a thread
/// that was created again is accepted.
pub(crate) async fn refuse_erased(backend: &Backend, thread: &ThreadId) -> Result<(), Problem> {
    if backend.store().erased(thread).await?.is_none_or(|erased| erased.is_named) {
        return Ok(());
    }
    let detail = "the thread was erased; POST /v1/threads, or PUT /v1/agents for the thread of an agent, creates it again";
    Err(Problem::new(ErrorCode::ThreadErased, detail))
}

/// The refusal to create a thread again before its erasure is complete: erased data could get into
/// the new thread.
pub(crate) fn being_erased() -> Problem {
    let detail = "the thread is being erased, or its erasure was interrupted; it can be created again once its erasure is done: see GET /v1/erasures, or erase it again";
    Problem::new(ErrorCode::ThreadErased, detail)
}

/// Derives the id from the key and the input. The same input is then the same turn even if the
/// key's row is gone, and another input under a forgotten key is another turn. Without a key the id
/// is new, and its last bytes are a digest of the input that opened it.
fn turn_id(input: &Input, digest: &[u8]) -> Result<TurnId, Problem> {
    let unique = match &input.key {
        Some(key) => {
            // Includes the thread: the bucket alone, which the id has anyway, is shared by many
            // threads.
            let parts = [input.thread.as_str().as_bytes(), &[0], key.as_bytes(), &[0], digest];
            let hash = parts.iter().fold(Sha256::new(), |hash, part| hash.chain_update(part));
            digest_name(&hash.finalize())
        }
        None => {
            let mut bytes = Uuid::now_v7().into_bytes();
            bytes[16 - MARK_BYTES..].copy_from_slice(&digest[..MARK_BYTES]);
            Uuid::from_bytes(bytes).simple().to_string()
        }
    };
    TurnId::foreground(&input.thread, &unique)
        .map_err(|error| Problem::new(ErrorCode::InvalidId, error.to_string()))
}

/// A digest of everything that a client sends with an input.
fn digest(input: &Input) -> Vec<u8> {
    let mut said = vec![
        json!(input.content),
        input.metadata.to_value(),
        json!(input.agent.as_ref().map(AgentId::as_str)),
        json!(input.policy.map(BusyPolicy::name)),
    ];
    if !input.parameters.values.is_empty() {
        said.push(input.parameters.values.to_value());
    }
    said.extend(input.history.map(|history| json!({ "history": history })));
    Sha256::digest(Value::Array(said).to_string()).to_vec()
}

fn same(claim: KeyClaim, digest: &[u8]) -> Result<TurnId, Problem> {
    if claim.digest == digest {
        return Ok(claim.turn);
    }
    Err(Problem::new(
        ErrorCode::IdempotencyKeyReused,
        "this Idempotency-Key was used with another input in this thread",
    ))
}

/// Refuses parameters that the agent's settings do not allow clients to set.
fn refuse_unless_allowed(asked: &TurnParameters, settings: &ThreadSettings) -> Result<(), Problem> {
    if let Some(param) = asked.instructions.clone().filter(|_| !settings.appends_instructions) {
        let why = "the agent's setting `system` holds its instructions; set `client_instructions` to `append` with PUT /v1/agents/{agent} to accept those of clients";
        return Err(BadRequest::Unsupported { param, why: why.into() }.into());
    }
    Ok(())
}

/// Refuses an input whose parent batch does not exist.
async fn refuse_unknown_parent(store: &Store, thread: &ThreadId, metadata: &Metadata) -> Result<(), Problem> {
    let Some(named) = metadata.get("parent_batch") else { return Ok(()) };
    // The parent must be in canonical form: the list of batches with a given parent finds no other
    // form.
    let position = |text: &str| text.parse().ok().filter(|it: &i64| *it > 0 && it.to_string() == text);
    let parent = named.as_str().and_then(position);
    let is_there = match parent {
        Some(parent) => store.has_batch(thread, Position::from_stored(parent)).await?,
        None => false,
    };
    match is_there {
        true => Ok(()),
        false => {
            let detail = "metadata.parent_batch must be the id of a batch of this thread, as text";
            Err(Problem::new(ErrorCode::InvalidMetadata, detail))
        }
    }
}

fn refuse_while_backing_off(agent: &AgentId, admission: &AgentAdmission) -> Result<(), Problem> {
    let refuses = AgentSetting::FOREGROUND_DURING_BACKOFF.string(&admission.settings) == Some("refuse");
    let Some(left_ms) = admission.backoff_left_ms.filter(|_| refuses) else { return Ok(()) };
    let seconds = u32::try_from(left_ms.saturating_add(999) / 1_000).unwrap_or(u32::MAX).max(1);
    let detail = format!("agent {agent} backs off after a failure and takes no messages meanwhile");
    Err(Problem::new(ErrorCode::AgentBackingOff, detail).retry_after(seconds))
}

/// Refuses an input while a budget is spent; nothing of the input is stored.
async fn refuse_over_budget(
    backend: &Backend,
    thread: &ThreadId,
    agent: &AgentId,
    user: Option<&str>,
) -> Result<(), Problem> {
    let over = backend.store().over_budget(&[(thread, agent, user)]).await?.into_iter().flatten().next();
    let Some(OverBudget { row, for_ms }) = over else { return Ok(()) };
    let unit = row.budget.unit;
    let budget = BudgetProblem {
        name: row.name.to_string(),
        scope: row.budget.scope.name(),
        unit: unit.name(),
        limit: unit.show(row.budget.limit),
        spent: unit.show(row.spent),
        until: wire::rfc3339(row.period_end).unwrap_or_default(),
    };
    let seconds = u32::try_from(for_ms.saturating_add(999) / 1_000).unwrap_or(u32::MAX);
    Err(Problem::of_budget(budget, seconds))
}

/// Refuses the input when another turn is in progress or waits. Returns true when the turn in
/// progress or waiting is the input's own, from an earlier request.
async fn is_under_way(backend: &Backend, thread: &ThreadId, turn: &TurnId) -> Result<bool, Problem> {
    // If the owner does not answer now, it decides later, by the policy that is sent with the
    // input.
    let about = QueryTarget::Thread(thread.clone());
    let Some(explained) = owner_query::explain(backend, thread.bucket(), &about).await else {
        return Ok(false);
    };
    if owner_query::has_turn(&explained, turn) {
        return Ok(true);
    }
    // Postponed background turns do not make a thread busy.
    match explained.active.is_none() && explained.waiting.iter().all(|waiting| waiting.yields) {
        true => Ok(false),
        false => {
            let detail = "the thread has a turn under way, and this message is not to wait for it";
            Err(Problem::new(ErrorCode::ThreadBusy, detail))
        }
    }
}
