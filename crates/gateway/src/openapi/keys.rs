//! API keys and tickets.

use http_server::error::ErrorCode;
use serde_json::{Value, json};

use crate::api::audit::{AuditPage, AuditQuery};
use crate::api::keys::{KeyBody, KeysPage, KeysQuery, MadeKey};
use crate::api::tickets::{TicketBody, TicketView};
use crate::api::views::KeyView;
use crate::api::{keys, tickets};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::KEYS;

pub(crate) fn operations() -> Vec<Operation> {
    let page = json!({ "keys": [key()], "next": null });
    let mut made = key();
    made["key"] = json!(format!("ant_0123456789abcdef_{}", "0".repeat(64)));
    let url = format!("/v1/threads/hello/events?ticket={TICKET}");
    let ticket = json!({ "ticket": TICKET, "expires_at": "2026-11-22T12:21:38Z", "events_url": url });
    let place = json!({ "type": "string", "format": "uri-reference" });
    vec![
        Operation::get("/v1/keys", "listKeys", "List the API keys of the tenant, without their secrets", keys::list)
            .tag(KEYS)
            .scope(Scope::ManageKeys)
            .query::<KeysQuery>()
            .response::<KeysPage>(200, "Keys, ordered by id", page)
            .errors(&[ErrorCode::InvalidLimit]),
        Operation::post("/v1/keys", "makeKey", "Create an API key", keys::create)
            .tag(KEYS)
            .description("The secret is shown only in this response. A key cannot grant a scope that its creator lacks, or outlive the creator's own credential.")
            .scope(Scope::ManageKeys)
            .actor_header()
            .body::<KeyBody>(json!({ "name": "the web shop", "role": "operator", "expires_in_s": 7_776_000 }))
            .response::<MadeKey>(201, "The key", made)
            .errors(&[ErrorCode::InvalidKey, ErrorCode::UnknownKey]),
        Operation::delete("/v1/keys/{key}", "revokeKey", "Revoke an API key", keys::revoke)
            .tag(KEYS)
            .description("Takes effect everywhere within seconds. Streams opened with the key end.")
            .scope(Scope::ManageKeys)
            .actor_header()
            .no_body()
            .response::<KeyView>(200, "Revoked", key())
            .errors(&[ErrorCode::UnknownKey]),
        Operation::get("/v1/keys/{key}/audit", "auditKey", "Show the audit log of a key", keys::audit)
            .tag(KEYS)
            .scope(Scope::ReadAudit)
            .query::<AuditQuery>()
            .response::<AuditPage>(200, "Entries of the audit log, newest first", log())
            .errors(&[ErrorCode::UnknownKey, ErrorCode::InvalidLimit]),
        Operation::post("/v1/threads/{thread}/tickets", "makeTicket", "Create a ticket for the events of a thread", tickets::create)
            .tag(KEYS)
            .description("For clients that cannot send headers, such as a browser's EventSource. It opens the events of this thread and nothing else.")
            .scope(Scope::ReadThreads)
            .body::<TicketBody>(json!({ "lifetime_s": 300 }))
            .response::<TicketView>(201, "The ticket", ticket)
            .with_header("Location", "The URL of the events.", place)
            .errors(&[ErrorCode::InvalidTicket]),
    ]
}

const TICKET: &str = "tkt_AQAAAABrAt5S.TrX4ZWJPhrtYuJP8Ldpu60GX7eAJzh_avXwijILLKY4";

fn log() -> Value {
    json!({ "subject_id": "0123456789abcdef", "next": null, "entries": [{
        "command_id": "0198c4d2e5f57a60b1d3c8a94e27f610", "actor": "key:fedcba9876543210/ada", "action": "make_key",
        "target": "0123456789abcdef", "detail": "role operator", "status": "done", "error": null, "created_at": "2026-11-22T11:49:44.123Z",
    }] })
}

fn key() -> Value {
    json!({
        "key_id": "0123456789abcdef",
        "tenant": "acme",
        "name": "the web shop",
        "role": "operator",
        "scopes": ["threads:read", "agents:read", "threads:write", "tasks:write", "agents:operate", "audit:read"],
        "created_by": "key:fedcba9876543210",
        "created_at": "2026-11-22T12:00:00Z",
        "expires_at": "2027-02-20T12:00:00Z",
        "revoked_at": null,
        "revoked_by": null,
        "last_used_at": null,
    })
}
