//! The description against the router and the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::Response;
use http_server::auth::authenticator::Authenticator;
use http_server::auth::config::AccessConfig;
use http_server::auth::erased_tenants::ErasedTenants;
use http_server::auth::host_check::HostPolicy;
use http_server::auth::quota::TenantLimiter;
use http_server::error::ErrorCode;
use http_server::transport::extensions::ConnectionHandle;
use model::{BatchType, Chunk, MessageId, Position, Role, ThreadId, TurnId, WaitReason};
use protocols::request::BadRequest;
use protocols::{Cursor, MessageHeader, MessageOffset, Native, RequestBody, StreamError};
use runtime::Health;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::app::state::AppState;
use crate::config::GatewayLimits;
use crate::document::{document, operations};
use crate::openapi::refusals::{CODES, Refusals, shared};
use crate::openapi::response::PROBLEM;
use crate::router::router;
use crate::streaming::revocation::OpenStreams;

fn bare() -> Router {
    let access = AccessConfig::insecure();
    let state = AppState {
        erased_tenants: ErasedTenants::default(),
        feeds: Arc::new(OnceLock::new()),
        limits: GatewayLimits::default(),
        authenticator: Arc::new(Authenticator::new(&access).unwrap()),
        limiter: TenantLimiter::new(access.limits, false),
        open_streams: OpenStreams::default(),
    };
    let policy = HostPolicy { cors: Arc::new(access.cors), is_insecure: false };
    router(state, policy, Health::default())
}

async fn asked(router: &Router, method: &str, path: &str) -> Response {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .extension(ConnectionHandle(CancellationToken::new()));
    router.clone().call(request.body(Body::from("{}")).unwrap()).await.unwrap()
}

/// The address with something in the place of each variable.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{turn}" => "u0001-x",
        "{batch}" => "1",
        "{file}" => "start.js",
        part if part.starts_with('{') => "x",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn everything_described_is_answered_by_its_own_handler() {
    let router = bare();
    for operation in operations() {
        let method = Method::from_bytes(operation.method().to_uppercase().as_bytes()).unwrap();
        let response = asked(&router, method.as_str(), &filled(operation.path())).await;
        let (status, what) = (response.status(), format!("{method} {}", operation.path()));
        assert!(
            ![StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status),
            "{what}: {status}"
        );
        let described = operation.to_json(&mut Refusals::default());
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let refusal = body["code"].as_str().or(body["error"]["code"].as_str());
        match refusal {
            // The operation lists each code that it returns, including those that all operations
            // share.
            Some(code) => {
                let is_listed = operation.codes().iter().any(|known| known.name() == code);
                assert!(is_listed, "{what} answers {status} {code}");
            }
            None => {
                let responses = &described["responses"];
                let is_described = responses.get(status.as_str()).or(responses.get("default")).is_some();
                assert!(is_described, "{what} answers {status}");
            }
        }
    }
}

/// No operation answers with them: no operation has that method, only servers of other roles have a
/// time limit, commands are checked earlier, with codes of their own, and a failed turn is reported
/// with the code of its failure.
const OUTSIDE: [ErrorCode; 4] = [
    ErrorCode::InvalidCommand,
    ErrorCode::MethodNotAllowed,
    ErrorCode::RequestTimeout,
    ErrorCode::TurnFailed,
];

#[test]
fn every_code_is_one_of_an_operation() {
    let used: BTreeSet<_> = operations().iter().flat_map(|operation| operation.codes().clone()).collect();
    let outside = ErrorCode::ALL.iter().copied().filter(|code| !used.contains(code));
    assert_eq!(outside.collect::<Vec<_>>(), OUTSIDE);
}

/// How many bytes of the document an operation costs at most, so that it stays small enough for
/// makers of clients.
const MOST_BYTES: usize = 2_600;

/// The same for the whole document.
const MOST_BYTES_OF_ALL: usize = 286_000;

#[test]
fn the_document_is_small() {
    let bytes = document().len();
    assert!(
        bytes < MOST_BYTES_OF_ALL,
        "the document has {bytes} bytes: let operations refer to what they have in common"
    );
}

/// Calls `check` with each part that operations have, by its kind.
fn for_each_part(operation: &Value, check: &mut impl FnMut(&str, &Value)) {
    let mut all = |kind: &str, parts: &Value| {
        let parts: Vec<&Value> = match parts {
            Value::Array(parts) => parts.iter().collect(),
            Value::Object(parts) => parts.values().collect(),
            _ => Vec::new(),
        };
        parts.into_iter().for_each(|part| check(kind, part));
    };
    all("parameters", &operation["parameters"]);
    all("responses", &operation["responses"]);
    all("requestBodies", &json!([operation["requestBody"]]));
}

/// What two operations have in common is a component, unless another one has its name.
#[test]
fn repeated_parts_are_components() {
    let document: Value = serde_json::from_slice(&document()).unwrap();
    let mut seen = BTreeMap::<String, usize>::new();
    let mut references = 0;
    for operation in
        document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap())
    {
        for_each_part(operation.1, &mut |kind, part| match part.get("$ref") {
            Some(reference) => {
                let place = reference.as_str().unwrap();
                assert!(place.starts_with(&format!("#/components/{kind}/")), "{place} is no {kind}");
                references += 1;
            }
            None => *seen.entry(part.to_string()).or_default() += 1,
        });
    }
    assert!(references > 300, "{references}");
    let repeated = seen.iter().filter(|(part, count)| **count > 1 && part.len() > 150);
    assert_eq!(repeated.collect::<Vec<_>>(), []);
}

#[test]
fn every_operation_refers_to_all_of_its_codes() {
    let bytes = document();
    let document: Value = serde_json::from_slice(&bytes).unwrap();
    let names = |list: &Value| -> BTreeSet<String> {
        let list = list.as_array().into_iter().flatten();
        list.map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let described = |name: &str| {
        let response = &document["components"]["responses"][name];
        names(&response["content"][PROBLEM]["schema"]["properties"]["code"]["enum"])
    };
    let shared: BTreeSet<_> = shared().iter().map(|code| code.name().to_owned()).collect();
    assert_eq!(described("Refused"), shared);
    for operation in operations() {
        let object = &document["paths"][operation.path()][operation.method()];
        let responses = object["responses"].as_object().unwrap();
        let all: BTreeSet<_> = operation.codes().iter().map(|code| code.name().to_owned()).collect();
        let refused = responses.get("default").map(|refused| refused["$ref"].as_str().unwrap());
        let own: BTreeSet<_> =
            if refused.is_some() { all.difference(&shared).cloned().collect() } else { all };
        assert_eq!(names(&object[CODES]), own, "{}", object["operationId"]);
        if refused.is_some_and(|name| name != "#/components/responses/Refused") {
            continue;
        }
        for code in operation.codes().iter().filter(|code| own.contains(code.name())) {
            let reference = responses[code.status().as_str()]["$ref"].as_str().unwrap();
            let found = described(reference.rsplit('/').next().unwrap());
            assert!(found.contains(code.name()), "{}: {code:?}", object["operationId"]);
        }
    }
    let of_operation = bytes.len() / operations().len();
    assert!(of_operation < MOST_BYTES, "the document has {of_operation} bytes for each operation");
}

#[test]
fn every_operation_has_a_name_of_its_own_a_tag_and_answers() {
    let mut ids = BTreeSet::new();
    let tags: BTreeSet<_> = crate::openapi::tags::TAGS.iter().map(|(name, _)| *name).collect();
    for operation in operations() {
        let described = operation.to_json(&mut Refusals::default());
        let id = described["operationId"].as_str().unwrap();
        assert!(ids.insert(id.to_owned()), "{id} twice");
        assert!(tags.contains(described["tags"][0].as_str().unwrap()), "{id}");
        let is_open = operation.path() == "/"
            || !operation.path().starts_with("/v1") && described["tags"][0] == "gateway";
        let secured = described["security"].as_array().unwrap();
        assert_eq!(secured.is_empty(), is_open, "{id}");
        assert_eq!(described["responses"].get("default").is_some(), !is_open, "{id}");
    }
}

#[test]
fn everything_that_is_referred_to_is_there() {
    let document: Value = serde_json::from_slice(&document()).unwrap();
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let (place, _) = reference.split_once('"').unwrap();
        assert!(document.pointer(place).is_some(), "{place}");
    }
}

/// The places of schemas that say `array` and not of what.
fn arrays_of_anything(schema: &Value, place: &str, found: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            let says_array = match map.get("type") {
                Some(Value::String(kind)) => kind == "array",
                Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "array"),
                _ => false,
            };
            if says_array && !map.contains_key("items") {
                found.push(place.to_owned());
            }
            for (name, inner) in map {
                arrays_of_anything(inner, &format!("{place}/{name}"), found);
            }
        }
        Value::Array(all) => {
            for (index, inner) in all.iter().enumerate() {
                arrays_of_anything(inner, &format!("{place}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// Makers of clients refuse one that does not.
#[test]
fn every_array_says_of_what() {
    let document: Value = serde_json::from_slice(&document()).unwrap();
    let mut found = Vec::new();
    arrays_of_anything(&document, "", &mut found);
    assert!(found.is_empty(), "{found:#?}");
}

/// The schema of an event of ours, by what it is.
fn schema_of(name: &str, data: &Value) -> &'static str {
    match (name, data["chunk_type"].as_str(), data.get("chunk_id")) {
        ("ready", ..) => "ReadyEvent",
        ("reset", ..) => "ResetEvent",
        ("restart", ..) => "RestartEvent",
        ("waiting", ..) => "WaitingEvent",
        ("left_out", ..) => "LeftOutEvent",
        ("remembered", ..) => "RememberedEvent",
        ("auth_expired", ..) => "AuthExpiredEvent",
        (_, Some("system"), _) => "CompleteEvent",
        (_, Some("error"), None) => "FailedEvent",
        _ => "ChunkEvent",
    }
}

/// Events of ours, by name and data.
fn native_events() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocols/tests/golden/native");
    let golden = fs::read_dir(folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let header = MessageHeader::new(MessageId::parse("m").unwrap(), 2, Role::Tool, BatchType::SystemTrigger);
    let mut native = Native::new(ThreadId::parse("t").unwrap(), Cursor::at(Position::from_stored(1)));
    let chunk = Chunk {
        timestamp: Some("2026-11-22T11:49:44Z".into()),
        correlation_id: Some("trace".into()),
        ..Chunk::content(0, "x", true)
    };
    let stalled = StreamError::new("stalled", "gone", true);
    let report =
        model::AnswerReport { finish_reason: Some(model::FinishReason::Length), usage: Some(Box::default()) };
    let (thread, turn) = (ThreadId::parse("t").unwrap(), TurnId::parse("u01f3-0198c4d2e5f5").unwrap());
    let waiting = protocols::native::waiting(&thread, &turn.answer(0), WaitReason::NoWorkflow);
    let fact = protocols::native::RememberedFact::new(
        &model::AgentId::parse("ann").unwrap(),
        &turn.answer(0),
        "m1-f0",
        "The user lives in Bern.",
        "place",
    );
    let remembered = protocols::native::remembered(&thread, &turn.answer(0), &[fact]);
    let others = [
        native.ready(),
        native.chunk(&header, MessageOffset::nothing(2), &chunk, true).bytes(),
        native.reset(&header.message, 3),
        native.failed(&header, Position::from_stored(2), &stalled).bytes(),
        native.complete(&header, Position::from_stored(3), false, &report).bytes(),
        native.restart(Cursor::at(Position::from_stored(0))),
        waiting,
        protocols::native::left_out(&thread),
        remembered,
        protocols::native::auth_expired("credential_revoked"),
    ];
    let others = String::from_utf8(others.concat()).unwrap();
    let field =
        |event: &str, name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let events = golden.chain([others]).flat_map(|text| {
        let event = |event: &str| {
            let data = serde_json::from_str(&field(event, "data: ")?).unwrap();
            Some((field(event, "event: ").unwrap_or_default(), data))
        };
        text.split("\n\n").filter_map(event).collect::<Vec<_>>()
    });
    events.collect()
}

#[test]
fn event_schemas_and_encoded_events_have_the_same_fields() {
    let document: Value = serde_json::from_slice(&document()).unwrap();
    let mut seen = BTreeMap::<&str, BTreeSet<String>>::new();
    for (name, data) in native_events() {
        let kind = schema_of(&name, &data);
        let schema = &document["components"]["schemas"][kind];
        for field in data.as_object().unwrap().keys() {
            assert!(schema["properties"].get(field).is_some(), "{field} of {kind} is not described: {data}");
        }
        for field in schema["required"].as_array().unwrap() {
            assert!(data.get(field.as_str().unwrap()).is_some(), "{kind} has no {field}: {data}");
        }
        seen.entry(kind).or_default().extend(data.as_object().unwrap().keys().cloned());
    }
    for (kind, seen) in seen {
        let properties = document["components"]["schemas"][kind]["properties"].as_object().unwrap();
        let described: BTreeSet<String> = properties.keys().cloned().collect();
        assert_eq!(described, seen, "{kind} is described with what no event says");
    }
}

/// openapi-python-client makes the name of an anonymous object twice when it stands in one of
/// several variants, and leaves the variant out.
#[test]
fn variants_have_no_anonymous_objects() {
    let document: Value = serde_json::from_slice(&document()).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut seen = 0;
    for (name, schema) in schemas {
        let variants = schema["oneOf"].as_array().into_iter().flatten();
        for (field, value) in variants.filter_map(|variant| variant["properties"].as_object()).flatten() {
            let inner = if value["type"] == "array" { &value["items"] } else { value };
            assert_ne!(inner["type"], "object", "{field} of a variant of {name}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} fields of variants");
}

/// Also where the path, the query or a body is refused before the handler is called.
#[tokio::test]
async fn protocols_are_refused_in_their_own_form() {
    let router = bare();
    for (method, path, body, kind, begin) in [
        ("GET", "/v1/responses/x/nothing", "", "application/json", "{\"error\":{"),
        ("PUT", "/v1/chat/completions", "", "application/json", "{\"error\":{"),
        ("GET", "/v1/models/%ff", "", "application/json", "{\"error\":{"),
        ("GET", "/api/chat/x/nothing", "", "text/plain; charset=utf-8", ""),
        ("GET", "/agui", "", "application/json", "{\"message\":"),
        ("GET", "/v1/nothing", "", "application/problem+json", "{\"type\":"),
        ("GET", "/v1/responses/%ff", "", "application/json", "{\"error\":{"),
        ("GET", "/v1/responses/x?stream=maybe", "", "application/json", "{\"error\":{"),
        ("POST", "/v1/responses/x/cancel", "x", "application/json", "{\"error\":{"),
        ("GET", "/api/chat/%ff/stream", "", "text/plain; charset=utf-8", ""),
        ("POST", "/api/chat/x/stop", "x", "text/plain; charset=utf-8", ""),
        ("POST", "/v1/threads/%ff/messages", "{}", "application/problem+json", "{\"type\":"),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .extension(ConnectionHandle(CancellationToken::new()));
        let response = router.clone().call(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = match (method, path) {
            (_, path) if path.ends_with("/nothing") => StatusCode::NOT_FOUND,
            ("PUT", _) | ("GET", "/agui") => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::BAD_REQUEST,
        };
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(response.headers()[header::CONTENT_TYPE], kind, "{path}");
        let text = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        assert!(
            text.starts_with(begin.as_bytes()) && text.starts_with(b"{") != begin.is_empty(),
            "{path}: {text:?}"
        );
    }
}

/// A value of a schema: what the description lets a client send.
fn value_of(schema: &Value, document: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return value_of(document.pointer(reference.trim_start_matches('#')).unwrap(), document);
    }
    if let Some(example) = schema["examples"].get(0).or(schema["enum"].get(0)).or(schema.get("const")) {
        return example.clone();
    }
    if let Some(variants) = schema["anyOf"].as_array() {
        return value_of(&variants[0], document);
    }
    let kind = schema["type"].as_str().or(schema["type"][0].as_str()).unwrap();
    match kind {
        "string" => json!("x"),
        "boolean" => json!(true),
        "integer" | "number" => schema.get("maximum").cloned().unwrap_or(json!(1)),
        "array" => match schema.get("contains") {
            Some(item) => json!([value_of(item, document)]),
            None => json!([value_of(&schema["items"], document)]),
        },
        "object" => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            fields.map(|(name, schema)| (name.clone(), value_of(schema, document))).collect()
        }
        "null" => Value::Null,
        _ => panic!("{schema}"),
    }
}

fn parsed(body: RequestBody, value: &Value) -> Result<(), BadRequest> {
    let bytes = value.to_string().into_bytes();
    match body {
        RequestBody::UiMessage => protocols::ui_message::UiMessageRequest::parse(&bytes, None).map(drop),
        RequestBody::Responses => protocols::responses::ResponseRequest::parse(&bytes, None).map(drop),
        RequestBody::Completions => {
            protocols::chat_completions::CompletionRequest::parse(&bytes, None, None).map(drop)
        }
        RequestBody::Run => protocols::agui::AgUiRequest::parse(&bytes, None).map(drop),
        RequestBody::Connect => protocols::agui::AgUiRequest::parse_connect(&bytes, None).map(drop),
    }
}

/// Fields that a body with all others cannot have, and what it has instead.
fn reconciled(body: RequestBody, mut value: Value) -> Value {
    match body {
        RequestBody::UiMessage => value["trigger"] = json!("regenerate-message"),
        RequestBody::Responses => value["previous_response_id"] = Value::Null,
        RequestBody::Completions | RequestBody::Run | RequestBody::Connect => {}
    }
    value
}

#[test]
fn a_body_with_every_described_field_is_taken() {
    let document: Value = serde_json::from_slice(&document()).unwrap();
    for body in RequestBody::ALL {
        let schema = &document["components"]["schemas"][body.name()];
        let all = reconciled(body, value_of(schema, &document));
        assert_eq!(all.as_object().unwrap().len(), schema["properties"].as_object().unwrap().len());
        assert_eq!(parsed(body, &all), Ok(()), "{all}");
    }
}

/// The description and the parser know the same fields.
#[test]
fn every_field_is_described_where_it_is_taken_and_nowhere_else() {
    let document: Value = serde_json::from_slice(&document()).unwrap();
    let fields = |body: RequestBody| {
        document["components"]["schemas"][body.name()]["properties"].as_object().unwrap().keys().cloned()
    };
    let every: BTreeSet<String> = RequestBody::ALL.into_iter().flat_map(fields).collect();
    assert!(every.len() > 50, "{every:?}");
    for body in RequestBody::ALL.into_iter().filter(|body| *body != RequestBody::Connect) {
        let described: BTreeSet<String> = fields(body).collect();
        for field in &every {
            // Of no type that a field has.
            let refused = parsed(body, &json!({ field: 1e300 })).unwrap_err().to_string();
            let is_known = !refused.contains("there is no such field here");
            assert_eq!(is_known, described.contains(field), "{field} of {}: {refused}", body.name());
        }
    }
}
