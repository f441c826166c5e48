//! Limits how many unknown keys each address may try.

use std::collections::HashMap;
use std::net::IpAddr;

use auth::{Rate, TokenBucket};
use model::Timestamp;

use crate::transport::ip_limit::peer;

/// Rate (keys per second) and burst of unknown keys per address. A guesser costs the database no
/// more than that, and does not lock out other addresses.
const RATE: (u32, u32) = (50, 200);
/// Time after which a bucket is full again and need not be kept, ms.
const REFILL_MS: i64 = (RATE.1 as i64 * 1_000).div_euclid(RATE.0 as i64) + 1;
/// Maximum number of remembered addresses.
const MOST: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Guesses {
    by_peer: HashMap<IpAddr, (TokenBucket, Timestamp)>,
}

impl Guesses {
    /// Whether this address may try one more key.
    pub(crate) fn take(&mut self, addr: IpAddr, now: Timestamp) -> bool {
        let Ok(rate) = Rate::new(RATE.0, RATE.1) else { return false };
        let peer = peer(addr);
        if !self.by_peer.contains_key(&peer) && self.by_peer.len() >= MOST {
            self.by_peer.retain(|_, (_, used_at)| now.since_ms(*used_at) < REFILL_MS);
        }
        if !self.by_peer.contains_key(&peer) && self.by_peer.len() >= MOST {
            // With this many active addresses the buckets are reset: the number of concurrent reads
            // still bounds the load of the database.
            self.by_peer.clear();
        }
        let (bucket, used_at) =
            self.by_peer.entry(peer).or_insert_with(|| (TokenBucket::new(rate, now), now));
        *used_at = now;
        bucket.take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_and_gets_it_back() {
        let (mut guesses, now) = (Guesses::default(), Timestamp(1_000_000));
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!((0..5_000).filter(|_| guesses.take(one, now)).count(), RATE.1 as usize);
        assert!(guesses.take(other, now));
        let later = now.plus_ms(1_000);
        assert_eq!((0..5_000).filter(|_| guesses.take(one, later)).count(), RATE.0 as usize);
    }

    #[test]
    fn addresses_without_number_are_not_all_remembered() {
        let (mut guesses, now) = (Guesses::default(), Timestamp(1_000_000));
        for n in 0..3 * MOST as u32 {
            assert!(guesses.take(IpAddr::from(n.to_be_bytes()), now));
            assert!(guesses.by_peer.len() <= MOST);
        }
        // Addresses whose bucket is full again are forgotten first.
        let later = now.plus_ms(REFILL_MS);
        for n in 0..=MOST as u32 {
            guesses.take(IpAddr::from(n.to_be_bytes()), later);
        }
        assert!(guesses.by_peer.values().all(|(_, at)| *at == later));
    }
}
