//! Sign-in metadata of a role's server: OAuth 2.0 Protected Resource Metadata (RFC 9728), and the
//! challenge that refers to it.

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use crate::auth::authority::Authority;
use crate::auth::config::AccessConfig;
use crate::error::{ErrorCode, Problem};

/// Well-known path of the metadata; for a resource with a path, that path follows.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// A resource that requires a credential.
#[derive(Debug, Clone)]
pub struct ProtectedResource {
    pub path: &'static str,
    /// Its display name.
    pub name: &'static str,
    /// The scopes that its operations need.
    pub scopes: Vec<&'static str>,
    /// The URL under which clients reach the server; `None`: derived from each request.
    pub public_url: Option<String>,
}

/// A resource, with the issuer of its credentials.
#[derive(Debug, Clone)]
pub(crate) struct ResourceMetadata {
    resource: ProtectedResource,
    /// The identity provider; `None`: only API keys, which an operator makes.
    issuer: Option<String>,
}

impl ResourceMetadata {
    /// `None` when authentication is disabled.
    pub(crate) fn new(resource: ProtectedResource, access: &AccessConfig) -> Option<Self> {
        let issuer = access.tokens.as_ref().map(|tokens| tokens.rules.issuer.clone());
        (!access.insecure).then_some(Self { resource, issuer })
    }

    /// The metadata routes, which need no credential.
    pub(crate) fn routes(self) -> Router {
        let of_path = format!("{WELL_KNOWN}{}", self.resource.path);
        Router::new().route(WELL_KNOWN, get(show)).route(&of_path, get(show)).with_state(self)
    }

    /// Adds the location of the metadata to a 401 response.
    pub(crate) fn challenge(&self, uri: &Uri, headers: &HeaderMap, response: &mut Response) {
        let Some(base) = self.base(uri, headers) else { return };
        let (path, scopes) = (self.resource.path, self.resource.scopes.join(" "));
        let text = format!(
            "Bearer realm=\"antiphon\", resource_metadata=\"{base}{WELL_KNOWN}{path}\", scope=\"{scopes}\""
        );
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
    }

    /// The URL of the server, without a path; `None` when the request names no host.
    fn base(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        if let Some(url) = &self.resource.public_url {
            return Some(
                url.strip_suffix(self.resource.path).unwrap_or(url).trim_end_matches('/').to_owned(),
            );
        }
        let of_header = || headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = uri.authority().map(|authority| authority.as_str()).or_else(of_header)?;
        let authority = Authority::parse(host)?;
        // The server itself uses plain HTTP. A host name without a port belongs to a proxy in front
        // of it, where clients that sign in need TLS.
        let scheme =
            if authority.is_loopback() || authority.has_port_of_its_own() { "http" } else { "https" };
        Some(format!("{scheme}://{host}"))
    }

    fn json(&self, base: &str) -> Value {
        let ProtectedResource { path, name, scopes, .. } = &self.resource;
        let mut json = json!({
            "resource": format!("{base}{path}"), "resource_name": name, "scopes_supported": scopes,
            "bearer_methods_supported": ["header"],
        });
        if let Some(issuer) = &self.issuer {
            json["authorization_servers"] = json!([issuer]);
        }
        json
    }
}

async fn show(State(metadata): State<ResourceMetadata>, request: Request) -> Response {
    match metadata.base(request.uri(), request.headers()) {
        Some(base) => Json(metadata.json(&base)).into_response(),
        None => Problem::new(ErrorCode::InvalidHost, "the request names no host").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(public_url: Option<&str>) -> ResourceMetadata {
        let public_url = public_url.map(str::to_owned);
        let resource =
            ProtectedResource { path: "/mcp", name: "Tools", scopes: vec!["a:read", "a:write"], public_url };
        ResourceMetadata { resource, issuer: Some("https://id.example".to_owned()) }
    }

    fn base(public_url: Option<&str>, host: &str) -> Option<String> {
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_str(host).unwrap())]);
        metadata(public_url).base(&Uri::from_static("/mcp"), &headers)
    }

    #[test]
    fn the_resource_is_named_as_clients_reach_it() {
        for (host, expected) in [
            ("127.0.0.1:8090", "http://127.0.0.1:8090"),
            ("[::1]:8090", "http://[::1]:8090"),
            ("localhost", "http://localhost"),
            ("antiphon-mcp:8090", "http://antiphon-mcp:8090"),
            ("mcp.example", "https://mcp.example"),
            ("mcp.example:443", "https://mcp.example:443"),
        ] {
            assert_eq!(base(None, host).as_deref(), Some(expected));
        }
        assert_eq!(base(None, "evil\" x@y"), None);
        for url in ["https://tools.example/mcp", "https://tools.example/", "https://tools.example"] {
            assert_eq!(base(Some(url), "10.0.0.1:8090").as_deref(), Some("https://tools.example"));
        }
        let authority = Uri::from_static("https://h2.example/mcp");
        assert_eq!(metadata(None).base(&authority, &HeaderMap::new()).as_deref(), Some("https://h2.example"));
    }
}
