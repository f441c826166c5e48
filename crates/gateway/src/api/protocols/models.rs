//! Agents as OpenAI's models.

use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{AgentId, AgentSetting};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::AgentRow;
use utoipa::{IntoParams, ToSchema};

use crate::api::agents;
use crate::api::respond::json_no_store;
use crate::app::request_context::RequestContext;
use crate::commands;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::OPENAI;

pub(crate) fn operations() -> Vec<Operation> {
    let all = [
        Operation::get("/v1/models", "listModels", "List the agents as models", list)
            .scope(Scope::ReadAgents)
            .query::<ModelsQuery>()
            .response::<Models>(
                200,
                "The models",
                json!({ "object": "list", "data": [model_example()], "has_more": false }),
            )
            .errors(&[ErrorCode::UnknownAgent]),
        Operation::get("/v1/models/{model}", "showModel", "Show an agent as a model", get)
            .scope(Scope::ReadAgents)
            .response::<ModelView>(200, "The model", model_example())
            .errors(&[ErrorCode::UnknownAgent]),
    ];
    all.map(|operation| operation.tag(OPENAI)).into()
}

/// Maximum number of models per page. It is large because OpenAI's libraries request only the first
/// page.
const MOST: u32 = 1_000;

/// The agents as models; an `id` is a valid `model` of a request. The default agent is among them.
#[derive(Serialize, ToSchema)]
pub(crate) struct Models {
    object: &'static str,
    data: Vec<ModelView>,
    /// Whether there are more after the last one.
    has_more: bool,
}

/// An agent in the form of a model.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelView {
    /// The id of the agent, or one of its aliases.
    id: String,
    object: &'static str,
    /// When the agent's settings were first put, in seconds since 1970; 0 for an agent without
    /// settings.
    created: i64,
    owned_by: &'static str,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelsQuery {
    /// The last id of the previous page.
    #[param(min_length = 1, max_length = 256)]
    after: Option<String>,
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<ModelsQuery>,
) -> Result<Response, Problem> {
    let after = match &query.after {
        // The last name of a page may be an alias.
        Some(name) => Some(agent_of_name(&ctx, name).await?),
        None => None,
    };
    let store = ctx.store()?.for_tenant(ctx.tenant().cloned());
    let mut all = store.agents(None, after.as_ref(), MOST + 1).await?;
    let has_more = query::has_more(&mut all, MOST);
    let mut data: Vec<ModelView> = all.iter().flat_map(ModelView::of_agent).collect();
    let default = ctx.backend()?.default_agent_of(ctx.tenant());
    // The default agent answers without settings too, so the list is never empty.
    if after.is_none() && store.known_agents(std::slice::from_ref(&default)).await?.is_empty() {
        data.insert(0, ModelView::new(default.name(), None));
    }
    Ok(json_no_store(Models { object: "list", data, has_more }))
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(model): PathParam<String>,
) -> Result<Response, Problem> {
    let backend = ctx.backend()?;
    let agent = agent_of_name(&ctx, &model).await?;
    let row = backend.store().agent(&agent).await?;
    if row.is_none() && agent != backend.default_agent_of(ctx.tenant()) {
        return Err(agents::unknown());
    }
    Ok(json_no_store(ModelView::new(&model, row.as_ref())))
}

/// The agent with this alias or id.
async fn agent_of_name(ctx: &RequestContext, name: &str) -> Result<AgentId, Problem> {
    let agent = commands::models::agent_of_model(ctx.backend()?, ctx.tenant(), name).await;
    agent.map_err(|problem| match problem.code() {
        ErrorCode::InvalidValue => agents::unknown(),
        _ => problem,
    })
}

impl ModelView {
    /// An agent by one of its names. `row`: `None` for an agent without any stored data.
    fn new(name: &str, row: Option<&AgentRow>) -> Self {
        let settings = row.and_then(|row| row.settings.as_ref());
        let created = settings.map_or(0, |settings| settings.created_at.0.div_euclid(1_000));
        Self { id: name.to_owned(), object: "model", created, owned_by: "antiphon" }
    }

    /// An agent by its id and its aliases.
    fn of_agent(row: &AgentRow) -> impl Iterator<Item = Self> {
        let settings = row.settings.as_ref().map(|settings| &settings.settings);
        let aliases = settings.map(|settings| AgentSetting::ALIASES.strings(settings)).unwrap_or_default();
        [row.agent.name()].into_iter().chain(aliases).map(move |name| Self::new(name, Some(row)))
    }
}

fn model_example() -> Value {
    json!({ "id": "ann", "object": "model", "created": 1_795_348_184, "owned_by": "antiphon" })
}
