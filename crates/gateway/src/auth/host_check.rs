//! Checks of the `Host` and `Origin` headers, before anything else is done with a request.

use std::net::IpAddr;
use std::sync::Arc;

use auth::CorsRules;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderName, StatusCode, Version, header};

use crate::error::Problem;

/// Which requests are accepted.
#[derive(Debug)]
pub(crate) struct HostPolicy {
    pub(crate) cors: Arc<CorsRules>,
    /// Authentication is disabled. Then every web page that is open on this machine could do everything: it can send requests
    /// here without reading the answers, or point its own host name at our address (DNS rebinding) and read them, too.
    pub(crate) is_insecure: bool,
}

impl HostPolicy {
    pub(crate) fn check(&self, request: &Request) -> Result<(), Problem> {
        check_single_host(request)?;
        match self.is_insecure {
            true => check_loopback(request, &self.cors),
            false => Ok(()),
        }
    }
}

/// Refuses a request that proxies may have read differently (request smuggling). hyper checks lengths and encodings of
/// bodies: with both a length and chunks it reads chunks, and takes no further request on the connection.
fn check_single_host(request: &Request) -> Result<(), Problem> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    // HTTP/2 has the authority instead.
    let is_named = hosts > 0 || request.version() != Version::HTTP_11;
    match hosts > 1 || !is_named {
        true => Err(Problem::bad_request("invalid_host", "a request must name its host once")),
        false => Ok(()),
    }
}

/// Refuses requests to another host than this machine, and those of pages of other origins that may not read answers.
fn check_loopback(request: &Request, cors: &CorsRules) -> Result<(), Problem> {
    let said = |name: HeaderName| {
        request.headers().get_all(name).iter().map(|value| value.to_str().unwrap_or_default())
    };
    let mut hosts = request.uri().authority().map(Authority::as_str).into_iter().chain(said(header::HOST));
    if !hosts.all(is_loopback) {
        let detail = "with --insecure a gateway answers to localhost and to loopback addresses only";
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", detail));
    }
    let is_ours = |origin: &str| {
        cors.allows(origin) || origin.split_once("://").is_some_and(|(_, host)| is_loopback(host))
    };
    match said(header::ORIGIN).all(is_ours) {
        true => Ok(()),
        false => {
            let detail = "with --insecure pages of elsewhere need ANTIPHON_CORS_ORIGINS";
            Err(Problem::new(StatusCode::FORBIDDEN, "origin_not_allowed", detail))
        }
    }
}

/// Whether it is a name or address of this machine, with or without a port.
fn is_loopback(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
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
            assert_eq!(check_single_host(&request).is_ok(), is_fit, "{version:?} {hosts}");
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
            assert!(policy(false).check(&request).is_ok(), "{uri} {host:?} {origin:?}");
            policy(true).check(&request).map_err(|problem| problem.rejection().0.status)
        };
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.8.9.1", "[::1]", "[::1]:8080"] {
            assert_eq!(status("/", Some(host), None), Ok(()), "{host}");
            assert_eq!(status(&format!("http://{host}/"), None, None), Ok(()), "{host}");
            assert_eq!(status("/", None, Some(&format!("http://{}", host.to_lowercase()))), Ok(()), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "::1", ""]
        {
            assert_eq!(status("/", Some(host), None), Err(421), "{host}");
            assert_eq!(status("/", None, Some(&format!("http://{host}"))), Err(403), "{host}");
        }
        assert_eq!(status("http://evil.example/", Some("localhost"), None), Err(421));
        assert_eq!(status("/", Some("localhost"), Some("null")), Err(403));
        assert_eq!(status("/", Some("localhost"), Some("localhost")), Err(403));
        assert_eq!(status("/", Some("localhost"), Some("https://app.example")), Ok(()));
        assert_eq!(status("/", Some("localhost"), Some("http://app.example")), Err(403));
    }
}
