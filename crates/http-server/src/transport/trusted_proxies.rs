//! The address of a client behind proxies, from `X-Forwarded-For`.
//!
//! Invariant: only entries appended by a trusted proxy count. What a client writes into the header
//! is to the left of its own address, which the first trusted proxy appends, and is never read.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Maximum number of header entries that are read. A chain of proxies is far shorter.
const MAX_HOPS: usize = 32;

/// The networks of the proxies whose `X-Forwarded-For` is trusted; empty trusts none. Cheap to
/// clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustedProxies(Arc<[Network]>);

/// `10.0.0.0/8`, `fd00::/8`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u8,
}

/// A text that is neither an address nor a CIDR block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network; write an address or a CIDR block such as 10.0.0.0/8 or fd00::/8")]
pub struct InvalidNetwork(String);

impl TrustedProxies {
    /// Parses addresses and CIDR blocks.
    ///
    /// # Errors
    /// One of them is neither.
    pub fn parse<'a>(networks: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidNetwork> {
        networks.into_iter().map(str::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the address belongs to a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// The client of a request from `peer`. `forwarded` has the values of all its `X-Forwarded-For`
    /// headers, in order.
    ///
    /// The client is the first address from the right that is not a trusted proxy. An unreadable
    /// entry ends the search: the client is then the proxy that passed it on.
    pub fn client<'a>(&self, peer: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'a [u8]>) -> IpAddr {
        let mut client = peer.to_canonical();
        let hops = forwarded.rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
        for hop in hops.take(MAX_HOPS) {
            if !self.trusts(client) {
                break;
            }
            let Some(address) = address(hop) else { break };
            client = address;
        }
        client
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let invalid = || InvalidNetwork(text.to_owned());
        let (address, prefix) =
            text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let is_number = |prefix: &str| !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = match prefix {
            None => bits,
            Some(prefix) if is_number(prefix) => prefix.parse().map_err(|_| invalid())?,
            Some(_) => return Err(invalid()),
        };
        if prefix > bits {
            return Err(invalid());
        }
        // An IPv4-mapped IPv6 address is compared as IPv4.
        match (address, address.to_canonical()) {
            (IpAddr::V6(_), canonical @ IpAddr::V4(_)) if prefix >= 96 => {
                Ok(Self { address: canonical, prefix: prefix - 96 })
            }
            (address, _) => Ok(Self { address, prefix }),
        }
    }
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                (network.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                (network.to_bits() ^ address.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

/// Parses an address as proxies write it: `1.2.3.4`, `::1` or `[::1]`. The first and the last form
/// can have a port.
fn address(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim_matches([' ', '\t']);
    let is_port = |port: &str| port.parse::<u16>().is_ok() && port.bytes().all(|byte| byte.is_ascii_digit());
    let address: IpAddr = if let Some(bracketed) = text.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']')?;
        if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        IpAddr::V6(address.parse().ok()?)
    } else if let Ok(address) = text.parse() {
        address
    } else {
        let (address, _) = text.split_once(':').filter(|(_, port)| is_port(port))?;
        IpAddr::V4(address.parse().ok()?)
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn proxies() -> TrustedProxies {
        TrustedProxies::parse(["10.0.0.0/8", "fd00::/8", "192.0.2.7"]).unwrap()
    }

    fn client(peer: &str, headers: &[&str]) -> String {
        let headers = headers.iter().map(|value| value.as_bytes());
        proxies().client(peer.parse().unwrap(), headers).to_string()
    }

    #[test]
    fn networks_are_read_and_contain_their_addresses() {
        let trusts = |address: &str| proxies().trusts(address.parse().unwrap());
        for inside in ["10.0.0.1", "10.255.255.255", "::ffff:10.1.2.3", "fd12::1", "192.0.2.7"] {
            assert!(trusts(inside), "{inside}");
        }
        for outside in ["11.0.0.1", "9.255.255.255", "fe00::1", "192.0.2.8", "::10.0.0.1", "::1"] {
            assert!(!trusts(outside), "{outside}");
        }
        let all = TrustedProxies::parse(["0.0.0.0/0", "::/0"]).unwrap();
        assert!(all.trusts("203.0.113.1".parse().unwrap()) && all.trusts("2001:db8::1".parse().unwrap()));
        let mapped = TrustedProxies::parse(["::ffff:10.0.0.0/104"]).unwrap();
        assert!(mapped.trusts("10.9.9.9".parse().unwrap()) && !mapped.trusts("11.0.0.1".parse().unwrap()));
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0/8",
            "fd00::/129",
            "proxy.example",
            "10.0.0.1:80",
            "*",
            "10.0.0.0/8/8",
        ] {
            let error = TrustedProxies::parse([bad]).unwrap_err().to_string();
            assert!(error.contains("is no network"), "{bad}: {error}");
        }
    }

    #[test]
    fn header_of_an_untrusted_peer_is_ignored() {
        for headers in [&["198.51.100.1"][..], &["10.0.0.1"], &["1.1.1.1, 10.0.0.1"], &[]] {
            assert_eq!(client("203.0.113.9", headers), "203.0.113.9", "{headers:?}");
        }
        let none = TrustedProxies::default();
        assert_eq!(
            none.client("10.0.0.1".parse().unwrap(), [&b"1.1.1.1"[..]].into_iter()).to_string(),
            "10.0.0.1"
        );
    }

    #[test]
    fn the_rightmost_address_that_is_no_proxy_is_the_client() {
        for (headers, expected) in [
            (&["198.51.100.1"][..], "198.51.100.1"),
            // An entry written by the client is to the left.
            (&["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
            (&["10.6.6.6, 198.51.100.1"], "198.51.100.1"),
            (&["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
            (&["6.6.6.6, 7.7.7.7", "198.51.100.1,10.0.0.2"], "198.51.100.1"),
            (&["198.51.100.1, 10.0.0.3, fd00::2"], "198.51.100.1"),
            (&["198.51.100.1:5678"], "198.51.100.1"),
            (&["[2001:db8::5]:443"], "2001:db8::5"),
            (&["2001:db8::5"], "2001:db8::5"),
            (&["::ffff:198.51.100.1"], "198.51.100.1"),
            (&["\t 198.51.100.1 "], "198.51.100.1"),
            // All addresses are those of proxies: the furthest one counts.
            (&["10.0.0.9, 10.0.0.8"], "10.0.0.9"),
        ] {
            assert_eq!(client("10.0.0.1", headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_counts_as_the_proxy_before_it() {
        for garbage in [
            "",
            " ",
            "unknown",
            "_hidden",
            "198.51.100",
            "198.51.100.1:99999",
            "198.51.100.1:",
            "[::1",
            "[::1]x",
            "\"198.51.100.1\"",
            "1.2.3.4 5.6.7.8",
            "é",
        ] {
            assert_eq!(client("10.0.0.1", &[garbage]), "10.0.0.1", "{garbage:?}");
            assert_eq!(
                client("10.0.0.1", &[&format!("6.6.6.6, {garbage}, 10.0.0.2")]),
                "10.0.0.2",
                "{garbage:?}"
            );
        }
        let bytes = [&b"6.6.6.6, \xff"[..]];
        assert_eq!(proxies().client("10.0.0.1".parse().unwrap(), bytes.into_iter()).to_string(), "10.0.0.1");
        let long = vec!["10.0.0.1"; 100_000].join(",");
        assert_eq!(client("10.0.0.1", &[&long]), "10.0.0.1");
    }

    proptest! {
        /// Whatever a client sends, its own address counts.
        #[test]
        fn nothing_that_a_client_writes_changes_its_address(
            written in proptest::collection::vec("[ -~]{0,40}", 0..4),
            hops in 0_usize..4,
        ) {
            let mut headers = written;
            headers.push("198.51.100.1".to_owned());
            headers.extend((0..hops).map(|hop| format!("10.0.0.{hop}")));
            for sent in [headers.clone(), vec![headers.join(", ")]] {
                let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
                prop_assert_eq!(client("10.0.0.1", &sent), "198.51.100.1");
            }
        }
    }
}
