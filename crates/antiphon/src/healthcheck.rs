//! A probe for images without curl.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use runtime::escape::escape;

use crate::options::Healthcheck;

const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Requests `/readyz` and prints the answer.
pub(crate) fn run(options: &Healthcheck) -> ExitCode {
    let addr = options.addr.clone().unwrap_or_else(|| options.metrics.metrics_addr.to_string());
    match ask(&addr) {
        Ok(answer) if answer.starts_with("HTTP/1.1 200") => {
            println!("ready");
            ExitCode::SUCCESS
        }
        Ok(answer) => {
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            eprintln!("antiphon: not ready: {}", escape(&body.trim().replace('\n', ", ")));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("antiphon: nothing answers at {addr}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn ask(addr: &str) -> std::io::Result<String> {
    let mut stream = connect(addr)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Connects to the first address of the name that accepts a connection.
fn connect(addr: &str) -> std::io::Result<TcpStream> {
    let mut last = None;
    for addr in addr.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, PROBE_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::other("the name has no address")))
}
