//! Vectors of facts, in a database with the extension `vector`. They are derived from the facts'
//! texts, so they can be rebuilt at any time.
//!
//! Entry point: [`lay_out_vectors`]. Triggers enqueue new facts and remove superseded ones,
//! whatever statement writes them. Workers fetch waiting facts ([`Store::facts_to_embed`]) and
//! store their vectors.
//!
//! Once every fact is enqueued, the comment of the table names the model. Until then, and in a
//! database without the table, vectors are neither searched nor stored.

use std::fmt::Write as _;

use model::{AgentId, Bucket, TaskKind};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::config::StoreConfig;
use crate::connect::{self, run_uncancelled};
use crate::error::{StoreError, sqlstate};
use crate::row::{count, parse_column};
use crate::store::Store;

/// A fact that waits for its vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactToEmbed {
    pub agent: AgentId,
    pub id: String,
    pub text: String,
}

/// The outcome of laying out the vectors of facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VectorTables {
    /// The tables existed already.
    Ready,
    /// The tables were created, and every fact waits for its vector.
    Made,
    /// The database does not support vectors, for this reason.
    Unavailable(String),
}

const TRIGGERS: &str = include_str!("fact_vectors/triggers.sql");

/// The model of the vectors; NULL if there are none. The query must not fail when the table is
/// missing, because Postgres would log an error each time.
const VECTORS_OF: &str = "SELECT obj_description(a.attrelid, 'pg_class') AS vectors_of FROM pg_attribute AS a
     WHERE a.attrelid = to_regclass('fact_vectors') AND a.attname = 'vector' AND NOT a.attisdropped";

/// Creates the table of fact vectors for a model. Postgres must have the extension `vector`, 0.7 or
/// newer, or let this role create it. Vectors of another model are dropped and rebuilt. Safe to run
/// repeatedly and concurrently.
///
/// # Errors
/// No connection, or a statement failed. A missing extension is an outcome, not an error.
pub async fn lay_out_vectors(url: &str, vectors_of: &str) -> Result<VectorTables, StoreError> {
    // The same timeouts as for migrations, because all facts are read.
    let options = connect::options(&StoreConfig::new(url))?
        .options([("statement_timeout", "0"), ("lock_timeout", "60000")]);
    let mut connection = connect::wait(&options).await?;
    let vectors_of = vectors_of.to_owned();
    let outcome = run_uncancelled(async move {
        let outcome = lay_out(&mut connection, &vectors_of).await;
        connection.close().await.ok();
        outcome
    });
    outcome.await.unwrap_or(Err(StoreError::Stopping))
}

async fn lay_out(connection: &mut PgConnection, vectors_of: &str) -> Result<VectorTables, StoreError> {
    // An advisory lock of the session; it is held until the session is closed.
    sqlx::raw_sql("SELECT pg_advisory_lock(hashtextextended('antiphon fact_vectors', 0))")
        .execute(&mut *connection)
        .await?;
    let row = sqlx::query(VECTORS_OF).fetch_optional(&mut *connection).await?;
    if row.as_ref().map(stored_model).transpose()?.flatten().as_deref() == Some(vectors_of) {
        sqlx::raw_sql(TRIGGERS).execute(&mut *connection).await?;
        return Ok(VectorTables::Ready);
    }
    if let Some(why) = missing_extension(connection).await? {
        return Ok(VectorTables::Unavailable(why));
    }
    let tables = [include_str!("fact_vectors/lay_out.sql"), TRIGGERS].concat();
    sqlx::raw_sql(AssertSqlSafe(tables)).execute(&mut *connection).await?;
    for bucket in 0..model::BUCKETS {
        // One bucket at a time, so that no statement takes long. FOR KEY SHARE
        // keeps facts from being deleted in the meantime.
        sqlx::query(
            "INSERT INTO fact_vectors (bucket, agent_id, fact_id, scope)
             SELECT f.bucket, f.agent_id, f.fact_id, f.scope FROM facts AS f
             WHERE f.bucket = $1 AND f.superseded_by IS NULL FOR KEY SHARE ON CONFLICT DO NOTHING",
        )
        .bind(bucket as i16)
        .execute(&mut *connection)
        .await?;
    }
    let comment = format!("COMMENT ON TABLE fact_vectors IS '{}'", vectors_of.replace('\'', "''"));
    sqlx::raw_sql(AssertSqlSafe(comment)).execute(connection).await?;
    Ok(VectorTables::Made)
}

/// The reason why vectors cannot be stored; `None`: the extension existed, or was just created.
async fn missing_extension(connection: &mut PgConnection) -> Result<Option<String>, StoreError> {
    match sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS vector").execute(&mut *connection).await {
        Ok(_) => {}
        Err(sqlx::Error::Database(error)) => return Ok(Some(error.message().to_owned())),
        Err(error) => return Err(error.into()),
    }
    let known =
        sqlx::query("SELECT to_regtype('halfvec') IS NOT NULL AS is_known").fetch_one(connection).await?;
    let why = "the extension vector is older than 0.7, or in a schema that is not on the search_path";
    Ok((!known.try_get::<bool, _>("is_known")?).then(|| why.to_owned()))
}

fn stored_model(row: &PgRow) -> Result<Option<String>, StoreError> {
    Ok(row.try_get("vectors_of")?)
}

impl Store {
    /// The model of the stored vectors; `None`: there are none, or they are being laid out.
    pub async fn vectors_of(&self) -> Result<Option<String>, StoreError> {
        let rows = self.rows(sqlx::query(VECTORS_OF)).await?;
        Ok(rows.first().map(stored_model).transpose()?.flatten())
    }

    /// At most `limit` facts that wait for their vectors, in these buckets of memory queues; empty
    /// in a database without vectors.
    pub async fn facts_to_embed(
        &self,
        buckets: &[Bucket],
        limit: u32,
    ) -> Result<Vec<FactToEmbed>, StoreError> {
        let statement = sqlx::query(
            "SELECT v.agent_id, v.fact_id, f.text FROM fact_vectors AS v JOIN facts AS f USING (bucket, agent_id, fact_id)
             WHERE v.bucket = ANY ($1) AND v.vector IS NULL LIMIT $2",
        )
        .bind(buckets.iter().map(|bucket| bucket.get() as i16).collect::<Vec<_>>())
        .bind(i64::from(limit));
        let waiting = |row: &PgRow| -> Result<FactToEmbed, StoreError> {
            let agent = parse_column(row, "agent_id", AgentId::parse)?;
            Ok(FactToEmbed { agent, id: row.try_get("fact_id")?, text: row.try_get("text")? })
        };
        match self.rows(statement).await {
            Err(error) if are_missing(&error) => Ok(Vec::new()),
            found => found?.iter().map(waiting).collect(),
        }
    }

    /// Stores the vectors of these facts, given in the same order and each of length 1. Returns the
    /// number of stored vectors. Stores nothing if the database now holds vectors of another model,
    /// and skips facts that were deleted in the meantime.
    pub async fn keep_vectors(
        &self,
        vectors_of: &str,
        facts: &[FactToEmbed],
        vectors: &[Vec<f32>],
    ) -> Result<u64, StoreError> {
        // If the table is being laid out again, there are two cases. Either it stays locked until
        // this statement has ended, or this statement already reads the name of the other model.
        let statement = sqlx::query(
            "WITH kept AS (
                 UPDATE fact_vectors AS v SET vector = g.vector::halfvec
                 FROM unnest($1::smallint[], $2::text[], $3::text[], $4::text[]) AS g (bucket, agent_id, fact_id, vector)
                 WHERE v.bucket = g.bucket AND v.agent_id = g.agent_id AND v.fact_id = g.fact_id
                   AND obj_description(to_regclass('fact_vectors'), 'pg_class') = $5
                 RETURNING 1
             ) SELECT count(*) AS count FROM kept",
        )
        .bind(facts.iter().map(|fact| bucket(&fact.agent)).collect::<Vec<_>>())
        .bind(facts.iter().map(|fact| fact.agent.to_string()).collect::<Vec<_>>())
        .bind(facts.iter().map(|fact| fact.id.clone()).collect::<Vec<_>>())
        .bind(vectors.iter().map(|vector| literal(vector)).collect::<Vec<_>>())
        .bind(vectors_of.to_owned());
        match self.rows(statement).await {
            Err(error) if are_missing(&error) => Ok(0),
            kept => count(&kept?),
        }
    }

    /// Stores no vector for a fact, so that only its words find it.
    pub async fn give_up_vector(&self, fact: &FactToEmbed) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "DELETE FROM fact_vectors WHERE bucket = $1 AND agent_id = $2 AND fact_id = $3 AND vector IS NULL",
        );
        let statement =
            statement.bind(bucket(&fact.agent)).bind(fact.agent.to_string()).bind(fact.id.clone());
        match self.rows(statement).await {
            Err(error) if are_missing(&error) => Ok(()),
            gone => gone.map(drop),
        }
    }
}

/// The bucket of an agent's facts.
pub(crate) fn bucket(agent: &AgentId) -> i16 {
    agent.queue_of(TaskKind::Memory).thread().bucket().get() as i16
}

/// A vector as a Postgres literal.
pub(crate) fn literal(vector: &[f32]) -> String {
    let mut text = String::with_capacity(2 + 12 * vector.len());
    for (place, number) in vector.iter().enumerate() {
        let joint = if place == 0 { '[' } else { ',' };
        let _ = write!(text, "{joint}{number}");
    }
    text.push(']');
    text
}

/// True if the table, its column, a type, a function or the library of the extension is missing.
pub(crate) fn are_missing(error: &StoreError) -> bool {
    matches!(error, StoreError::Statement(sqlx::Error::Database(error))
        if matches!(sqlstate(error.as_ref()).as_ref(), "42P01" | "42703" | "42704" | "42883" | "58P01"))
}
