//! Hosts and origins as browsers and HTTP clients write them. Parsing is strict: a loosely parsed
//! host may mean another host to a client or a proxy.

use std::net::{IpAddr, Ipv6Addr};

/// The host of a request: `host`, or `host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    host: HostName,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostName {
    /// A host name in lower case.
    Name(String),
    Address(IpAddr),
}

impl Authority {
    /// Parses `name`, `1.2.3.4` or `[::1]`, each with an optional port from 1 to 65535. Refuses
    /// user information, an empty port and percent-encoding.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, rest) = match text.strip_prefix('[') {
            Some(bracketed) => {
                let (address, rest) = bracketed.split_once(']')?;
                (HostName::Address(address.parse::<Ipv6Addr>().ok()?.into()), rest)
            }
            None => {
                let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
                (HostName::parse(name)?, rest)
            }
        };
        let port = match rest.strip_prefix(':') {
            Some(port) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(port.parse().ok().filter(|port| *port != 0)?)
            }
            None if rest.is_empty() => None,
            _ => return None,
        };
        Some(Self { host, port })
    }

    /// Whether the authority names a port other than that of HTTPS.
    pub(crate) fn has_port_of_its_own(&self) -> bool {
        self.port.is_some_and(|port| port != 443)
    }

    /// Whether the host is a name or an address of this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        match &self.host {
            HostName::Name(name) => name == "localhost",
            HostName::Address(address) => address.to_canonical().is_loopback(),
        }
    }
}

impl HostName {
    fn parse(name: &str) -> Option<Self> {
        if let Ok(address) = name.parse() {
            return Some(Self::Address(IpAddr::V4(address)));
        }
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        (!name.is_empty() && name.len() <= 255 && name.bytes().all(is_fit))
            .then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

/// The value of an `Origin` header as browsers write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `null`: a page without a nameable origin.
    Opaque,
    /// `file://` and similar: a scheme without a host.
    Hostless,
    /// `https://app.example`.
    Of(Authority),
}

impl Origin {
    /// Parses `null`, or `scheme://host[:port]` without a path.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "null" {
            return Some(Self::Opaque);
        }
        let (scheme, host) = text.split_once("://")?;
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        if !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) || !scheme.bytes().all(is_fit) {
            return None;
        }
        if host.is_empty() {
            return Some(Self::Hostless);
        }
        Authority::parse(host).map(Self::Of)
    }

    /// Whether the page comes from this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        matches!(self, Self::Of(authority) if authority.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_are_read_strictly() {
        for text in [
            "localhost",
            "LocalHost:80",
            "127.0.0.1:65535",
            "127.8.9.1",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(Authority::parse(text).unwrap().is_loopback(), "{text}");
        }
        for text in [
            "mcp.example",
            "mcp.example:443",
            "gateway_1",
            "10.0.0.1",
            "[2001:db8::1]",
            "localhost.evil.example",
            "0.0.0.0",
        ] {
            assert!(!Authority::parse(text).unwrap().is_loopback(), "{text}");
        }
        for text in [
            "",
            ":",
            ":80",
            "localhost:",
            "localhost:0",
            "localhost:99999",
            "localhost:notaport",
            "localhost:+80",
            "localhost:80:80",
            "evil@localhost",
            "localhost@evil",
            "user:pw@localhost",
            "evil.example#@localhost",
            "localhost/",
            "localhost\\evil",
            "::1",
            "[::1",
            "::1]",
            "[::1]x",
            "[::1]:",
            "[localhost]",
            "[127.0.0.1]",
            "[fe80::1%25lo]",
            "local host",
            " localhost",
            "localhost ",
            "localhost,evil",
            "localhost\t",
            "http://localhost",
            "%6cocalhost",
            "localhost?x",
            "lo\u{200b}calhost",
            "ｌocalhost",
            "*",
        ] {
            assert_eq!(Authority::parse(text), None, "{text:?}");
        }
        assert_eq!(Authority::parse("A.example:80"), Authority::parse("a.EXAMPLE:80"));
        assert_ne!(Authority::parse("a.example:80"), Authority::parse("a.example:81"));
    }

    #[test]
    fn origins_are_read_strictly() {
        for text in [
            "http://localhost",
            "http://localhost:3000",
            "https://127.0.0.1",
            "http://[::1]:3000",
            "tauri://localhost",
        ] {
            assert!(Origin::parse(text).unwrap().is_loopback(), "{text}");
        }
        for text in
            ["null", "file://", "https://app.example", "chrome-extension://abcdef", "vscode-webview://0a-1b"]
        {
            assert!(!Origin::parse(text).unwrap().is_loopback(), "{text}");
        }
        for text in [
            "",
            "localhost",
            "http:localhost",
            "//localhost",
            "://localhost",
            "http://localhost:notaport",
            "http://localhost:99999",
            "http://evil@localhost",
            "http://localhost/",
            "http://localhost/path",
            "http://localhost http://evil",
            "1x://localhost",
            "http://localhost, http://evil.example",
            "NULL",
            "null ",
        ] {
            assert_eq!(Origin::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_is_one_host_and_one_port(text in "[a-z0-9.@:/#?%\\[\\]\\\\ _-]{0,24}") {
            if Authority::parse(&text).is_some() {
                prop_assert!(!text.contains(['@', '/', '#', '?', '%', '\\', ' ']));
                prop_assert!(text.starts_with('[') || text.matches(':').count() <= 1);
            }
        }
    }
}
