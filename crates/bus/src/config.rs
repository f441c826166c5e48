//! Address of NATS and credentials.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use runtime::Backoff;
use runtime::certificates::{check_authorities, check_client_certificate};

use crate::error::BusError;

/// A silent connection is closed when the third ping is due, after 6 s. With the library's default
/// of 60 s, a silent host would be detected only after three minutes.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Over a link with one second of latency each way, connecting takes six seconds, and eight with
/// TLS. A silent host is tried after all others.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a request: two round trips over a link with one second of latency each way, plus a
/// margin.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How to reach NATS. `Debug` shows no secrets.
#[derive(Clone, Default)]
pub struct BusConfig {
    /// One URL, or several comma-separated URLs of one cluster:
    /// `nats://[user:password@]host[:4222]`, `tls://…`. A user without a password is a token. The
    /// first URL with credentials provides them for all.
    pub url: String,
    /// The connection name that NATS tools show.
    pub name: String,
    /// A credentials file (JWT and seed).
    pub credentials_file: Option<PathBuf>,
    /// A file with an nkey seed.
    pub nkey_seed_file: Option<PathBuf>,
    /// CA certificates (PEM) that sign the certificates of the servers.
    pub root_certificates: Option<PathBuf>,
    /// The client certificate and its private key (PEM). Both are read with each connection.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// The prefix of reply subjects; `_INBOX` when absent. With a prefix per role, a role cannot
    /// read the replies of another one.
    pub inbox_prefix: Option<String>,
}

impl BusConfig {
    /// Sets `url` and `name`; all other settings are absent.
    pub fn new(url: impl Into<String>, name: impl Into<String>) -> Self {
        Self { url: url.into(), name: name.into(), ..Self::default() }
    }

    /// Checks that the URLs and files are usable.
    ///
    /// # Errors
    /// [`BusError::Config`].
    pub async fn check(&self) -> Result<(), BusError> {
        self.prepare().await.map(drop)
    }

    /// Reads files and checks everything that can be checked without a server.
    pub(crate) async fn prepare(&self) -> Result<PreparedConfig, BusError> {
        let (servers, login) = parse_urls(&self.url)?;
        let mut options = login.apply(ConnectOptions::new());
        self.check_client_certificate()?;
        if let Some(path) = &self.nkey_seed_file {
            let seed = tokio::fs::read_to_string(path).await;
            let seed = seed.map_err(|error| BusError::Config(format!("{}: {error}", path.display())))?;
            // The client would detect an invalid seed with each connection, without naming the
            // file.
            let pair = nkeys::KeyPair::from_seed(seed.trim());
            pair.map_err(|error| BusError::Config(format!("{}: no nkey seed: {error}", path.display())))?;
            options = options.nkey(seed.trim().to_owned());
        }
        if let Some(path) = &self.credentials_file {
            let loaded = options.credentials_file(path).await;
            options = loaded.map_err(|error| BusError::Config(format!("{}: {error}", path.display())))?;
        }
        if let Some(path) = &self.root_certificates {
            // The client reads the certificates with each connection, so a missing file would look
            // like an unreachable server.
            check_authorities(path).map_err(|error| BusError::Config(error.to_string()))?;
        }
        let authorities = match &self.root_certificates {
            Some(path) => format!("the authorities in {}", path.display()),
            None => "the usual authorities, as ANTIPHON_NATS_CA names no file of others".to_owned(),
        };
        Ok(PreparedConfig { servers, name: self.name.clone(), authorities, options: self.tune(options) })
    }

    /// Checks that both files exist. The client reads them with each connection, so a missing file
    /// would look like an unreachable server.
    fn check_client_certificate(&self) -> Result<(), BusError> {
        let Some((certificate, key)) = &self.client_certificate else { return Ok(()) };
        check_client_certificate(certificate, key).map_err(|error| BusError::Config(error.to_string()))
    }

    fn tune(&self, mut options: ConnectOptions) -> ConnectOptions {
        options = options
            .ping_interval(PING_INTERVAL)
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .reconnect_delay_callback(reconnect_delay);
        if let Some(path) = &self.root_certificates {
            options = options.add_root_certificates(path.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.client_certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        match &self.inbox_prefix {
            Some(prefix) => options.custom_inbox_prefix(prefix),
            None => options,
        }
    }
}

impl fmt::Debug for BusConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = parse_urls(&self.url).map(|(servers, _)| describe(&servers));
        f.debug_struct("BusConfig")
            .field("servers", &servers.unwrap_or_else(|_| "(cannot be read)".to_owned()))
            .field("name", &self.name)
            .field("credentials_file", &self.credentials_file)
            .field("nkey_seed_file", &self.nkey_seed_file)
            .field("root_certificates", &self.root_certificates)
            .field("client_certificate", &self.client_certificate)
            .field("inbox_prefix", &self.inbox_prefix)
            .finish()
    }
}

/// Checked settings. The server addresses contain no secrets.
pub(crate) struct PreparedConfig {
    pub(crate) servers: Vec<ServerAddr>,
    pub(crate) name: String,
    /// The authorities that verify the servers' certificates, in words for people.
    pub(crate) authorities: String,
    pub(crate) options: ConnectOptions,
}

impl PreparedConfig {
    /// The servers, as text for a log line.
    pub(crate) fn describe(&self) -> String {
        describe(&self.servers)
    }
}

fn describe(servers: &[ServerAddr]) -> String {
    servers.iter().map(|server| format!("{}:{}", server.host(), server.port())).collect::<Vec<_>>().join(",")
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Login {
    None,
    Token(String),
    UserAndPassword(String, String),
}

impl Login {
    fn of(server: &ServerAddr) -> Option<Self> {
        let user = percent_decode(server.username()?);
        Some(match server.password() {
            Some(password) => Self::UserAndPassword(user, percent_decode(password)),
            None => Self::Token(user),
        })
    }

    fn apply(self, options: ConnectOptions) -> ConnectOptions {
        match self {
            Self::None => options,
            Self::Token(token) => options.token(token),
            Self::UserAndPassword(user, password) => options.user_and_password(user, password),
        }
    }
}

/// Parses the URLs and separates the credentials from them. The library ignores credentials in
/// URLs, and logs URLs.
fn parse_urls(urls: &str) -> Result<(Vec<ServerAddr>, Login), BusError> {
    let servers = urls.split(',').map(|url| parse_url(url.trim())).collect::<Result<Vec<_>, _>>()?;
    let login = servers.iter().find_map(Login::of).unwrap_or(Login::None);
    let bare = servers.into_iter().map(without_login).collect::<Result<Vec<_>, _>>()?;
    Ok((bare, login))
}

fn parse_url(url: &str) -> Result<ServerAddr, BusError> {
    // The error must not contain the URL, which may hold a password.
    let server: ServerAddr =
        url.parse().map_err(|_| BusError::Config("NATS_URL cannot be read as a URL".to_owned()))?;
    match server.scheme() {
        "nats" | "tls" if !server.host().is_empty() => Ok(server),
        scheme => {
            Err(BusError::Config(format!("NATS_URL must be nats://host or tls://host, not {scheme}://")))
        }
    }
}

fn without_login(server: ServerAddr) -> Result<ServerAddr, BusError> {
    let mut url = server.into_inner();
    let cleared = url.set_password(None).and_then(|()| url.set_username(""));
    cleared.map_err(|()| BusError::Config("NATS_URL has no host".to_owned()))?;
    ServerAddr::from_url(url).map_err(|error| BusError::Config(error.to_string()))
}

/// Decodes codes such as `%41`; all other text stays as it is.
fn percent_decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = (byte == b'%').then(|| tail.get(..2)).flatten();
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        decoded.push(code.unwrap_or(byte));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The delay before the client library's `attempt`-th try to connect, from 1.
fn reconnect_delay(attempt: usize) -> Duration {
    match attempt {
        0 | 1 => Duration::ZERO,
        more => Backoff::default().delay_after(u32::try_from(more - 2).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_reconnect_is_immediate_later_ones_wait() {
        assert_eq!(reconnect_delay(1), Duration::ZERO);
        assert!(reconnect_delay(2) >= Duration::from_millis(50));
        assert!(reconnect_delay(usize::MAX) <= Duration::from_secs(2));
    }

    #[test]
    fn credentials_leave_the_urls() {
        let (servers, login) = parse_urls("nats://a, tls://us%65r:p%40ss@b:4333").expect("urls");
        assert_eq!(login, Login::UserAndPassword("user".to_owned(), "p@ss".to_owned()));
        assert_eq!(describe(&servers), "a:4222,b:4333");
        assert_eq!(parse_urls("nats://s3cret@a").expect("url").1, Login::Token("s3cret".to_owned()));
        assert_eq!(parse_urls("localhost:4222").expect("url").1, Login::None);
        let shown = format!("{:?}", BusConfig::new("nats://user:hunter2@a", "test"));
        assert!(shown.contains("a:4222") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn wrong_urls_are_refused_without_repeating_them() {
        for wrong in ["", "http://user:hunter2@a", "nats://user:hunter2@a:port", "nats://user:hunter2@"] {
            let error = parse_urls(wrong).expect_err(wrong).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn percent_codes_are_undone_and_nothing_else() {
        assert_eq!(percent_decode("a%20b%2"), "a b%2");
        assert_eq!(percent_decode("100%zz%"), "100%zz%");
    }
}
