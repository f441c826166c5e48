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
    /// Turns that ended then or later: a time in RFC 3339, or a day in UTC.
    #[arg(long, value_parser = moment)]
    pub(crate) from: Timestamp,
    /// Turns that ended before; without it, until now.
    #[arg(long, value_parser = moment)]
    pub(crate) to: Option<Timestamp>,
    /// Any of day, agent, thread, user, model, kind, finish_reason, with commas between them; without it all is one sum.
    #[arg(long, default_value = "", value_parser = groups)]
    pub(crate) by: Groups,
    /// Lines of comma-separated values instead.
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
    /// What tokens of models cost, in JSON: a currency, and prices for a million tokens with the times from which they count. For reports of
    /// usage, for the budgets that workers keep, and for the costs that workflow services bound in a turn. Read at the start.
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
    /// The budgets of a tenant, and what has been used of each.
    List(ListBudgets),
    /// Make a budget, or change the one of that name.
    Put(PutBudget),
    /// Delete a budget: what it has kept from beginning may begin.
    Delete(DeleteBudget),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListBudgets {
    /// Whose; the default tenant's without it.
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
    /// Its name, unique within its tenant: at most 128 letters, digits, '_' and '-'.
    #[arg(value_parser = BudgetName::parse)]
    pub(crate) name: BudgetName,
    /// Tokens that models may read and write in a period.
    #[arg(long)]
    pub(crate) tokens: Option<u64>,
    /// What calls of models may cost in a period, in the currency of the prices.
    #[arg(long)]
    pub(crate) cost: Option<String>,
    /// day or month.
    #[arg(long)]
    pub(crate) period: String,
    /// Where the day or the month begins: a zone of the IANA database.
    #[arg(long, default_value = "UTC")]
    pub(crate) time_zone: String,
    /// Of this agent alone; of the whole tenant without --agent and --user.
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Of this `user_id` of threads alone.
    #[arg(long)]
    pub(crate) user: Option<String>,
    /// Whose; the default tenant's without it.
    #[arg(long, value_parser = tenant)]
    pub(crate) tenant: Option<Tenant>,
    /// Who does it, for the audit.
    #[arg(long, default_value = "cli", value_parser = actor)]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) prices: Prices,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteBudget {
    /// Which.
    #[arg(value_parser = BudgetName::parse)]
    pub(crate) name: BudgetName,
    /// Whose; the default tenant's without it.
    #[arg(long, value_parser = tenant)]
    pub(crate) tenant: Option<Tenant>,
    /// Who does it, for the audit.
    #[arg(long, default_value = "cli", value_parser = actor)]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) database: Database,
}
