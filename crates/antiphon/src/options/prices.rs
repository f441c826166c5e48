//! The option for token prices of models.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use model::PriceTable;

use crate::exit::ExitError;

pub(super) const PRICES_HEADING: &str = "Prices and limits of turns";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = PRICES_HEADING)]
pub(crate) struct Prices {
    /// What tokens of models cost, in JSON: a currency, and prices for a million tokens with the
    /// times from which they count. For reports of usage, for the budgets that workers keep, and
    /// for the costs that workflow services bound in a turn. Read at the start.
    #[arg(long, env = "ANTIPHON_PRICES_FILE")]
    prices_file: Option<PathBuf>,
}

impl Prices {
    /// # Errors
    /// The file cannot be read or is invalid.
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
