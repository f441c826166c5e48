//! Sends a call, and reads its answer page by page.

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Client, Method, Response, StatusCode, Url};
use runtime::http;
use serde_json::Value;

use super::arguments::{Call, Pages};
use super::refusal::{refusal, unreachable};
use super::table::AnswerView;
use crate::exit::ExitError;

/// Maximum size in bytes of an answer.
const MAX_ANSWER_BYTES: usize = 256 << 20;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

pub(super) enum ApiAnswer {
    Nothing,
    Json(Value),
    /// An answer of another content type than JSON.
    Text(String),
}

pub(super) async fn read(
    client: &Client,
    call: &Call,
    query: &[(String, String)],
) -> Result<ApiAnswer, ExitError> {
    answer_of(call, send(client, call, query).await?).await
}

pub(super) async fn answer_of(call: &Call, response: Response) -> Result<ApiAnswer, ExitError> {
    if response.status() == StatusCode::NO_CONTENT {
        return Ok(ApiAnswer::Nothing);
    }
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = kind.is_some_and(|kind| kind.starts_with(JSON));
    let body = body(call, response).await?;
    if !is_json {
        return Ok(ApiAnswer::Text(String::from_utf8_lossy(&body).into_owned()));
    }
    let json = serde_json::from_slice(&body);
    json.map(ApiAnswer::Json).map_err(|error| ExitError::Failed(format!("the answer is not JSON: {error}")))
}

async fn body(call: &Call, response: Response) -> Result<Vec<u8>, ExitError> {
    let read = http::read_at_most(response, MAX_ANSWER_BYTES).await;
    let (body, is_cut) = read.map_err(|error| unreachable(call, &error))?;
    if is_cut {
        return Err(ExitError::Failed("the answer is too long: ask for less with --limit".to_owned()));
    }
    Ok(body)
}

/// Reads further pages until the list has the wanted number of items. Returns the list, and whether
/// there are more items.
pub(super) async fn with_pages(
    client: &Client,
    call: &Call,
    first: Value,
) -> Result<(Value, bool), ExitError> {
    let (Some(pages), AnswerView::Rows(list, _) | AnswerView::RowsBelow(list, _)) =
        (call.pages, &call.command.shown)
    else {
        return Ok((first, false));
    };
    let mut answer = first;
    while let (Some(next), Some(left)) = (cursor(&answer), left(pages, &answer, list)) {
        let mut query: Vec<_> = call.query.iter().filter(|(name, _)| name != "next").cloned().collect();
        query.push(("next".to_owned(), next));
        query.push(("limit".to_owned(), left.to_string()));
        let ApiAnswer::Json(mut page) = read(client, call, &query).await? else { break };
        if let (Some(items), Some(more)) = (answer[list].as_array_mut(), page[list].as_array_mut()) {
            items.append(more);
        }
        answer["next"] = page["next"].take();
    }
    let is_cut = cursor(&answer).is_some();
    Ok((answer, is_cut))
}

fn cursor(answer: &Value) -> Option<String> {
    answer["next"].as_str().map(str::to_owned)
}

/// Number of items to request in the next page; `None` if there are enough.
fn left(pages: Pages, answer: &Value, list: &str) -> Option<u64> {
    let read = answer[list].as_array().map_or(0, Vec::len) as u64;
    let left = pages.wanted?.saturating_sub(read);
    (left > 0).then(|| left.min(pages.longest))
}

pub(super) async fn send(
    client: &Client,
    call: &Call,
    query: &[(String, String)],
) -> Result<Response, ExitError> {
    let body = call.body.as_ref().map(|body| (JSON, Body::from(body.to_string())));
    send_body(client, call, query, body).await
}

/// Sends a body with its content type.
pub(super) async fn send_body(
    client: &Client,
    call: &Call,
    query: &[(String, String)],
    sent: Option<(&str, Body)>,
) -> Result<Response, ExitError> {
    let mut url = address(call)?;
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    if let (Some(Pages { wanted: Some(wanted), longest }), false) =
        (call.pages, query.iter().any(|(name, _)| name == "limit"))
    {
        url.query_pairs_mut().append_pair("limit", &wanted.min(longest).to_string());
    }
    let method = Method::from_bytes(call.method.as_bytes());
    let method = method.map_err(|error| ExitError::Failed(error.to_string()))?;
    let mut request = client.request(method, url).headers(headers(call)?);
    if let Some((content_type, body)) = sent {
        request = request.header(CONTENT_TYPE, content_type).body(body);
    }
    let response = request.send().await.map_err(|error| unreachable(call, &error))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let (status, headers) = (response.status(), response.headers().clone());
    let body = body(call, response).await.unwrap_or_default();
    Err(refusal(call, status, &headers, &body))
}

fn address(call: &Call) -> Result<Url, ExitError> {
    let base = &call.server.url;
    let wrong =
        || ExitError::Configuration(format!("ANTIPHON_URL {base:?} is no address with http or https"));
    let mut url = http::url_below(base, "").ok_or_else(wrong)?;
    url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend(&call.path);
    Ok(url)
}

fn headers(call: &Call) -> Result<HeaderMap, ExitError> {
    let mut headers = HeaderMap::new();
    let bearer = http::bearer(call.server.api_key.as_deref());
    let bearer = bearer
        .map_err(|_| ExitError::Configuration("ANTIPHON_API_KEY holds what no key holds".to_owned()))?;
    headers.extend(bearer.map(|value| (AUTHORIZATION, value)));
    if call.is_streamed {
        headers.insert(ACCEPT, HeaderValue::from_static(EVENTS));
    }
    for (name, value) in &call.headers {
        let wrong = || ExitError::Configuration(format!("{name} cannot be {value:?}"));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        headers.insert(name, HeaderValue::from_str(value).map_err(|_| wrong())?);
    }
    Ok(headers)
}
