//! What the API is, as OpenAPI 3.1: made from the types that requests are read into and answers are written from.
//!
//! Entry: [`document`]. An operation is a value ([`Operation`]); the modules below hold one for every route, with its handler and its
//! scope, of which the router is made, and with the codes of all errors that it can give. The schemas of bodies, queries and answers are
//! derived from the types of the handlers.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::response::Response;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::TAGS;
use crate::openapi::{
    agents, budgets, gateway, incidents, keys, memory, operation, pages, protocols, reasoning, tasks,
    threads, timers, tool_incidents,
};

/// Answers with it.
pub(crate) async fn get() -> Response {
    pages::served("application/json", document())
}

/// The description as JSON.
pub(crate) fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| described().to_string().into());
    DOCUMENT.clone()
}

/// Every operation.
pub(crate) fn operations() -> Vec<Operation> {
    let all = [
        gateway::operations(),
        threads::operations(),
        agents::operations(),
        tasks::operations(),
        timers::operations(),
        tool_incidents::operations(),
        memory::operations(),
        budgets::operations(),
        keys::operations(),
        reasoning::operations(),
        incidents::operations(),
    ];
    all.into_iter().flatten().chain(protocols::operations()).collect()
}

/// The description. It is made of the types of the handlers, so no server is asked for it.
pub fn described() -> Value {
    let (mut paths, mut schemas) = (BTreeMap::new(), BTreeMap::new());
    for operation in operations() {
        operation.collect_schemas(&mut schemas);
        let (path, method) = (operation.path(), operation.method());
        let item: &mut Map<String, Value> = paths.entry(path).or_default();
        item.insert(method.to_owned(), operation.to_json());
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

const INTRODUCTION: &str = "\
A message to a thread opens a turn: the agent's workflow answers, the answer is streamed while it comes, and everything of the turn is \
stored at once when it has ended. Agents work through queues of tasks in the same way.\n\n\
Ids match `[A-Za-z0-9_-]{1,128}`. Positions are numbers as texts. What is refused is said as `application/problem+json` (RFC 9457) with a \
`code` for programs and `retryable`; a protocol that has a form of its own for errors uses that. Where `Retry-After` stands the same \
request may succeed after so many seconds.\n\n\
A stream of events that ends without its last event was cut: a client that connects again with the id of the last event, to any \
gateway, goes on strictly after it.";

const CREDENTIALS: &str = "\
An API key or a token of the identity provider. Each operation names the scope that it needs. A role is a set of scopes: `viewer` reads \
threads and agents, `operator` also writes threads, sends tasks, operates agents and reads the audit, `admin` does everything. What is \
another tenant's is answered like what does not exist. The events of a thread are also opened by a ticket in the address (`ticket`).";

fn scopes() -> String {
    Scope::ALL.map(|scope| format!("* `{}`: {}", scope.scope(), operation::meaning(scope))).join("\n")
}
