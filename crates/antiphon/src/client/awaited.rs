//! Waits for the end of an operation that a call has begun.

use std::time::Duration;

use reqwest::Client;
use reqwest::header::LOCATION;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::arguments::Call;
use super::request::{ApiAnswer, answer_of, read, send};
use super::show;
use crate::exit::ExitError;
use crate::output::{self, cell};

/// Interval at which its state is read.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Sends the call, waits at most `wait` for the operation that it begins to end, and prints its
/// final state.
///
/// # Errors
/// The API refuses the call, or the operation has not ended well in time.
pub(super) async fn run(client: &Client, call: &Call, wait: Duration) -> Result<(), ExitError> {
    let response = send(client, call, &call.query).await?;
    if !call.is_confirmed {
        output::eprint_line("nothing is changed; --yes does it");
    }
    let place = response.headers().get(LOCATION).and_then(|place| place.to_str().ok()).map(str::to_owned);
    let place = place
        .ok_or_else(|| ExitError::Failed("the answer does not say where to read the outcome".to_owned()))?;
    let (mut begun, give_up_at) = (json(answer_of(call, response).await?)?, Instant::now() + wait);
    let look = call.to_place(&place);
    let mut unread = None;
    while !is_ended(&begun) && Instant::now() < give_up_at {
        sleep(LOOK_INTERVAL).await;
        // The operation goes on while the API cannot be read, so a failed read does not end the
        // wait.
        match read(client, &look, &[]).await.and_then(json) {
            Ok(now) => (begun, unread) = (now, None),
            Err(ExitError::Failed(why) | ExitError::Configuration(why)) => unread = Some(why),
            Err(closed @ ExitError::OutputClosed) => return Err(closed),
        }
    }
    show::answer(call, &begun, false)?;
    match begun["state"].as_str() {
        Some("done") => Ok(()),
        Some("failed") => Err(ExitError::Failed(cell(&begun["error"]))),
        _ if wait.is_zero() => Ok(()),
        _ => Err(ExitError::Failed(format!(
            "it has not ended after {} s and goes on: read {place} later{}",
            wait.as_secs(),
            unread.map_or(String::new(), |why| format!(" (the last look at it failed: {why})"))
        ))),
    }
}

fn is_ended(begun: &Value) -> bool {
    matches!(begun["state"].as_str(), Some("done" | "failed"))
}

fn json(answer: ApiAnswer) -> Result<Value, ExitError> {
    match answer {
        ApiAnswer::Json(begun) => Ok(begun),
        ApiAnswer::Nothing | ApiAnswer::Text(_) => {
            Err(ExitError::Failed("the answer is not JSON".to_owned()))
        }
    }
}
