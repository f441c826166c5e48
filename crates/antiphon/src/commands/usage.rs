//! What the calls of models have used.

use std::io::{self, Write};

use gateway::UsageReport;
use store::Store;

use crate::exit::ExitError;
use crate::options::UsageOptions;
use crate::output::{self, Table, cell};

/// Prints the sums of a time.
///
/// # Errors
/// They cannot be read, or are too many.
pub(super) async fn sums(store: &Store, options: &UsageOptions) -> Result<(), ExitError> {
    let store = store.with_prices(options.prices.read()?);
    let to = match options.to {
        Some(to) => to,
        None => store.database_time().await?,
    };
    let report = UsageReport::read(&store, options.from, to, &options.by.0).await?;
    let report = report.ok_or_else(|| ExitError::Failed(UsageReport::TOO_MANY.to_owned()))?;
    if options.csv {
        let mut out = io::stdout().lock();
        let written = out.write_all(report.to_csv().as_bytes()).and_then(|()| out.flush());
        return written.map_err(|error| output::write_error(&error));
    }
    let json = output::json(&report);
    output::print(options.database.format, &json, || {
        if let Some(day) = json["details_from"].as_str() {
            output::eprint_line(&format!(
                "of days before {day} only sums are kept, without threads and users"
            ));
        }
        let mut table = Table::new([
            "DAY",
            "AGENT",
            "THREAD",
            "USER",
            "MODEL",
            "KIND",
            "FINISH",
            "CALLS",
            "ESTIMATED",
            "INPUT",
            "CACHED",
            "OUTPUT",
            "COST",
            "UNPRICED",
        ]);
        let columns = [
            "day",
            "agent_id",
            "thread_id",
            "user_id",
            "model",
            "kind",
            "finish_reason",
            "calls",
            "estimated_calls",
            "input_tokens",
            "cached_tokens",
            "output_tokens",
            "cost",
            "unpriced_calls",
        ];
        for usage in json["usage"].as_array().into_iter().flatten() {
            table.row(columns.map(|column| cell(&usage[column])));
        }
        table
    })
}
