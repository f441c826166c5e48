//! What the API is, as OpenAPI 3.1: made from the types that requests are read into and answers are written from.
//!
//! Entry: [`document`]. An operation is a value ([`Operation`]); the modules below hold one for every route, each with the codes of all
//! errors that it can give. The schemas of bodies, queries and answers are derived from the types of the handlers. A test holds the list
//! against the router.

mod about;
mod access;
mod agents;
mod answers;
mod codes;
mod events;
mod operation;
mod protocols;
mod spoken;
mod tasks;
mod threads;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use operation::{Operation, Scope};

/// The description as JSON.
pub(crate) fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| described().to_string().into());
    DOCUMENT.clone()
}

/// Every operation.
fn operations() -> Vec<Operation> {
    let all = [
        about::operations(),
        threads::operations(),
        agents::operations(),
        tasks::operations(),
        access::operations(),
    ];
    all.into_iter().flatten().chain(protocols::operations()).collect()
}

fn described() -> Value {
    let (mut paths, mut schemas) = (BTreeMap::new(), BTreeMap::new());
    for operation in operations() {
        operation.gather(&mut schemas);
        let (path, method) = (operation.path(), operation.method());
        let item: &mut Map<String, Value> = paths.entry(path).or_default();
        item.insert(method.to_owned(), operation.described());
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Threads, turns, agents and their tasks over HTTP and server-sent events.",
            "description": INTRODUCTION,
            "license": { "name": "Apache License 2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/", "description": "This gateway, or any other of the fleet" }],
        "tags": TAGS.map(|(name, text)| json!({ "name": name, "description": text })),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { operation::BEARER: {
                "type": "http",
                "scheme": "bearer",
                "description": format!("{CREDENTIALS}\n\n{}", scopes()),
            } },
        },
    })
}

/// The schema of a type, and those that it refers to, by their names.
fn schemas_of<T: ToSchema>() -> Vec<(String, Value)> {
    let mut found = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut found);
    found.into_iter().map(|(name, schema)| (name, written(&schema))).collect()
}

/// As JSON. What utoipa has made is always that.
fn written(made: &impl Serialize) -> Value {
    serde_json::to_value(made).unwrap_or_default()
}

const INTRODUCTION: &str = "\
A message to a thread opens a turn: the agent's workflow answers, the answer is streamed while it comes, and everything of the turn is \
stored at once when it has ended. Agents work through queues of tasks in the same way.\n\n\
Ids match `[A-Za-z0-9_-]{1,128}`. Positions are numbers as texts. What is refused is said as `application/problem+json` (RFC 9457) with a \
`code` for programs and `retryable`; a protocol that has a form of its own for errors uses that. Where `Retry-After` stands the same \
request may succeed after so many seconds.\n\n\
A stream of events that ends without its last event was cut: whoever connects again with the id of the last event, to whichever \
gateway, goes on strictly after it.";

const CREDENTIALS: &str = "\
An API key or a token of the identity provider. Each operation names the scope that it needs. A role is a set of scopes: `viewer` reads \
threads and agents, `operator` also writes threads, sends tasks, operates agents and reads the audit, `admin` does everything. What is \
another tenant's is answered like what nobody has. The events of a thread are also opened by a ticket in the address (`ticket`).";

fn scopes() -> String {
    Scope::ALL.map(|scope| format!("* `{}`: {}", scope.scope(), operation::meaning(scope))).join("\n")
}

const THREADS: &str = "threads";
const TURNS: &str = "turns";
const AGENTS: &str = "agents";
const TASKS: &str = "tasks";
const AI_SDK: &str = "ai-sdk";
const OPENAI: &str = "openai";
const AG_UI: &str = "ag-ui";
const KEYS: &str = "keys";
const GATEWAY: &str = "gateway";

const TAGS: [(&str, &str); 9] = [
    (THREADS, "Threads: their messages, their streams of events, and what a model sees of them."),
    (TURNS, "Turns under way, and those that failed."),
    (AGENTS, "Agents: their settings, their backoff, and what operators do to them."),
    (TASKS, "The queues of agents."),
    (AI_SDK, "The same threads for Vercel's AI SDK: the UI message stream."),
    (
        OPENAI,
        "The same threads for libraries of OpenAI: Responses and chat completions. `model` names the agent.",
    ),
    (AG_UI, "The same threads for AG-UI."),
    (KEYS, "API keys and tickets."),
    (GATEWAY, "The gateway itself."),
];

#[cfg(test)]
mod tests;
