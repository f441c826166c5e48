//! Facts remembered since an answer, for clients that are shown the answer.

use std::collections::HashMap;

use model::{MessageId, ThreadId, TurnId};
use protocols::native::RememberedFact;
use store::{AnswerFact, Store, StoreError};

/// Remembered facts by the id of the answer.
pub(crate) type RememberedFacts = HashMap<MessageId, Vec<RememberedFact>>;

/// Number of runs of a turn whose facts are shown with its answer: a tool may store a fact in a run
/// that fails afterwards.
const MOST_RUNS: u32 = 8;

/// The current facts remembered since one answer.
pub(crate) async fn of_answer(
    store: &Store,
    thread: &ThreadId,
    answer: &MessageId,
) -> Result<Vec<RememberedFact>, StoreError> {
    let found = of_answers(store, thread, std::iter::once(answer)).await?;
    Ok(found.into_values().next().unwrap_or_default())
}

/// The facts remembered of several answers, by the ids of the answers.
pub(crate) async fn of_answers<'a>(
    store: &Store,
    thread: &ThreadId,
    answers: impl Iterator<Item = &'a MessageId>,
) -> Result<RememberedFacts, StoreError> {
    let shown_with: HashMap<MessageId, &MessageId> = answers.flat_map(noted_with).collect();
    let asked: Vec<MessageId> = shown_with.keys().cloned().collect();
    let mut found = RememberedFacts::new();
    for AnswerFact { agent, answer, fact } in store.facts_of_answers(thread, &asked).await? {
        let Some(shown) = shown_with.get(&answer) else { continue };
        let fact = RememberedFact::new(&agent, shown, &fact.id, &fact.text, &fact.kind);
        found.entry((*shown).clone()).or_default().push(fact);
    }
    Ok(found)
}

/// The ids under which facts of an answer were stored: the answer's own id, and the ids of earlier
/// runs of its turn.
fn noted_with(answer: &MessageId) -> Vec<(MessageId, &MessageId)> {
    match TurnId::of_answer(answer) {
        Some((turn, run)) => {
            (run.saturating_sub(MOST_RUNS - 1)..=run).map(|run| (turn.answer(run), answer)).collect()
        }
        None => vec![(answer.clone(), answer)],
    }
}
