//! What the API is, as OpenAPI 3.1: made from the types that requests are read into and answers are
//! written from.
//!
//! Entry: [`document`]. An operation is a value ([`Operation`]). The file of a resource has one for
//! each of its handlers, with the scope and the codes of all errors that it can give; the router is
//! made of the same values. The schemas of bodies, queries and answers are derived from the types
//! of the handlers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::response::Response;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::api::protocols::{agui, completions, models, responses, ui_message};
use crate::api::{
    agents, audit, batches, budgets, context, dead_letters, delayed_tasks, docs, erasures, events,
    failed_turns, follow_ups, forks, heartbeats, history, incidents, keys, memory, messages, notes,
    reasoning, schedules, service_info, tasks, threads, tickets, tool_incidents, turns, usage,
};
use crate::openapi::events::Stream;
use crate::openapi::operation::{self, Operation, Scope};
use crate::openapi::refusals::Refusals;
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
        failed_turns::operations(),
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
        tasks::operations(),
        threads::operations(),
        tickets::operations(),
        tool_incidents::operations(),
        turns::operations(),
        ui_message::operations(),
        usage::operations(),
    ];
    all.into_iter().flatten().collect()
}

/// The description. It is made of the types of the handlers, so no server is asked for it.
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
    components["examples"] = json!(Stream::Native.shared_examples());
    components["parameters"] = Value::Object(shared_parameters(&mut paths));
    json!({
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
    })
}

/// Moves parameters of several operations to the components, by their names. Of several with one
/// name, the most frequent has it; others are moved if their schemas have names.
fn shared_parameters(paths: &mut BTreeMap<&'static str, Map<String, Value>>) -> Map<String, Value> {
    let operations = || paths.values().flat_map(Map::values);
    let mut counts = BTreeMap::<String, (usize, &Value)>::new();
    let lists = operations().filter_map(|operation| operation.get("parameters")?.as_array());
    for parameter in lists.flatten() {
        counts.entry(parameter.to_string()).or_insert((0, parameter)).0 += 1;
    }
    let mut repeated: Vec<_> = counts.into_values().filter(|(count, _)| *count > 1).collect();
    repeated.sort_by_key(|(count, _)| Reverse(*count));
    let mut shared = Map::new();
    for (_, parameter) in repeated {
        let free = names_of(parameter).into_iter().find(|name| !shared.contains_key(name));
        if let Some(name) = free {
            shared.insert(name, parameter.clone());
        }
    }
    let of_operations = paths.values_mut().flat_map(Map::values_mut);
    let lists = of_operations.filter_map(|operation| operation.get_mut("parameters")?.as_array_mut());
    for parameter in lists.flatten() {
        let name = names_of(parameter).into_iter().find(|name| shared.get(name) == Some(parameter));
        if let Some(name) = name {
            *parameter = json!({ "$ref": format!("#/components/parameters/{name}") });
        }
    }
    shared
}

/// How a component may be named.
fn names_of(parameter: &Value) -> Vec<String> {
    let name = parameter["name"].as_str().unwrap_or_default();
    let schema = parameter["schema"]["$ref"].as_str().and_then(|schema| schema.rsplit('/').next());
    [name.to_owned()].into_iter().chain(schema.map(|schema| format!("{name}-{schema}"))).collect()
}

const INTRODUCTION: &str = "\
A message to a thread opens a turn, which the agent's workflow answers. The answer is streamed as it is produced; when the turn ends, all \
of it is stored atomically. Agents process their task queues in the same way.\n\n\
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
