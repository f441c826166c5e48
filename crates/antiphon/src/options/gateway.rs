//! Options of gateways.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use gateway::{GatewayConfig, GatewayLimits, ReplicaConfig, RequestDefaults};
use http_server::{HttpConfig, HttpLimits, TrustedProxies};
use model::AgentId;
use reqwest::header::HeaderName;
use store::StoreConfig;

use super::auth::AuthOptions;
use super::prices::Prices;
use super::process::DATABASE_HEADING;
use super::values::{agent_name, delay, header_name, up_to_a_day};
use crate::exit::ExitError;

const HTTP_HEADING: &str = "HTTP";
/// Time for load balancers to stop using a gateway that is about to stop.
const CLOSE_DELAY: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Args)]
pub(crate) struct GatewaySettings {
    /// Address of the gateway's API.
    #[arg(long, env = "ANTIPHON_HTTP_ADDR", default_value = "127.0.0.1:8080", help_heading = HTTP_HEADING)]
    pub(crate) http_addr: SocketAddr,
    /// Agent that answers in a thread whose first message names no agent. A thread that has the
    /// name of an agent belongs to that agent.
    #[arg(long, env = "ANTIPHON_DEFAULT_AGENT", default_value = "default", value_parser = agent_name)]
    pub(crate) default_agent: AgentId,
    /// Headers, separated by commas, in which chat front ends send the id of a chat. It names the
    /// thread of a request to OpenAI's protocols that names none.
    #[arg(long, env = "ANTIPHON_THREAD_HEADERS", default_value = "X-Antiphon-Chat,X-OpenWebUI-Chat-Id", value_delimiter = ',', value_parser = header_name)]
    pub(crate) thread_headers: Vec<Option<HeaderName>>,
    /// Headers, separated by commas, in which front ends send the id of a user. It names the user
    /// of a thread that has none.
    #[arg(long, env = "ANTIPHON_USER_HEADERS", default_value = "X-Antiphon-User,X-OpenWebUI-User-Id", value_delimiter = ',', value_parser = header_name)]
    pub(crate) user_headers: Vec<Option<HeaderName>>,
    #[command(flatten)]
    pub(crate) access: Box<AuthOptions>,
    #[command(flatten)]
    pub(crate) http: HttpSettings,
    #[command(flatten)]
    pub(crate) prices: Prices,
    #[command(flatten)]
    pub(crate) replica: ReplicaArguments,
}

/// The server for reads that may be slightly stale.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = DATABASE_HEADING)]
pub(crate) struct ReplicaArguments {
    /// URL of a standby of the database, from which lists and history are read while its lag is
    /// small enough. Without it everything is read from `DATABASE_URL`.
    #[arg(long, env = "DATABASE_READ_URL", hide_env_values = true)]
    pub(crate) database_read_url: Option<String>,
    /// Maximum lag of the standby in milliseconds; a standby that is further behind is not used.
    #[arg(long, env = "ANTIPHON_READ_MAX_LAG_MS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(300..=60_000))]
    pub(crate) read_max_lag_ms: u32,
}

impl ReplicaArguments {
    fn config(&self) -> Result<Option<ReplicaConfig>, ExitError> {
        let Some(url) = &self.database_read_url else { return Ok(None) };
        let store = StoreConfig::new(url);
        store.check().map_err(|error| ExitError::Configuration(format!("DATABASE_READ_URL: {error}")))?;
        Ok(Some(ReplicaConfig { store, max_lag: Duration::from_millis(self.read_max_lag_ms.into()) }))
    }
}

/// Limits of the API's connections.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = HTTP_HEADING)]
pub(crate) struct HttpSettings {
    /// Maximum number of open connections, and of requests in progress on HTTP/2 connections.
    /// Further connections wait, further requests get 503.
    #[arg(long, env = "ANTIPHON_MAX_CONNECTIONS", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_connections: u32,
    /// Maximum number of connections and HTTP/2 requests together of one address (IPv6: of one
    /// /64), 0 for no limit; further connections are closed, further requests get 429. Behind a
    /// proxy that is not trusted all clients have the proxy's address.
    #[arg(long, env = "ANTIPHON_MAX_CONNECTIONS_PER_IP", default_value_t = 1_000)]
    pub(crate) max_connections_per_ip: u32,
    /// Addresses and CIDR blocks, separated by commas, of the proxies whose `X-Forwarded-For` is
    /// trusted: connections and wrong keys are then counted by the client's address. The header of
    /// other peers is ignored.
    #[arg(long, env = "ANTIPHON_TRUSTED_PROXIES", value_delimiter = ',')]
    pub(crate) trusted_proxies: Vec<String>,
    /// Timeout in seconds for the head of a request, and for the first data of a new connection.
    #[arg(long, env = "ANTIPHON_HEADER_TIMEOUT_SECONDS", default_value = "10", value_parser = up_to_a_day)]
    pub(crate) header_timeout_seconds: Duration,
    /// Timeout in seconds of an idle connection after a request; it must be longer than a proxy
    /// keeps its connections (nginx: 60).
    #[arg(long, env = "ANTIPHON_IDLE_TIMEOUT_SECONDS", default_value = "75", value_parser = up_to_a_day)]
    pub(crate) idle_timeout_seconds: Duration,
    /// Timeout in seconds for the body of a request.
    #[arg(long, env = "ANTIPHON_BODY_TIMEOUT_SECONDS", default_value = "30", value_parser = up_to_a_day)]
    pub(crate) body_timeout_seconds: Duration,
    /// Timeout in seconds after which a client that reads nothing of its response is disconnected.
    #[arg(long, env = "ANTIPHON_WRITE_TIMEOUT_SECONDS", default_value = "30", value_parser = up_to_a_day)]
    pub(crate) write_timeout_seconds: Duration,
    /// Maximum lag in bytes of a subscriber; beyond it the subscriber is disconnected.
    #[arg(long, env = "ANTIPHON_SUBSCRIBER_BUFFER_BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1 << 10..=1 << 30))]
    pub(crate) subscriber_buffer_bytes: u32,
    /// Time in seconds for which a stopping gateway still accepts connections while `/readyz`
    /// reports that it is not ready, so that load balancers stop using it. [default: 5; 0 at a
    /// loopback address]
    #[arg(long, env = "ANTIPHON_HTTP_CLOSE_DELAY_SECONDS", value_parser = delay)]
    pub(crate) http_close_delay_seconds: Option<Duration>,
    /// Maximum time in seconds, after the close delay, in which connections can finish.
    #[arg(long, env = "ANTIPHON_HTTP_DRAIN_SECONDS", default_value = "10", value_parser = up_to_a_day)]
    pub(crate) http_drain_seconds: Duration,
}

impl GatewaySettings {
    /// The gateway's configuration.
    ///
    /// # Errors
    /// The settings are invalid.
    pub(crate) async fn config(&self) -> Result<GatewayConfig, ExitError> {
        let prices = self.prices.read()?;
        let replica = self.replica.config()?;
        let http = http_config(self.http_addr, "ANTIPHON_HTTP_ADDR", &self.access, &self.http).await?;
        let replica = replica.map(|replica| replica.seen_by(&http.access));
        let lag_bytes = self.http.subscriber_buffer_bytes as usize;
        let limits = GatewayLimits { lag_bytes, ..GatewayLimits::default() };
        let named = |headers: &[Option<HeaderName>]| headers.iter().flatten().cloned().collect();
        let requests = RequestDefaults {
            agent: self.default_agent.clone(),
            thread_headers: named(&self.thread_headers),
            user_headers: named(&self.user_headers),
        };
        Ok(GatewayConfig { http, limits, requests, prices, embeddings: None, replica })
    }
}

/// Options of any role that serves HTTP. `variable` names the setting of its address.
///
/// # Errors
/// The settings are invalid.
pub(super) async fn http_config(
    addr: SocketAddr,
    variable: &'static str,
    access: &AuthOptions,
    http: &HttpSettings,
) -> Result<HttpConfig, ExitError> {
    let mut config = HttpConfig::new(addr, access.config().await?);
    config.addr_variable = variable;
    let networks =
        http.trusted_proxies.iter().map(|network| network.trim()).filter(|network| !network.is_empty());
    config.trusted_proxies = TrustedProxies::parse(networks)
        .map_err(|error| ExitError::Configuration(format!("ANTIPHON_TRUSTED_PROXIES: {error}")))?;
    config.limits = HttpLimits {
        connections: http.max_connections as usize,
        connections_per_peer: http.max_connections_per_ip as usize,
        head_timeout: http.header_timeout_seconds,
        idle_timeout: http.idle_timeout_seconds,
        body_timeout: http.body_timeout_seconds,
        write_timeout: http.write_timeout_seconds,
        // On loopback there is no load balancer to wait for.
        close_delay: http.http_close_delay_seconds.unwrap_or(match addr.ip().is_loopback() {
            true => Duration::ZERO,
            false => CLOSE_DELAY,
        }),
        drain: http.http_drain_seconds,
    };
    config.check().map_err(|error| ExitError::Configuration(error.to_string()))?;
    Ok(config)
}
