//! Counting what has been used into the budgets, so that a question reads the ledger of the last minute or two only.

use std::time::Duration;

use store::Store;
use tokio_util::sync::CancellationToken;

/// Between two rounds. Every worker does it: where another one has just done it, there is nothing to do.
const EVERY: Duration = Duration::from_secs(30);

/// Counts until `stop`.
pub(crate) async fn count_budgets(store: Store, stop: CancellationToken) {
    let mut is_behind = false;
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
        is_behind = match store.count_budgets(None).await {
            Ok(behind) => behind > 0 && !stop.is_cancelled(),
            // Made up for by the next round; until then a question reads more.
            Err(error) => {
                tracing::debug!(%error, "what has been used was not counted into the budgets");
                false
            }
        };
    }
}
