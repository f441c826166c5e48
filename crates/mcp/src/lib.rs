//! Tools for reasoning and memory over the Model Context Protocol, by streamable HTTP and by
//! standard input and output.
//!
//! Entry points: [`run`] and [`run_stdio`]. A reasoning call reads a session, lets `reasoning`
//! decide, and writes the decision in one statement ([`store`]). Callers are authenticated as by a
//! gateway ([`http_server::AuthenticatedCaller`]).
//!
//! Invariants: the process holds no session state, so any process can serve any call. A refusal is
//! the result of a tool, lists what would be accepted, and changes nothing.

mod answer;
mod arguments;
mod compressions;
mod context;
mod log;
mod memory;
mod metrics;
mod server;
mod sessions;
mod tools;

use std::sync::Arc;

use auth::Permission;
use axum::Router;
use embeddings::Embeddings;
use http::{HeaderMap, HeaderValue, header};
use http_server::{CallerAuthenticator, HttpConfig, HttpServer, HttpServerError, ProtectedResource};
use rmcp::ServiceExt;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use runtime::Health;
use store::Store;
use tokio_util::sync::CancellationToken;

use server::{Caller, ReasoningServer};

pub use metrics::METRICS;

/// The readiness condition of the server.
pub const READINESS: &str = "mcp";
/// Path of the tools.
const PATH: &str = "/mcp";
/// Maximum bytes of a request: an append of many messages.
const MAX_REQUEST_BYTES: usize = 4 * 1024 * 1024;

/// Settings of a server over HTTP.
#[derive(Debug, Clone)]
pub struct McpConfig {
    /// Address, authentication and limits.
    pub http: HttpConfig,
    /// Computes vectors for memory searches; `None`: memory is searched by words alone.
    pub embeddings: Option<Embeddings>,
    /// Accepted `Host` names, with or without a port; `*` for any. Others are refused as a defence
    /// against DNS rebinding: no page can point its own name at our address.
    pub hosts: Vec<String>,
    /// Origins whose pages may call, besides those of this machine; `*` for all.
    pub origins: Vec<String>,
    /// The URL under which clients reach the tools; `None`: the host that a request names.
    pub public_url: Option<String>,
}

/// Why the tools are not served on standard input and output.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// Credentials cannot be checked.
    #[error(transparent)]
    Credentials(#[from] HttpServerError),
    /// There is no key, and authentication must not be disabled.
    #[error("--stdio needs a key in ANTIPHON_API_KEY, or --insecure")]
    NoKey,
    /// The key is not valid.
    #[error("the key in ANTIPHON_API_KEY is not valid: {0}")]
    InvalidKey(String),
    /// The client did not initialize, or the connection broke.
    #[error("the client on standard input: {0}")]
    Client(String),
}

/// Serves the tools at `/mcp` until `drain` is cancelled.
///
/// # Errors
/// The address cannot be bound, or every client that reaches it would have all permissions.
pub async fn run(
    config: McpConfig,
    store: Store,
    health: Health,
    drain: CancellationToken,
) -> Result<(), HttpServerError> {
    metrics::describe();
    let mut http = config.http.clone();
    // As in the check of origins: a page that is allowed to call is also allowed to read.
    http.access.cors = http.access.cors.with_this_machine();
    let server = HttpServer::bind(&http)?;
    let router = router(&config, store.clone());
    let scopes = [
        Permission::ReadReasoning,
        Permission::WriteReasoning,
        Permission::ReadThreads,
        Permission::WriteThreads,
        Permission::ReadMemory,
        Permission::WriteMemory,
    ];
    let resource = ProtectedResource {
        path: PATH,
        name: "Antiphon reasoning tools",
        scopes: scopes.map(Permission::scope).to_vec(),
        public_url: config.public_url,
    };
    server.serve_role(READINESS, resource, router, store, health, drain).await;
    Ok(())
}

fn router(config: &McpConfig, store: Store) -> Router {
    let any = |list: &[String]| list.iter().any(|entry| entry == "*");
    let mut http = StreamableHttpServerConfig::default()
        // Calls are independent: all session state is in Postgres.
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_REQUEST_BYTES)
        .with_allowed_hosts(config.hosts.iter().cloned());
    if any(&config.hosts) {
        http = http.disable_allowed_hosts();
    }
    let of_this_machine = ["http://localhost:*", "http://127.0.0.1:*"].map(str::to_owned);
    http = match any(&config.origins) {
        true => http.disable_allowed_origins(),
        false => http
            .with_allowed_origins(of_this_machine.into_iter().chain(config.origins.iter().cloned()))
            .enforce_origin_validation(),
    };
    let server = ReasoningServer::new(store, Caller::OfRequest, config.embeddings.clone());
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::new(NeverSessionManager::default()),
        http,
    );
    Router::new().route_service(PATH, service)
}

/// Serves the tools on standard input and output, with the permissions of `key`, until the client
/// closes them.
///
/// # Errors
/// A required key is missing, the key is not valid, or the client does not follow the protocol.
pub async fn run_stdio(
    config: &McpConfig,
    key: Option<String>,
    store: Store,
    stop: CancellationToken,
) -> Result<(), StdioError> {
    metrics::describe();
    if key.is_none() && !config.http.access.insecure {
        return Err(StdioError::NoKey);
    }
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        let value = HeaderValue::from_str(&format!("Bearer {key}"));
        let value = value.map_err(|error| StdioError::InvalidKey(error.to_string()))?;
        headers.insert(header::AUTHORIZATION, value);
    }
    let callers = Arc::new(CallerAuthenticator::new(&config.http, store.clone())?);
    callers
        .authenticate(&headers, None)
        .await
        .map_err(|denied| StdioError::InvalidKey(denied.to_string()))?;
    let server = ReasoningServer::new(store, Caller::Fixed { callers, headers }, config.embeddings.clone());
    let failed = |error: &dyn std::fmt::Display| StdioError::Client(error.to_string());
    let running = server.serve_with_ct(rmcp::transport::stdio(), stop).await;
    let running = match running {
        Ok(running) => running,
        // A client that closes before `initialize` is not an error.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(failed(&error)),
    };
    running.waiting().await.map(drop).map_err(|error| failed(&error))
}
