//! Checks of the `Host` and `Origin` headers, before anything else is done with a request.

use std::sync::Arc;

use auth::CorsRules;
use axum::extract::Request;
use axum::http::{HeaderName, Version, header};

use crate::auth::authority::{Authority, Origin};
use crate::error::{ErrorCode, Problem};

/// Rules for the `Host` and `Origin` of requests.
#[derive(Debug)]
pub struct HostPolicy {
    pub cors: Arc<CorsRules>,
    /// Authentication is disabled. Then any web page open on this machine could do everything: it
    /// can send requests here without reading the responses, or point its own host name at this
    /// address (DNS rebinding) and read them, too.
    pub is_insecure: bool,
}

impl HostPolicy {
    pub(crate) fn check(&self, request: &Request) -> Result<(), Problem> {
        let host = check_host(request)?;
        let origin = check_origin(request)?;
        match self.is_insecure {
            true => check_loopback(request, host.as_ref(), origin.as_ref(), &self.cors),
            false => Ok(()),
        }
    }
}

/// The values of a header; a value that is not text becomes empty, which is no valid host or
/// origin.
fn values(request: &Request, name: HeaderName) -> impl Iterator<Item = &str> {
    request.headers().get_all(name).iter().map(|value| value.to_str().unwrap_or_default())
}

/// The host that a request names. Refuses a request that proxies may have parsed differently
/// (request smuggling), or that names two hosts: in its request line (`POST http://other/
/// HTTP/1.1`) and in its headers. hyper checks the lengths and encodings of bodies: given both a
/// length and chunks it reads chunks, and takes no further request on the connection.
fn check_host(request: &Request) -> Result<Option<Authority>, Problem> {
    let refused = |detail| Err(Problem::new(ErrorCode::InvalidHost, detail));
    let hosts = values(request, header::HOST).count();
    // A request over HTTP/2 has an authority instead of this header.
    let is_named = hosts > 0 || request.version() != Version::HTTP_11;
    if hosts > 1 || !is_named {
        return refused("a request must name its host once");
    }
    let address = request.uri().authority().map(|authority| authority.as_str());
    let named: Option<Vec<_>> =
        address.into_iter().chain(values(request, header::HOST)).map(Authority::parse).collect();
    let Some(mut named) = named else {
        return refused("the host must be a name or an address, with an optional port");
    };
    match named.windows(2).all(|pair| pair[0] == pair[1]) {
        true => Ok(named.pop()),
        false => refused("the address of the request names another host than its head"),
    }
}

/// The origin of the page that sends the request, if a page does.
fn check_origin(request: &Request) -> Result<Option<Origin>, Problem> {
    let refused = || Problem::new(ErrorCode::OriginNotAllowed, "the Origin is not one that a browser sends");
    let origins: Option<Vec<_>> = values(request, header::ORIGIN).map(Origin::parse).collect();
    let mut origins = origins.ok_or_else(refused)?;
    match origins.len() {
        0 | 1 => Ok(origins.pop()),
        _ => Err(refused()),
    }
}

/// Refuses requests to a host other than this machine, and requests from pages whose origin is not
/// allowed to read responses.
fn check_loopback(
    request: &Request,
    host: Option<&Authority>,
    origin: Option<&Origin>,
    cors: &CorsRules,
) -> Result<(), Problem> {
    if !host.is_none_or(Authority::is_loopback) {
        return Err(Problem::from(ErrorCode::HostNotAllowed));
    }
    let is_allowed = || values(request, header::ORIGIN).all(|origin| cors.allows(origin));
    match origin.is_none_or(Origin::is_loopback) || is_allowed() {
        true => Ok(()),
        false => {
            let detail = "with --insecure pages of elsewhere need ANTIPHON_CORS_ORIGINS";
            Err(Problem::new(ErrorCode::OriginNotAllowed, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_request_names_its_host_once() {
        for (version, hosts, is_fit) in [
            (Version::HTTP_11, 1, true),
            (Version::HTTP_11, 0, false),
            (Version::HTTP_11, 2, false),
            (Version::HTTP_10, 0, true),
            (Version::HTTP_10, 2, false),
            (Version::HTTP_2, 0, true),
            (Version::HTTP_2, 2, false),
        ] {
            let named = (0..hosts).fold(Request::builder(), |named, _| named.header("host", "x"));
            let request = named.version(version).body(Body::empty()).unwrap();
            assert_eq!(check_host(&request).is_ok(), is_fit, "{version:?} {hosts}");
        }
    }

    #[test]
    fn insecure_gateway_serves_this_machine_only() {
        let policy = |is_insecure| {
            let cors = Arc::new(CorsRules::parse(["https://app.example"]).unwrap());
            HostPolicy { cors, is_insecure }
        };
        let status = |uri: &str, host: Option<&str>, origin: Option<&str>| {
            let named = host.into_iter().fold(Request::builder(), |named, host| named.header("host", host));
            let named = origin.into_iter().fold(named, |named, origin| named.header("origin", origin));
            let request = named.version(Version::HTTP_2).uri(uri).body(Body::empty()).unwrap();
            policy(true).check(&request).map_err(|problem| problem.rejection().0.status)
        };
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.8.9.1", "[::1]", "[::1]:8080"] {
            assert_eq!(status("/", Some(host), None), Ok(()), "{host}");
            assert_eq!(status(&format!("http://{host}/"), None, None), Ok(()), "{host}");
            assert_eq!(status("/", None, Some(&format!("http://{}", host.to_lowercase()))), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"] {
            assert_eq!(status("/", Some(host), None), Err(421), "{host}");
            assert_eq!(status("/", None, Some(&format!("http://{host}"))), Err(403), "{host}");
        }
        assert_eq!(status("/", Some("localhost"), Some("null")), Err(403));
        assert_eq!(status("/", Some("localhost"), Some("localhost")), Err(403));
        assert_eq!(status("/", Some("localhost"), Some("https://app.example")), Ok(()));
        assert_eq!(status("/", Some("localhost"), Some("http://app.example")), Err(403));
    }

    /// Applies to every gateway and to the server of the reasoning tools: a lenient client or proxy
    /// may take these for another host.
    #[test]
    fn odd_hosts_and_origins_are_refused() {
        let status = |is_insecure, uri: &str, host: Option<&str>, origins: &[&str]| {
            let policy = HostPolicy { cors: Arc::new(CorsRules::parse(["*"]).unwrap()), is_insecure };
            let named = host.into_iter().fold(Request::builder(), |named, host| named.header("host", host));
            let named = origins.iter().fold(named, |named, origin| named.header("origin", *origin));
            let request = named.uri(uri).body(Body::empty()).unwrap();
            policy.check(&request).map_err(|problem| problem.rejection().0.status)
        };
        for is_insecure in [false, true] {
            for host in [
                "evil@localhost",
                "localhost:99999",
                "localhost:notaport",
                "localhost:",
                "::1",
                "",
                "localhost/x",
                "localhost,evil",
            ] {
                assert_eq!(status(is_insecure, "/", Some(host), &[]), Err(400), "{host}");
            }
            for (uri, host) in [
                ("http://evil.example/mcp", "localhost"),
                ("http://localhost/mcp", "evil.example"),
                ("http://localhost:81/mcp", "localhost"),
                ("http://evil@localhost/mcp", "localhost"),
            ] {
                assert_eq!(status(is_insecure, uri, Some(host), &[]), Err(400), "{uri} {host}");
            }
            assert_eq!(status(is_insecure, "http://LOCALHOST/mcp", Some("localhost"), &[]), Ok(()));
            for origin in
                ["http://localhost:notaport", "http://evil@localhost", "http://localhost/x", "localhost", ""]
            {
                assert_eq!(status(is_insecure, "/", Some("localhost"), &[origin]), Err(403), "{origin}");
            }
            let two = ["http://localhost", "https://evil.example"];
            assert_eq!(status(is_insecure, "/", Some("localhost"), &two), Err(403));
        }
        assert_eq!(status(false, "/", Some("api.example:443"), &["https://app.example"]), Ok(()));
        assert_eq!(status(false, "/", Some("api.example"), &["null"]), Ok(()));
    }
}
