//! One nginx, as a proxy.

use std::{
    fmt::Write as _,
    fs::{self, File},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Result, bail};

use super::{
    port::Port,
    process::{self, log_tail, wait_until},
    scratch::ScratchDir,
};

const START_LIMIT: Duration = Duration::from_secs(60);

/// One port of the proxy, and its upstream.
#[derive(Debug, Clone)]
pub struct Server {
    pub upstream: SocketAddr,
    /// More lines of its `location`. Everything else is nginx's default.
    pub lines: String,
}

/// A running nginx, in one process. `Drop` ends it and removes its folder.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
    ports: Vec<Port>,
    _scratch: ScratchDir,
}

impl Nginx {
    /// Starts `program` with these servers, and waits until it accepts connections.
    ///
    /// # Errors
    /// It cannot be started; the error contains the end of its log.
    pub fn start(program: &Path, servers: &[Server]) -> Result<Nginx> {
        let scratch = ScratchDir::new("nginx")?;
        let dir = scratch.path();
        let ports = servers.iter().map(|_| Port::reserve()).collect::<Result<Vec<_>>>()?;
        let addrs: Vec<_> = ports.iter().map(local).collect();
        fs::write(dir.join("nginx.conf"), config(dir, &addrs, servers))?;
        let log = dir.join("nginx.log");
        let output = File::create(&log)?;
        let mut command = Command::new(program);
        command.arg("-c").arg(dir.join("nginx.conf")).arg("-p").arg(dir).args(["-e", "stderr"]);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut child = process::spawn(command, libc::SIGKILL)?;
        let is_up = |addr: &SocketAddr| TcpStream::connect_timeout(addr, Duration::from_millis(500)).is_ok();
        let mut has_ended = false;
        let ready = wait_until(START_LIMIT, || {
            has_ended = child.try_wait().is_ok_and(|status| status.is_some());
            has_ended || addrs.iter().all(is_up)
        });
        let nginx = Nginx { child, ports, _scratch: scratch };
        if has_ended || !ready {
            bail!("nginx did not start; its last words:\n{}", log_tail(&log));
        }
        Ok(nginx)
    }

    /// The addresses of its servers, in the given order.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(local).collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn local(port: &Port) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port.number()))
}

/// With a single process nginx does not change its user, and ends when that process ends.
fn config(dir: &Path, addrs: &[SocketAddr], servers: &[Server]) -> String {
    let mut config = format!(
        "daemon off;\nmaster_process off;\nerror_log stderr warn;\npid {dir:?};\n\
         events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\ngzip on;\n",
        dir = dir.join("nginx.pid")
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(config, "{kind}_temp_path {:?};", dir.join(kind));
    }
    for (addr, Server { upstream, lines }) in addrs.iter().zip(servers) {
        let location = format!("proxy_pass http://{upstream};\n{lines}\n");
        let _ = writeln!(config, "server {{\nlisten {addr};\nlocation / {{\n{location}}}\n}}");
    }
    config + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_its_port_and_its_lines() {
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let server = |port, lines: &str| Server { upstream: addr(port), lines: lines.to_owned() };
        let servers = [server(1, ""), server(2, "proxy_http_version 1.1;")];
        let config = config(Path::new("/d"), &[addr(11), addr(12)], &servers);
        assert!(config.contains("listen 127.0.0.1:11;\nlocation / {\nproxy_pass http://127.0.0.1:1;\n\n}"));
        assert!(config.contains("proxy_pass http://127.0.0.1:2;\nproxy_http_version 1.1;\n}"), "{config}");
    }
}
