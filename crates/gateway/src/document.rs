//! The description of the API, as OpenAPI 3.1, generated from the types of requests and responses.
//!
//! Entry: [`document`]. An operation is a value ([`Operation`]). The file of a resource has one for
//! each of its handlers, with its scope and all its error codes. The router is made of the same
//! values. The schemas of bodies, queries and answers are derived from the types of the handlers.

mod components;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::response::Response;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::api::protocols::{agui, completions, models, responses, ui_message};
use crate::api::{
    agents, audit, batches, budgets, context, dead_letters, delayed_tasks, docs, erasures, events, exports,
    failed_turns, feedback, follow_ups, forks, heartbeats, history, imports, incidents, keys, memory,
    messages, notes, reasoning, schedules, service_info, signing_keys, tasks, tenants, thread_list, threads,
    tickets, tool_incidents, turns, usage,
};
use crate::openapi::operation::{self, Operation, Scope};
use crate::openapi::refusals::Refusals;
use crate::openapi::schema::open_free_objects;
use crate::openapi::tags::TAGS;

/// Answers with it.
pub(crate) async fn get() -> Response {
    docs::served("application/json", document())
}

/// The description as JSON.
pub(crate) fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| described().to_string().into());
    DOCUMENT.clone()
}

/// The operations of all resources.
pub(crate) fn operations() -> Vec<Operation> {
    let all = [
        agents::operations(),
        agui::operations(),
        audit::operations(),
        batches::operations(),
        budgets::operations(),
        completions::operations(),
        context::operations(),
        dead_letters::operations(),
        delayed_tasks::operations(),
        docs::operations(),
        erasures::operations(),
        events::operations(),
        exports::operations(),
        imports::operations(),
        failed_turns::operations(),
        feedback::operations(),
        follow_ups::operations(),
        forks::operations(),
        heartbeats::operations(),
        history::operations(),
        incidents::operations(),
        keys::operations(),
        memory::operations(),
        messages::operations(),
        models::operations(),
        notes::operations(),
        reasoning::operations(),
        responses::operations(),
        schedules::operations(),
        service_info::operations(),
        signing_keys::operations(),
        tasks::operations(),
        tenants::operations(),
        thread_list::operations(),
        threads::operations(),
        tickets::operations(),
        tool_incidents::operations(),
        turns::operations(),
        ui_message::operations(),
        usage::operations(),
    ];
    all.into_iter().flatten().collect()
}

/// The description. It is generated from the types of the handlers, so no running server is needed.
pub fn described() -> Value {
    let (mut paths, mut schemas, mut refusals) = (BTreeMap::new(), BTreeMap::new(), Refusals::default());
    for operation in operations() {
        operation.collect_schemas(&mut schemas);
        let (path, method) = (operation.path(), operation.method());
        let item: &mut Map<String, Value> = paths.entry(path).or_default();
        item.insert(method.to_owned(), operation.to_json(&mut refusals));
    }
    let mut components = json!({
        "schemas": schemas,
        "securitySchemes": { operation::BEARER: {
            "type": "http",
            "scheme": "bearer",
            "description": format!("{CREDENTIALS}\n\n{}", scopes()),
        } },
    });
    refusals.add_to_components(&mut components);
    components::share(paths.values_mut().flat_map(Map::values_mut).collect(), &mut components);
    let mut description = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Threads, turns, agents and their tasks over HTTP and server-sent events.",
            "description": INTRODUCTION,
            "license": { "name": "Apache License 2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/", "description": "This gateway, or any other in the fleet" }],
        "tags": TAGS.map(|(name, text)| json!({ "name": name, "description": text })),
        "paths": paths,
        "components": components,
    });
    open_free_objects(&mut description);
    description
}

const INTRODUCTION: &str = "\
A message to a thread opens a turn, which the agent's workflow answers. The answer is streamed as it is produced; when the turn ends, all \
of it is stored atomically.\n\n\
Ids match `[A-Za-z0-9_-]{1,128}`. Positions are numbers encoded as strings. Errors are `application/problem+json` (RFC 9457) with a \
machine-readable `code` and `retryable`; protocols with their own error format use that. With `Retry-After` the same request may \
succeed after that many seconds. Every operation may return the codes of its `default` response; `x-error-codes` lists its others.\n\n\
An event stream that ends without its last event was interrupted. A client that reconnects to any gateway with the id of the last event \
continues directly after it.";

const CREDENTIALS: &str = "\
An API key or a token of the identity provider. Each operation names the scope that it requires. A role is a set of scopes. `viewer` \
reads threads and agents; `operator` also writes threads, sends tasks, operates agents and reads the audit log; `admin` does everything. \
Resources of other tenants appear not to exist. The events of a thread can also be opened with a ticket in the URL (`ticket`).";

fn scopes() -> String {
    Scope::ALL.map(|scope| format!("* `{}`: {}", scope.scope(), operation::meaning(scope))).join("\n")
}

#[cfg(test)]
mod tests;
