//! Forgetting the ids of old tasks, so that their table does not grow for ever.

use std::time::Duration;

use store::Store;
use tokio_util::sync::CancellationToken;

/// Between two rounds. Every worker does it: it is little, and nobody has to be in charge.
const EVERY: Duration = Duration::from_secs(600);
/// Ids of one statement.
const MOST: u32 = 5_000;

/// Forgets what has outlived its seven days, until `stop`.
pub(crate) async fn forget_old(store: Store, stop: CancellationToken) {
    loop {
        // Workers that were started together do not come together.
        let pause = EVERY.mul_f64(rand::random_range(0.5..=1.0));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        while !stop.is_cancelled() {
            match store.purge_task_ids(MOST).await {
                Ok(forgotten) if forgotten == u64::from(MOST) => {}
                Ok(_) => break,
                // Made up for by the next round.
                Err(error) => {
                    tracing::debug!(%error, "the ids of old tasks were not forgotten");
                    break;
                }
            }
        }
    }
}
