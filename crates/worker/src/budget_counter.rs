//! Counting what has been used into the budgets, so that a question reads the ledger of the last minute or two only.

use std::time::Duration;

use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::refusals::{Refusals, RefusedItem, note_item, parts_unless_away};

/// Between two rounds. Every worker does it: where another one has just done it, there is nothing to do.
const EVERY: Duration = Duration::from_secs(30);

/// Tenants of one statement, which compares each call with each of them.
const TENANTS: usize = 32;

/// Counts until `stop`.
pub(crate) async fn count_budgets(store: Store, refusals: Refusals, stop: CancellationToken) {
    let (mut is_behind, mut refused) = (false, None);
    loop {
        // Workers that were started together do not come together.
        let pause = EVERY.mul_f64(rand::random_range(0.5..=1.0));
        if !is_behind {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
        // A budget that was put lately may have a whole month to be counted, a part at a time.
        let counted = count(&store).await;
        refusals.of_round(&mut refused, "counting budgets", &counted);
        is_behind = match counted {
            Ok(behind) => behind > 0 && !stop.is_cancelled(),
            // Made up for by the next round; until then a question reads more.
            Err(error) => {
                tracing::debug!(%error, "what has been used was not counted into the budgets");
                false
            }
        };
    }
}

/// How many budgets have more to be counted. A tenant whose budgets the store refuses to count keeps those of no other from being counted: a query
/// then reads more of the ledger for that one alone.
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
