//! Sends a call, and shows its answer.

use std::time::Duration;

use runtime::http;

use super::arguments::Call;
use super::request::{ApiAnswer, read, send, with_pages};
use super::table::AnswerView;
use super::{awaited, exported, imported, show};
use crate::exit::ExitError;

/// Timeout of an API that sends nothing. An act may wait some seconds for its owner, and a report
/// may read much data.
const SILENCE: Duration = Duration::from_secs(60);

/// Sends the call and prints the answer.
///
/// # Errors
/// The API refuses the call or does not answer.
pub(crate) async fn run(call: Call) -> Result<(), ExitError> {
    let client = http::client((!call.is_streamed).then_some(SILENCE));
    let client = client.map_err(|error| ExitError::Failed(error.to_string()))?;
    if let Some(wait) = call.wait {
        return awaited::run(&client, &call, wait).await;
    }
    if call.command.shown == AnswerView::Export {
        return exported::run(&call, send(&client, &call, &call.query).await?).await;
    }
    if call.command.shown == AnswerView::Import {
        return imported::run(&client, &call).await;
    }
    if call.is_streamed {
        return show::events(&call, send(&client, &call, &call.query).await?).await;
    }
    match read(&client, &call, &call.query).await? {
        ApiAnswer::Nothing => Ok(()),
        ApiAnswer::Text(text) => show::text(&text),
        ApiAnswer::Json(first) => {
            let (answer, is_cut) = with_pages(&client, &call, first).await?;
            show::answer(&call, &answer, is_cut)
        }
    }
}
