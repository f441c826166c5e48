//! Thirty facts of one user in each of seven languages, and questions in other words. A question
//! shares one word with its fact. The word is in another form, inside a compound, or has other
//! particles (`recall/worded/<language>.tsv`: fact, question).

use anyhow::{Context as _, Result};
use model::{AgentId, ThreadId};
use sqlx::PgConnection;
use store::Store;

use super::recall::{Kind, Pair, Ranks, Search, ask, create};
use crate::table::Row;

const SETS: [(&str, &str); 7] = [
    ("english", include_str!("recall/worded/english.tsv")),
    ("german", include_str!("recall/worded/german.tsv")),
    ("russian", include_str!("recall/worded/russian.tsv")),
    ("japanese", include_str!("recall/worded/japanese.tsv")),
    ("chinese", include_str!("recall/worded/chinese.tsv")),
    ("korean", include_str!("recall/worded/korean.tsv")),
    ("thai", include_str!("recall/worded/thai.tsv")),
];
/// Goal: of the thirty questions of a language, the number whose fact is among the first five.
const GOAL: usize = 27;

/// The result for one language, with or without `memory_language`.
struct Measured {
    language: &'static str,
    has_language: bool,
    ranks: Ranks,
}

impl Measured {
    fn found(&self, depth: usize) -> usize {
        (self.ranks.recall(None, depth) * self.ranks.0.len() as f64).round() as usize
    }
}

/// A row for each language, with its name as the setting, and without a setting.
pub(super) async fn measure(store: &Store, connection: &mut PgConnection) -> Result<Vec<Row>> {
    let row = |measured: &Measured| {
        let (language, found) = (measured.language, measured.found(5));
        let setting = if measured.has_language { language } else { "simple" };
        Row::new(
            'c',
            format!("30 worded questions in {language}, memory_language {setting}"),
            format!("{found} of 30"),
        )
        .column("@1", format!("{} of 30", measured.found(1)))
        .figure("found_at_5", found as f64)
        .goal(format!(">= {GOAL} of 30"), found >= GOAL)
    };
    Ok(ask_all(store, connection).await?.iter().map(row).collect())
}

async fn ask_all(store: &Store, connection: &mut PgConnection) -> Result<Vec<Measured>> {
    let mut all = Vec::new();
    for (language, set) in SETS {
        for has_language in [true, false] {
            let name = format!("worded-{language}{}", if has_language { "-set" } else { "" });
            let agent = AgentId::parse(&name)?;
            let thread = ThreadId::parse(&format!("{name}-thread"))?;
            create(connection, &agent, &thread, has_language.then_some(language)).await?;
            let measured = ask(store, &agent, &thread, &pairs(set)?, None).await?;
            let ranks =
                measured.into_iter().find(|(search, _)| *search == Search::Words).map(|(_, ranks)| ranks);
            all.push(Measured { language, has_language, ranks: ranks.context("not measured")? });
        }
    }
    Ok(all)
}

fn pairs(set: &'static str) -> Result<Vec<Pair>> {
    let pair = |line: &'static str| {
        let (fact, question) =
            line.split_once('\t').with_context(|| format!("no fact and question: {line}"))?;
        Ok(Pair { kind: Kind::Inflected, fact, question })
    };
    set.lines().map(pair).collect()
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
    fn every_set_has_thirty_different_pairs() {
        for (language, set) in SETS {
            let pairs = pairs(set).unwrap();
            let facts: HashSet<&str> = pairs.iter().map(|pair| pair.fact).collect();
            let questions: HashSet<&str> = pairs.iter().map(|pair| pair.question).collect();
            assert_eq!((pairs.len(), facts.len(), questions.len()), (30, 30, 30), "{language}");
        }
    }

    #[tokio::test]
    async fn questions_in_other_words_find_their_facts_in_every_script() {
        let database = TestDatabase::create().await.unwrap();
        store::migrate(database.url(), PartitionCount::new(1).unwrap()).await.unwrap();
        let mut connection = PgConnection::connect(database.url()).await.unwrap();
        let store = Store::connect(&StoreConfig::new(database.url())).await.unwrap();
        for measured in ask_all(&store, &mut connection).await.unwrap() {
            let (language, found) = (measured.language, measured.found(5));
            println!(
                "{language}, set: {}: {found} of 30, {} first",
                measured.has_language,
                measured.found(1)
            );
            assert!(found >= GOAL, "{language}, set: {}: {found} of 30", measured.has_language);
        }
    }
}
