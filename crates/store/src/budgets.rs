//! Budgets: limits, usage, and the check that keeps turns over budget from beginning.
//!
//! A commit of a turn writes nothing here. The usage of a budget is a stored total up to some
//! seconds ago plus the sum of later calls in the ledger. So the cost of a query does not depend on
//! the usage in the period.

use std::time::Duration;

use model::{AgentId, Bucket, BudgetName, CommandId, TENANT_MARK, Tenant, ThreadId, Timestamp};
use scheduling::Zone;
use scheduling::budget::{BudgetPeriod, BudgetUnit, BudgetVerdict, decide_budget};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::api::bind_prices;
use crate::error::StoreError;
use crate::row::{column_error, count, interval, parse_column, unsigned};
use crate::statement::Statement;
use crate::store::Store;

/// Maximum number of budgets per tenant.
pub const MOST_BUDGETS: i64 = 1_000;
/// Ledger rows older than this are visible to every transaction, because the statements that wrote
/// them have ended.
const VISIBLE_AFTER: Duration = Duration::from_secs(30);
/// The longest part of the ledger that one statement reads.
const COUNTED_AT_ONCE: Duration = Duration::from_secs(6 * 3_600);
/// Maximum number of budgets whose period one statement renews.
const ENDED_AT_ONCE: i64 = 1_000;
/// Maximum attempts to renew budgets whose periods have ended. Another process may renew them at
/// the same time, or the new period may end meanwhile.
const RENEWALS: usize = 3;

const COLUMNS: &str = "trim_scale(c.max_amount)::text AS limit_text,
       (c.spent + s.amount)::text AS spent_text,
       (c.unpriced_calls + s.unpriced_calls)::bigint AS unpriced,
       floor(extract(epoch FROM c.period_start) * 1000)::bigint AS starts_ms,
       floor(extract(epoch FROM c.period_end) * 1000)::bigint AS ends_ms,
       floor(extract(epoch FROM c.created_at) * 1000)::bigint AS created_ms,
       floor(extract(epoch FROM c.updated_at) * 1000)::bigint AS updated_ms,
       floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms";

/// The calls that a budget counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetScope {
    Tenant,
    /// Calls of the agent and of the background work after its turns.
    Agent(AgentId),
    /// Calls in threads with this `user_id`.
    User(String),
}

impl BudgetScope {
    /// `tenant`, `agent` or `user`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Agent(_) => "agent",
            Self::User(_) => "user",
        }
    }

    /// The scope as stored in the table.
    fn text(&self) -> String {
        match self {
            Self::Tenant => "tenant".to_owned(),
            Self::Agent(agent) => format!("agent:{agent}"),
            Self::User(user) => format!("user:{user}"),
        }
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text.split_once(':') {
            None if text == "tenant" => Ok(Self::Tenant),
            Some(("agent", agent)) => AgentId::parse(agent).map(Self::Agent).map_err(|_| "no id of an agent"),
            Some(("user", user)) => Ok(Self::User(user.to_owned())),
            _ => Err("no such scope"),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    pub scope: BudgetScope,
    pub unit: BudgetUnit,
    /// The limit, in the smallest part of the unit.
    pub limit: u64,
    pub period: BudgetPeriod,
    /// The time zone in which a day or a month begins.
    pub zone: Zone,
}

/// A stored budget and its usage.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetRow {
    pub name: BudgetName,
    pub budget: Budget,
    /// In the smallest part of the unit.
    pub spent: u64,
    /// Calls of models without a price, which `spent` does not include; 0 for a budget in tokens.
    pub unpriced_calls: u64,
    pub period_start: Timestamp,
    /// The start of the next period.
    pub period_end: Timestamp,
    /// Starts at 1; each change increments it.
    pub version: u64,
    /// When the budget was first put (database clock).
    pub created_at: Timestamp,
    /// When the budget was last put (database clock).
    pub updated_at: Timestamp,
    read_at: Timestamp,
    tenant: String,
}

/// The exhausted budget that prevents a turn from beginning. If several are exhausted, this is the
/// one whose period ends last.
#[derive(Debug, Clone, PartialEq)]
pub struct OverBudget {
    pub row: BudgetRow,
    /// Time left in the period of the budget, in ms by the database clock; at least 1.
    pub for_ms: i64,
}

impl BudgetRow {
    fn over(self) -> Option<OverBudget> {
        let for_ms = self.period_end.since_ms(self.read_at).max(1);
        match decide_budget(self.budget.limit, self.spent) {
            BudgetVerdict::Within(_) => None,
            BudgetVerdict::Spent => Some(OverBudget { row: self, for_ms }),
        }
    }

    fn is_over_since(&self) -> bool {
        self.period_end <= self.read_at
    }
}

/// The subject of a budget in [`Store::control_log`]; no agent or thread can have this name.
pub fn budget_subject(tenant: Option<&Tenant>, name: &BudgetName) -> String {
    tenant.map_or(format!("{name}+budget"), |tenant| format!("{tenant}{TENANT_MARK}{name}+budget"))
}

fn tenant_text(tenant: Option<&Tenant>) -> String {
    tenant.map_or("-".to_owned(), Tenant::to_string)
}

fn bucket(subject: &str) -> i16 {
    Bucket::of_key(subject).get() as i16
}

impl Store {
    /// Creates or replaces a budget. Unless only the limit changes, the usage is counted again from
    /// the ledger. Returns `false` if the tenant has [`MOST_BUDGETS`] others.
    pub async fn put_budget(
        &self,
        tenant: Option<&Tenant>,
        name: &BudgetName,
        budget: &Budget,
        command: &CommandId,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let now = self.database_time().await?;
        let (starts, ends) = budget.period.around(&budget.zone, now);
        let subject = budget_subject(tenant, name);
        let statement = sqlx::query(include_str!("budgets/put.sql"))
            .bind(tenant_text(tenant))
            .bind(name.as_str())
            .bind(budget.scope.text())
            .bind(budget.unit.name())
            .bind(budget.unit.show(budget.limit))
            .bind(budget.period.name())
            .bind(budget.zone.name().to_owned())
            .bind(starts.0)
            .bind(ends.0)
            .bind(MOST_BUDGETS)
            .bind(bucket(&subject))
            .bind(subject)
            .bind(command.as_str())
            .bind(actor.to_owned());
        if count(&self.rows(statement).await?)? == 0 {
            return Ok(false);
        }
        // Counts the ledger in parts. If this loop stops early, workers count the rest.
        let counting = self.wide();
        loop {
            match counting.count_usage(Some(&[tenant_text(tenant)]), Some(name)).await {
                Ok(0) | Err(StoreError::Busy) => return Ok(true),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes a budget, so that turns it blocked may begin. Returns false if there is no budget
    /// with this name.
    pub async fn delete_budget(
        &self,
        tenant: Option<&Tenant>,
        name: &BudgetName,
        command: &CommandId,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let subject = budget_subject(tenant, name);
        let statement = sqlx::query(include_str!("budgets/delete.sql"))
            .bind(tenant_text(tenant))
            .bind(name.as_str())
            .bind(bucket(&subject))
            .bind(subject)
            .bind(command.as_str())
            .bind(actor.to_owned());
        Ok(count(&self.rows(statement).await?)? > 0)
    }

    /// Reads a budget and its usage.
    pub async fn budget(
        &self,
        tenant: Option<&Tenant>,
        name: &BudgetName,
    ) -> Result<Option<BudgetRow>, StoreError> {
        let rows = self.budget_page(tenant, Some(name), None, 1).await?;
        Ok(rows.into_iter().next())
    }

    /// Lists at most `limit` budgets of a tenant after `after`, ordered by name.
    pub async fn budgets(
        &self,
        tenant: Option<&Tenant>,
        after: Option<&BudgetName>,
        limit: u32,
    ) -> Result<Vec<BudgetRow>, StoreError> {
        self.budget_page(tenant, None, after, limit).await
    }

    async fn budget_page(
        &self,
        tenant: Option<&Tenant>,
        name: Option<&BudgetName>,
        after: Option<&BudgetName>,
        limit: u32,
    ) -> Result<Vec<BudgetRow>, StoreError> {
        let rows = self
            .renewed(|| {
                self.summed(include_str!("budgets/page.sql"))
                    .bind(tenant_text(tenant))
                    .bind(name.map(BudgetName::to_string))
                    .bind(after.map(BudgetName::to_string).unwrap_or_default())
                    .bind(i64::from(limit))
            })
            .await?;
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    /// For each of these turns, given by thread, agent and user, the budget that prevents it from
    /// beginning. The user counts if the thread has none.
    pub async fn over_budget(
        &self,
        turns: &[(&ThreadId, &AgentId, Option<&str>)],
    ) -> Result<Vec<Option<OverBudget>>, StoreError> {
        let mut found: Vec<Option<OverBudget>> = vec![None; turns.len()];
        let rows = self
            .renewed(|| {
                let buckets: Vec<_> = turns.iter().map(|(thread, ..)| bucket(thread.as_str())).collect();
                let threads: Vec<_> = turns.iter().map(|(thread, ..)| thread.to_string()).collect();
                let agents: Vec<_> = turns.iter().map(|(_, agent, _)| agent.to_string()).collect();
                let users: Vec<_> = turns.iter().map(|(.., user)| user.map(str::to_owned)).collect();
                let statement = self.summed(include_str!("budgets/of_turns.sql")).bind(buckets);
                statement.bind(threads).bind(agents).bind(users)
            })
            .await?;
        for (place, row) in rows {
            let (Some(over), Some(found)) = (row.over(), found.get_mut(place)) else { continue };
            if found.as_ref().is_none_or(|other| other.row.period_end < over.row.period_end) {
                *found = Some(over);
            }
        }
        Ok(found)
    }

    /// Renews budgets whose period has ended, adds recent usage to the totals, and returns how many
    /// budgets are not fully counted yet. `tenants` has names as in [`Store::budgeted_tenants`];
    /// `None`: all. Any number of processes may call this.
    ///
    /// Without these calls, a period could begin only when its budget is read. That one statement
    /// would have to count the whole period.
    pub async fn count_budgets(&self, tenants: Option<&[String]>) -> Result<u64, StoreError> {
        let begun = self.start_ended_periods(tenants).await;
        let behind = self.count_usage(tenants, None).await?;
        begun.map(|()| behind)
    }

    /// The tenants that have budgets, as named in the table: `-` is the default one.
    pub async fn budgeted_tenants(&self) -> Result<Vec<String>, StoreError> {
        let rows = self.rows(sqlx::query("SELECT DISTINCT tenant FROM budgets ORDER BY tenant")).await?;
        rows.iter().map(|row| Ok(row.try_get("tenant")?)).collect()
    }

    async fn start_ended_periods(&self, tenants: Option<&[String]>) -> Result<(), StoreError> {
        let statement = sqlx::query(include_str!("budgets/ended.sql")).bind(ENDED_AT_ONCE);
        let ended = self.rows(statement.bind(tenants.map(<[String]>::to_vec))).await?;
        let ended = ended.iter().map(EndedPeriod::of_row).collect::<Result<Vec<_>, _>>()?;
        if ended.is_empty() { Ok(()) } else { self.start_periods(ended).await }
    }

    async fn count_usage(
        &self,
        tenants: Option<&[String]>,
        name: Option<&BudgetName>,
    ) -> Result<u64, StoreError> {
        let statement = self
            .summed(include_str!("budgets/count.sql"))
            .bind(interval(VISIBLE_AFTER))
            .bind(interval(COUNTED_AT_ONCE))
            .bind(tenants.map(<[String]>::to_vec))
            .bind(name.map(BudgetName::to_string));
        count(&self.rows(statement).await?)
    }

    /// A statement about budgets, with the sums of the ledger and the prices bound.
    fn summed(&self, sql: &str) -> Statement {
        let sql = sql.replace("{sums}", include_str!("budgets/sums.sql")).replace("{columns}", COLUMNS);
        let prices = self.prices().map_or(&[][..], |table| &table.prices);
        bind_prices(sqlx::query(AssertSqlSafe(sql)), prices)
    }

    /// Reads budgets, each with the index of the turn that it applies to. If the period of a budget
    /// has ended, renews it and then reads all budgets again.
    async fn renewed(
        &self,
        statement: impl Fn() -> Statement,
    ) -> Result<Vec<(usize, BudgetRow)>, StoreError> {
        let mut rows = self.budget_rows(statement()).await?;
        for _ in 0..RENEWALS {
            let ended = rows.iter().map(|(_, row)| row).filter(|row| row.is_over_since());
            let ended: Vec<_> = ended.map(EndedPeriod::of).collect();
            if ended.is_empty() {
                break;
            }
            self.start_periods(ended).await?;
            rows = self.budget_rows(statement()).await?;
        }
        Ok(rows)
    }

    async fn budget_rows(&self, statement: Statement) -> Result<Vec<(usize, BudgetRow)>, StoreError> {
        let place = |row: &PgRow| -> Result<usize, StoreError> {
            usize::try_from(row.try_get::<i64, _>("place")? - 1)
                .map_err(|error| column_error("place", &error))
        };
        self.rows(statement).await?.iter().map(|row| Ok((place(row)?, budget_row(row)?))).collect()
    }

    async fn start_periods(&self, mut ended: Vec<EndedPeriod>) -> Result<(), StoreError> {
        // A fixed order prevents deadlocks between processes: rows are locked in the order of the
        // arrays.
        ended.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
        ended.dedup_by(|a, b| (&a.tenant, &a.name) == (&b.tenant, &b.name));
        let periods: Vec<_> = ended.iter().map(|row| row.period.around(&row.zone, row.read_at)).collect();
        let statement = sqlx::query(include_str!("budgets/renew.sql"))
            .bind(ended.iter().map(|row| row.tenant.clone()).collect::<Vec<_>>())
            .bind(ended.iter().map(|row| row.name.clone()).collect::<Vec<_>>())
            .bind(ended.iter().map(|row| row.version).collect::<Vec<_>>())
            .bind(ended.iter().map(|row| row.period_end.0).collect::<Vec<_>>())
            .bind(periods.iter().map(|(starts, _)| starts.0).collect::<Vec<_>>())
            .bind(periods.iter().map(|(_, ends)| ends.0).collect::<Vec<_>>());
        self.rows(statement).await.map(drop)
    }
}

struct EndedPeriod {
    tenant: String,
    name: String,
    version: i64,
    period: BudgetPeriod,
    zone: Zone,
    period_end: Timestamp,
    read_at: Timestamp,
}

impl EndedPeriod {
    fn of(row: &BudgetRow) -> Self {
        Self {
            tenant: row.tenant.clone(),
            name: row.name.to_string(),
            version: row.version.cast_signed(),
            period: row.budget.period,
            zone: row.budget.zone.clone(),
            period_end: row.period_end,
            read_at: row.read_at,
        }
    }

    fn of_row(row: &PgRow) -> Result<Self, StoreError> {
        Ok(Self {
            tenant: row.try_get("tenant")?,
            name: row.try_get("name")?,
            version: row.try_get("version")?,
            period: period_of(row)?,
            zone: zone_of(row)?,
            period_end: Timestamp(row.try_get("ends_ms")?),
            read_at: Timestamp(row.try_get("now_ms")?),
        })
    }
}

fn period_of(row: &PgRow) -> Result<BudgetPeriod, StoreError> {
    parse_column(row, "period", |name| BudgetPeriod::from_name(name).ok_or("no such period"))
}

/// The time zone of a budget. UTC if the time zone database no longer has the stored zone, so that
/// turns continue.
fn zone_of(row: &PgRow) -> Result<Zone, StoreError> {
    Ok(Zone::named(row.try_get("time_zone")?).unwrap_or(Zone::UTC))
}

fn budget_row(row: &PgRow) -> Result<BudgetRow, StoreError> {
    let moment = |column: &str| -> Result<Timestamp, StoreError> { Ok(Timestamp(row.try_get(column)?)) };
    let unit = parse_column(row, "unit", |name| BudgetUnit::from_name(name).ok_or("no such unit"))?;
    let amount = |column: &str| parse_column(row, column, |text| unit.floor(text).ok_or("no amount"));
    Ok(BudgetRow {
        name: parse_column(row, "name", BudgetName::parse)?,
        budget: Budget {
            scope: parse_column(row, "scope", BudgetScope::parse)?,
            unit,
            limit: amount("limit_text")?,
            period: period_of(row)?,
            zone: zone_of(row)?,
        },
        spent: amount("spent_text")?,
        unpriced_calls: unsigned(row, "unpriced")?,
        period_start: moment("starts_ms")?,
        period_end: moment("ends_ms")?,
        version: unsigned(row, "version")?,
        created_at: moment("created_ms")?,
        updated_at: moment("updated_ms")?,
        read_at: moment("now_ms")?,
        tenant: row.try_get("tenant")?,
    })
}
