//! The server: lists the tools, authenticates callers and dispatches calls.

use std::sync::Arc;

use embeddings::Embeddings;
use http::HeaderMap;
use http::request::Parts;
use http_server::{AuthenticatedCaller, CallerAuthenticator};
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestMethod, CompleteRequestParams, CompleteResult,
    CustomRequest, CustomResult, ErrorCode, ErrorData, Implementation, JsonObject, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use runtime::traces::{Span, SpanKind, SpanStart, TraceContext};
use store::Store;

use crate::answer::{ToolAnswer, ToolError, result};
use crate::context::ToolContext;
use crate::{compressions, log, memory, metrics, sessions, tools};

const INSTRUCTIONS: &str = "An agent's own thread, numbered: view it, replace a stretch of it by a summary, take that back exactly. \
    Begin with frs_create_session, append what you say and what tools answer with frs_append, and view the thread with frs_view_thread \
    before you compress. With the memory_ tools the agent remembers facts of the user or the thread beyond this conversation.";

/// The source of a call's caller.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// The caller that was authenticated with the HTTP request.
    OfRequest,
    /// The same caller for all calls; its credential is checked with every call.
    Fixed { callers: Arc<CallerAuthenticator>, headers: HeaderMap },
}

/// The tools. Cheap to clone, without session state.
#[derive(Debug, Clone)]
pub(crate) struct ReasoningServer {
    store: Store,
    caller: Caller,
    embeddings: Option<Embeddings>,
}

impl ReasoningServer {
    pub(crate) fn new(store: Store, caller: Caller, embeddings: Option<Embeddings>) -> Self {
        Self { store, caller, embeddings }
    }

    async fn context(&self, request: &RequestContext<RoleServer>) -> Result<ToolContext, ToolError> {
        let denied = || ToolError::new("unauthenticated", "the credential is not valid");
        let caller = match &self.caller {
            Caller::OfRequest => {
                let parts = request.extensions.get::<Parts>();
                parts
                    .and_then(|parts| parts.extensions.get::<AuthenticatedCaller>())
                    .cloned()
                    .ok_or_else(denied)?
            }
            Caller::Fixed { callers, headers } => {
                callers.authenticate(headers, None).await.map_err(|_| denied())?
            }
        };
        let tenant = caller.tenant();
        Ok(ToolContext {
            store: self.store.for_tenant(tenant.clone()),
            tenant,
            actor: caller.actor().to_owned(),
            caller,
            embeddings: self.embeddings.clone(),
        })
    }

    async fn call(
        &self,
        tool: tools::ToolName,
        arguments: Option<JsonObject>,
        request: &RequestContext<RoleServer>,
    ) -> Result<ToolAnswer, ToolError> {
        let context = self.context(request).await?;
        context.caller.admit(tool.needs())?;
        match tool {
            tools::ToolName::CreateSession => sessions::create(&context, arguments).await,
            tools::ToolName::ViewThread => sessions::view(&context, arguments).await,
            tools::ToolName::Append => sessions::append(&context, arguments).await,
            tools::ToolName::Plan => sessions::plan(&context, arguments).await,
            tools::ToolName::CompressLast => compressions::last(&context, arguments).await,
            tools::ToolName::CompressRange => compressions::range(&context, arguments).await,
            tools::ToolName::Undo => compressions::undo(&context, arguments).await,
            tools::ToolName::Checkpoint => compressions::checkpoint(&context, arguments).await,
            tools::ToolName::Restore => compressions::restore(&context, arguments).await,
            tools::ToolName::Discarded => log::discarded(&context, arguments).await,
            tools::ToolName::ReadMessage => log::read_message(&context, arguments).await,
            tools::ToolName::MemoryRemember => memory::remember(&context, arguments).await,
            tools::ToolName::MemorySearch => memory::search(&context, arguments).await,
            tools::ToolName::MemoryCorrect => memory::correct(&context, arguments).await,
            tools::ToolName::MemoryForget => memory::forget(&context, arguments).await,
        }
    }
}

/// A span below that of the HTTP request: the library handles the call in a task of its own.
fn tool_span(tool: tools::ToolName, request: &RequestContext<RoleServer>) -> Span {
    let parts = request.extensions.get::<Parts>();
    let parent = parts.and_then(|parts| parts.extensions.get::<TraceContext>());
    let name = format!("execute_tool {}", tool.as_str());
    let mut span = Span::start(name, SpanKind::Internal, parent, SpanStart::Now);
    if span.is_recorded() {
        span.set("gen_ai.operation.name", "execute_tool");
        span.set("gen_ai.tool.name", tool.as_str());
    }
    span
}

impl ServerHandler for ReasoningServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("antiphon", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::ToolName::ALL.map(tools::ToolName::tool).to_vec()))
    }

    // Methods of absent features are unknown, as the capabilities declare. The library's default
    // would return an empty list.

    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }

    /// A request that the library could not parse. If the method exists, its parameters are
    /// invalid.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let wrong = match request.method.as_str() {
            "tools/call" => "params must be an object with name, a string, and arguments, an object",
            "tools/list" => "params must be an object, with cursor, a string, if at all",
            _ => return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None)),
        };
        Err(ErrorData::invalid_params(wrong, None))
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::ToolName::parse(name).map(tools::ToolName::tool)
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::ToolName::parse(&call.name) else {
            let known = tools::ToolName::ALL.map(tools::ToolName::as_str).join(", ");
            return Err(ErrorData::invalid_params(format!("there is no such tool; there are {known}"), None));
        };
        let mut span = tool_span(tool, &context);
        let outcome = self.call(tool, call.arguments, &context).await;
        if let Err(error) = &outcome {
            span.fail(error.code);
        }
        metrics::called(tool.as_str(), outcome.as_ref().map_or_else(|error| error.code, |_| "done"));
        Ok(result(outcome).into())
    }
}
