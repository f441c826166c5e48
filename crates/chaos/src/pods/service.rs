//! The service in front of the gateways. Kernel rules like those of kube-proxy direct connections
//! to a ready pod.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Mutex,
};

use anyhow::Result;
use testkit::locked;
use tokio::process::Command;

use super::podman::{GATEWAY_ADDRESS, HOST_ADDRESS, piped, system};

/// The name of our table of rules.
const TABLE: &str = "antiphon_pods";
const PORT: u16 = 80;

/// An address whose connections go to a random ready pod. Open connections are not affected.
#[derive(Debug)]
pub(super) struct GatewayService {
    target_port: u16,
    ready: Mutex<BTreeMap<String, Ipv4Addr>>,
    changing: tokio::sync::Mutex<()>,
}

impl GatewayService {
    /// Creates a service without pods, so that connections are refused.
    pub(super) async fn set_up(target_port: u16) -> Result<Self> {
        let service = Self { target_port, ready: Mutex::default(), changing: tokio::sync::Mutex::default() };
        service.apply().await?;
        Ok(service)
    }

    /// The address for clients.
    pub(super) fn address() -> SocketAddr {
        SocketAddr::from((GATEWAY_ADDRESS, PORT))
    }

    /// Adds this pod, so that it gets new connections.
    pub(super) async fn add(&self, pod: &str, address: Ipv4Addr) -> Result<()> {
        locked(&self.ready).insert(pod.to_owned(), address);
        self.apply().await
    }

    /// Removes this pod, so that it gets no new connections.
    pub(super) async fn remove(&self, pod: &str) -> Result<()> {
        match locked(&self.ready).remove(pod) {
            Some(_) => {}
            None => return Ok(()),
        }
        self.apply().await
    }

    async fn apply(&self) -> Result<()> {
        let _one = self.changing.lock().await;
        let pods: Vec<_> = locked(&self.ready).values().copied().collect();
        piped(Command::new("nft").args(["-f", "-"]), &rules(&pods, self.target_port)).await.map(drop)
    }
}

/// The whole table. It is created if missing, so that it can be emptied and filled in one
/// transaction.
fn rules(pods: &[Ipv4Addr], target_port: u16) -> String {
    let targets: Vec<_> = pods.iter().enumerate().map(|(number, pod)| format!("{number} : {pod}")).collect();
    let rule = match pods.len() {
        // Without pods no rule is needed: the address belongs to this machine, and no process
        // listens on it.
        0 => String::new(),
        count => format!(
            "ip daddr {GATEWAY_ADDRESS} tcp dport {PORT} dnat to numgen random mod {count} map {{ {} }} : {target_port}",
            targets.join(", ")
        ),
    };
    let chain = |hook: &str| format!("chain {hook} {{ type nat hook {hook} priority -100; {rule}\n }}\n");
    format!(
        "table ip {TABLE} {{}}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n{}{}}}\n",
        chain("output"),
        chain("prerouting")
    )
}

/// Adds the addresses of services to this machine.
pub(super) async fn add_addresses() -> Result<()> {
    remove_addresses().await;
    for address in [HOST_ADDRESS, GATEWAY_ADDRESS] {
        system("ip", &["address", "add", &format!("{address}/32"), "dev", "lo"]).await?;
    }
    Ok(())
}

/// Removes the addresses and the rules. Ignores what is missing.
pub(super) async fn remove_addresses() {
    for address in [HOST_ADDRESS, GATEWAY_ADDRESS] {
        _ = system("ip", &["address", "del", &format!("{address}/32"), "dev", "lo"]).await;
    }
    _ = system("nft", &["delete", "table", "ip", TABLE]).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_to_each_of_the_pods() {
        let rules = rules(&[Ipv4Addr::new(10, 97, 0, 2), Ipv4Addr::new(10, 97, 0, 3)], 8080);
        let to = "dnat to numgen random mod 2 map { 0 : 10.97.0.2, 1 : 10.97.0.3 } : 8080";
        assert!(rules.contains(to), "{rules}");
        assert!(!super::rules(&[], 8080).contains("dnat"));
    }
}
