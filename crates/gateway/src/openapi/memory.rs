//! What agents remember.

use http_server::error::ErrorCode;
use serde_json::{Value, json};

use crate::api::memory;
use crate::api::memory::{ChangedFactBody, FactBody, FactView, FactsPage, FactsQuery, ForgetQuery};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::MEMORY;

pub(crate) fn operations() -> Vec<Operation> {
    let (all, one) = ("/v1/agents/{agent}/memory", "/v1/agents/{agent}/memory/{fact}");
    vec![
        Operation::get(all, "listFacts", "List what an agent remembers", memory::list)
            .tag(MEMORY)
            .description("Newest first; with `q`, the facts that best match a message in that thread. `GET /v1/threads/{thread}/context` shows what its next turn would receive.")
            .scope(Scope::ReadThreads)
            .query::<FactsQuery>()
            .response::<FactsPage>(200, "Facts", json!({ "agent_id": "ann", "facts": [fact()] }))
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidLimit]),
        Operation::post(all, "addFact", "Add a fact to the memory of an agent", memory::add)
            .tag(MEMORY)
            .description("For one user, for one thread without a user, or for all threads of the agent if neither is given.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<FactBody>(json!({ "text": "Ann prefers short answers.", "kind": "preference", "user_id": "ann" }))
            .response::<FactView>(201, "Added", fact())
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidFact, ErrorCode::UnknownFact]),
        Operation::patch(one, "changeFact", "Correct a fact in the memory of an agent", memory::change)
            .tag(MEMORY)
            .description("Returns a new fact that replaces this one; `superseded=true` lists both.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<ChangedFactBody>(json!({ "text": "Ann prefers long answers." }))
            .response::<FactView>(200, "The new fact", fact())
            .errors(&[ErrorCode::InvalidFact, ErrorCode::UnknownFact]),
        Operation::delete(one, "forgetFact", "Delete a fact from the memory of an agent", memory::delete)
            .tag(MEMORY)
            .description("Also deletes the facts that it replaced; with `restore=true` they apply again instead.")
            .scope(Scope::OperateAgents)
            .query::<ForgetQuery>()
            .actor_header()
            .no_body()
            .response_with(ResponseSpec::nothing("Deleted"))
            .errors(&[ErrorCode::UnknownFact]),
    ]
}

fn fact() -> Value {
    json!({
        "fact_id": "m1-f0", "text": "Ann prefers short answers.", "kind": "preference", "confidence": 0.9, "scope": "user",
        "user_id": "ann", "thread_id": "hello", "message_id": "m1", "superseded_by": null,
        "created_at": "2026-11-22T11:49:44.123Z",
    })
}
