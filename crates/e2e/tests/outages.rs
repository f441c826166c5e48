//! Postgres or NATS unreachable: at the start, and later.

use std::{net::SocketAddr, time::Duration};

use devservices::services::Port;
use model::PartitionCount;
use serde_json::json;
use store::{Store, StoreConfig};
use testkit::{
    WAIT_TIMEOUT, db_snapshot,
    fleet::{Fleet, Process, binary},
    host_and_port, http,
    proxy::{Cut, Proxy},
    services::{NatsServer, PostgresServer},
};
use tokio::{
    process::Command,
    time::{Instant, sleep, timeout},
};

use crate::{
    api_client::SOON,
    fixture::{Fixture, long, options, pool},
};

/// After this time an idle stream sends a heartbeat.
const QUIET: Duration = Duration::from_secs(15);

/// A fleet on its own servers, migrated but not started.
async fn apart() -> (Fleet, NatsServer, PostgresServer) {
    let nats = NatsServer::start().await.unwrap();
    let postgres = PostgresServer::start().await.unwrap();
    let fleet = Fleet::prepare(options(&nats, postgres.url())).unwrap();
    fleet.migrate().await.unwrap();
    (fleet, nats, postgres)
}

async fn works(mut fleet: Fleet, nats: NatsServer, postgres: &PostgresServer) {
    fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, pool(postgres.url()).await, None).await;
    fixture.send_many("works", 20).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    fixture.audit(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_waits_for_postgres_at_the_start() {
    let (mut fleet, nats, postgres) = apart().await;
    postgres.kill().await.unwrap();
    fleet.spawn().unwrap();
    sleep(Duration::from_secs(3)).await;
    for process in fleet.workers.iter_mut().chain(&mut fleet.gateways) {
        assert!(process.has_ended().is_none(), "{} gave up: {}", process.name(), process.log_tail());
    }
    postgres.restart().await.unwrap();
    works(fleet, nats, &postgres).await;
}

/// Postgres may go between a connection and the first answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_at_the_start_is_made_again() {
    let postgres = PostgresServer::start().await.unwrap();
    let upstream = host_and_port(postgres.url()).unwrap();
    let upstream: SocketAddr = format!("{}:{}", upstream.0, upstream.1).parse().unwrap();
    let proxy = Proxy::start_with(upstream, &["pg_backend_pid()".to_owned()]).await.unwrap();
    let url = proxy.url(postgres.url()).unwrap();
    for cut in [Cut::Before, Cut::After] {
        proxy.arm(cut);
    }
    timeout(WAIT_TIMEOUT, store::migrate(&url, PartitionCount::new(1).unwrap())).await.unwrap().unwrap();
    for cut in [Cut::Before, Cut::After] {
        proxy.arm(cut);
    }
    timeout(WAIT_TIMEOUT, Store::connect(&StoreConfig::new(&url))).await.unwrap().unwrap();
    assert_eq!(proxy.cuts().total(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_waits_for_nats_at_the_start() {
    let (mut fleet, nats, postgres) = apart().await;
    nats.kill().await.unwrap();
    fleet.spawn().unwrap();
    sleep(Duration::from_secs(3)).await;
    for process in fleet.workers.iter_mut().chain(&mut fleet.gateways) {
        assert!(process.has_ended().is_none(), "{} gave up: {}", process.name(), process.log_tail());
    }
    nats.restart().await.unwrap();
    works(fleet, nats, &postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_text_streams_on_and_ends_wait() {
    let (mut fleet, nats, postgres) = apart().await;
    fleet.spawn().unwrap();
    fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, pool(postgres.url()).await, None).await;
    let (follower, idle) = (fixture.following("outage").await, fixture.following("idle").await);
    let mut chat = unanswered_chat(&fixture).await;
    let message = long("outage", "m");
    fixture.send_part(&message, 0..100).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.events >= 100).await.unwrap();
    postgres.kill().await.unwrap();
    fixture.send_part(&message, 100..message.chunks.len()).await;
    fixture.send_many("meanwhile", 30).await;
    let watch = Watch::begin(&fixture);
    let away_for = outage(QUIET + Duration::from_secs(2));
    while watch.began.elapsed() < away_for {
        it_is_said_that_the_database_is_away(&fixture).await;
        sleep(Duration::from_millis(250)).await;
    }
    watch.no_process_spins_or_leaks(&fixture);
    assert_eq!(follower.progress().terminals, 0, "no end before the commit");
    // An idle stream shows that it is alive, in every protocol. A chat without a workflow repeats
    // why it waits instead of a heartbeat.
    let heartbeat = |comment: &(usize, String)| comment.1.trim() == "heartbeat";
    assert!(idle.inspect(|all| all[0].comments.iter().any(heartbeat)), "{:?}", idle.transcripts());
    let mut bytes = Vec::new();
    while String::from_utf8_lossy(&bytes).matches("\n: ").count() < 2 {
        let read = timeout(QUIET + Duration::from_secs(1), chat.body.read(&mut bytes)).await;
        let shown = || String::from_utf8_lossy(&bytes).into_owned();
        assert!(read.is_ok_and(|read| read.is_ok_and(|read| read > 0)), "{}", shown());
    }
    postgres.restart().await.unwrap();
    fixture.pool = pool(postgres.url()).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    assert_eq!((follower.progress().opened, idle.progress().opened), (1, 1), "they were cut");
    fixture.audit(vec![follower, idle]).await;
}

/// How long the servers are down: `ANTIPHON_OUTAGE_SECONDS`, to test minutes.
fn outage(usual: Duration) -> Duration {
    std::env::var("ANTIPHON_OUTAGE_SECONDS")
        .map_or(usual, |text| Duration::from_secs(text.parse().expect("ANTIPHON_OUTAGE_SECONDS")))
}

/// A stream that waits: no workflow answers here.
async fn unanswered_chat(fixture: &Fixture) -> http::Response {
    let body =
        br#"{"id":"chat","messages":[{"id":"q","role":"user","parts":[{"type":"text","text":"hello"}]}]}"#;
    let headers = [("content-type", "application/json")];
    let request = http::HttpRequest { method: "POST", path: "/api/chat", headers: &headers, body };
    let response = http::begin(fixture.fleet.gateway_addrs()[0], request).await.unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    response
}

async fn it_is_said_that_the_database_is_away(fixture: &Fixture) {
    let gateway = fixture.fleet.gateway_addrs()[0];
    let history = http::get(gateway, "/v1/threads/outage/history");
    let body = json!({"content": "hello"}).to_string();
    let post = |path| {
        let headers = &[("content-type", "application/json")];
        http::exchange(gateway, http::HttpRequest { method: "POST", path, headers, body: body.as_bytes() })
    };
    let (history, input) = tokio::join!(history, post("/v1/threads/outage/messages"));
    for answer in [history.unwrap(), input.unwrap()] {
        let problem = answer.json().unwrap();
        assert_eq!((answer.status, &problem["code"]), (503, &json!("database_unavailable")), "{answer:?}");
        assert_eq!(problem["retryable"], true);
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    }
}

/// Measures workers and gateways while a server is down.
struct Watch {
    began: Instant,
    /// Processor time and memory of each process.
    before: Vec<(Duration, u64)>,
}

impl Watch {
    fn begin(fixture: &Fixture) -> Self {
        Self { began: Instant::now(), before: all(fixture).map(used).collect() }
    }

    fn no_process_spins_or_leaks(&self, fixture: &Fixture) {
        let elapsed = self.began.elapsed();
        for (process, (cpu, memory)) in all(fixture).zip(&self.before) {
            let (cpu_now, memory_now) = used(process);
            let (spent, grown) = (cpu_now - *cpu, memory_now.saturating_sub(*memory) >> 20);
            println!("{}: {spent:?} of {elapsed:?}, {grown} MiB more", process.name());
            assert!(spent < elapsed / 3, "{} spins: {spent:?} of {elapsed:?}", process.name());
            assert!(grown < 64, "{} has grown: {grown} MiB", process.name());
        }
    }
}

fn all(fixture: &Fixture) -> impl Iterator<Item = &Process> {
    fixture.fleet.workers.iter().chain(&fixture.fleet.gateways)
}

/// Processor time and resident bytes.
fn used(process: &Process) -> (Duration, u64) {
    let read = |file: &str| {
        let pid = process.pid().expect("it runs");
        std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap()
    };
    // After the name, which may have spaces: user and system time are the 12th and 13th fields, in
    // hundredths of a second.
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = [11, 12].map(|at| fields[at].parse::<u64>().unwrap()).iter().sum();
    let pages: u64 = read("statm").split_whitespace().nth(1).unwrap().parse().unwrap();
    (Duration::from_millis(ticks * 10), pages * 4_096)
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_may_be_killed_in_the_middle() {
    let mut fixture = Fixture::new().await;
    let follower = fixture.following("killed").await;
    let message = long("killed", "m");
    fixture.send_part(&message, 0..100).await;
    fixture.nats.kill().await.unwrap();
    let watch = Watch::begin(&fixture);
    sleep(outage(Duration::from_secs(3))).await;
    watch.no_process_spins_or_leaks(&fixture);
    fixture.nats.restart().await.unwrap();
    fixture.send_part(&message, 100..message.chunks.len()).await;
    fixture.send_many("after", 20).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    fixture.gap_timeout = Duration::ZERO;
    fixture.audit(vec![follower]).await;
}

/// NATS is killed, or is silent with its connections open.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_nats_is_not_ready_until_it_is_back() {
    let fixture = Fixture::new().await;
    let probe = fixture.fleet.gateways[0].metrics_addr();
    let readyz = async || http::get(probe, "/readyz").await.unwrap();
    let says_so = async || {
        let answer = readyz().await;
        answer.status == 503 && answer.text.contains("NATS of the gateway: no connection for ")
    };
    assert_eq!(readyz().await.status, 200);
    fixture.nats.kill().await.unwrap();
    // A short break removes no gateway from service.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(readyz().await.status, 200);
    fixture.until("the gateway says that NATS is gone", WAIT_TIMEOUT, says_so).await;
    fixture.nats.restart().await.unwrap();
    fixture.until("it is ready again", WAIT_TIMEOUT, async || readyz().await.status == 200).await;
    fixture.nats.freeze();
    fixture.until("the gateway says that NATS is silent", WAIT_TIMEOUT, says_so).await;
    fixture.nats.thaw();
    fixture.until("it is ready again", WAIT_TIMEOUT, async || readyz().await.status == 200).await;
}

/// With the checkpoints of the old stream, the entries of a new one, which counts from 1, would be
/// skipped.
#[tokio::test(flavor = "multi_thread")]
async fn recreated_stream_is_read_from_its_beginning() {
    let mut fixture = Fixture::new().await;
    fixture.send_many("old", 40).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    let jetstream = fixture.publisher.context().clone();
    for partition in 0..crate::fixture::PARTITIONS {
        jetstream.delete_stream(format!("PARTITION_{partition}")).await.unwrap();
    }
    fixture.fleet.migrate().await.unwrap();
    fixture.send_many("new", 40).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), (80, 0));
    let mut incidents = 0.0;
    for worker in &fixture.fleet.workers {
        incidents += worker.metrics().await.unwrap().sum("antiphon_worker_incidents_total");
    }
    assert!(incidents >= f64::from(crate::fixture::PARTITIONS), "{incidents} incidents reported");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_roles_answer_probes_before_their_servers_do() {
    let [postgres, nats, metrics, api, mcp] = std::array::from_fn(|_| Port::reserve().unwrap());
    let local = |port: &Port| SocketAddr::from(([127, 0, 0, 1], port.number()));
    let mut command = Command::new(binary().unwrap());
    command
        .args(["all", "--insecure"])
        .env("DATABASE_URL", format!("postgres://postgres@{}/antiphon", local(&postgres)))
        .env("NATS_URL", format!("nats://{}", local(&nats)))
        .env("ANTIPHON_METRICS_ADDR", local(&metrics).to_string())
        .env("ANTIPHON_HTTP_ADDR", local(&api).to_string())
        .env("ANTIPHON_MCP_ADDR", local(&mcp).to_string())
        .env("ANTIPHON_LOG", "warn");
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let status = async |path| http::get(local(&metrics), path).await.map(|answer| answer.status);
    let deadline = Instant::now() + SOON;
    while !matches!(status("/livez").await, Ok(200)) {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "no probes");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status("/readyz").await.unwrap(), 503);
    assert_eq!(status("/startupz").await.unwrap(), 503);
    // The process waits, and ends with SIGTERM.
    assert!(child.try_wait().unwrap().is_none());
    let kill = Command::new("kill").arg(child.id().unwrap().to_string()).status().await;
    assert!(kill.unwrap().success());
    assert!(timeout(SOON, child.wait()).await.unwrap().unwrap().success());
}
