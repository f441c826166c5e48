//! Adds usage to the budgets in the background, so that a query reads only the last minute or two
//! of the ledger.

use std::time::Duration;

use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::refusals::{Refusals, RefusedItem, note_item, parts_unless_away};

/// Interval between two rounds. Every worker runs them; a round right after that of another worker
/// finds nothing to do.
const EVERY: Duration = Duration::from_secs(30);

/// Maximum number of tenants in one statement, which compares each call with each of them.
const TENANTS: usize = 32;

/// Counts until `stop`.
pub(crate) async fn count_budgets(store: Store, refusals: Refusals, stop: CancellationToken) {
    let (mut is_behind, mut refused) = (false, None);
    loop {
        // Spreads the rounds of workers that were started at the same time.
        let pause = EVERY.mul_f64(rand::random_range(0.5..=1.0));
        if !is_behind {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
        // For a new budget, a whole month may have to be counted, one part at a time.
        let counted = count(&store).await;
        refusals.of_round(&mut refused, "counting budgets", &counted);
        is_behind = match counted {
            Ok(behind) => behind > 0 && !stop.is_cancelled(),
            // The next round makes up for it; until then a query reads more of the ledger.
            Err(error) => {
                tracing::debug!(%error, "what has been used was not counted into the budgets");
                false
            }
        };
    }
}

/// Number of budgets with more to count. If the store refuses one tenant's budgets, the others are
/// still counted; queries then read more of the ledger for that tenant only.
async fn count(store: &Store) -> Result<u64, StoreError> {
    let tenants = store.budgeted_tenants().await?;
    let mut behind = 0;
    for some in tenants.chunks(TENANTS) {
        for (part, counted) in parts_unless_away(some, |part| store.count_budgets(Some(part))).await? {
            match counted {
                Ok(more) => behind += more,
                Err(error) => part.iter().for_each(|tenant| note_item(RefusedItem::Budgets, tenant, &error)),
            }
        }
    }
    Ok(behind)
}
