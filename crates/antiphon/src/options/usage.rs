//! What calls of models have used and may use, and what tokens cost.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgGroup, Args, Subcommand};
use model::{BudgetName, PriceTable, Tenant, Timestamp};
use store::UsageGroup;

use super::operator::{Database, actor, tenant};
use crate::exit::ExitError;

#[derive(Debug, Clone, Args)]
pub(crate) struct UsageOptions {
    /// Start of the period, by the end of turns: a time in RFC 3339, or a day in UTC.
    #[arg(long, value_parser = moment)]
    pub(crate) from: Timestamp,
    /// End of the period, exclusive; without it, now.
    #[arg(long, value_parser = moment)]
    pub(crate) to: Option<Timestamp>,
    /// Grouping by any of day, agent, thread, user, model, kind, finish_reason, separated by commas; without it there is one sum.
    #[arg(long, default_value = "", value_parser = groups)]
    pub(crate) by: Groups,
    /// Whether to print comma-separated values.
    #[arg(long)]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) prices: Prices,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// By what usage is summed.
#[derive(Debug, Clone)]
pub(crate) struct Groups(pub(crate) Vec<UsageGroup>);

fn groups(names: &str) -> Result<Groups, String> {
    let wrong = |name| format!("{name} is none of day, agent, thread, user, model, kind, finish_reason");
    UsageGroup::list(names).map(Groups).map_err(wrong)
}

fn moment(text: &str) -> Result<Timestamp, String> {
    let moment = wire::parse_rfc3339(text).or_else(|| wire::parse_rfc3339(&format!("{text}T00:00:00Z")));
    moment.ok_or_else(|| "it must be a time like 2026-12-24T18:00:00Z, or a day".to_owned())
}

pub(super) const PRICES_HEADING: &str = "Prices and limits of turns";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = PRICES_HEADING)]
pub(crate) struct Prices {
    /// Path of a JSON file with token prices of models: a currency, and prices for a million tokens with the times from which they apply.
    /// Used for usage reports, for the budgets of workers, and for cost limits of turns; read at the start.
    #[arg(long, env = "ANTIPHON_PRICES_FILE")]
    prices_file: Option<PathBuf>,
}

impl Prices {
    /// # Errors
    /// The file cannot be read or makes no sense.
    pub(crate) fn read(&self) -> Result<Option<Arc<PriceTable>>, ExitError> {
        let Some(path) = &self.prices_file else { return Ok(None) };
        let wrong =
            |why: String| ExitError::Configuration(format!("ANTIPHON_PRICES_FILE {}: {why}", path.display()));
        let json = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let prices =
            PriceTable::parse(&json, wire::parse_rfc3339).map_err(|error| wrong(error.to_string()))?;
        Ok(Some(Arc::new(prices)))
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Budgets {
    #[command(subcommand)]
    pub(crate) command: BudgetsCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum BudgetsCommand {
    /// The budgets of a tenant, and how much of each is used.
    List(ListBudgets),
    /// Create a budget, or change the one of that name.
    Put(PutBudget),
    /// Delete a budget: the turns that waited for it can begin.
    Delete(DeleteBudget),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListBudgets {
    /// Tenant; the default one without it.
    #[arg(long, value_parser = tenant)]
    pub(crate) tenant: Option<Tenant>,
    #[command(flatten)]
    pub(crate) prices: Prices,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("limit").args(["tokens", "cost"]).required(true)))]
#[command(group(ArgGroup::new("scope").args(["agent", "user"])))]
pub(crate) struct PutBudget {
    /// Name, unique within its tenant: at most 128 letters, digits, '_' and '-'.
    #[arg(value_parser = BudgetName::parse)]
    pub(crate) name: BudgetName,
    /// Maximum number of tokens that models read and write in a period.
    #[arg(long)]
    pub(crate) tokens: Option<u64>,
    /// Maximum cost of model calls in a period, in the currency of the prices.
    #[arg(long)]
    pub(crate) cost: Option<String>,
    /// Period: day or month.
    #[arg(long)]
    pub(crate) period: String,
    /// Time zone of the day or the month: a zone of the IANA database.
    #[arg(long, default_value = "UTC")]
    pub(crate) time_zone: String,
    /// Agent to which it applies; without --agent and --user it applies to the whole tenant.
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// User to which it applies: the `user_id` of threads.
    #[arg(long)]
    pub(crate) user: Option<String>,
    /// Tenant; the default one without it.
    #[arg(long, value_parser = tenant)]
    pub(crate) tenant: Option<Tenant>,
    /// Actor in the audit log.
    #[arg(long, default_value = "cli", value_parser = actor)]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) prices: Prices,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteBudget {
    /// Name of the budget.
    #[arg(value_parser = BudgetName::parse)]
    pub(crate) name: BudgetName,
    /// Tenant; the default one without it.
    #[arg(long, value_parser = tenant)]
    pub(crate) tenant: Option<Tenant>,
    /// Actor in the audit log.
    #[arg(long, default_value = "cli", value_parser = actor)]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) database: Database,
}
