//! Options of the server of agents' tools.

use std::net::SocketAddr;

use ::mcp::McpConfig;
use clap::Args;

use super::auth::AuthOptions;
use super::gateway::{HttpSettings, http_config};
use super::process::{DATABASE_HEADING, DATABASE_HELP, Metrics};
use super::traces::Traces;
use crate::exit::ExitError;

const HEADING: &str = "Reasoning tools";

/// The address of the server of agents' tools.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct McpSettings {
    /// Address of the tools for agents (reasoning, memory) over MCP by HTTP, at the path `/mcp`.
    #[arg(long, env = "ANTIPHON_MCP_ADDR", default_value = "127.0.0.1:8090")]
    mcp_addr: SocketAddr,
    /// Host names under which the MCP server can be reached, separated by commas, with or without a
    /// port; others are refused. `*` for any.
    #[arg(
        long,
        env = "ANTIPHON_MCP_HOSTS",
        value_delimiter = ',',
        default_value = "localhost,127.0.0.1,[::1]"
    )]
    mcp_hosts: Vec<String>,
    /// URL under which clients reach the MCP server, for example https://tools.example/mcp; without
    /// it, the host of the request. Clients that sign in get it with the metadata of the server.
    #[arg(long, env = "ANTIPHON_MCP_PUBLIC_URL", value_parser = public_url)]
    mcp_public_url: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Mcp {
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, help = DATABASE_HELP, help_heading = DATABASE_HEADING)]
    pub(crate) database_url: String,
    /// Not used with --stdio.
    #[command(flatten)]
    pub(crate) metrics: Metrics,
    #[command(flatten)]
    pub(crate) traces: Traces,
    /// Serve one client on standard input and output instead of HTTP.
    #[arg(long)]
    pub(crate) stdio: bool,
    /// API key or token of the client, with `--stdio`.
    #[arg(long, env = "ANTIPHON_API_KEY", hide_env_values = true, help_heading = HEADING)]
    pub(crate) api_key: Option<String>,
    #[command(flatten)]
    mcp: McpSettings,
    #[command(flatten)]
    access: Box<AuthOptions>,
    #[command(flatten)]
    http: HttpSettings,
}

impl Mcp {
    /// The role's configuration.
    ///
    /// # Errors
    /// The settings are invalid.
    pub(crate) async fn config(&self) -> Result<McpConfig, ExitError> {
        self.mcp.config(&self.access, &self.http).await
    }
}

impl McpSettings {
    /// The role's configuration in one process with a gateway.
    ///
    /// # Errors
    /// The settings are invalid.
    pub(crate) async fn config(
        &self,
        access: &AuthOptions,
        http: &HttpSettings,
    ) -> Result<McpConfig, ExitError> {
        let trimmed = |list: &[String]| {
            list.iter().map(|entry| entry.trim().to_owned()).filter(|entry| !entry.is_empty()).collect()
        };
        let http = http_config(self.mcp_addr, "ANTIPHON_MCP_ADDR", access, http).await?;
        Ok(McpConfig {
            http,
            embeddings: None,
            hosts: trimmed(&self.mcp_hosts),
            origins: trimmed(access.cors_origins()),
            public_url: self.mcp_public_url.clone(),
        })
    }
}

fn public_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_plain = |rest: &str| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\?#".contains(&byte))
    };
    if !rest.is_some_and(is_plain) {
        return Err("it must begin with https:// or http://, without a query".to_owned());
    }
    let url = text.trim_end_matches('/');
    let path = rest.and_then(|rest| rest.trim_end_matches('/').split_once('/')).map_or("", |(_, path)| path);
    // Clients that sign in compare this URL with the one that they use.
    match path.is_empty() || path.rsplit('/').next() == Some("mcp") {
        true => Ok(url.to_owned()),
        false => Err("its path must be empty or end in /mcp".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::public_url;

    #[test]
    fn public_urls_are_those_of_the_server() {
        for (text, expected) in [
            ("https://tools.example", "https://tools.example"),
            ("https://tools.example/mcp/", "https://tools.example/mcp"),
            ("http://tools.example/a/mcp", "http://tools.example/a/mcp"),
        ] {
            assert_eq!(public_url(text).as_deref(), Ok(expected));
        }
        for wrong in
            ["tools.example/mcp", "https://", "https://t/mcp?x", "https://t/tools", "https://t/a/bmcp"]
        {
            assert!(public_url(wrong).is_err(), "{wrong}");
        }
    }
}
