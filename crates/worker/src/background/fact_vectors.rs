//! Makes vectors of one partition's facts after their commits, so that neither a commit nor a turn
//! waits for the endpoint.
//!
//! Runs only if embeddings are configured. Two owners that run it at the same time write the same
//! vectors.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use embeddings::{Embeddings, EmbeddingsError};
use metrics::counter;
use model::{Bucket, PartitionId};
use runtime::{Backoff, retry_until};
use store::FactToEmbed;

use super::store_lookups::StoreReader;
use crate::context::Context;
use crate::metrics::{EMBEDDED_FACTS, UNEMBEDDABLE_FACTS};
use crate::refusals::{RefusedItem, note_item};

/// Maximum number of facts in one request.
const MOST_FACTS: u32 = 64;
/// Pause between two queries while no facts wait. A query is cheap: it reads an index of waiting
/// facts.
const PAUSE: Duration = Duration::from_secs(2);
/// Pause between two queries while the database has no vectors of the configured model.
const PAUSE_WITHOUT_VECTORS: Duration = Duration::from_secs(20);
/// First delay when the endpoint is unavailable or its quota is used up.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// A text that every working model accepts.
const PROBE: &str = "text";

/// Limits the log to one line per process instead of one per partition.
static ARE_MISSING: AtomicBool = AtomicBool::new(false);

/// Result of one query.
enum Look {
    /// There may be more facts.
    Full,
    Nothing,
    WithoutVectors,
}

/// Makes vectors until the session ends.
pub(super) async fn run(
    context: Context,
    embeddings: Embeddings,
    partition: PartitionId,
    reader: StoreReader,
) {
    let answered = &reader.answered;
    let all = (0..model::BUCKETS).map(Bucket::from_number);
    let buckets: Vec<Bucket> =
        all.filter(|bucket| bucket.partition(context.config.partitions) == partition).collect();
    while let Some(look) = look(&context, &embeddings, &buckets, &reader).await {
        let pause = match look {
            // The next owner continues with the rest.
            Look::Full if answered.is_closed() => return,
            Look::Full => continue,
            Look::Nothing => PAUSE,
            Look::WithoutVectors => PAUSE_WITHOUT_VECTORS,
        };
        tokio::select! {
            // Spreads the queries of partitions that were acquired at the same time.
            () = tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))) => {}
            () = answered.closed() => return,
        }
    }
}

/// One round of making vectors. `None` when the session has ended.
async fn look(
    context: &Context,
    embeddings: &Embeddings,
    buckets: &[Bucket],
    reader: &StoreReader,
) -> Option<Look> {
    let stored = reader.until_answered("reading of what vectors are", || context.store.vectors_of()).await?;
    if !is_usable(stored.as_deref(), embeddings.vectors_of()) {
        return Some(Look::WithoutVectors);
    }
    let ask = || context.store.facts_to_embed(buckets, MOST_FACTS);
    let facts = reader.until_answered("reading facts without vectors", ask).await?;
    if facts.is_empty() {
        return Some(Look::Nothing);
    }
    let count = facts.len();
    let (embedded, mut refused) = embed(embeddings, facts, reader).await?;
    for fact in &refused {
        tracing::warn!(agent = %fact.agent, fact = fact.id, "the endpoint refuses a fact: it has no vector");
    }
    refused.extend(keep(context, embeddings, embedded, reader).await?);
    for fact in &refused {
        match reader.unless_refused("giving up a vector", || context.store.give_up_vector(fact)).await? {
            Ok(()) => counter!(UNEMBEDDABLE_FACTS).increment(1),
            // The next query returns the fact again.
            Err(error) => note_item(RefusedItem::Vector, &fact.id, &error),
        }
    }
    Some(if count < MOST_FACTS as usize { Look::Nothing } else { Look::Full })
}

/// Stores the vectors, and returns the facts with vectors that the database refuses, for example
/// because of a NaN. `None` when the session has ended.
async fn keep(
    context: &Context,
    embeddings: &Embeddings,
    embedded: Vec<EmbeddedFact>,
    reader: &StoreReader,
) -> Option<Vec<FactToEmbed>> {
    fn name((fact, _): &EmbeddedFact) -> &dyn Display {
        &fact.id
    }
    let ask = |part: &[EmbeddedFact]| {
        let (facts, vectors): (Vec<_>, Vec<_>) = part.iter().cloned().unzip();
        async move {
            let kept = context.store.keep_vectors(embeddings.vectors_of(), &facts, &vectors).await?;
            counter!(EMBEDDED_FACTS).increment(kept);
            Ok(vec![(); facts.len()])
        }
    };
    let kept = reader.each("keeping vectors", &embedded, (RefusedItem::Vector, name), ask).await?;
    let refused = embedded.iter().zip(kept).filter(|(_, kept)| kept.is_err());
    Some(refused.map(|((fact, _), _)| fact.clone()).collect())
}

/// True if the database stores vectors of this model.
fn is_usable(stored: Option<&str>, wanted: &str) -> bool {
    let is_usable = stored == Some(wanted);
    if ARE_MISSING.swap(!is_usable, Ordering::Relaxed) == is_usable {
        match is_usable {
            true => tracing::info!(model = wanted, "memory is searched by vectors, too"),
            false => tracing::warn!(
                model = wanted,
                stored,
                "the database has no vectors of this model, memory is searched by words alone: run `antiphon migrate` with the same \
                 settings, and see `antiphon doctor`"
            ),
        }
    }
    is_usable
}

type EmbeddedFact = (FactToEmbed, Vec<f32>);

/// Facts with their new vectors, and facts that the endpoint refuses. `None` when the session has
/// ended.
async fn embed(
    embeddings: &Embeddings,
    facts: Vec<FactToEmbed>,
    reader: &StoreReader,
) -> Option<(Vec<EmbeddedFact>, Vec<FactToEmbed>)> {
    let texts: Vec<&str> = facts.iter().map(|fact| fact.text.as_str()).collect();
    if let Some(vectors) = asked(embeddings, &texts, reader).await? {
        return Some((facts.into_iter().zip(vectors).collect(), Vec::new()));
    }
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for fact in facts {
        match asked(embeddings, &[fact.text.as_str()], reader).await? {
            Some(one) => taken.extend(one.into_iter().map(|vector| (fact.clone(), vector))),
            None => refused.push(fact),
        }
    }
    Some((taken, refused))
}

/// Requests vectors of the texts until the endpoint answers. `Some(None)`: the endpoint accepts
/// other texts, but not these.
#[allow(clippy::option_option, reason = "whether the session goes on, and what it was answered")]
async fn asked(
    embeddings: &Embeddings,
    texts: &[&str],
    reader: &StoreReader,
) -> Option<Option<Vec<Vec<f32>>>> {
    let backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    let vectors = retry_until(reader.answered.closed(), backoff, "making vectors of facts", || async {
        match embeddings.of_facts(texts).await {
            Ok(vectors) => Ok(Some(vectors)),
            // With a wrong model or number of dimensions, the endpoint refuses every text.
            Err(refused @ EmbeddingsError::Refused(_)) => match embeddings.of_facts(&[PROBE]).await {
                Ok(_) => Ok(None),
                Err(_) => Err(refused),
            },
            Err(error) => Err(error),
        }
    });
    vectors.await.ok()
}
