//! Tools that a model may call: HTTP endpoints described in a file, and the tools of an MCP server.

mod mcp;
mod result;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Url};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use self::mcp::{InvalidMcpUrl, McpServer};
pub(crate) use self::result::{ToolOutcome, ToolResult};
use crate::metrics;
use crate::request::TurnAttempt;
use runtime::http::{self, ClientError};
use runtime::traces::{self, TraceContext};

/// Identifies a call to the tool, the same in every run and attempt of its turn. A tool that has
/// executed the call can return the same result again.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

const RESULT_BYTES: usize = 16 << 10;
const MOST_RESULT_BYTES: usize = 1 << 20;
const TIMEOUT_SECONDS: f64 = 30.0;

/// Why a file of tools, or the MCP server's URL, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// Cannot be read.
    #[error("the tools in {0} cannot be read: {1}")]
    File(String, std::io::Error),
    /// Not in the expected form.
    #[error("the tools are not in the expected form: {0}")]
    Form(#[from] serde_json::Error),
    /// Name of an invalid tool, and the reason.
    #[error("tool {0:?}: {1}")]
    Tool(String, String),
    /// The URL of the MCP server.
    #[error(transparent)]
    Mcp(#[from] InvalidMcpUrl),
    /// No HTTP client.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// The tools of a service. Clones share connections.
#[derive(Debug, Clone)]
pub struct Tools {
    client: Client,
    tools: BTreeMap<String, HttpTool>,
    mcp: Option<McpServer>,
}

#[derive(Debug, Clone)]
struct HttpTool {
    description: String,
    parameters: Value,
    url: Url,
    method: Method,
    headers: HeaderMap,
    timeout: Duration,
    max_result_bytes: usize,
    is_idempotent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tools: Vec<ToolInFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolInFile {
    name: String,
    #[serde(default)]
    description: String,
    /// JSON schema of the arguments.
    #[serde(default)]
    parameters: Option<Value>,
    url: String,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    timeout_seconds: Option<f64>,
    #[serde(default)]
    max_result_bytes: Option<usize>,
    /// Whether a second call with the same `Idempotency-Key` is harmless; default true.
    #[serde(default)]
    idempotent: Option<bool>,
}

impl Tools {
    /// An empty set of tools.
    ///
    /// # Errors
    /// The HTTP client cannot be set up.
    pub fn none() -> Result<Self, ToolsError> {
        Ok(Self { client: http::client(None)?, tools: BTreeMap::new(), mcp: None })
    }

    /// Reads a file of tools.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn read(path: &Path) -> Result<Self, ToolsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ToolsError::File(path.display().to_string(), error))?;
        Self::parse(&text)
    }

    /// Parses the text of a file of tools: `{"tools": [{"name", "description", "parameters", "url",
    /// "method", "headers", "timeout_seconds", "max_result_bytes", "idempotent"}]}`. Only `name`
    /// and `url` are required.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn parse(text: &str) -> Result<Self, ToolsError> {
        let file: File = serde_json::from_str(text)?;
        let mut tools = Self::none()?;
        for tool in file.tools {
            let name = tool.name.clone();
            let tool = check(tool).map_err(|why| ToolsError::Tool(name.clone(), why))?;
            if tools.tools.insert(name.clone(), tool).is_some() {
                return Err(ToolsError::Tool(name, "there are two of this name".to_owned()));
            }
        }
        Ok(tools)
    }

    /// Checks that [`Tools::with_mcp_server`] accepts this URL.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn check_mcp_url(url: &str) -> Result<(), ToolsError> {
        Ok(mcp::check_url(url)?)
    }

    /// Adds the tools of the MCP server at this URL; `key` is sent as a bearer token. Its tools are
    /// listed for every turn. A tool with the name of one in the file is left out.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn with_mcp_server(mut self, url: &str, key: Option<String>) -> Result<Self, ToolsError> {
        self.mcp = Some(McpServer::new(url, key, self.client.clone())?);
        Ok(self)
    }

    /// Number of tools in the file.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether the file has no tools.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// The definitions for the model, restricted to the names in `allowed` if given.
    pub(crate) async fn definitions(&self, allowed: Option<&[String]>) -> Vec<Value> {
        let offered = self.tools.iter().filter(|(name, _)| may(allowed, name));
        let function = |(name, tool): (&String, &HttpTool)| json!({"name": name, "description": tool.description, "parameters": tool.parameters});
        let mut functions: Vec<Value> = offered.map(function).collect();
        if let Some(mcp) = &self.mcp {
            let of_server = mcp.definitions().await.into_iter();
            functions.extend(of_server.filter(|function| {
                let name = function["name"].as_str().unwrap_or_default();
                !self.tools.contains_key(name) && may(allowed, name)
            }));
        }
        functions.into_iter().map(|function| json!({"type": "function", "function": function})).collect()
    }

    async fn find(&self, name: &str, allowed: Option<&[String]>) -> Option<FoundTool<'_>> {
        if !may(allowed, name) {
            return None;
        }
        match (self.tools.get(name), &self.mcp) {
            (Some(tool), _) => Some(FoundTool::Http(tool)),
            (None, Some(server)) if server.has(name).await => Some(FoundTool::Mcp(server)),
            (None, _) => None,
        }
    }

    /// Whether the calls of a step reach this tool one after the other. True for an MCP server,
    /// whose tools may share state.
    pub(crate) fn is_in_order(&self, name: &str) -> bool {
        self.mcp.is_some() && !self.tools.contains_key(name)
    }

    /// Whether the tool may be called again when the outcome of a call is unknown. True for all
    /// tools of an MCP server.
    pub(crate) fn is_idempotent(&self, name: &str) -> bool {
        self.tools.get(name).is_none_or(|tool| tool.is_idempotent)
    }

    /// Calls a tool. A failure is a result for the model, which may correct its call; the turn
    /// continues.
    pub(crate) async fn call(
        &self,
        name: &str,
        arguments: &str,
        (turn, key): (&TurnAttempt, &str),
        allowed: Option<&[String]>,
    ) -> ToolOutcome {
        let started = Instant::now();
        let not_run = |why: String| ToolOutcome::NotRun(ToolResult::error(why));
        let outcome = match self.find(name, allowed).await {
            None => not_run(format!("there is no tool {name:?}")),
            Some(found) => match (serde_json::from_str::<Map<String, Value>>(arguments), found) {
                (Err(error), _) => not_run(format!("the arguments are not a JSON object: {error}")),
                (Ok(arguments), FoundTool::Http(tool)) => tool.call(&self.client, &arguments, key).await,
                (Ok(arguments), FoundTool::Mcp(server)) => server.call(name, arguments, key, turn).await,
            },
        };
        metrics::tool_call(outcome.result().is_error, started.elapsed());
        outcome
    }
}

enum FoundTool<'a> {
    Http(&'a HttpTool),
    Mcp(&'a McpServer),
}

fn may(allowed: Option<&[String]>, name: &str) -> bool {
    allowed.is_none_or(|allowed| allowed.iter().any(|one| one == name))
}

impl HttpTool {
    async fn call(&self, client: &Client, arguments: &Map<String, Value>, key: &str) -> ToolOutcome {
        let mut url = self.url.clone();
        let mut request = client.request(self.method.clone(), url.clone());
        if matches!(self.method, Method::GET | Method::DELETE) {
            url.query_pairs_mut().extend_pairs(arguments.iter().map(|(name, value)| (name, plain(value))));
            request = client.request(self.method.clone(), url);
        } else {
            let body = Value::Object(arguments.clone()).to_string();
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        for (name, value) in traces::current().iter().flat_map(TraceContext::headers) {
            request = request.header(name, value);
        }
        let request =
            request.header(IDEMPOTENCY_KEY, key).headers(self.headers.clone()).timeout(self.timeout);
        let answered = async {
            let response = request.send().await?;
            let status = response.status();
            Ok::<_, reqwest::Error>((status, http::read_at_most(response, self.max_result_bytes).await?))
        };
        match answered.await {
            Err(error) if error.is_connect() => {
                ToolOutcome::NotRun(ToolResult::error("the tool cannot be reached"))
            }
            Err(error) if error.is_timeout() => {
                let seconds = self.timeout.as_secs_f64();
                ToolOutcome::Unknown(ToolResult::error(format!("the tool did not answer within {seconds} s")))
            }
            Err(_) => ToolOutcome::Unknown(ToolResult::error("the connection to the tool broke")),
            Ok((status, body)) => {
                let text = shown(body);
                ToolOutcome::Answered(match status.is_success() {
                    true => ToolResult { text, is_error: false },
                    false => ToolResult::error(format!("the tool answered {status}: {text}")),
                })
            }
        }
    }
}

/// The result as the model sees it, with a note if it was cut off.
fn shown((body, is_cut): (Vec<u8>, bool)) -> String {
    let length = body.len();
    let text = String::from_utf8_lossy(&body);
    match is_cut {
        true => format!("{}\n[cut off after {length} bytes]", text.trim_end_matches('\u{FFFD}')),
        false => text.into_owned(),
    }
}

/// A value in a query: a string as it is, anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn check(tool: ToolInFile) -> Result<HttpTool, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if tool.name.is_empty() || tool.name.len() > 64 || !tool.name.chars().all(is_name) {
        return Err("a name has 1 to 64 letters, digits, _ and -".to_owned());
    }
    let parameters = tool.parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if !parameters.is_object() {
        return Err("parameters must be a JSON schema, an object".to_owned());
    }
    let url = Url::parse(&tool.url).map_err(|error| format!("url {:?}: {error}", tool.url))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("url {:?}: only http and https can be called", tool.url));
    }
    let max_result_bytes = tool.max_result_bytes.unwrap_or(RESULT_BYTES);
    if !(1..=MOST_RESULT_BYTES).contains(&max_result_bytes) {
        return Err(format!("max_result_bytes must be from 1 to {MOST_RESULT_BYTES}"));
    }
    let seconds = tool.timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
    if !(0.1..=600.0).contains(&seconds) {
        return Err("timeout_seconds must be from 0.1 to 600".to_owned());
    }
    Ok(HttpTool {
        description: tool.description,
        parameters,
        url,
        method: method(tool.method.as_deref())?,
        headers: headers(&tool.headers)?,
        timeout: Duration::from_secs_f64(seconds),
        max_result_bytes,
        is_idempotent: tool.idempotent.unwrap_or(true),
    })
}

fn method(name: Option<&str>) -> Result<Method, String> {
    match name {
        None | Some("POST") => Ok(Method::POST),
        Some("GET") => Ok(Method::GET),
        Some("PUT") => Ok(Method::PUT),
        Some("PATCH") => Ok(Method::PATCH),
        Some("DELETE") => Ok(Method::DELETE),
        Some(other) => Err(format!("method {other:?}: GET, POST, PUT, PATCH and DELETE are known")),
    }
}

fn headers(texts: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in texts {
        let known: HeaderName = name.parse().map_err(|_| format!("header {name:?} is no header"))?;
        if known == IDEMPOTENCY_KEY {
            return Err("the header Idempotency-Key is set for each call".to_owned());
        }
        // The value may be a secret, so the error does not repeat it.
        let mut value: HeaderValue =
            value.parse().map_err(|_| format!("header {name:?} has a value that no header may have"))?;
        value.set_sensitive(true);
        headers.insert(known, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests;
