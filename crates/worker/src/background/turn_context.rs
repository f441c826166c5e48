//! Builds the request of a turn with its context.

use std::sync::Arc;

use batches::context::{ContextRules, LastMessages};
use batches::{Batch, BatchState, Item, TokenCounter, group};
use bytes::Bytes;
use metrics::counter;
use model::{Chunk, Position, Timestamp, WorkflowName};
use partition::{Start, Started, TurnRules};
use store::{StartContext, StoreError};
use wire::work::{RememberedFact, TurnRequest};

use super::compaction::Compactor;
use super::memory;
use super::store_lookups::StoreReader;
use super::thread_cache::LEAST_MESSAGES;
use super::turn_request;
use crate::context::Context;
use crate::metrics::THREAD_READS;
use crate::refusals::{RefusedItem, note_item};

/// Bytes reserved for subject, headers and the rest of a NATS message.
const HEADER_BYTES: usize = 1 << 10;

/// Result of preparing a turn.
pub(super) enum PreparedTurn {
    /// A request for a workflow service, as JSON, and the facts in it.
    Request(Bytes, Vec<RememberedFact>),
    /// The answer of a workflow in this process, and the facts that it was given.
    Answer(Vec<Arc<Chunk>>, Vec<RememberedFact>),
}

/// Prepares the request, with its context, as one NATS message; a context that is too large is
/// shortened. `Err`: the turn is not requested and has this result. `None` when the session has
/// ended.
pub(super) async fn prepare(
    context: &Context,
    start: &Start,
    found: &mut StartContext,
    workflow: &WorkflowName,
    rules: &TurnRules,
    reader: &StoreReader,
    compacting: &Compactor,
) -> Option<Result<PreparedTurn, Started>> {
    let refused = |text: String| Started::Refused { rules: *rules, text };
    let (mut of_context, complaints) = turn_request::context_rules(start, &found.settings);
    for complaint in complaints {
        tracing::warn!(agent = %start.agent, complaint, "a setting counts as absent");
    }
    let counter = tokenizer::counter(of_context.tokenizer);
    let (mut is_first, mut known) = (true, None);
    loop {
        let ask = || built(context, start, found, &of_context, counter.as_ref());
        let (built, read) = match reader.unless_refused("reading a context", ask).await? {
            Ok(built) => built,
            Err(error) => {
                note_item(RefusedItem::Turn, &start.turn, &error);
                return Some(Err(Started::Unreadable { rules: *rules, detail: error.to_string() }));
            }
        };
        if std::mem::take(&mut is_first) {
            let newest = found.messages.newest.first().map(|item| item.batch_id);
            if let Some(text) = refused_heartbeat(start, newest, &built) {
                return Some(Err(refused(text)));
            }
            note_read(&mut found.messages, read);
            note_late(context, start, &of_context, &built);
        }
        compacting.consider(context, start, found, &of_context, &built);
        let facts = match known.take() {
            Some(facts) => facts,
            None => {
                memory::remembered(context, start, &found.settings, &built, counter.as_ref(), reader).await?
            }
        };
        let (settings, partitions) =
            (turn_request::settings(start, &found.settings), context.config.partitions);
        if let Some(local) = context.config.local_workflows.get(workflow) {
            let messages = turn_request::messages(&built);
            let request =
                turn_request::request(start, settings, workflow, rules, &built, messages, partitions);
            let request = TurnRequest { memory: facts, ..request };
            return Some(Ok(PreparedTurn::Answer(local(&request), request.memory)));
        }
        let messages = turn_request::shown_messages(&built);
        let mut request =
            turn_request::request(start, settings, workflow, rules, &built, messages, partitions);
        request.memory.clone_from(&facts);
        let payload = match serde_json::to_vec(&request) {
            Ok(payload) => payload,
            Err(error) => return Some(Err(refused(error.to_string()))),
        };
        let most = context.bus.max_payload().saturating_sub(HEADER_BYTES);
        if payload.len() <= most {
            return Some(Ok(PreparedTurn::Request(Bytes::from(payload), facts)));
        }
        if built.batches.len() <= 1 {
            let size = payload.len();
            let text = format!("the turn request takes {size} bytes, and a message may take {most}");
            return Some(Err(refused(text)));
        }
        tracing::debug!(turn = %start.turn, size = payload.len(), most, "a context has to be smaller");
        of_context.tokens = built.tokens.min(of_context.tokens) / 2;
        known = Some(facts);
    }
}

/// Facts that a previous owner gave to a turn when it started the turn, if they are unchanged.
/// `None` when the session has ended.
pub(super) async fn facts_of_adopted(
    context: &Context,
    start: &Start,
    found: &StartContext,
    reader: &StoreReader,
) -> Option<Vec<RememberedFact>> {
    let (rules, _) = turn_request::context_rules(start, &found.settings);
    let counter = tokenizer::counter(rules.tokenizer);
    let ask = || built(context, start, found, &rules, counter.as_ref());
    match reader.unless_refused("reading a context", ask).await? {
        Ok((built, _)) => {
            memory::remembered(context, start, &found.settings, &built, counter.as_ref(), reader).await
        }
        // Without a readable context, the workflow's answer is accepted without facts.
        Err(_) => Some(Vec::new()),
    }
}

/// The reason why a heartbeat cannot continue its batch; `None` if it can. The gateway has checked
/// this already. But another message may have arrived since, or the heartbeat's task may have
/// waited in its queue.
fn refused_heartbeat(start: &Start, newest: Option<Position>, built: &batches::Context) -> Option<String> {
    let batch = start.cause.heartbeat_of()?;
    // The context already contains the input, which is not stored yet.
    let known = built.batches.iter().filter(|known| known.id() == batch).flat_map(Batch::items);
    let stored = group(known.filter(|item| item.position < Position::MAX).map(|item| Item::clone(item)));
    let Some(found) = stored.first() else {
        return Some(format!("there is no batch {batch} in this thread that a heartbeat could continue"));
    };
    if let Some(newest) = newest.filter(|newest| *newest != batch) {
        return Some(format!("batch {batch} is not the last of its thread, which is {newest}"));
    }
    match found.state() {
        BatchState::Complete => None,
        BatchState::Incomplete(why) => Some(format!("batch {batch} is incomplete: {why}")),
    }
}

/// Reports an abandoned batch that continues anyway. Its result is kept, but an operator may want
/// to know.
fn note_late(context: &Context, start: &Start, rules: &ContextRules, built: &batches::Context) {
    if built.comes_late(Timestamp(context.clock.now_ms()), rules.timeout_ms) {
        counter!(crate::metrics::LATE_CONTINUATIONS).increment(1);
        let batch = built.active.map(|batch| batch.to_string());
        tracing::info!(thread = %start.thread, turn = %start.turn, batch, "an abandoned batch goes on");
    }
}

/// Messages read for a context in addition to those in memory.
struct ReadBack {
    older: LastMessages,
    /// The context needs the messages from this position on.
    low: Option<Position>,
}

async fn built(
    context: &Context,
    start: &Start,
    found: &StartContext,
    rules: &ContextRules,
    counter: &dyn TokenCounter,
) -> Result<(batches::Context, ReadBack), StoreError> {
    let now = Timestamp(context.clock.now_ms());
    let mut builder = turn_request::builder(start, found, rules, counter, now);
    let older = context.store.fill(&start.thread, &found.messages, &mut builder).await?;
    let low = builder.low();
    Ok((builder.build(), ReadBack { older, low }))
}

/// Keeps the messages that this context needed, and at least the number that the first query reads.
fn note_read(messages: &mut LastMessages, read: ReadBack) {
    if !read.older.newest.is_empty() {
        counter!(THREAD_READS, "messages" => "older").increment(1);
    }
    messages.extend(read.older);
    if let Some(low) = read.low {
        messages.truncate(low, LEAST_MESSAGES);
    }
}
