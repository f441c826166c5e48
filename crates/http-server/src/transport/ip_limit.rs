//! Limits the connections and requests of each peer, so that no peer can take all places.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Prefix bits of an IPv6 address that identify a peer: a host with one address can use the rest of
/// its network, too.
const V6_PREFIX: u32 = 64;

/// Counts by peer. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct IpLimiter {
    max: usize,
    in_use: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One place of a peer; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct IpPermit {
    ip_limiter: IpLimiter,
    /// `None` when connections are not counted.
    peer: Option<IpAddr>,
}

impl IpLimiter {
    /// At most `max` places for each peer; 0 means no limit.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, in_use: Arc::default() }
    }

    /// Takes a place for the peer at `addr`; `None` when it has the maximum.
    pub(crate) fn admit(&self, addr: IpAddr) -> Option<IpPermit> {
        if self.max == 0 {
            return Some(IpPermit { ip_limiter: self.clone(), peer: None });
        }
        let peer = peer(addr);
        let mut all = self.in_use();
        let in_use = all.entry(peer).or_default();
        if *in_use >= self.max {
            return None;
        }
        *in_use += 1;
        Some(IpPermit { ip_limiter: self.clone(), peer: Some(peer) })
    }

    fn in_use(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for IpPermit {
    fn drop(&mut self) {
        let Some(peer) = self.peer else { return };
        let mut all = self.ip_limiter.in_use();
        if let Some(in_use) = all.get_mut(&peer) {
            *in_use -= 1;
            if *in_use == 0 {
                all.remove(&peer);
            }
        }
    }
}

/// The address under which a peer is counted: its own, or its network.
pub(crate) fn peer(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() & (u128::MAX << (128 - V6_PREFIX))).into(),
        addr => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_peer_has_so_many_places_and_gets_them_back() {
        let ip_limiter = IpLimiter::new(2);
        let first = ip_limiter.admit(addr("10.0.0.1")).unwrap();
        // The same peer as seen by a dual-stack socket.
        let _second = ip_limiter.admit(addr("::ffff:10.0.0.1")).unwrap();
        assert!(ip_limiter.admit(addr("10.0.0.1")).is_none() && ip_limiter.admit(addr("10.0.0.2")).is_some());
        drop(first);
        assert!(ip_limiter.admit(addr("10.0.0.1")).is_some());
        assert_eq!(ip_limiter.in_use().len(), 1, "who has gone is forgotten");
    }

    #[test]
    fn an_ipv6_network_is_one_peer_and_0_is_no_limit() {
        let ip_limiter = IpLimiter::new(1);
        let _place = ip_limiter.admit(addr("2001:db8::1")).unwrap();
        assert!(ip_limiter.admit(addr("2001:db8::ffff:2")).is_none());
        assert!(ip_limiter.admit(addr("2001:db8:0:1::1")).is_some());
        let ip_limiter = IpLimiter::new(0);
        let places: Vec<_> = (0..100).map(|_| ip_limiter.admit(addr("10.0.0.1"))).collect();
        assert!(places.iter().all(Option::is_some) && ip_limiter.in_use().is_empty());
    }
}
