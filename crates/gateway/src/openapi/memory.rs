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
        Operation::get(all, "listFacts", "What an agent remembers", memory::list)
            .tag(MEMORY)
            .description("The newest first; with `q` what fits a message best in that thread. `GET /v1/threads/{thread}/context` shows what its next turn would be given.")
            .scope(Scope::ReadThreads)
            .query::<FactsQuery>()
            .response::<FactsPage>(200, "Facts", json!({ "agent_id": "ann", "facts": [fact()] }))
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidLimit]),
        Operation::post(all, "addFact", "Give an agent something to remember", memory::add)
            .tag(MEMORY)
            .description("For one user, for one thread without a user, or without either for all threads of the agent.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<FactBody>(json!({ "text": "Ann prefers short answers.", "kind": "preference", "user_id": "ann" }))
            .response::<FactView>(201, "It is remembered", fact())
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidFact, ErrorCode::UnknownFact]),
        Operation::patch(one, "changeFact", "Correct what an agent remembers", memory::change)
            .tag(MEMORY)
            .description("The answer is another fact, which has taken the place of this one; `superseded=true` shows both.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<ChangedFactBody>(json!({ "text": "Ann prefers long answers." }))
            .response::<FactView>(200, "The fact that has taken its place", fact())
            .errors(&[ErrorCode::InvalidFact, ErrorCode::UnknownFact]),
        Operation::delete(one, "forgetFact", "Have an agent forget something", memory::delete)
            .tag(MEMORY)
            .description("With it goes what it has taken the place of, or with `restore=true` that counts again.")
            .scope(Scope::OperateAgents)
            .query::<ForgetQuery>()
            .actor_header()
            .no_body()
            .response_with(ResponseSpec::nothing("It is forgotten"))
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
