//! Decides which pages of other origins may read responses (the CORS protocol of the Fetch
//! standard).
//!
//! Entry type: [`CorsRules`]. Responses do not depend on cookies, so CORS credentials are never
//! allowed: a page sends its key, token or ticket itself.

/// Methods of the API.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
/// Request headers that the server reads, and some that client libraries add.
const REQUEST_HEADERS: [&str; 26] = [
    "authorization",
    "content-type",
    "idempotency-key",
    "if-match",
    "last-event-id",
    "x-correlation-id",
    "x-antiphon-on-disconnect",
    "x-request-id",
    "x-antiphon-actor",
    "x-antiphon-thread",
    "x-antiphon-chat",
    "x-antiphon-user",
    "x-antiphon-temporary",
    "accept",
    // Pages send these to continue a trace here. The server does not read the last one.
    "traceparent",
    "tracestate",
    "baggage",
    // Sent by replacements of `EventSource` that support headers.
    "cache-control",
    "x-requested-with",
    // Sent by the AI SDK.
    "user-agent",
    // Sent by OpenAI's library, together with `x-stainless-…`.
    "openai-organization",
    "openai-project",
    // Sent by clients of the Model Context Protocol.
    "mcp-protocol-version",
    "mcp-session-id",
    "mcp-method",
    "mcp-name",
];
/// Prefix of the headers in which OpenAI's library describes itself.
const DESCRIBING: &str = "x-stainless-";
/// Response headers that a page may read.
const EXPOSED: &str = "retry-after, location, etag, www-authenticate, x-correlation-id, x-request-id, x-antiphon-turn, x-antiphon-thread, \
                       x-should-retry, x-vercel-ai-ui-message-stream";
/// How long a browser may cache a preflight response, in s. It is the longest time that any browser
/// allows.
const MAX_AGE_S: &str = "7200";
/// Maximum bytes of the header list in a preflight.
const LONGEST_LIST: usize = 2048;

const ALLOW_ORIGIN: &str = "access-control-allow-origin";

/// A header and its value.
pub type HeaderPair = (&'static str, String);

/// The origins whose pages may read responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsRules {
    origins: Origins,
    allows_this_machine: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origins {
    Any,
    These(Vec<String>),
}

/// A configured origin that no browser would send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the origin {origin:?} cannot be allowed: {why}")]
pub struct InvalidOrigin {
    /// The text as configured.
    pub origin: String,
    /// The reason why the origin is invalid.
    pub why: &'static str,
}

impl CorsRules {
    /// Parses origins as browsers send them (`https://app.example`, `http://localhost:3000`), or
    /// `*` alone. Without origins, no page of another origin may read responses.
    ///
    /// # Errors
    /// An origin that no browser would send, or `*` together with other origins.
    pub fn parse<'a>(origins: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidOrigin> {
        let origins: Vec<&str> = origins.into_iter().collect();
        if origins == ["*"] {
            return Ok(Self { origins: Origins::Any, allows_this_machine: false });
        }
        for origin in &origins {
            check(origin).map_err(|why| InvalidOrigin { origin: (*origin).to_owned(), why })?;
        }
        let origins = Origins::These(origins.into_iter().map(str::to_owned).collect());
        Ok(Self { origins, allows_this_machine: false })
    }

    /// Also allows pages from this machine: `http://localhost` and `http://127.0.0.1` with any
    /// port.
    #[must_use]
    pub fn with_this_machine(self) -> Self {
        Self { allows_this_machine: true, ..self }
    }

    /// The headers of a successful preflight response (204), for an `OPTIONS` with
    /// `Access-Control-Request-Method`. `None` if the announced request is not allowed: then
    /// respond with 403 and without such headers.
    ///
    /// `headers` is the value of `Access-Control-Request-Headers`.
    pub fn preflight(&self, origin: &str, method: &str, headers: Option<&str>) -> Option<Vec<HeaderPair>> {
        let allowed = self.allowed(origin)?;
        if !METHODS.contains(&method) {
            return None;
        }
        let mut answer = vec![
            (ALLOW_ORIGIN, allowed.to_owned()),
            ("access-control-allow-methods", METHODS.join(", ")),
            ("access-control-max-age", MAX_AGE_S.to_owned()),
            ("vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers".to_owned()),
        ];
        if let Some(headers) = headers.filter(|headers| !headers.is_empty()) {
            answer.push(("access-control-allow-headers", allowed_headers(headers)?));
        }
        Some(answer)
    }

    /// The headers of every other response, including errors, whether or not the request has an
    /// origin.
    pub fn actual(&self, origin: Option<&str>) -> Vec<HeaderPair> {
        let mut answer = Vec::new();
        if let Some(allowed) = origin.and_then(|origin| self.allowed(origin)) {
            answer.push((ALLOW_ORIGIN, allowed.to_owned()));
            answer.push(("access-control-expose-headers", EXPOSED.to_owned()));
        }
        // Set even if the origin is not allowed, because a cache must not give one origin the
        // response for another.
        if self.allows_this_machine || self.origins != Origins::These(Vec::new()) {
            answer.push(("vary", "Origin".to_owned()));
        }
        answer
    }

    /// True if pages of this origin may read responses.
    pub fn allows(&self, origin: &str) -> bool {
        self.allowed(origin).is_some()
    }

    /// The value of `Access-Control-Allow-Origin` for this origin; `None` if it is not allowed to
    /// read responses.
    fn allowed<'a>(&self, origin: &'a str) -> Option<&'a str> {
        let is_allowed = match &self.origins {
            Origins::Any => return Some("*"),
            Origins::These(origins) => {
                origins.iter().any(|allowed| allowed == origin)
                    || (self.allows_this_machine && is_of_this_machine(origin))
            }
        };
        is_allowed.then_some(origin)
    }
}

fn is_of_this_machine(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").map(|host| host.split_once(':').map_or(host, |(host, _)| host));
    check(origin).is_ok() && matches!(host, Some("localhost" | "127.0.0.1"))
}

/// Returns the same headers if all are allowed. They are listed one by one, because `*` does not
/// include `authorization`.
fn allowed_headers(list: &str) -> Option<String> {
    if list.len() > LONGEST_LIST {
        return None;
    }
    let names = list.split(',').map(|name| name.trim_matches([' ', '\t']).to_ascii_lowercase());
    let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    names.iter().all(|name| may_be_sent(name)).then(|| names.join(", "))
}

fn may_be_sent(name: &str) -> bool {
    let describes = name.strip_prefix(DESCRIBING).is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    });
    describes || REQUEST_HEADERS.contains(&name)
}

/// Checks that an origin is written exactly as browsers send it; the error is the reason.
fn check(origin: &str) -> Result<(), &'static str> {
    match origin {
        "*" => return Err("`*` allows every origin, so it stands alone"),
        "null" => return Err("`null` is the origin of any sandboxed page; it cannot be trusted"),
        _ => {}
    }
    if origin.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("browsers send origins in lower case");
    }
    let (scheme, rest) = origin.split_once("://").ok_or("it must begin with a scheme, as in `https://`")?;
    let named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_scheme = scheme.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
        && scheme.bytes().all(|byte| named(byte) || b"+-.".contains(&byte));
    if !is_scheme {
        return Err("its scheme is not one, as in `https://`");
    }
    if rest.contains(['/', '?', '#']) {
        return Err("an origin ends after the host or the port: no slash, no path");
    }
    if rest.contains('@') {
        return Err("an origin has no user");
    }
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    let is_name = host.split('.').all(|label| {
        !label.is_empty() && label.bytes().all(|byte| named(byte) || byte == b'-' || byte == b'_')
    });
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_address = inner.is_some_and(|address| {
        address.contains(':') && address.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte))
    });
    if host.contains('*') {
        return Err("each host is named in full: a star within it stands for nothing");
    }
    if !is_name && !is_address {
        return Err("its host is not a name or an address (in ASCII, with xn-- where need be)");
    }
    port.map_or(Ok(()), |port| check_port(scheme, port))
}

fn check_port(scheme: &str, port: &str) -> Result<(), &'static str> {
    let number = port.parse::<u16>().ok().filter(|number| *number > 0 && number.to_string() == port);
    match (scheme, number) {
        (_, None) => Err("its port is not a number from 1 to 65535"),
        ("http", Some(80)) | ("https", Some(443)) => Err("browsers leave the usual port out"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
