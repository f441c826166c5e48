//! Searches facts. All facts that apply to a thread are read and ranked in this process, because
//! Postgres cannot compare words of every script.

use std::collections::HashMap;

use model::{AgentId, Bucket, ThreadId};
use recall::{Candidate, Fused, Language};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{FoundFact, fact};
use crate::commit::MOST_OF_SCOPE;
use crate::error::StoreError;
use crate::fact_vectors::{are_missing, bucket, literal};
use crate::store::Store;

/// Number of facts that are ranked by vector. It is large because a fact with low ranks by words
/// and by vector may rank high in the combination.
const DEPTH: u32 = 64;
/// Maximum number of facts read. It exceeds the number kept per scope, because an import trims
/// facts only after it has written them.
const MOST_READ: i64 = 2 * MOST_OF_SCOPE;

/// Facts that apply to a thread, newest first.
#[derive(Debug, Default)]
struct FactsOfThread {
    facts: Vec<KnownFact>,
    /// The `memory_language` setting of the agent.
    language: Option<Language>,
}

#[derive(Debug)]
struct KnownFact {
    id: String,
    text: String,
    confidence: f32,
    /// True if the fact applies to all threads of the agent.
    is_of_all: bool,
    created_ms: i64,
}

impl Store {
    /// The facts that match the text best among those that apply to this thread, best first.
    /// `vector` is the vector of the text and has length 1. With it, ranks by vector count as much
    /// as ranks by words. In a database without vectors only the words count.
    pub async fn search_facts(
        &self,
        agent: &AgentId,
        thread: &ThreadId,
        text: &str,
        vector: Option<&[f32]>,
        limit: u32,
    ) -> Result<Vec<FoundFact>, StoreError> {
        let known = self.known_facts(agent, thread).await?;
        let (known, mut found) = self.ranked(agent, known, text, vector, limit).await?;
        found.truncate(limit as usize);
        self.found_facts(agent, &known, &found).await
    }

    /// The facts for the start of a turn about this text. The facts of [`Self::search_facts`] come
    /// first. All other facts of the user or the thread follow if there are at most `limit` of them
    /// in all.
    pub async fn facts_of_turn(
        &self,
        agent: &AgentId,
        thread: &ThreadId,
        text: &str,
        vector: Option<&[f32]>,
        limit: u32,
    ) -> Result<Vec<FoundFact>, StoreError> {
        let known = self.known_facts(agent, thread).await?;
        let (known, found) = self.ranked(agent, known, text, vector, limit).await?;
        let is_of_all: Vec<bool> = known.facts.iter().map(|fact| fact.is_of_all).collect();
        self.found_facts(agent, &known, &with_few(found, &is_of_all, limit as usize)).await
    }

    async fn known_facts(&self, agent: &AgentId, thread: &ThreadId) -> Result<FactsOfThread, StoreError> {
        let statement = sqlx::query(include_str!("known.sql"))
            .bind(bucket(agent))
            .bind(agent.as_str())
            .bind(thread.bucket().get() as i16)
            .bind(thread.as_str())
            .bind(Bucket::of_key(agent.as_str()).get() as i16)
            .bind(MOST_READ);
        let rows = self.rows(statement).await?;
        let language =
            rows.first().map(|row| row.try_get::<Option<&str>, _>("memory_language")).transpose()?;
        let mut facts = rows.iter().map(known_fact).collect::<Result<Vec<_>, _>>()?;
        facts.sort_by(|a, b| b.created_ms.cmp(&a.created_ms).then(a.id.cmp(&b.id)));
        Ok(FactsOfThread { facts, language: language.flatten().and_then(Language::parse) })
    }

    /// The indices of the matching facts, best first.
    async fn ranked(
        &self,
        agent: &AgentId,
        known: FactsOfThread,
        text: &str,
        vector: Option<&[f32]>,
        limit: u32,
    ) -> Result<(FactsOfThread, Vec<Fused>), StoreError> {
        let near = match vector {
            Some(vector) if !known.facts.is_empty() => {
                self.near(agent, &known, vector, limit.max(DEPTH)).await?
            }
            _ => Vec::new(),
        };
        let text = text.to_owned();
        let ranking = move || {
            let candidates: Vec<Candidate<'_>> = known
                .facts
                .iter()
                .map(|fact| Candidate { text: &fact.text, weight: fact.confidence })
                .collect();
            let by_words = recall::rank(&text, &candidates, known.language);
            (known, recall::fuse(&by_words, &near))
        };
        // Ranking takes some milliseconds for a thousand facts and a long message. On a thread of
        // the runtime it would delay chunks.
        tokio::task::spawn_blocking(ranking).await.map_err(|_| StoreError::Stopping)
    }

    /// The indices of the facts whose vectors are nearest; none in a database without vectors.
    async fn near(
        &self,
        agent: &AgentId,
        known: &FactsOfThread,
        vector: &[f32],
        limit: u32,
    ) -> Result<Vec<usize>, StoreError> {
        let statement = sqlx::query(include_str!("near.sql"))
            .bind(bucket(agent))
            .bind(agent.as_str())
            .bind(known.facts.iter().map(|fact| fact.id.clone()).collect::<Vec<_>>())
            .bind(literal(vector))
            .bind(i64::from(limit));
        let rows = match self.rows(statement).await {
            // The table was dropped after the caller had checked for it, or the extension's library
            // is missing.
            Err(error) if are_missing(&error) => {
                tracing::warn!(%error, "memory cannot be searched by vectors");
                return Ok(Vec::new());
            }
            rows => rows?,
        };
        let numbers: HashMap<&str, usize> =
            known.facts.iter().enumerate().map(|(number, fact)| (fact.id.as_str(), number)).collect();
        let ids = rows.iter().map(|row| row.try_get::<&str, _>("fact_id")).collect::<Result<Vec<_>, _>>()?;
        Ok(ids.into_iter().filter_map(|id| numbers.get(id).copied()).collect())
    }

    /// Reads these facts whole, except those deleted since they were ranked.
    async fn found_facts(
        &self,
        agent: &AgentId,
        known: &FactsOfThread,
        found: &[Fused],
    ) -> Result<Vec<FoundFact>, StoreError> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let id = |found: &Fused| known.facts[found.number].id.as_str();
        let statement = sqlx::query(concat!(
            include_str!("listed.sql"),
            "AND f.fact_id = ANY ($3) AND f.superseded_by IS NULL"
        ))
        .bind(bucket(agent))
        .bind(agent.as_str())
        .bind(found.iter().map(|found| id(found).to_owned()).collect::<Vec<_>>());
        let rows = self.rows(statement).await?.iter().map(fact).collect::<Result<Vec<_>, _>>()?;
        let mut rows: HashMap<String, _> = rows.into_iter().map(|fact| (fact.id.clone(), fact)).collect();
        let whole = |found: &Fused| {
            let fact = rows.remove(id(found))?;
            Some(FoundFact { fact, place_by_words: found.by_words, place_by_vector: found.by_vector })
        };
        Ok(found.iter().filter_map(whole).collect())
    }
}

/// Appends a small set of facts that are always included to the first `limit` found facts. If at
/// most `limit` facts apply to the thread, the set is all of them. Otherwise it is the facts of the
/// user or the thread, if there are at most `limit` of these.
fn with_few(mut found: Vec<Fused>, is_of_all: &[bool], limit: usize) -> Vec<Fused> {
    found.truncate(limit);
    let own = is_of_all.iter().filter(|is_of_all| !**is_of_all).count();
    let is_of_few = |number: usize| is_of_all.len() <= limit || (own <= limit && !is_of_all[number]);
    let few = (0..is_of_all.len()).filter(|number| is_of_few(*number));
    let rest = few.filter(|number| found.iter().all(|found| found.number != *number));
    let rest: Vec<Fused> = rest.map(|number| Fused { number, by_words: None, by_vector: None }).collect();
    found.extend(rest);
    found
}

fn known_fact(row: &PgRow) -> Result<KnownFact, StoreError> {
    Ok(KnownFact {
        id: row.try_get("fact_id")?,
        text: row.try_get("text")?,
        confidence: row.try_get("confidence")?,
        is_of_all: row.try_get("is_of_all")?,
        created_ms: row.try_get("created_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(found: &[usize], is_of_all: &[bool], limit: usize) -> Vec<usize> {
        let found = recall::fuse(found, &[]);
        with_few(found, is_of_all, limit).into_iter().map(|found| found.number).collect()
    }

    #[test]
    fn a_few_facts_are_given_whether_they_were_found_or_not() {
        let (own, all) = (false, true);
        assert_eq!(numbers(&[2], &[own, own, own], 3), [2, 0, 1], "no more than there is room for");
        assert_eq!(numbers(&[2], &[own, own, own], 2), [2], "more: what was found");
        assert_eq!(numbers(&[3, 1, 0], &[own, own, own, own], 2), [3, 1]);
        assert_eq!(numbers(&[1], &[own, all, all], 3), [1, 0, 2], "all of both");
        // With many facts for all threads, the result is the found facts and all facts of the user.
        assert_eq!(numbers(&[4, 3, 2], &[own, own, all, all, all], 3), [4, 3, 2, 0, 1]);
        assert_eq!(numbers(&[4, 0, 3], &[own, own, all, all, all], 2), [4, 0, 1]);
        assert_eq!(numbers(&[], &[all, all, all], 2), Vec::<usize>::new());
        assert_eq!(numbers(&[], &[], 2), Vec::<usize>::new());
    }
}
