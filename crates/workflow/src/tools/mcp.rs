//! Tools of a Model Context Protocol server, over streamable HTTP.
//!
//! A server that cannot be reached is an error of its tools, never of a turn: the model gets the
//! error as a result, as from any other tool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{TENANT_MARK, is_memory_tool};
use reqwest::{Client, Url};
use rmcp::ServiceExt as _;
use rmcp::model::{CallToolRequestParams, CallToolResult, Tool};
use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::result::{ToolOutcome, ToolResult};
use crate::request::TurnAttempt;

/// Timeout of connecting, of listing and of one call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of tools offered to a model.
const MAX_TOOLS: usize = 128;
/// Maximum bytes of a result that the model sees. The view of a long thread is long.
const MAX_RESULT_BYTES: usize = 256 << 10;
/// Maximum bytes of one message of the server.
const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// The argument that makes a tool execute a request once, however often it is sent.
const REQUEST_ID: &str = "request_id";
/// Arguments that select the memory of a memory tool. The turn sets them, not its model.
const MEMORY_SCOPE: [&str; 5] = ["thread_id", "agent_id", "session_id", "message_id", "tenant"];

type McpConnection = Arc<RunningService<RoleClient, ()>>;

/// A URL that cannot be an MCP server's.
#[derive(Debug, thiserror::Error)]
#[error("the MCP server {0:?}: {1}")]
pub struct InvalidMcpUrl(String, String);

/// An MCP server. Clones share its connection.
#[derive(Debug, Clone)]
pub(super) struct McpServer(Arc<ServerInner>);

#[derive(Debug)]
struct ServerInner {
    url: String,
    key: Option<String>,
    client: Client,
    timeout: Duration,
    state: Mutex<ServerState>,
}

#[derive(Debug, Default)]
struct ServerState {
    connection: Option<McpConnection>,
    /// The tools listed when the server was last reached; they are offered while it is unreachable.
    tools: Vec<Tool>,
}

/// Checks that the URL can be an MCP server's.
pub(super) fn check_url(url: &str) -> Result<(), InvalidMcpUrl> {
    let wrong = |why: String| InvalidMcpUrl(url.to_owned(), why);
    let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
    match parsed.scheme() {
        "http" | "https" => Ok(()),
        _ => Err(wrong("only http and https can be called".to_owned())),
    }
}

impl McpServer {
    /// A server at this URL; `key` is sent as a bearer token.
    pub(super) fn new(url: &str, key: Option<String>, client: Client) -> Result<Self, InvalidMcpUrl> {
        check_url(url)?;
        let state = Mutex::default();
        Ok(Self(Arc::new(ServerInner { url: url.to_owned(), key, client, timeout: TIMEOUT, state })))
    }

    /// The tools' definitions for models: `[{"name", "description", "parameters"}]`.
    pub(super) async fn definitions(&self) -> Vec<Value> {
        if let Err(error) = self.list().await {
            tracing::warn!(url = self.0.url, error, "the MCP server's tools could not be listed");
        }
        let state = self.0.state.lock().await;
        let definition = |tool: &Tool| json!({"name": tool.name, "description": tool.description, "parameters": parameters(tool)});
        state.tools.iter().map(definition).collect()
    }

    /// Whether the last list has a tool of that name.
    pub(super) async fn has(&self, name: &str) -> bool {
        self.0.state.lock().await.tools.iter().any(|tool| tool.name == name)
    }

    async fn list(&self) -> Result<(), String> {
        let connection = self.connection().await?;
        let listed = self.within(connection.list_all_tools()).await;
        let mut state = self.0.state.lock().await;
        match listed {
            Ok(mut tools) => {
                tools.truncate(MAX_TOOLS);
                state.tools = tools;
                Ok(())
            }
            Err(error) => {
                state.connection = None;
                Err(error)
            }
        }
    }

    /// Calls a tool. `key` identifies the call and is the same in every run and attempt of its
    /// turn.
    pub(super) async fn call(
        &self,
        name: &str,
        mut arguments: Map<String, Value>,
        key: &str,
        turn: &TurnAttempt,
    ) -> ToolOutcome {
        let tool = self.0.state.lock().await.tools.iter().find(|tool| tool.name == name).cloned();
        let not_run = |why: String| ToolOutcome::NotRun(ToolResult::error(why));
        // Another turn may have read a newer list since this turn found the tool.
        let Some(tool) = tool else { return not_run(format!("there is no tool {name:?}")) };
        if has_memory_scope(&tool) && turn.thread.background_kind().is_some() {
            return not_run(
                "work that follows a turn has no thread of its own whose memory counts".to_owned(),
            );
        }
        if takes(&tool, REQUEST_ID) && !arguments.contains_key(REQUEST_ID) {
            let request = request_id(key, name, &arguments);
            arguments.insert(REQUEST_ID.to_owned(), json!(request));
        }
        // This follows the request id, because each run of a turn has another answer.
        scope_to(turn, &tool, &mut arguments);
        let called = async {
            let connection = self.connection().await?;
            let request = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
            self.within(connection.call_tool(request)).await
        };
        match called.await {
            Ok(result) => ToolOutcome::Answered(answer(&result)),
            Err(error) => {
                // The next call reconnects.
                self.0.state.lock().await.connection = None;
                ToolOutcome::Unknown(ToolResult::error(format!("the MCP server: {error}")))
            }
        }
    }

    async fn connection(&self) -> Result<McpConnection, String> {
        let mut state = self.0.state.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.0.url.as_str());
        config.auth_header.clone_from(&self.0.key);
        config.max_sse_event_size = MAX_MESSAGE_BYTES;
        let transport = StreamableHttpClientTransport::with_client(self.0.client.clone(), config);
        let connection = Arc::new(self.within(().serve(transport)).await?);
        state.connection = Some(Arc::clone(&connection));
        Ok(connection)
    }

    async fn within<T, E: std::fmt::Display>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, String> {
        match timeout(self.0.timeout, work).await {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", self.0.timeout.as_secs())),
        }
    }
}

fn takes(tool: &Tool, argument: &str) -> bool {
    tool.input_schema.get("properties").is_some_and(|properties| properties.get(argument).is_some())
}

/// Whether the tool is Antiphon's memory tool and not another server's tool of the same name.
fn has_memory_scope(tool: &Tool) -> bool {
    is_memory_tool(&tool.name) && takes(tool, "thread_id") && takes(tool, "agent_id")
}

/// The schema of the arguments, without those that the turn sets.
fn parameters(tool: &Tool) -> Value {
    let mut schema = Value::Object((*tool.input_schema).clone());
    if has_memory_scope(tool) {
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.retain(|name, _| !MEMORY_SCOPE.contains(&name.as_str()));
        }
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|name| name.as_str().is_none_or(|name| !MEMORY_SCOPE.contains(&name)));
        }
    }
    schema
}

/// Restricts a memory tool to the memory of its turn, whatever the model asks for and whatever page
/// it has read.
fn scope_to(turn: &TurnAttempt, tool: &Tool, arguments: &mut Map<String, Value>) {
    if !has_memory_scope(tool) {
        return;
    }
    arguments.retain(|name, _| !MEMORY_SCOPE.contains(&name.as_str()));
    arguments.insert("thread_id".to_owned(), json!(turn.thread.name()));
    let agent = turn.agent.rsplit_once(TENANT_MARK).map_or(turn.agent.as_str(), |(_, name)| name);
    arguments.insert("agent_id".to_owned(), json!(agent));
    if takes(tool, "tenant") {
        let tenant = turn.thread.tenant();
        arguments.insert("tenant".to_owned(), json!(tenant.as_ref().map_or("", |tenant| tenant.as_str())));
    }
    if takes(tool, "message_id") {
        arguments.insert("message_id".to_owned(), json!(turn.message.as_str()));
    }
}

/// The id of the request: the same for the same call with the same arguments. Other arguments are
/// another request, which a server that compares requests would refuse under the same id.
fn request_id(key: &str, name: &str, arguments: &Map<String, Value>) -> String {
    let sorted: BTreeMap<&String, &Value> = arguments.iter().collect();
    let digest = Sha256::digest(json!([name, sorted]).to_string());
    let short: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{key}:{short}")
}

/// The texts of a result, joined by line breaks.
fn answer(result: &CallToolResult) -> ToolResult {
    let texts = result.content.iter().filter_map(|block| block.as_text());
    let mut text = texts.map(|block| block.text.as_str()).collect::<Vec<_>>().join("\n");
    if text.len() > MAX_RESULT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_RESULT_BYTES));
        text.push_str(&format!("\n[cut off after {} bytes]", text.len()));
    }
    ToolResult { text, is_error: result.is_error.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, properties: &[&str]) -> Tool {
        let schemas = properties.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
        let schema = [
            ("type".to_owned(), json!("object")),
            ("properties".to_owned(), Value::Object(schemas)),
            ("required".to_owned(), json!(properties)),
        ];
        Tool::new(name.to_owned(), "", Arc::new(schema.into_iter().collect::<Map<String, Value>>()))
    }

    #[test]
    fn memory_is_that_of_the_turn_whatever_its_model_asks_for() {
        let scope = ["thread_id", "agent_id", "session_id", "message_id", "tenant"];
        let all = [&scope[..], &["text"]].concat();
        let turn = TurnAttempt {
            agent: "acme~ann".to_owned(),
            thread: model::ThreadId::parse("acme~hello").unwrap(),
            ..crate::request::tests::turn()
        };
        let asked = json!({"thread_id": "of-bob", "agent_id": "other", "session_id": "s", "message_id": "m9", "tenant": "other", "text": "x"});
        let made = |tool: &Tool| {
            let mut arguments = asked.as_object().unwrap().clone();
            scope_to(&turn, tool, &mut arguments);
            Value::Object(arguments)
        };
        let own = json!({"thread_id": "hello", "agent_id": "ann", "tenant": "acme", "message_id": turn.message.as_str(), "text": "x"});
        let mut found = own.clone();
        found.as_object_mut().unwrap().remove("message_id");
        for (name, properties, sent, shown) in [
            ("memory_remember", &all[..], own, vec!["text"]),
            (
                "memory_search",
                &["thread_id", "agent_id", "session_id", "tenant", "text"],
                found,
                vec!["text"],
            ),
            // These are not memory tools: the first belongs to another server, and the second is
            // another tool.
            ("memory_search", &["text"], asked.clone(), vec!["text"]),
            ("frs_create_session", &all[..], asked.clone(), all.clone()),
        ] {
            let tool = tool(name, properties);
            assert_eq!(made(&tool), sent, "{name} {properties:?}");
            let schema = parameters(&tool);
            let mut offered: Vec<&str> =
                schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
            let mut wanted = shown.clone();
            offered.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(offered, wanted, "{name}");
            assert_eq!(schema["required"], json!(shown), "{name}");
        }
    }

    #[test]
    fn a_request_is_the_same_for_the_same_arguments() {
        let request = |key: &str, name: &str, arguments: Value| match arguments {
            Value::Object(arguments) => request_id(key, name, &arguments),
            _ => String::new(),
        };
        let first = request("u0001-x:0.1", "frs_undo", json!({ "session_id": "s", "count": 3 }));
        assert_eq!(first, request("u0001-x:0.1", "frs_undo", json!({ "count": 3, "session_id": "s" })));
        assert!(first.starts_with("u0001-x:0.1:") && first.len() == "u0001-x:0.1:".len() + 16, "{first}");
        for other in [
            request("u0001-x:0.2", "frs_undo", json!({ "session_id": "s", "count": 3 })),
            request("u0001-x:0.1", "frs_restore", json!({ "session_id": "s", "count": 3 })),
            request("u0001-x:0.1", "frs_undo", json!({ "session_id": "s", "count": 4 })),
        ] {
            assert_ne!(other, first);
        }
    }
}
