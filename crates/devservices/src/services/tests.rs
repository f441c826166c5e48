//! Starts, kills and restarts the real services. If a tool cannot be obtained, the error of the
//! chain fails the test.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::Command,
    thread,
};

use anyhow::Result;

use super::{NatsOptions, NatsProcess, Postgres, PostgresOptions};
use crate::tools;

/// Runs one simple query as the superuser, by the wire protocol; returns the first column of the
/// first row as text.
fn query(port: u16, sql: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let mut startup = 196_608_u32.to_be_bytes().to_vec();
    startup.extend(b"user\0postgres\0database\0postgres\0\0");
    stream.write_all(&[&u32::try_from(startup.len() + 4)?.to_be_bytes(), startup.as_slice()].concat())?;
    let text = [sql.as_bytes(), b"\0"].concat();
    stream.write_all(&[b"Q", u32::try_from(text.len() + 4)?.to_be_bytes().as_slice(), &text].concat())?;
    let (mut answer, mut ready) = (String::new(), 0);
    while ready < 2 {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; usize::try_from(length)? - 4];
        stream.read_exact(&mut body)?;
        match head[0] {
            b'E' => anyhow::bail!("{}", String::from_utf8_lossy(&body)),
            b'D' if answer.is_empty() => answer = String::from_utf8_lossy(&body[6..]).into_owned(),
            b'Z' => ready += 1,
            _ => {}
        }
    }
    Ok(answer)
}

#[test]
fn postgres_survives_a_kill_on_the_same_port() -> Result<()> {
    let mut postgres = Postgres::start(None, &PostgresOptions::new(tools::postgres()?.path))?;
    let port = postgres.port();
    query(port, "CREATE TABLE t (n int); INSERT INTO t VALUES (42)")?;
    assert_eq!(query(port, "SHOW server_encoding")?, "UTF8");
    assert_eq!(query(port, "SHOW idle_in_transaction_session_timeout")?, "10s");
    let sleeper = thread::spawn(move || query(port, "SELECT pg_sleep(60)"));
    while query(port, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")? == "0" {}
    postgres.kill()?;
    assert!(sleeper.join().is_ok_and(|answer| answer.is_err()), "the backend died with the postmaster");
    assert!(postgres.pid().is_none());
    postgres.restart()?;
    assert_eq!(postgres.port(), port);
    assert_eq!(query(port, "SELECT n FROM t")?, "42");
    postgres.stop()?;
    postgres.restart()?;
    assert_eq!(query(port, "SELECT n FROM t")?, "42");
    Ok(())
}

#[test]
fn a_server_outlives_the_thread_that_started_it() -> Result<()> {
    let options = PostgresOptions::new(tools::postgres()?.path);
    let postgres = thread::spawn(move || Postgres::start(None, &options)).join().expect("no panic")?;
    thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(query(postgres.port(), "SELECT 1")?, "1");
    Ok(())
}

/// Sends lines to a NATS server and returns the first answer line with the prefix.
fn nats(port: u16, lines: &str, prefix: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(format!("CONNECT {{\"verbose\":false}}\r\n{lines}").as_bytes())?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.starts_with(prefix) || line.starts_with("-ERR") {
            return Ok(line);
        }
    }
    anyhow::bail!("connection closed")
}

#[test]
fn nats_keeps_streams_over_a_kill_and_maps_subjects() -> Result<()> {
    let mut options = NatsOptions::new(tools::nats_server()?.path);
    options.partitions = Some(8);
    let mut server = NatsProcess::start(None, &options)?;
    let port = server.port();
    // FNV-1a 32 of "t1" is 0x0844ecd6: partition 6 of 8.
    let mapped = nats(port, "SUB chunks.*.* 1\r\nPUB chunks.t1 1\r\nx\r\n", "MSG")?;
    assert_eq!(mapped, "MSG chunks.6.t1 1 1");
    let create = r#"{"name":"S","subjects":["s.>"],"storage":"file","retention":"limits"}"#;
    let request = |subject: &str, body: &str| {
        format!("SUB i.* 9\r\nPUB {subject} i.1 {}\r\n{body}\r\nPING\r\n", body.len())
    };
    nats(port, &request("$JS.API.STREAM.CREATE.S", create), "MSG")?;
    nats(port, &request("s.a", "hello"), "MSG")?;
    let pid = server.pid();
    server.kill()?;
    assert!(nats(port, "PING\r\n", "PONG").is_err());
    server.restart()?;
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    let info = nats(port, &request("$JS.API.STREAM.INFO.S", ""), "{")?;
    assert!(info.contains(r#""messages":1"#), "{info}");
    Ok(())
}

#[test]
fn nothing_is_left_behind() -> Result<()> {
    let server = NatsProcess::start(None, &NatsOptions::new(tools::nats_server()?.path))?;
    let (pid, log) = (server.pid().expect("it runs"), server.log());
    assert!(log.exists());
    drop(server);
    assert!(!log.exists());
    let alive = Command::new("kill").args(["-0", &pid.to_string()]).output()?;
    assert!(!alive.status.success());
    Ok(())
}
