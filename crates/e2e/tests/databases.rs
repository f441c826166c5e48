//! Databases with a defect: older than the binary, or behind a pooler.

use std::{io, time::Duration};

use devservices::{services::ScratchDir, workspace};
use sqlx::migrate::Migrator;
use testkit::{
    WAIT_TIMEOUT,
    fleet::{Fleet, Invocation, invoke},
    host_and_port, http,
    services::{NatsServer, TestDatabase},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    api_client::SOON,
    fixture::{Fixture, options},
};

#[tokio::test(flavor = "multi_thread")]
async fn newer_fleet_waits_for_the_migration() {
    let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
    let pool = database.pool().await.unwrap();
    let last = lay_out_without_the_last(&pool).await;
    let mut fleet = Fleet::prepare(options(&nats, database.url())).unwrap();
    fleet.spawn().unwrap();
    let why = format!("database: it lacks migration {last}: waiting for `antiphon migrate` of this version");
    for process in fleet.workers.iter().chain(&fleet.gateways) {
        let began = tokio::time::Instant::now();
        loop {
            let readyz = http::get(process.metrics_addr(), "/readyz").await;
            if readyz.as_ref().is_ok_and(|it| it.status == 503 && it.text.contains(&why)) {
                break;
            }
            assert!(began.elapsed() < SOON, "{}: {readyz:?}", process.name());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let lines = std::fs::read_to_string(process.log()).unwrap();
        assert_eq!(lines.matches("it lacks migration").count(), 1, "{lines}");
    }
    fleet.migrate().await.unwrap();
    fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, pool, Some(database)).await;
    fixture.send_many("healed", 5).await;
    fixture.until_ended(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_check_says_what_is_missing_or_newer() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool().await.unwrap();
    let check = async |code: i32, why: &str| {
        let env =
            [("DATABASE_URL", database.url()), ("NATS_URL", "nats://127.0.0.1:1"), ("ANTIPHON_LOG", "warn")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let run = invoke(&["migrate", "--check"], &env).await.unwrap();
        assert_eq!((run.code, run.stderr.trim_end()), (Some(code), why));
    };
    check(1, "antiphon: the database is not laid out yet: run `antiphon migrate` of this version").await;
    let last = lay_out_without_the_last(&pool).await;
    let lacks =
        format!("antiphon: the database lacks migration {last}: run `antiphon migrate` of this version");
    check(1, &lacks).await;
    store::migrate(database.url(), model::PartitionCount::new(8).unwrap()).await.unwrap();
    check(0, "").await;
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (99990101, 'from a newer binary', true, '', 0)";
    sqlx::query(newer).execute(&pool).await.unwrap();
    let why = "antiphon: the database is newer: it has migration 99990101, which this version does not know; this version goes on beside the newer one";
    check(1, why).await;
    sqlx::query("UPDATE _sqlx_migrations SET checksum = '' WHERE version = 1").execute(&pool).await.unwrap();
    let why =
        "antiphon: the database was laid out by another build (migration 1 differs): it needs a new database";
    check(1, why).await;
}

/// Creates the schema of the previous version. Returns the missing migration.
async fn lay_out_without_the_last(pool: &sqlx::PgPool) -> i64 {
    let older = ScratchDir::new("migrations").unwrap();
    let mut files: Vec<_> = std::fs::read_dir(workspace::root().join("migrations"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let last = files.pop().unwrap();
    for file in files {
        std::fs::copy(&file, older.path().join(file.file_name().unwrap())).unwrap();
    }
    Migrator::new(older.path()).await.unwrap().run(pool).await.unwrap();
    sqlx::query("INSERT INTO installation (partitions) VALUES (8)").execute(pool).await.unwrap();
    let name = last.file_name().unwrap().to_string_lossy();
    name.split('_').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_a_crash_may_take_are_warned_of() {
    let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
    let pool = database.pool().await.unwrap();
    let name: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&pool).await.unwrap();
    let mut fleet = Fleet::prepare(options(&nats, database.url())).unwrap();
    fleet.migrate().await.unwrap();
    fleet.spawn().unwrap();
    fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let warned = |process: &testkit::fleet::Process| {
        let lines = std::fs::read_to_string(process.log()).unwrap();
        lines.matches("synchronous_commit is off").count()
    };
    assert!(fleet.workers.iter().chain(&fleet.gateways).all(|process| warned(process) == 0));
    let off = format!("ALTER DATABASE \"{name}\" SET synchronous_commit = off");
    sqlx::query(sqlx::AssertSqlSafe(off)).execute(&pool).await.unwrap();
    for process in fleet.workers.iter_mut().chain(&mut fleet.gateways) {
        process.restart().await.unwrap();
        process.ready(WAIT_TIMEOUT).await.unwrap();
        assert_eq!(warned(process), 1, "{}", process.name());
    }
}

/// A pooler in front of Postgres.
#[derive(Debug, Clone, Copy)]
enum Pooler {
    /// pgbouncer by default: it accepts no settings in the first packet.
    Refuses,
    /// With `ignore_startup_parameters = options`: it drops the settings.
    Drops,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_before_postgres_stops_the_start_with_one_line() {
    let database = TestDatabase::create().await.unwrap();
    for (pooler, why) in [
        (Pooler::Refuses, "unsupported startup parameter: options"),
        (Pooler::Drops, "settings of a session do not arrive"),
    ] {
        let url = stand_before(database.url(), pooler).await;
        for role in ["migrate", "worker", "gateway"] {
            let Invocation { code, stderr, .. } = start(role, &url).await;
            let last = stderr.lines().last().unwrap_or_default();
            assert_eq!(code, Some(2), "{pooler:?}, {role}: {stderr}");
            let said = format!("antiphon: DATABASE_URL leads to a connection pooler ({why})");
            assert!(last.starts_with(&said), "{pooler:?}, {role}: {stderr}");
        }
    }
}

async fn start(role: &str, url: &str) -> Invocation {
    let env = [
        ("DATABASE_URL", url),
        ("NATS_URL", "nats://127.0.0.1:1"),
        ("ANTIPHON_INSECURE", "true"),
        ("ANTIPHON_HTTP_ADDR", "127.0.0.1:0"),
        ("ANTIPHON_METRICS_ADDR", "127.0.0.1:0"),
    ];
    invoke(&[role], &env.map(|(name, value)| (name.to_owned(), value.to_owned()))).await.unwrap()
}

/// The URL of a pooler in front of a database.
async fn stand_before(url: &str, pooler: Pooler) -> String {
    let (host, port) = host_and_port(url).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let (address, upstream) = (format!("{host}:{port}"), format!("127.0.0.1:{own}"));
    let pooled = url.replace(&address, &upstream);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(pool(client, address.clone(), pooler));
        }
    });
    pooled
}

async fn pool(mut client: TcpStream, address: String, pooler: Pooler) -> io::Result<()> {
    let mut startup = first_message(&mut client).await?;
    // A request for encryption is a separate message.
    if startup.starts_with(&80_877_103_u32.to_be_bytes()) {
        client.write_all(b"N").await?;
        startup = first_message(&mut client).await?;
    }
    if matches!(pooler, Pooler::Refuses) {
        let fields = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
        let length = u32::try_from(fields.len() + 4).unwrap();
        return client.write_all(&[b"E".as_slice(), &length.to_be_bytes(), fields].concat()).await;
    }
    let mut parts = startup[4..].split(|byte| *byte == 0);
    let mut kept = startup[..4].to_vec();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        if !name.is_empty() && name != b"options" {
            kept.extend_from_slice(&[name, b"\0", value, b"\0"].concat());
        }
    }
    kept.push(0);
    let mut server = TcpStream::connect(address).await?;
    server.write_u32(u32::try_from(kept.len() + 4).unwrap()).await?;
    server.write_all(&kept).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// The first message, without its length.
async fn first_message(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = client.read_u32().await?;
    let mut message = vec![0; length as usize - 4];
    client.read_exact(&mut message).await?;
    Ok(message)
}
