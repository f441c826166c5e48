//! Measures which share of a fixed set of facts is found by the questions that need them. There are
//! 72 pairs each in English, German and French, in `recall/<language>.tsv` (kind, fact, question).
//!
//! Entry point: [`measure`]. The facts of a language belong to one user. They are stored and
//! searched through the public functions of `store`. Searches run for an agent with that
//! `memory_language` and for one without. They use words, the vectors of a small model, or both.
//! The same facts give the same figures.

use anyhow::{Context as _, Result};
use batches::memory::MOST_OF_TURN;
use model::{AgentId, Bucket, CommandId, ThreadId};
use sqlx::PgConnection;
use store::{FactScope, NewFact, Store};

use super::embedder::Embedder;
use crate::table::Row;

/// Languages by their Postgres names, with their pairs.
const SETS: [(&str, &str); 3] = [
    ("english", include_str!("recall/english.tsv")),
    ("german", include_str!("recall/german.tsv")),
    ("french", include_str!("recall/french.tsv")),
];
/// Goals with the language set: the minimum share of all questions whose fact is first, and of
/// those whose fact is among the first five.
const LANGUAGE_GOAL: [f64; 2] = [0.54, 0.64];
/// The same goals without a language.
const DEFAULT_GOAL: [f64; 2] = LANGUAGE_GOAL;

/// The search method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    Words,
    /// Searches without words, only with the vector of the question.
    Vectors,
    Both,
}

impl Search {
    const ALL: [Self; 3] = [Self::Words, Self::Vectors, Self::Both];

    fn name(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Vectors => "vectors",
            Self::Both => "both",
        }
    }
}

/// The similarity of a question and its fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The fact and the question share at least one word in the same form.
    SameWords,
    /// The fact and the question share words only in other forms, or inside compounds.
    Inflected,
    /// They share no significant word.
    Paraphrase,
}

impl Kind {
    const ALL: [Self; 3] = [Self::SameWords, Self::Inflected, Self::Paraphrase];

    fn parse(name: &str) -> Option<Self> {
        match name {
            "same" => Some(Self::SameWords),
            "inflected" => Some(Self::Inflected),
            "paraphrase" => Some(Self::Paraphrase),
            _ => None,
        }
    }

    /// The heading of the column for this kind.
    fn name(self) -> &'static str {
        match self {
            Self::SameWords => "same words",
            Self::Inflected => "inflected",
            Self::Paraphrase => "paraphrase",
        }
    }
}

/// A fact and a question whose answer needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) kind: Kind,
    pub(super) fact: &'static str,
    pub(super) question: &'static str,
}

fn pairs(set: &'static str) -> Result<Vec<Pair>> {
    let pair = |line: &'static str| {
        let mut columns = line.split('\t');
        let kind = columns.next().and_then(Kind::parse)?;
        let (fact, question) = (columns.next()?, columns.next()?);
        columns.next().is_none().then_some(Pair { kind, fact, question })
    };
    set.lines()
        .map(|line| pair(line).with_context(|| format!("no kind, fact and question: {line}")))
        .collect()
}

/// The rank of each question's fact in the result.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranks(pub(super) Vec<(Kind, Option<usize>)>);

impl Ranks {
    /// The share of questions whose fact is among the first `depth`, from 0 to 1; a `kind` of
    /// `None` means all questions.
    pub(super) fn recall(&self, kind: Option<Kind>, depth: usize) -> f64 {
        let of_kind = || self.0.iter().filter(|(of, _)| kind.is_none_or(|kind| kind == *of));
        let found = of_kind().filter(|(_, rank)| rank.is_some_and(|rank| rank < depth)).count();
        found as f64 / of_kind().count().max(1) as f64
    }

    fn row(&self, what: String) -> Row {
        let percent = |kind, depth| format!("{:.1} %", 100.0 * self.recall(kind, depth));
        let mut row = Row::new('b', what, format!("recall@5 {}", percent(None, 5)))
            .column("@1", percent(None, 1))
            .column("@16", percent(None, MOST_OF_TURN as usize))
            .figure("recall_at_1", self.recall(None, 1))
            .figure("recall_at_5", self.recall(None, 5));
        for kind in Kind::ALL {
            row = row.column(kind.name(), percent(Some(kind), 5));
        }
        row
    }
}

/// The result for one language, by an agent with or without a `memory_language`.
#[derive(Debug, Clone)]
struct Measured {
    language: &'static str,
    has_language: bool,
    search: Search,
    ranks: Ranks,
}

/// Asks every question with and without the language set, and returns a row for each language and
/// one for all of them. With an embedder, also searches by vectors, for which the language makes no
/// difference, and by both.
pub(super) async fn measure(
    store: &Store,
    connection: &mut PgConnection,
    embedder: Option<&Embedder>,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let measured = ask_all(store, connection, embedder).await?;
    for (search, has_language) in Search::ALL.into_iter().flat_map(|search| [(search, true), (search, false)])
    {
        let of = || {
            measured
                .iter()
                .filter(|measured| measured.search == search && measured.has_language == has_language)
        };
        if of().next().is_none() || (search == Search::Vectors && has_language) {
            continue;
        }
        let by = |configuration: &str| match search {
            Search::Vectors => "by vectors".to_owned(),
            _ => format!("by {}, memory_language {configuration}", search.name()),
        };
        for Measured { language, ranks, .. } in of() {
            let configuration = if has_language { language } else { "simple" };
            rows.push(ranks.row(format!("questions in {language}, {}", by(configuration))));
        }
        let all = all_of(of());
        let configuration = if has_language { "of the questions" } else { "simple" };
        let row = all.row(format!("all {} questions, {}", all.0.len(), by(configuration)));
        let [first, five] = if has_language { LANGUAGE_GOAL } else { DEFAULT_GOAL };
        rows.push(match search {
            Search::Words => row.goal(
                format!(">= {:.0} %, @1 {:.0} %", 100.0 * five, 100.0 * first),
                meets(&all, [first, five]),
            ),
            // The gain from vectors depends on the model, so it has no goal.
            Search::Vectors | Search::Both => row,
        });
    }
    Ok(rows)
}

fn all_of<'a>(measured: impl Iterator<Item = &'a Measured>) -> Ranks {
    Ranks(measured.flat_map(|measured| measured.ranks.0.clone()).collect())
}

fn meets(ranks: &Ranks, [first, five]: [f64; 2]) -> bool {
    ranks.recall(None, 1) >= first && ranks.recall(None, 5) >= five
}

async fn ask_all(
    store: &Store,
    connection: &mut PgConnection,
    embedder: Option<&Embedder>,
) -> Result<Vec<Measured>> {
    let mut all = Vec::new();
    for (language, set) in SETS {
        for has_language in [true, false] {
            let name = format!("{language}{}", if has_language { "-set" } else { "" });
            let agent = AgentId::parse(&name)?;
            let thread = ThreadId::parse(&format!("{name}-thread"))?;
            let settings = has_language.then_some(language);
            create(connection, &agent, &thread, settings).await?;
            for (search, ranks) in ask(store, &agent, &thread, &pairs(set)?, embedder).await? {
                all.push(Measured { language, has_language, search, ranks });
            }
        }
    }
    Ok(all)
}

/// Creates the agent with its settings, and a thread of its user.
pub(super) async fn create(
    connection: &mut PgConnection,
    agent: &AgentId,
    thread: &ThreadId,
    language: Option<&str>,
) -> Result<()> {
    sqlx::query("INSERT INTO threads (bucket, thread_id, agent_id, metadata) VALUES ($1, $2, $3, jsonb_build_object('user_id', $3))")
        .bind(thread.bucket().get() as i16)
        .bind(thread.as_str())
        .bind(agent.as_str())
        .execute(&mut *connection)
        .await?;
    let Some(language) = language else { return Ok(()) };
    sqlx::query(
        "INSERT INTO agent_settings (bucket, agent_id, workflow, settings) VALUES ($1, $2, 'w', jsonb_build_object('memory_language', $3))",
    )
    .bind(Bucket::of_key(agent.as_str()).get() as i16)
    .bind(agent.as_str())
    .bind(language)
    .execute(connection)
    .await?;
    Ok(())
}

/// Stores the facts for the user, and then asks each question like a turn does.
pub(super) async fn ask(
    store: &Store,
    agent: &AgentId,
    thread: &ThreadId,
    pairs: &[Pair],
    embedder: Option<&Embedder>,
) -> Result<Vec<(Search, Ranks)>> {
    let id = |number: usize| format!("{}-{number}", agent.as_str());
    for (number, pair) in pairs.iter().enumerate() {
        let fact = NewFact {
            id: id(number),
            scope: Some(FactScope::User(agent.as_str().to_owned())),
            text: pair.fact.to_owned(),
            kind: None,
            confidence: None,
            supersedes: None,
        };
        store.add_fact(agent, &fact, &CommandId::parse(&fact.id)?, "bench").await?.context("not stored")?;
    }
    if let Some(embedder) = embedder {
        embedder.embed_facts(store).await?;
    }
    let mut all = Vec::new();
    for search in Search::ALL {
        let mut ranks = Ranks::default();
        for (number, pair) in pairs.iter().enumerate() {
            let vector = match (search, embedder) {
                (Search::Words, _) => None,
                (_, Some(embedder)) => Some(
                    embedder
                        .client
                        .of_question(Some(embedder.client.vectors_of()), pair.question)
                        .await
                        .context("no vector")?,
                ),
                (_, None) => return Ok(all),
            };
            let text = if search == Search::Vectors { "" } else { pair.question };
            let found = store.search_facts(agent, thread, text, vector.as_deref(), MOST_OF_TURN).await?;
            ranks.0.push((pair.kind, found.iter().position(|found| found.fact.id == id(number))));
        }
        all.push((search, ranks));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use model::PartitionCount;
    use sqlx::Connection as _;
    use store::StoreConfig;
    use testkit::services::TestDatabase;

    use super::*;

    #[test]
    fn sets_have_enough_different_pairs_of_each_kind() {
        for (language, set) in SETS {
            let pairs = pairs(set).unwrap();
            assert!(pairs.len() >= 70, "{language}: {}", pairs.len());
            for kind in Kind::ALL {
                let count = pairs.iter().filter(|pair| pair.kind == kind).count();
                assert_eq!(count * 3, pairs.len(), "{language}, {}", kind.name());
            }
            let facts: HashSet<&str> = pairs.iter().map(|pair| pair.fact).collect();
            let questions: HashSet<&str> = pairs.iter().map(|pair| pair.question).collect();
            assert_eq!((facts.len(), questions.len()), (pairs.len(), pairs.len()), "{language}");
        }
    }

    #[tokio::test]
    async fn questions_find_their_facts_among_others() {
        let database = TestDatabase::create().await.unwrap();
        store::migrate(database.url(), PartitionCount::new(1).unwrap()).await.unwrap();
        let mut connection = PgConnection::connect(database.url()).await.unwrap();
        let store = Store::connect(&StoreConfig::new(database.url())).await.unwrap();
        let measured = ask_all(&store, &mut connection, None).await.unwrap();
        let figures = measured.iter().map(|measured| {
            let row = measured.ranks.row(format!("{}, set: {}", measured.language, measured.has_language));
            (row.what, row.figures)
        });
        let figures: Vec<_> = figures.collect();
        for (has_language, goal) in [(true, LANGUAGE_GOAL), (false, DEFAULT_GOAL)] {
            let all = all_of(measured.iter().filter(|measured| measured.has_language == has_language));
            assert!(meets(&all, goal), "{goal:?}: {figures:?}");
            assert!(all.recall(Some(Kind::SameWords), 5) > 0.95, "{figures:?}");
        }
    }
}
