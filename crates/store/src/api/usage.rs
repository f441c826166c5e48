//! The ledger of what the calls of models have used, in sums.

use model::{Price, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::error::StoreError;
use crate::statement::Statement;
use crate::store::Store;

/// By what calls are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageGroup {
    /// The day in UTC on which the turn ended.
    Day,
    /// Whose workflow made the call.
    Agent,
    /// The thread.
    Thread,
    /// `user_id` in the metadata of the thread.
    User,
    /// The model.
    Model,
    /// For what the call was made: [`model::UsageKind`].
    Kind,
    /// Why the answer ended: [`model::FinishReason`].
    FinishReason,
}

impl UsageGroup {
    /// All of them, in the order of [`UsageSum::of`].
    pub const ALL: [Self; 7] =
        [Self::Day, Self::Agent, Self::Thread, Self::User, Self::Model, Self::Kind, Self::FinishReason];

    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Agent => "agent",
            Self::Thread => "thread",
            Self::User => "user",
            Self::Model => "model",
            Self::Kind => "kind",
            Self::FinishReason => "finish_reason",
        }
    }

    /// Those of a list with commas between the names.
    ///
    /// # Errors
    /// The name that is none of them.
    pub fn list(names: &str) -> Result<Vec<Self>, String> {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let known = |name: &str| Self::ALL.into_iter().find(|group| group.name() == name);
        names.map(|name| known(name).ok_or_else(|| name.to_owned())).collect()
    }

    fn column(self) -> &'static str {
        match self {
            Self::Day => "to_char(u.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
            Self::Agent => "u.agent_id",
            Self::Thread => "u.thread_id",
            Self::User => "t.metadata ->> 'user_id'",
            Self::Model => "u.model",
            Self::Kind => "u.kind",
            Self::FinishReason => "u.finish_reason",
        }
    }
}

/// What the calls of one group have used together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageSum {
    /// The group, a part for each of [`UsageGroup::ALL`]; `None`: not asked for, or not known.
    pub of: [Option<String>; 7],
    /// How many calls.
    pub calls: i64,
    /// How many of them belong to answers that did not come to their end.
    pub partial_calls: i64,
    /// How many of them the provider has not counted, so that their tokens are estimates.
    pub estimated_calls: i64,
    /// Tokens that were read.
    pub input_tokens: i64,
    /// Tokens that were written.
    pub output_tokens: i64,
    /// How many of the input came from a cache, as far as it was said.
    pub cached_tokens: i64,
    /// How many of the output are reasoning, as far as it was said.
    pub reasoning_tokens: i64,
    /// How many calls are of models without a price at their time.
    pub unpriced_calls: i64,
    /// What the others cost together, exactly, as a decimal number; `None`: there are no others.
    pub cost: Option<String>,
}

impl Store {
    /// The sums of the calls of turns that ended from `from` on and before `to`, at most `limit` of them, in the order of their groups. Costs
    /// are reckoned by the prices of [`Store::with_prices`]. Calls before [`Store::usage_details_from`] count as of the start of their day, and
    /// belong to no thread and user. Of a tenant's handle they are those of the tenant, also where row-level security does not apply.
    pub async fn usage(
        &self,
        from: Timestamp,
        to: Timestamp,
        by: &[UsageGroup],
        limit: u32,
    ) -> Result<Vec<UsageSum>, StoreError> {
        let columns =
            UsageGroup::ALL.map(|group| if by.contains(&group) { group.column() } else { "NULL::text" });
        let groups =
            UsageGroup::ALL.map(|group| format!("{} AS of_{}", columns[group as usize], group.name()));
        let sql = include_str!("usage/sums.sql").replace("{groups}", &groups.join(", "));
        let prices = self.prices().map_or(&[][..], |table| &table.prices);
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(from.0).bind(to.0).bind(i64::from(limit));
        let statement = bind_prices(statement, prices).bind(self.tenant_setting());
        self.rows(statement).await?.iter().map(usage_sum).collect()
    }

    /// The first day in UTC, like `2026-12-24`, after all those of which only sums are kept; `None`: there are none.
    pub async fn usage_details_from(&self) -> Result<Option<String>, StoreError> {
        let statement = sqlx::query(
            "SELECT to_char(max(day_at) AT TIME ZONE 'UTC' + interval '1 day', 'YYYY-MM-DD') AS day
             FROM usage_days WHERE $1::text IS NULL OR tenant = $1",
        );
        let rows = self.rows(statement.bind(self.tenant_setting())).await?;
        Ok(rows.first().map(|row| row.try_get("day")).transpose()?.flatten())
    }
}

/// Binds prices as five arrays: model, from when on, input, cached input, output.
pub(crate) fn bind_prices(statement: Statement, prices: &[Price]) -> Statement {
    let amounts = |amount: fn(&Price) -> f64| -> Vec<String> {
        prices.iter().map(|price| amount(price).to_string()).collect()
    };
    statement
        .bind(prices.iter().map(|price| price.model.clone()).collect::<Vec<_>>())
        .bind(prices.iter().map(|price| price.from.as_deref().map(starts)).collect::<Vec<_>>())
        .bind(amounts(|price| price.input))
        .bind(amounts(|price| price.cached_input.unwrap_or(price.input)))
        .bind(amounts(|price| price.output))
}

/// A day begins in UTC.
fn starts(from: &str) -> String {
    if from.len() > "2026-12-24".len() { from.to_owned() } else { format!("{from}T00:00:00Z") }
}

fn usage_sum(row: &PgRow) -> Result<UsageSum, StoreError> {
    let mut of = [const { None }; 7];
    for (place, part) in of.iter_mut().enumerate() {
        *part = row.try_get(place)?;
    }
    Ok(UsageSum {
        of,
        calls: row.try_get("calls")?,
        partial_calls: row.try_get("partial_calls")?,
        estimated_calls: row.try_get("estimated_calls")?,
        input_tokens: row.try_get("input_tokens")?,
        output_tokens: row.try_get("output_tokens")?,
        cached_tokens: row.try_get("cached_tokens")?,
        reasoning_tokens: row.try_get("reasoning_tokens")?,
        unpriced_calls: row.try_get("unpriced_calls")?,
        cost: row.try_get("cost")?,
    })
}
