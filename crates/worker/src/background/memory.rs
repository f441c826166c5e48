//! Recalls facts from an agent's memory for a turn that starts.

use batches::memory::{MOST_OF_TURN, MemoryQuery, memory_query, memory_query_of_task};
use batches::{Context as ModelContext, TokenCounter};
use metrics::counter;
use model::{AgentId, AgentSetting, TaskKind, ThreadId};
use partition::Start;
use serde_json::{Map, Value};
use store::{FactRow, FoundFact};
use wire::work::RememberedFact;

use super::store_lookups::StoreReader;
use super::turn_request;
use crate::context::Context;
use crate::refusals::{RefusedItem, note_item};

/// Maximum tokens of facts if the settings do not set it.
const DEFAULT_TOKENS: u64 = 512;

/// Facts that match the turn, best first, or all facts if there are few; only as many as fit into
/// the room for them. Without the agent's `memory` setting, nothing is read and the list is empty.
/// `None` when the session has ended.
pub(super) async fn remembered(
    context: &Context,
    start: &Start,
    settings: &Map<String, Value>,
    built: &ModelContext,
    counter: &dyn TokenCounter,
    reader: &StoreReader,
) -> Option<Vec<RememberedFact>> {
    if !AgentSetting::MEMORY.is_true(settings) {
        return Some(Vec::new());
    }
    let room = AgentSetting::MEMORY_TOKENS.number(settings).unwrap_or(DEFAULT_TOKENS);
    let agent = start.agent.agent();
    if start.cause.task_kind() == Some(TaskKind::Memory) {
        // A memory task gets the known facts, because new facts may contradict them.
        let Some(thread) = start.cause.source_thread() else { return Some(Vec::new()) };
        let found = search(context, &agent, thread, memory_query_of_task(&start.content), reader).await?;
        return Some(within(found, room, counter));
    }
    if turn_request::says_all(start) {
        return Some(Vec::new());
    }
    let query = memory_query(built);
    let source = query.as_ref().map_or("none", |query| query.source.name());
    counter!(crate::metrics::MEMORY_QUERIES, "source" => source).increment(1);
    let Some(MemoryQuery { text, .. }) = query else {
        tracing::debug!(turn = %start.turn, thread = %start.thread, "no text to ask memory about");
        return Some(Vec::new());
    };
    let found = search(context, &agent, &start.thread, &text, reader).await?;
    Some(within(found, room, counter))
}

/// Returns facts that match the text, or all facts if there are few. It searches by words and, if
/// the database has vectors and the endpoint returns one in time, by vectors. If the database
/// refuses the query, the result is empty, because a turn can start without facts. `None` when the
/// session has ended.
async fn search(
    context: &Context,
    agent: &AgentId,
    thread: &ThreadId,
    text: &str,
    reader: &StoreReader,
) -> Option<Vec<FoundFact>> {
    let vector = match &context.config.embeddings {
        Some(embeddings) => {
            let ask = || context.store.vectors_of();
            let stored = reader.until_answered("reading of what vectors are", ask).await?;
            embeddings.of_question(stored.as_deref(), text).await
        }
        None => None,
    };
    // If the database refuses the vector, the search is repeated by words only.
    let questions = [vector.as_deref(), None];
    for vector in &questions[usize::from(vector.is_none())..] {
        let ask = || context.store.facts_of_turn(agent, thread, text, *vector, MOST_OF_TURN);
        match reader.unless_refused("reading memory", ask).await? {
            Ok(found) => return Some(found),
            Err(error) => note_item(RefusedItem::Memory, thread, &error),
        }
    }
    Some(Vec::new())
}

/// The best facts that fit into the room. After the first fact that does not fit, no worse fact is
/// taken.
fn within(found: Vec<FoundFact>, room: u64, counter: &dyn TokenCounter) -> Vec<RememberedFact> {
    let mut used = 0;
    let fits = |fact: &FactRow| {
        used += counter.count(&fact.text);
        used <= room
    };
    found.into_iter().map(|found| found.fact).take_while(fits).map(shown).collect()
}

fn shown(fact: FactRow) -> RememberedFact {
    RememberedFact {
        fact_id: fact.id,
        text: fact.text,
        kind: fact.kind,
        confidence: fact.confidence,
        thread_id: fact.thread.map(|thread| thread.as_str().to_owned()),
        message_id: fact.assistant_message_id,
    }
}
