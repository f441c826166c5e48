//! Request bodies: bounded in size and time, strict JSON.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::error::{ErrorCode, Problem};
use crate::transport::extensions::BodyTimeout;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a too large body that are still read, so that its sender reads the response.
const READ_IN_VAIN: usize = 8 << 20;
/// Maximum body of requests in other protocols.
const RAW_BYTES: usize = 8 << 20;
/// Maximum body of requests that take none.
const EMPTY_BYTES: usize = 1 << 10;

/// A type of request body.
pub trait MaxBodySize: DeserializeOwned {
    /// Maximum size of the body.
    const MAX_BYTES: usize;
}

/// A JSON object with known fields only.
#[derive(Debug)]
pub struct JsonBody<T>(pub T);

impl<T: MaxBodySize, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        check_kind(request.headers())?;
        parse(&read(request, T::MAX_BYTES).await?).map(Self)
    }
}

/// A JSON body in which every field is optional: without a body, an empty object is used.
#[derive(Debug)]
pub struct OptionalJsonBody<T>(pub T);

impl<T: MaxBodySize + Default, S: Send + Sync> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let kind = check_kind(request.headers());
        let body = read(request, T::MAX_BYTES).await?;
        match body.trim_ascii() {
            b"" | b"{}" => Ok(Self(T::default())),
            body => {
                kind?;
                parse(body).map(Self)
            }
        }
    }
}

/// The raw body of another protocol, whose clients send the whole history along.
pub async fn raw(request: Request) -> Result<Bytes, Problem> {
    check_kind(request.headers())?;
    read(request, RAW_BYTES).await
}

/// No body, or an empty object.
#[derive(Debug)]
pub struct EmptyBody;

impl<S: Send + Sync> FromRequest<S> for EmptyBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let body = read(request, EMPTY_BYTES).await?;
        match body.trim_ascii() {
            b"" | b"{}" => Ok(Self),
            _ => Err(Problem::from(ErrorCode::UnexpectedBody)),
        }
    }
}

fn check_kind(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |detail| Problem::new(ErrorCode::UnsupportedMediaType, detail);
    if !is_plain(headers) {
        return Err(refused("the body must be sent as it is: no Content-Encoding is taken here"));
    }
    match is_json(headers) {
        true => Ok(()),
        false => Err(refused("the body must be JSON, and Content-Type must say so: application/json")),
    }
}

/// Encoded bodies are refused: a few bytes could become gigabytes.
fn is_plain(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    encodings.all(|encoding| encoding.to_str().is_ok_and(|name| name.trim().eq_ignore_ascii_case("identity")))
}

/// The announced length of a body that its sender holds back until asked for it (`Expect:
/// 100-continue`).
fn length_held_back(headers: &HeaderMap) -> Option<u64> {
    let expects = headers.get(header::EXPECT)?.to_str().ok()?;
    let length = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    length.parse().ok().filter(|_| expects.eq_ignore_ascii_case("100-continue"))
}

/// JSON is UTF-8, so another charset is not JSON; unknown parameters are ignored.
fn is_json(headers: &HeaderMap) -> bool {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(Ok(kind)), None) = (kinds.next().map(|kind| kind.to_str()), kinds.next()) else { return false };
    let mut parts = kind.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let charset = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    });
    essence.eq_ignore_ascii_case("application/json")
        && charset.is_none_or(|charset| charset.eq_ignore_ascii_case("utf-8"))
}

async fn read(request: Request, most: usize) -> Result<Bytes, Problem> {
    // Checked before the first read, which would ask for the whole body.
    if length_held_back(request.headers()).is_some_and(|length| length > most as u64) {
        return Err(too_large(most));
    }
    let timeout = request.extensions().get().map_or(DEFAULT_TIMEOUT, |BodyTimeout(timeout)| *timeout);
    match tokio::time::timeout(timeout, read_bounded(request.into_body(), most)).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(
            ErrorCode::BodyTimeout,
            format!("the body did not arrive within {} s", timeout.as_secs_f64()),
        )),
    }
}

async fn read_bounded(body: Body, most: usize) -> Result<Bytes, Problem> {
    let mut parts = body.into_data_stream();
    let (mut read, mut length) = (BytesMut::new(), 0);
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| Problem::from(ErrorCode::IncompleteBody))?;
        length += part.len();
        if length <= most {
            read.extend_from_slice(&part);
        } else if length > READ_IN_VAIN {
            break;
        }
    }
    if length > most {
        return Err(too_large(most));
    }
    Ok(read.freeze())
}

fn too_large(most: usize) -> Problem {
    Problem::new(ErrorCode::BodyTooLarge, format!("the body has more than {most} bytes"))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // Checked separately, because serde also accepts an array with a value for each field.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    match serde_json::from_slice(body) {
        Ok(parsed) if is_object => Ok(parsed),
        Err(error) if error.classify() != Category::Data => {
            Err(Problem::new(ErrorCode::InvalidJson, error.to_string()))
        }
        Err(error) if is_object => Err(Problem::new(ErrorCode::InvalidBody, error.to_string())),
        Ok(_) | Err(_) => Err(Problem::new(ErrorCode::InvalidBody, "the body must be a JSON object")),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Named {
        #[allow(dead_code)]
        name: String,
    }

    impl MaxBodySize for Named {
        const MAX_BYTES: usize = 32;
    }

    async fn code(kind: &str, body: &'static str) -> String {
        let request = Request::builder().header("content-type", kind).body(Body::from(body)).unwrap();
        match JsonBody::<Named>::from_request(request, &()).await {
            Ok(_) => "ok".to_owned(),
            Err(problem) => problem.code().name().to_owned(),
        }
    }

    #[tokio::test]
    async fn bodies_are_read_strictly() {
        assert_eq!(code("application/json; charset=utf-8", r#"{"name":"x"}"#).await, "ok");
        assert_eq!(code("text/plain", r#"{"name":"x"}"#).await, "unsupported_media_type");
        assert_eq!(
            code("application/json; charset=latin1", r#"{"name":"x"}"#).await,
            "unsupported_media_type"
        );
        assert_eq!(code("application/json;v=1;Charset=\"UTF-8\"", r#"{"name":"x"}"#).await, "ok");
        assert_eq!(code("application/jsonp", r#"{"name":"x"}"#).await, "unsupported_media_type");
        for wrong in ["", "{", r#"{"name":"x"}{}"#, r#"{"name":"\ud800"}"#, "\u{feff}{}", "{'name':1}"] {
            assert_eq!(code("application/json", wrong).await, "invalid_json", "{wrong}");
        }
        for wrong in [
            r#"{"name":"x","x":1}"#,
            "{}",
            "[]",
            r#"["x"]"#,
            r#"{"name":null}"#,
            r#"{"name":"a","name":"b"}"#,
        ] {
            assert_eq!(code("application/json", wrong).await, "invalid_body", "{wrong}");
        }
        assert_eq!(code("application/json", r#"{"name":"0123456789012345678901"}"#).await, "body_too_large");
        for wrong in ["[]", r#"["x"]"#, "5", "null"] {
            let problem = parse::<Named>(wrong.as_bytes()).unwrap_err();
            assert_eq!(problem.rejection().0.message, "the body must be a JSON object", "{wrong}");
        }
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Choice {
        name: Option<String>,
    }

    impl MaxBodySize for Choice {
        const MAX_BYTES: usize = 32;
    }

    #[tokio::test]
    async fn a_body_of_optional_fields_may_be_left_out() {
        let read = async |kind: Option<&str>, body: &'static str| {
            let request =
                kind.into_iter().fold(Request::builder(), |it, kind| it.header("content-type", kind));
            let request = request.body(Body::from(body)).unwrap();
            let read = OptionalJsonBody::<Choice>::from_request(request, &()).await;
            read.map(|OptionalJsonBody(choice)| choice.name).map_err(|problem| problem.code().name())
        };
        let json = Some("application/json");
        for (kind, body) in [(None, ""), (None, "{}"), (json, " "), (json, "{ }")] {
            assert_eq!(read(kind, body).await, Ok(None), "{body}");
        }
        assert_eq!(read(json, r#"{"name":"x"}"#).await, Ok(Some("x".to_owned())));
        assert_eq!(read(None, r#"{"name":"x"}"#).await, Err("unsupported_media_type"));
        assert_eq!(read(json, r#"{"x":1}"#).await, Err("invalid_body"));
        assert_eq!(read(json, "{").await, Err("invalid_json"));
    }

    #[tokio::test]
    async fn a_body_is_sent_as_it_is() {
        for (encodings, status) in [
            (&["gzip"][..], Some(415)),
            (&["identity"], None),
            (&["identity", "br"], Some(415)),
            (&["gzip, identity"], Some(415)),
        ] {
            let request = Request::builder().header("content-type", "application/json");
            let request =
                encodings.iter().fold(request, |request, name| request.header("content-encoding", *name));
            let read =
                JsonBody::<Named>::from_request(request.body(Body::from(r#"{"name":"x"}"#)).unwrap(), &())
                    .await;
            assert_eq!(read.err().map(|problem| problem.rejection().0.status), status, "{encodings:?}");
        }
    }

    #[tokio::test]
    async fn what_takes_no_body_takes_an_empty_object() {
        for (body, is_ok) in [("", true), (" {} ", true), ("{\"a\":1}", false), ("null", false)] {
            let request = Request::builder().body(Body::from(body)).unwrap();
            assert_eq!(EmptyBody::from_request(request, &()).await.is_ok(), is_ok, "{body}");
        }
    }
}
