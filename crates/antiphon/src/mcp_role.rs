//! `antiphon mcp`: the reasoning tools, over HTTP or on standard input and output.

use mcp::{McpConfig, StdioError};
use runtime::{Health, Shutdown};
use store::{Store, StoreConfig, TenantScope};
use tokio_util::sync::CancellationToken;

use crate::connect::{serve_metrics, stored_partitions};
use crate::exit::ExitError;
use crate::options::Mcp;

/// Runs the role in a process of its own.
pub(crate) async fn run(options: Mcp, shutdown: &Shutdown) -> Result<(), ExitError> {
    let config = options.config().await?;
    let store_config = StoreConfig::new(&options.database_url);
    store_config.check()?;
    options.traces.install("mcp")?;
    let health = Health::default();
    if !options.stdio {
        health.set_ready(mcp::READINESS, false);
        serve_metrics(options.metrics.metrics_addr, "antiphon mcp", &health, shutdown).await?;
    }
    let store = async {
        let store = Store::connect(&store_config).await?;
        stored_partitions(&store, &health).await?;
        scoped_store(store, &options.database_url, config.http.access.insecure).await
    };
    let store = tokio::select! {
        () = shutdown.token().cancelled_owned() => return Ok(()),
        store = store => store?,
    };
    health.set_started();
    if !options.stdio {
        return serve(config, store, health, shutdown.token()).await;
    }
    let served = mcp::run_stdio(&config, options.api_key, store, shutdown.token()).await;
    served.map_err(|error| match error {
        StdioError::Client(_) => ExitError::Failed(error.to_string()),
        StdioError::Credentials(_) | StdioError::NoKey | StdioError::InvalidKey(_) => {
            ExitError::Configuration(error.to_string())
        }
    })
}

/// Serves over HTTP until `stop`.
pub(crate) async fn serve(
    config: McpConfig,
    store: Store,
    health: Health,
    stop: CancellationToken,
) -> Result<(), ExitError> {
    let served = mcp::run(config, store, health, stop).await;
    served.map_err(|error| ExitError::Configuration(error.to_string()))
}

/// A store whose sessions see nothing unless a request names the tenant for which it reads; with
/// `insecure` they see everything.
pub(crate) async fn scoped_store(store: Store, url: &str, insecure: bool) -> Result<Store, ExitError> {
    if insecure {
        return Ok(store);
    }
    let tenant_scope = TenantScope::Nothing;
    Ok(Store::connect(&StoreConfig { tenant_scope, ..StoreConfig::new(url) }).await?)
}
