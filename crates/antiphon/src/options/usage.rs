//! What calls of models have used, and what tokens cost.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use model::Timestamp;
use store::{PriceTable, UsageGroup};

use super::operator::Database;
use crate::exit::ExitError;

#[derive(Debug, Clone, Args)]
pub(crate) struct UsageOptions {
    /// Turns that ended then or later: a time in RFC 3339, or a day in UTC.
    #[arg(long, value_parser = moment)]
    pub(crate) from: Timestamp,
    /// Turns that ended before; without it, until now.
    #[arg(long, value_parser = moment)]
    pub(crate) to: Option<Timestamp>,
    /// Any of day, agent, thread, user, model, kind, with commas between them; without it all is one sum.
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
    let wrong = |name| format!("{name} is none of day, agent, thread, user, model, kind");
    UsageGroup::list(names).map(Groups).map_err(wrong)
}

fn moment(text: &str) -> Result<Timestamp, String> {
    let moment = wire::parse_rfc3339(text).or_else(|| wire::parse_rfc3339(&format!("{text}T00:00:00Z")));
    moment.ok_or_else(|| "it must be a time like 2026-12-24T18:00:00Z, or a day".to_owned())
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Prices {
    /// What tokens of models cost, in JSON: a currency, and prices for a million tokens with the times from which they count. Read at the
    /// start.
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
