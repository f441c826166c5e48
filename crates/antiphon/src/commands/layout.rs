//! `antiphon migrate --check`: whether the tables are those that this build needs.

use store::{Layout, Store};

use crate::exit::ExitError;
use crate::options::Migrate;

/// Changes nothing, and needs only Postgres.
///
/// # Errors
/// A migration is missing, differs or is newer.
pub(super) async fn check(store: &Store, options: &Migrate) -> Result<(), ExitError> {
    let missing =
        |what: String| Err(ExitError::Failed(format!("{what}: run `antiphon migrate` of this version")));
    match store.layout().await? {
        Layout::Nothing => return missing("the database is not laid out yet".to_owned()),
        Layout::Lacks(migration) => return missing(format!("the database lacks migration {migration}")),
        Layout::Differs(migration) => {
            return Err(ExitError::Failed(format!(
                "the database was laid out by another build (migration {migration} differs): it needs a new database"
            )));
        }
        Layout::Enough => {}
    }
    if store.partition_count().await?.is_none() {
        return missing(
            "the number of partitions is not fixed: a migration has not come to its end".to_owned(),
        );
    }
    store.check_partition_count(options.partitions).await?;
    match store.newest_unknown_migration().await? {
        Some(migration) => Err(ExitError::Failed(format!(
            "the database is newer: it has migration {migration}, which this version does not know; this version goes on beside the newer one"
        ))),
        None => {
            tracing::info!("the tables are those that this version needs");
            Ok(())
        }
    }
}
