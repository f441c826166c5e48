//! The list of threads: its order, its filters, titles, and changes of threads by clients.
//!
//! Entry points: [`Store::list_threads`], [`Store::note_activity`] and [`Store::patch_thread`].

use model::{AgentId, Metadata, Role, Tenant, ThreadId, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use super::listing::{Listing, listing};
use super::threads::{ThreadRow, thread_row};
use super::{json, thread_bucket};
use crate::error::StoreError;
use crate::row::{parse_column, role};
use crate::store::Store;

/// Maximum length of a user's name in a list, in bytes: the limit of an index entry.
pub const MAX_LISTED_USER: usize = 1_024;
/// Characters of an input that can get into a title.
const MAX_TITLE_TEXT: usize = 480;
/// Maximum length of a preview, in characters.
const MAX_PREVIEW: i32 = 200;
/// Rows of the list that one page reads at most when it looks for metadata or failures, which no
/// index contains.
const MAX_SCANNED: i64 = 10_000;
/// A place in the list, from which the next page continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListCursor {
    pub active_us: i64,
    pub thread: ThreadId,
}

/// What a list is restricted to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThreadFilter {
    /// True: only archived threads. False: only the others.
    pub archived: bool,
    /// Only threads of this user; at most [`MAX_LISTED_USER`] bytes.
    pub user: Option<String>,
    /// Only threads that this agent answers in.
    pub agent: Option<AgentId>,
    /// Only threads whose metadata contain these keys with these values.
    pub metadata: Option<Metadata>,
    /// Only threads whose titles contain all of these words, in any case. Empty: all threads.
    pub words: Vec<String>,
    /// True: only threads whose last turn failed.
    pub failed: bool,
    /// Only these threads.
    pub among: Option<Vec<ThreadId>>,
    /// Only threads after this place.
    pub after: Option<ListCursor>,
}

/// A thread in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedThread {
    pub thread: ThreadId,
    /// `None`: nothing of the thread is committed yet, because its first turn has not ended.
    pub row: Option<ThreadRow>,
    pub listing: Listing,
    /// The last visible message of a person or an agent: its role and the beginning of its text.
    pub preview: Option<(Role, String)>,
    /// When the last visible message was written.
    pub last_message_at: Option<Timestamp>,
    /// True if a turn has failed since the last message.
    pub has_failed: bool,
}

/// A page of the list, in its order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThreadListPage {
    pub threads: Vec<ListedThread>,
    /// Where the next page begins; `None`: this is the last page.
    pub next: Option<ListCursor>,
}

/// A change of a thread by a client. `None`: the value stays.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThreadPatch {
    /// `Some(None)`: the title is removed, and the workflow may set one again.
    pub title: Option<Option<String>>,
    pub archived: Option<bool>,
    pub metadata: Option<Metadata>,
    /// `Some(None)`: the agent is decided again, as for a new thread.
    pub agent: Option<Option<AgentId>>,
    /// The change is refused unless the thread has this version.
    pub version: Option<u32>,
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchOutcome {
    Done,
    /// There is no such thread.
    Unknown,
    /// The thread has another version.
    Changed,
}

impl Store {
    /// Lists at most `limit` threads of a tenant, the newest activity first. A page may have fewer
    /// threads than `limit` although there is a next one.
    pub async fn list_threads(
        &self,
        tenant: Option<&Tenant>,
        filter: &ThreadFilter,
        limit: u32,
    ) -> Result<ThreadListPage, StoreError> {
        let among = filter.among.as_deref().unwrap_or_default();
        let agent = filter.agent.as_ref().map(AgentId::as_str);
        let statement = sqlx::query(AssertSqlSafe(page_sql(filter)))
            .bind(tenant.map_or("-", Tenant::as_str).to_owned())
            .bind(filter.after.as_ref().map(|after| after.active_us))
            .bind(filter.after.as_ref().map_or("", |after| after.thread.as_str()).to_owned())
            .bind(i64::from(limit))
            .bind(filter.user.clone())
            .bind(agent.map(str::to_owned))
            .bind(filter.agent.as_ref().map(|agent| thread_bucket(&agent.thread())))
            .bind(filter.metadata.as_ref().map(json))
            .bind(among.iter().map(thread_bucket).collect::<Vec<_>>())
            .bind(among.iter().map(|thread| thread.as_str().to_owned()).collect::<Vec<_>>())
            .bind(MAX_PREVIEW)
            .bind(filter.words.iter().map(|word| contains(word)).collect::<Vec<_>>());
        let rows = self.rows(statement).await?;
        let mut threads = Vec::new();
        let mut next = None;
        for row in &rows {
            let listed = listed(row)?;
            if row.try_get("is_match")? && threads.len() < limit as usize {
                threads.push(listed);
            } else if next.is_none() {
                // The page continues behind the last thread that was shown or read.
                let last = if row.try_get("is_match")? { threads.last() } else { Some(&listed) };
                next = last.map(|last| ListCursor {
                    active_us: last.listing.active_us,
                    thread: last.thread.clone(),
                });
            }
        }
        Ok(ThreadListPage { threads, next })
    }

    /// The row of a thread in the list. Threads without messages have one as well.
    pub async fn listing(&self, thread: &ThreadId) -> Result<Option<Listing>, StoreError> {
        let statement = sqlx::query(
            "SELECT title, title_by, agent_id AS listed_agent, is_archived, version, (extract(epoch FROM active_at) * 1000000)::bigint AS active_us
             FROM thread_list WHERE bucket = $1 AND thread_id = $2",
        );
        let statement = statement.bind(thread_bucket(thread)).bind(thread.as_str().to_owned());
        self.rows(statement).await?.first().map(listing).transpose()
    }

    /// Notes that a client has written into a thread, so that lists show it before its turn has
    /// ended. `input` makes the title of a new thread, and `agent` answers in it. Temporary
    /// threads are not listed, nor erased ones again.
    pub async fn note_activity(
        &self,
        thread: &ThreadId,
        agent: &AgentId,
        input: &str,
    ) -> Result<(), StoreError> {
        let beginning: String = input.chars().take(MAX_TITLE_TEXT).collect();
        let statement = sqlx::query(
            "INSERT INTO thread_list AS l (bucket, thread_id, tenant, active_at, title, title_by, agent_id, user_id)
             SELECT $1, $2, antiphon_tenant_of($2), clock_timestamp(), antiphon_title($3),
                    CASE WHEN antiphon_title($3) IS NOT NULL THEN 'input' END,
                    coalesce(t.agent_id, $4),
                    antiphon_listed_user(t.metadata)
             FROM (SELECT) AS one
             LEFT JOIN threads AS t ON t.bucket = $1 AND t.thread_id = $2
             WHERE t.is_temporary IS NOT TRUE
               AND NOT EXISTS (SELECT FROM erased_threads WHERE bucket = $1 AND thread_id = $2 AND recreated_at IS NULL)
               -- A row of another gateway, or of the commit of a turn, is not locked for nothing.
               AND NOT EXISTS (SELECT FROM thread_list AS o
                               WHERE o.bucket = $1 AND o.thread_id = $2 AND o.title IS NOT NULL AND o.agent_id IS NOT NULL
                                 AND o.active_at > clock_timestamp() - interval '1 minute')
             ON CONFLICT (bucket, thread_id) DO UPDATE
             SET active_at = greatest(l.active_at, excluded.active_at), title = coalesce(l.title, excluded.title),
                 title_by = coalesce(l.title_by, excluded.title_by), agent_id = coalesce(l.agent_id, excluded.agent_id)",
        );
        let statement = statement
            .bind(thread_bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(beginning)
            .bind(agent.to_string());
        self.rows(statement).await.map(drop)
    }

    /// Changes a thread. Its owner reads the change before the next turn.
    pub async fn patch_thread(
        &self,
        thread: &ThreadId,
        patch: &ThreadPatch,
    ) -> Result<PatchOutcome, StoreError> {
        let title = patch.title.as_ref();
        let agent = patch.agent.as_ref();
        let statement = sqlx::query(include_str!("thread_list/patch.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(patch.version.map(|version| i32::try_from(version).unwrap_or(i32::MAX)))
            .bind(title.is_some())
            .bind(title.and_then(Option::clone))
            .bind(patch.archived)
            .bind(patch.metadata.as_ref().map(json))
            .bind(agent.is_some())
            .bind(agent.and_then(|agent| agent.as_ref()).map(AgentId::to_string));
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        Ok(match (row.try_get("is_known")?, row.try_get("is_patched")?) {
            (_, true) => PatchOutcome::Done,
            (true, false) => PatchOutcome::Changed,
            (false, false) => PatchOutcome::Unknown,
        })
    }
}

/// The statement of a page. Its parameters are always the same; only the conditions differ, so that
/// each combination of filters has a plan of its own.
fn page_sql(filter: &ThreadFilter) -> String {
    let mut conditions = String::from(if filter.archived { "l.is_archived" } else { "NOT l.is_archived" });
    if filter.user.is_some() {
        conditions.push_str(" AND l.user_id = $5");
    }
    // Looked up one by one, whatever the planner assumes of the table.
    let list = match filter.among.is_some() {
        true => {
            "unnest($9::smallint[], $10::text[]) AS k (bucket, id)
             CROSS JOIN LATERAL (
                 SELECT o.* FROM thread_list AS o WHERE o.bucket = k.bucket AND o.thread_id = k.id OFFSET 0
             ) AS l"
        }
        false => "thread_list AS l",
    };
    let part = |more: &str| {
        format!(
            "SELECT l.* FROM {list}
             WHERE l.tenant = $1 AND {conditions}{more}
               AND (l.active_at, l.thread_id)
                   < (CASE WHEN $2::bigint IS NULL THEN 'infinity' ELSE to_timestamp(0) + $2 * interval '1 microsecond' END, $3)"
        )
    };
    let of_agent = || {
        format!(
            "({} ORDER BY l.active_at DESC, l.thread_id DESC LIMIT {MAX_SCANNED}) UNION ALL ({})",
            part(" AND l.agent_id = $6"),
            part(" AND l.agent_id IS NULL AND l.bucket = $7 AND l.thread_id = $6")
        )
    };
    let source = if filter.agent.is_some() { of_agent() } else { part("") };
    let mut matches = Vec::new();
    if filter.metadata.is_some() {
        matches.push(
            "EXISTS (SELECT FROM threads AS t WHERE t.bucket = s.bucket AND t.thread_id = s.thread_id AND t.metadata @> $8 OFFSET 0)",
        );
    }
    if !filter.words.is_empty() {
        matches.push("s.title ILIKE ALL ($12)");
    }
    if filter.failed {
        matches.push(FAILED);
    }
    let (found, read) = match matches.is_empty() {
        true => ("true".to_owned(), "$4 + 1".to_owned()),
        false => (matches.join(" AND "), MAX_SCANNED.to_string()),
    };
    format!(
        "WITH scanned AS MATERIALIZED (
             SELECT * FROM ({source}) AS l ORDER BY l.active_at DESC, l.thread_id DESC LIMIT {read}
         )
         , page AS (
             (SELECT s.*, true AS is_match FROM scanned AS s WHERE {found} ORDER BY s.active_at DESC, s.thread_id DESC LIMIT $4 + 1)
             UNION ALL
             -- The last thread that was read, when more than this page may follow.
             (SELECT s.*, false FROM scanned AS s WHERE (SELECT count(*) FROM scanned) >= {MAX_SCANNED}
              ORDER BY s.active_at, s.thread_id LIMIT 1)
         )
         SELECT s.thread_id AS listed_id, s.is_match, s.title, s.title_by, s.agent_id AS listed_agent, s.is_archived, s.version,
                (extract(epoch FROM s.active_at) * 1000000)::bigint AS active_us,
                t.thread_id, t.busy_policy, coalesce(t.metadata, '{{}}') AS metadata, t.message_count, t.hidden_count, t.last_number, t.head_position,
                t.agent_id, (extract(epoch FROM t.created_at) * 1000)::bigint AS created_ms,
                p.role, left(p.content, $11) AS preview, (extract(epoch FROM p.created_at) * 1000)::bigint AS last_ms,
                {FAILED} AS has_failed
         FROM page AS s
         LEFT JOIN LATERAL (
             SELECT t.* FROM threads AS t WHERE t.bucket = s.bucket AND t.thread_id = s.thread_id OFFSET 0
         ) AS t ON true
         LEFT JOIN LATERAL (
             SELECT m.role, m.content, m.created_at FROM messages AS m
             WHERE m.bucket = s.bucket AND m.thread_id = s.thread_id AND m.role IN ('user', 'assistant') AND m.content <> ''
               AND m.metadata -> 'synthetic' IS DISTINCT FROM 'true'
             ORDER BY m.position DESC LIMIT 1
         ) AS p ON true
         ORDER BY s.is_match DESC, s.active_at DESC, s.thread_id DESC"
    )
}

/// The pattern of `LIKE` for texts that contain this word.
fn contains(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
    format!("%{escaped}%")
}

/// A condition: a turn of the thread `s` has failed since its last message.
const FAILED: &str = "EXISTS (
    SELECT FROM failed_turns AS f
    WHERE f.bucket = s.bucket AND f.thread_id = s.thread_id
      AND f.failed_at > coalesce((SELECT m.created_at FROM messages AS m WHERE m.bucket = s.bucket AND m.thread_id = s.thread_id
                                  ORDER BY m.position DESC LIMIT 1), '-infinity')
    OFFSET 0)";

fn listed(row: &PgRow) -> Result<ListedThread, StoreError> {
    let is_stored = row.try_get::<Option<&str>, _>("thread_id")?.is_some();
    let preview = match row.try_get::<Option<String>, _>("preview")? {
        Some(text) => Some((role(row)?, text)),
        None => None,
    };
    Ok(ListedThread {
        thread: parse_column(row, "listed_id", ThreadId::parse)?,
        row: is_stored.then(|| thread_row(row)).transpose()?,
        listing: listing(row)?,
        preview,
        last_message_at: row.try_get::<Option<i64>, _>("last_ms")?.map(Timestamp),
        has_failed: row.try_get("has_failed")?,
    })
}
