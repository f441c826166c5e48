//! Chooses the next server of a cluster after a lost connection.

use std::sync::{Mutex, PoisonError};

use async_nats::{ConnectOptions, ReconnectToServer, Server, ServerAddr};
use rand::seq::IteratorRandom;

/// Avoids the server that was lost, unless all others have more failures. A silent host does not
/// refuse connections, so each try with it takes the whole connect timeout.
pub(crate) fn leave_lost_ones(options: ConnectOptions) -> ConnectOptions {
    let last = Mutex::new(None);
    options.reconnect_to_server_callback(move |pool, _| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = pool.iter().map(|server: &Server| (&server.addr, server.failed_attempts));
        *last = choose(known, last.as_ref()).cloned();
        let chosen = last.clone().map(|addr| ReconnectToServer { addr, delay: None });
        std::future::ready(chosen)
    })
}

/// One of the servers with the fewest failures. The last one is chosen only if there is no other.
fn choose<'a>(
    pool: impl Iterator<Item = (&'a ServerAddr, usize)> + Clone,
    last: Option<&ServerAddr>,
) -> Option<&'a ServerAddr> {
    let rank = |(addr, failures): (&ServerAddr, usize)| (failures, Some(addr) == last);
    let best = pool.clone().map(rank).min()?;
    pool.filter(|server| rank(*server) == best).map(|(addr, _)| addr).choose(&mut rand::rng())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_server_is_tried_last_and_failing_ones_later() {
        let servers = ["nats://a", "nats://b", "nats://c"].map(|url| url.parse::<ServerAddr>().expect("url"));
        let chosen = |failures: [usize; 3], last: Option<usize>| {
            let of = |_| {
                let pool = servers.iter().zip(failures);
                let addr = choose(pool, last.map(|at| &servers[at])).expect("there are servers");
                servers.iter().position(|server| server == addr).expect("of the pool")
            };
            let mut chosen: Vec<_> = (0..200).map(of).collect();
            chosen.sort_unstable();
            chosen.dedup();
            chosen
        };
        assert_eq!(chosen([0, 0, 0], None), [0, 1, 2]);
        assert_eq!(chosen([0, 0, 0], Some(0)), [1, 2]);
        assert_eq!(chosen([0, 1, 1], Some(0)), [0], "the others have just failed");
        assert_eq!(chosen([1, 1, 0], Some(1)), [2]);
        let alone = &servers[..1];
        assert_eq!(choose(alone.iter().map(|addr| (addr, 7)), Some(&alone[0])), Some(&alone[0]));
        assert_eq!(choose(std::iter::empty(), None), None);
    }
}
