//! Tracks which gateways receive the frames of which threads.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use model::{GatewayId, ThreadId, Timestamp};

/// Time without a query after which a gateway no longer follows any thread, ms. Gateways ask every
/// two seconds.
pub const FOLLOWER_EXPIRY_MS: i64 = 20_000;

/// Followers of one partition's threads under one epoch.
///
/// The request for a snapshot also makes the gateway a follower of the thread, so that it misses no
/// frame after the snapshot. Errors here cost only time: a gateway that lacks frames notices the
/// gap in their numbers, asks for a snapshot, and follows again. Memory is bounded by what each
/// gateway follows.
#[derive(Debug)]
pub(crate) struct Followers {
    threads: HashMap<ThreadId, Vec<GatewayId>, foldhash::fast::FixedState>,
    /// Time of each gateway's last query.
    heard: BTreeMap<GatewayId, Timestamp>,
}

impl Followers {
    pub(crate) fn new(hash_seed: u64) -> Self {
        let threads = HashMap::with_hasher(foldhash::fast::FixedState::with_seed(hash_seed));
        Self { threads, heard: BTreeMap::new() }
    }

    pub(crate) fn of(&self, thread: &ThreadId) -> &[GatewayId] {
        self.threads.get(thread).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn follow(&mut self, thread: &ThreadId, gateway: &GatewayId, now: Timestamp) {
        self.heard.insert(gateway.clone(), now);
        let gateways = self.threads.entry(thread.clone()).or_default();
        if !gateways.contains(gateway) {
            gateways.push(gateway.clone());
        }
    }

    /// Notes a gateway's query. False if the gateway was not known.
    pub(crate) fn hear(&mut self, gateway: &GatewayId, unfollowed: &[ThreadId], now: Timestamp) -> bool {
        self.expire(now);
        for thread in unfollowed {
            if let Some(gateways) = self.threads.get_mut(thread) {
                gateways.retain(|it| it != gateway);
                if gateways.is_empty() {
                    self.threads.remove(thread);
                }
            }
        }
        self.heard.insert(gateway.clone(), now).is_some()
    }

    /// Removes gateways whose last query is too old.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        let before = self.heard.len();
        self.heard.retain(|_, at| now.since_ms(*at) < FOLLOWER_EXPIRY_MS);
        if self.heard.len() < before {
            self.threads.retain(|_, gateways| {
                gateways.retain(|gateway| self.heard.contains_key(gateway));
                !gateways.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(name: &str) -> ThreadId {
        ThreadId::parse(name).unwrap()
    }

    fn gateway(name: &str) -> GatewayId {
        GatewayId::parse(name).unwrap()
    }

    fn of(followers: &Followers, name: &str) -> String {
        followers.of(&thread(name)).iter().map(GatewayId::as_str).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_gateway_follows_until_it_says_otherwise() {
        let mut followers = Followers::new(0);
        let now = Timestamp(1_000);
        assert_eq!(of(&followers, "t"), "");
        for (name, by) in [("t", "g1"), ("t", "g2"), ("t", "g1"), ("u", "g1")] {
            followers.follow(&thread(name), &gateway(by), now);
        }
        assert_eq!((of(&followers, "t"), of(&followers, "u")), ("g1 g2".into(), "g1".into()));
        assert!(followers.hear(&gateway("g1"), &[thread("t"), thread("v")], now));
        assert_eq!((of(&followers, "t"), of(&followers, "u")), ("g2".into(), "g1".into()));
        assert!(followers.hear(&gateway("g2"), &[thread("t")], now));
        assert_eq!(followers.threads.len(), 1, "nothing is kept of a thread that has no followers");
    }

    #[test]
    fn a_silent_gateway_is_forgotten_and_is_not_known_then() {
        let mut followers = Followers::new(0);
        followers.follow(&thread("t"), &gateway("g1"), Timestamp(0));
        followers.follow(&thread("t"), &gateway("g2"), Timestamp(0));
        assert!(followers.hear(&gateway("g2"), &[], Timestamp(FOLLOWER_EXPIRY_MS - 1)));
        assert_eq!(of(&followers, "t"), "g1 g2");
        followers.expire(Timestamp(FOLLOWER_EXPIRY_MS));
        assert_eq!(of(&followers, "t"), "g2");
        assert!(!followers.hear(&gateway("g1"), &[], Timestamp(FOLLOWER_EXPIRY_MS)), "it follows nothing");
        assert!(followers.hear(&gateway("g1"), &[], Timestamp(FOLLOWER_EXPIRY_MS)));
        assert_eq!(of(&followers, "t"), "g2");
    }
}
