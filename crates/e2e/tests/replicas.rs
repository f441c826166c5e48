//! A real standby: lists and history are read from it, and it replaces a primary that is paused and
//! resumes later.

use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::time::Duration;

use sqlx::PgPool;
use testkit::{
    WAIT_TIMEOUT, db_snapshot,
    fleet::Fleet,
    host_and_port, http,
    proxy::Proxy,
    services::{NatsServer, PostgresServer, TestDatabase},
};
use tokio::time::sleep;

use crate::fixture::{Fixture, options, pool};

/// The lag that a standby may have.
const MAX_LAG: Duration = Duration::from_secs(1);

struct Reads {
    fixture: Fixture,
    gateway: SocketAddr,
    metrics: SocketAddr,
}

impl Reads {
    /// A fleet whose gateway reads from `read_url`.
    async fn new(nats: NatsServer, database: TestDatabase, read_url: &str) -> Self {
        let options = options(&nats, database.url())
            .with_env("DATABASE_READ_URL", read_url)
            .with_env("ANTIPHON_READ_MAX_LAG_MS", MAX_LAG.as_millis());
        let fleet = Fleet::prepare(options).unwrap();
        fleet.migrate().await.unwrap();
        Self::on(fleet, nats, database).await
    }

    async fn on(mut fleet: Fleet, nats: NatsServer, database: TestDatabase) -> Self {
        fleet.spawn().unwrap();
        fleet.ready(WAIT_TIMEOUT).await.unwrap();
        let (gateway, metrics) = (fleet.gateway_addrs()[0], fleet.gateways[0].metrics_addr());
        let pool = database.pool().await.unwrap();
        let fixture = Fixture::on(fleet, nats, pool, Some(database)).await;
        Self { fixture, gateway, metrics }
    }

    async fn metric(&self, line: &str) -> f64 {
        let text = http::get(self.metrics, "/metrics").await.unwrap().text;
        let found = text.lines().find_map(|it| it.strip_prefix(line)).unwrap_or_default();
        found.trim().parse().unwrap_or(f64::NAN)
    }

    /// Reads by primary and by standby.
    async fn counts(&self) -> (f64, f64) {
        let of =
            async |from: &str| self.metric(&format!("antiphon_gateway_reads_total{{from=\"{from}\"}}")).await;
        (of("primary").await, of("replica").await)
    }

    /// Number of messages in the history.
    async fn messages(&self, thread: &str) -> usize {
        let found = http::get(self.gateway, &format!("/v1/threads/{thread}/history")).await.unwrap();
        assert!(found.status == 200 || found.status == 404, "{} {}", found.status, found.text);
        found.json().unwrap()["messages"].as_array().map_or(0, Vec::len)
    }

    async fn until_used(&self, is_used: bool) {
        let metrics = async || {
            (
                self.metric("antiphon_gateway_replica_used").await,
                self.metric("antiphon_gateway_replica_lag_seconds").await,
            )
        };
        let what = if is_used { "the standby is used" } else { "the standby is not used" };
        self.fixture
            .until(what, WAIT_TIMEOUT, async || {
                let (used, lag) = metrics().await;
                if is_used {
                    used == 1.0 && (0.0..=MAX_LAG.as_secs_f64()).contains(&lag)
                } else {
                    used == 0.0 && lag.is_nan()
                }
            })
            .await;
    }

    async fn commit(&mut self, prefix: &str, count: usize) {
        self.fixture.send_many(prefix, count).await;
        self.fixture.until_ended(WAIT_TIMEOUT).await;
    }

    /// Waits for the allowed lag. Then checks that reads show everything, and which server answers
    /// them.
    async fn shows(&self, prefix: &str, count: usize, is_replica: bool) {
        sleep(MAX_LAG).await;
        let before = self.counts().await;
        for number in 0..count {
            assert_eq!(self.messages(&format!("{prefix}-{number}")).await, 1, "{prefix}-{number}");
        }
        let after = self.counts().await;
        let (primary, replica) = (after.0 - before.0, after.1 - before.1);
        let expected = if is_replica { (0.0, count as f64) } else { (count as f64, 0.0) };
        assert_eq!((primary, replica), expected, "{prefix}");
    }
}

/// The URL of the same database on another server.
fn on_server(database: &TestDatabase, server: &PostgresServer) -> String {
    let (_, old) = host_and_port(database.url()).unwrap();
    let (_, new) = host_and_port(server.url()).unwrap();
    database.url().replacen(&format!(":{old}"), &format!(":{new}"), 1)
}

async fn admin(server: &PostgresServer) -> PgPool {
    pool(server.url()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_read_from_a_standby_while_it_is_near() {
    let (nats, primary) = (NatsServer::start().await.unwrap(), PostgresServer::start().await.unwrap());
    let database = TestDatabase::create_on(primary.url()).await.unwrap();
    let standby = primary.start_standby().await.unwrap();
    let read_url = on_server(&database, &standby);
    let mut reads = Reads::new(nats, database, &read_url).await;
    reads.until_used(true).await;
    reads.commit("near", 5).await;
    reads.shows("near", 5, true).await;
    let lists = ["/v1/agents", "/v1/dead-letters", "/v1/threads/near-0/batches"];
    let before = reads.counts().await;
    for path in lists {
        let found = http::get(reads.gateway, path).await.unwrap();
        assert_eq!(found.status, 200, "{path}: {}", found.text);
    }
    assert_eq!(reads.counts().await, (before.0, before.1 + 3.0), "lists are read there, too");
    assert_eq!(reads.messages("nothing").await, 0, "what the standby does not know is asked of the primary");

    // The lag of the standby grows without end: what is committed now is missing there.
    let replay = admin(&standby).await;
    sqlx::query("SELECT pg_wal_replay_pause()").execute(&replay).await.unwrap();
    reads.commit("lagging", 3).await;
    reads.until_used(false).await;
    reads.shows("lagging", 3, false).await;
    sqlx::query("SELECT pg_wal_replay_resume()").execute(&replay).await.unwrap();
    reads.until_used(true).await;
    reads.shows("lagging", 3, true).await;

    // A read during which the standby dies is answered by the primary.
    standby.kill().await.unwrap();
    assert_eq!(reads.messages("near-1").await, 1);
    reads.until_used(false).await;
    reads.commit("without", 2).await;
    reads.shows("without", 2, false).await;
    standby.restart().await.unwrap();
    reads.until_used(true).await;
    reads.shows("without", 2, true).await;

    // A promoted standby has another history.
    sqlx::query("SELECT pg_promote()").execute(&admin(&standby).await).await.unwrap();
    reads.until_used(false).await;
    reads.commit("promoted", 2).await;
    reads.shows("promoted", 2, false).await;
    let log = std::fs::read_to_string(reads.fixture.fleet.gateways[0].log()).unwrap();
    assert!(log.contains("it is a primary"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_no_standby_of_the_database_is_not_read() {
    let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
    let other = PostgresServer::start().await.unwrap();
    let elsewhere = TestDatabase::create_on(other.url()).await.unwrap();
    let mut reads = Reads::new(nats, database, elsewhere.url()).await;
    reads.commit("apart", 2).await;
    reads.shows("apart", 2, false).await;
    let log = std::fs::read_to_string(reads.fixture.fleet.gateways[0].log()).unwrap();
    let said = "not from DATABASE_READ_URL: it is no standby of the database of DATABASE_URL";
    assert_eq!(log.matches(said).count(), 1, "{log}");
}

fn addr(server: &PostgresServer) -> SocketAddr {
    let (host, port) = host_and_port(server.url()).unwrap();
    format!("{host}:{port}").parse().unwrap()
}

/// Number of messages stored on a server that may be paused.
async fn stored(url: &str) -> i64 {
    db_snapshot::ended(&pool(url).await).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn promoted_standby_has_everything_and_its_old_primary_no_more() {
    let (nats, primary) = (NatsServer::start().await.unwrap(), PostgresServer::start().await.unwrap());
    // The database is never dropped, because its server would wait for a missing standby. It is
    // removed with its server.
    let database = ManuallyDrop::new(TestDatabase::create_on(primary.url()).await.unwrap());
    let standby = primary.start_standby().await.unwrap();
    let admin_of_primary = admin(&primary).await;
    for sql in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
        sqlx::query(sql).execute(&admin_of_primary).await.unwrap();
    }
    let proxy = Proxy::start(addr(&primary)).await.unwrap();
    let fleet = Fleet::start(options(&nats, &proxy.url(database.url()).unwrap())).await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, database.pool().await.unwrap(), None).await;
    let follower = fixture.following("before-0").await;
    fixture.send_many("before", 20).await;
    fixture.until_ended(WAIT_TIMEOUT).await;

    // The primary stops in the middle of commits.
    fixture.send_many("during", 60).await;
    primary.freeze();
    let standby_url = on_server(&database, &standby);
    let committed = stored(&standby_url).await;
    sqlx::query("SELECT pg_promote()").execute(&admin(&standby).await).await.unwrap();
    proxy.set_upstream(addr(&standby));
    fixture.pool = pool(&standby_url).await;
    fixture.send_many("after", 20).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    let all = stored(&standby_url).await;
    assert!(committed >= 20 && committed < all, "{committed} of {all} were committed before");

    // Workers may still have connections to the old primary, with unfinished work.
    primary.thaw();
    fixture.send_many("again", 20).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    // A gateway's read from the paused primary ends after six seconds, which workers do not need.
    sleep(Duration::from_secs(10)).await;
    let old = stored(database.url()).await;
    assert!(old <= committed + 60, "the old primary takes nothing new: {old}");
    fixture.audit(vec![follower]).await;
}
