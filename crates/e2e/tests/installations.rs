//! Two fleets on one NATS: the streams belong to the first, and everything of the second is refused
//! with one line.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use testkit::{
    WAIT_TIMEOUT,
    api::Api,
    db_snapshot::turns,
    fleet::{Fleet, FleetOptions, Invocation, invoke, invoke_until},
    services::{NatsServer, TestDatabase},
};
use tokio::time::sleep;

use crate::api_client::{SOON, alone, scripted};

const REFUSED: &str = "belongs to another installation";

fn environment(nats: &NatsServer, database: &TestDatabase) -> Vec<(String, String)> {
    [
        ("NATS_URL", nats.url()),
        ("DATABASE_URL", database.url()),
        ("ANTIPHON_HTTP_ADDR", "127.0.0.1:0"),
        ("ANTIPHON_METRICS_ADDR", "127.0.0.1:0"),
        ("ANTIPHON_MCP_ADDR", "127.0.0.1:0"),
        ("ANTIPHON_STREAM_MAX_BYTES", "67108864"),
        ("ANTIPHON_WORKFLOW_ENGINE", "scripted"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

async fn installation(database: &TestDatabase) -> String {
    let pool = database.pool().await.unwrap();
    sqlx::query_scalar("SELECT installation_id FROM installation").fetch_one(&pool).await.unwrap()
}

/// Checks that a command ended by itself, with one line that names both installations and says what
/// to do.
fn assert_refused(what: &str, ended: &Invocation, ours: &str, theirs: &str) {
    assert_eq!(ended.code, Some(2), "{what}: {} {}", ended.stdout, ended.stderr);
    let line = ended.stderr.lines().find(|line| line.starts_with("antiphon: "));
    let line = line.unwrap_or_else(|| panic!("{what}: {}", ended.stderr));
    for part in [REFUSED, ours, theirs, "a NATS account of its own", "--adopt-streams"] {
        assert!(line.contains(part), "{what}: {line}");
    }
}

async fn configs(nats: &NatsServer) -> Vec<String> {
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let mut all = Vec::new();
    for partition in 0..8 {
        all.push(format!("PARTITION_{partition}"));
    }
    all.extend(["WORK", "TURNS", "TOOL_CALLS"].map(str::to_owned));
    let mut configs = Vec::new();
    for name in all {
        let config = &context.get_stream(name).await.unwrap().cached_info().config.clone();
        configs.push(serde_json::to_value(config).unwrap().to_string());
    }
    configs
}

#[tokio::test(flavor = "multi_thread")]
async fn second_fleet_on_one_nats_is_refused_everywhere() {
    let nats = NatsServer::start().await.unwrap();
    let (first, second) = (TestDatabase::create().await.unwrap(), TestDatabase::create().await.unwrap());
    let fleet = Fleet::start(scripted(FleetOptions::new(nats.url(), first.url()))).await.unwrap();
    let api = Api(fleet.gateway_addrs()[0]);
    api.say("before", "hello").await.unwrap();
    let before = configs(&nats).await;
    assert!(before.iter().all(|config| config.contains("antiphon.installation")), "{before:?}");
    let env = environment(&nats, &second);
    // The settings differ, so that a change of a stream would be visible.
    let migrated = invoke(&["migrate", "--stream-max-bytes", "33554432"], &env).await.unwrap();
    let (theirs, ours) = (installation(&first).await, installation(&second).await);
    assert_ne!(theirs, ours);
    assert_refused("migrate", &migrated, &ours, &theirs);
    // The tables exist, so missing tables are not the reason.
    for arguments in [
        vec!["worker"],
        vec!["gateway", "--insecure"],
        vec!["all", "--insecure"],
        vec!["workflow", "--installation", &ours],
        vec!["partitions", "change", "16"],
        vec!["erase", "--tenant", "acme", "--yes"],
        vec!["erase", "--thread", "before", "--yes"],
    ] {
        let ended = invoke(&arguments, &env).await.unwrap();
        assert_refused(&arguments.join(" "), &ended, &ours, &theirs);
    }
    let report = invoke(&["doctor"], &env).await.unwrap();
    assert_eq!(report.code, Some(1));
    let finding = report.stdout.lines().find(|line| line.contains("installation")).unwrap().to_owned();
    assert!(
        finding.starts_with("problem") && finding.contains(&theirs) && finding.contains(&ours),
        "{finding}"
    );
    assert_eq!(configs(&nats).await, before, "nothing was changed");
    // The first fleet is not affected.
    let own = environment(&nats, &first);
    let report = invoke(&["doctor"], &own).await.unwrap();
    assert!(
        report.stdout.lines().any(|line| line.starts_with("ok") && line.contains(&theirs)),
        "{}",
        report.stdout
    );
    for number in 0..4 {
        api.say(&format!("after-{number}"), "hello").await.unwrap();
    }
    let pool = first.pool().await.unwrap();
    let began = Instant::now();
    while turns::messages(&pool).await.unwrap().len() < 10 {
        assert!(began.elapsed() < SOON, "{}", fleet.log_tails());
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(turns::messages(&second.pool().await.unwrap()).await.unwrap().len(), 0);
    // A service without the id serves the fleet that owns the streams; one with the right id
    // starts.
    for arguments in [vec!["workflow"], vec!["workflow", "--installation", &theirs]] {
        let ended = invoke_until(&arguments, &own, sleep(Duration::from_secs(3))).await.unwrap();
        assert!(ended.is_none(), "it does not run on: {ended:?}");
    }
}

/// A dump contains the id of its installation; a copy that is to run beside it gets another id.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_database_gets_an_id_of_its_own() {
    let nats = NatsServer::start().await.unwrap();
    let (original, copy) = (TestDatabase::create().await.unwrap(), TestDatabase::create().await.unwrap());
    assert_eq!(invoke(&["migrate"], &environment(&nats, &original)).await.unwrap().code, Some(0));
    let elsewhere = NatsServer::start().await.unwrap();
    assert_eq!(invoke(&["migrate"], &environment(&elsewhere, &copy)).await.unwrap().code, Some(0));
    let theirs = installation(&original).await;
    let pool = copy.pool().await.unwrap();
    sqlx::query("UPDATE installation SET installation_id = $1").bind(&theirs).execute(&pool).await.unwrap();
    let env = environment(&nats, &copy);
    let restored = invoke(&["migrate"], &env).await.unwrap();
    assert_eq!(restored.code, Some(0), "a restored dump finds its own streams: {}", restored.stderr);
    let refused = invoke(&["migrate", "--new-installation"], &env).await.unwrap();
    let ours = installation(&copy).await;
    assert_ne!(ours, theirs);
    assert_refused("migrate", &refused, &ours, &theirs);
    assert_refused("worker", &invoke(&["worker"], &env).await.unwrap(), &ours, &theirs);
}

#[tokio::test(flavor = "multi_thread")]
async fn adopted_streams_end_the_roles_of_the_fleet_that_had_them() {
    let nats = NatsServer::start().await.unwrap();
    let (first, second) = (TestDatabase::create().await.unwrap(), TestDatabase::create().await.unwrap());
    let mut fleet = Fleet::start(alone(FleetOptions::new(nats.url(), first.url()))).await.unwrap();
    let env = environment(&nats, &second);
    let adopted = invoke(&["migrate", "--adopt-streams"], &env).await.unwrap();
    assert_eq!(adopted.code, Some(0), "{}", adopted.stderr);
    let ours = installation(&second).await;
    for process in fleet.workers.iter_mut().chain(&mut fleet.gateways) {
        let ended = process.ended(WAIT_TIMEOUT).await.unwrap();
        assert_eq!(ended.code(), Some(2), "{}", process.log_tail());
        assert!(process.log_tail().contains(REFUSED), "{}", process.log_tail());
    }
    // A second run needs no adoption, because the streams now belong to this database.
    assert_eq!(invoke(&["migrate"], &env).await.unwrap().code, Some(0));
    let refused = invoke(&["migrate"], &environment(&nats, &first)).await.unwrap();
    assert_refused("migrate", &refused, &installation(&first).await, &ours);
    let fleet = Fleet::start(scripted(FleetOptions::new(nats.url(), second.url()))).await.unwrap();
    let api = Api(fleet.gateway_addrs()[0]);
    api.say("talk", "hello").await.unwrap();
    let pool = second.pool().await.unwrap();
    let began = Instant::now();
    while turns::messages(&pool).await.unwrap().len() < 2 {
        assert!(began.elapsed() < SOON, "{}", fleet.log_tails());
        sleep(Duration::from_millis(50)).await;
    }
}
