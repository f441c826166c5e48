//! Slow links, silent hosts, and missing streams.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use serde_json::json;
use testkit::{
    WAIT_TIMEOUT,
    fleet::{Fleet, invoke},
    http,
    link::Link,
    load::PlannedMessage,
    services::{NatsServer, TestDatabase},
};
use tokio::time::{Instant, sleep};

use crate::{
    api_client::{SOON, scripted, text_seen, until_ended},
    fixture::{Fixture, options},
};

/// The longest silence for subscribers when a NATS host becomes silent and there is another one.
const SILENCE: Duration = Duration::from_secs(10);
/// Limit for anything that waits for a store which does not answer.
const BOUNDED: Duration = Duration::from_secs(10);

/// The default lease of workers.
const LEASE: Duration = Duration::from_secs(10);

fn pieces(thread: &str, message: &str, count: usize) -> PlannedMessage {
    let pieces: Vec<String> = (0..count).map(|number| format!("{number} ")).collect();
    PlannedMessage::of_pieces(thread, message, &pieces).unwrap()
}

/// A worker, a gateway and a workflow service, all of which reach NATS by `nats_url`.
async fn fleet_over(nats: &NatsServer, database: &TestDatabase, nats_url: String) -> Fleet {
    let mut options = scripted(options(nats, database.url()));
    options.nats_url = nats_url;
    let fleet = Fleet::prepare(options).unwrap();
    fleet.migrate().await.unwrap();
    fleet
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_with_slow_nats_streams_stores_and_answers() {
    let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
    let link = Link::before(nats.url()).await.unwrap();
    let mut fleet = fleet_over(&nats, &database, link.url(nats.url()).unwrap()).await;
    link.set_delay(Duration::from_secs(1));
    fleet.spawn().unwrap();
    fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let fixture = Fixture::on(fleet, nats, database.pool().await.unwrap(), Some(database)).await;
    fixture
        .until("every partition has its owner", WAIT_TIMEOUT, async || {
            fixture.shares().await.values().sum::<usize>() == 8
        })
        .await;
    sleep(Duration::from_secs(8)).await;
    let began = Instant::now();
    let (far, talk) = (fixture.following("far").await, fixture.following("talk").await);
    let message = pieces("far", "m", 20);
    fixture.send_part(&message, 0..10).await;
    far.wait(WAIT_TIMEOUT, |progress| progress.events >= 10).await.unwrap();
    println!("chunks were streamed after {:?}", began.elapsed());
    let said = fixture.api().say("talk", "hello").await.unwrap();
    println!("an input was taken after {:?}", began.elapsed());
    fixture.send_part(&message, 10..20).await;
    far.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    talk.wait(WAIT_TIMEOUT, |progress| progress.terminals >= 1).await.unwrap();
    println!("a turn was answered after {:?}", began.elapsed());
    assert_eq!(text_seen(&talk, &said.answer), "You said: hello");
    assert_eq!(fixture.messages_of("talk").await.len(), 2);
    // A slow link does not restart readers continually: a reader that has begun continues.
    let metrics = fixture.fleet.workers[0].metrics().await.unwrap();
    let restarts = metrics.sum("antiphon_nats_reader_restarts_total");
    assert!(restarts < 8.0, "{restarts} new consumers over a link that is only slow");
    fixture.audit(vec![far]).await;
}

/// To its clients, one NATS behind two links looks like two servers of a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_nats_host_that_falls_silent_is_left_within_ten_seconds() {
    let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, testkit::host_and_port(nats.url()).unwrap().1));
    let (first, second) = (Link::start(server).await.unwrap(), Link::start(server).await.unwrap());
    // At first no connection uses the second link.
    second.lead_to(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)));
    let urls = format!("{},{}", first.url(nats.url()).unwrap(), second.url(nats.url()).unwrap());
    let mut fleet = fleet_over(&nats, &database, urls).await;
    fleet.spawn().unwrap();
    fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let fixture = Fixture::on(fleet, nats, database.pool().await.unwrap(), Some(database)).await;
    let (follower, talk) = (fixture.following("silent").await, fixture.following("talk").await);
    let message = pieces("silent", "m", 30);
    fixture.send_part(&message, 0..10).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.events >= 10).await.unwrap();
    let before = fixture.api().say("talk", "before").await.unwrap();
    until_ended(&talk, &before.answer).await;
    second.lead_to(server);
    let began = Instant::now();
    first.set_silent(true);
    fixture.send_part(&message, 10..20).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.events >= 20).await.unwrap();
    let heard = began.elapsed();
    println!("heard again after {heard:?}");
    assert!(heard < SILENCE, "viewers heard nothing for {heard:?}");
    fixture.send_part(&message, 20..30).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    let after = fixture.api().say("talk", "after").await.unwrap();
    until_ended(&talk, &after.answer).await;
    assert_eq!(follower.progress().opened, 1, "it was cut");
    fixture.audit(vec![follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nats_server_that_stood_still_is_heard_again_at_once() {
    let fixture = Fixture::with(scripted).await;
    let follower = fixture.following("still").await;
    let message = pieces("still", "m", 30);
    fixture.send_part(&message, 0..10).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.events >= 10).await.unwrap();
    fixture.nats.freeze();
    let refused = fixture.api().say_with("talk", &json!({"content": "hello"}), &[]).await.unwrap();
    assert_eq!((refused.status, refused.json().unwrap()["code"].clone()), (503, json!("nats_unavailable")));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    sleep(Duration::from_secs(5)).await;
    for process in fixture.fleet.workers.iter().chain(&fixture.fleet.gateways) {
        let lives = http::get(process.metrics_addr(), "/livez").await.unwrap();
        assert_eq!(lives.status, 200, "{}: {}", process.name(), lives.text);
    }
    fixture.nats.thaw();
    let began = Instant::now();
    fixture.send_part(&message, 10..30).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    let heard = began.elapsed();
    println!("heard again after {heard:?}");
    assert!(heard < SILENCE, "viewers heard nothing for {heard:?}");
    fixture.audit(vec![follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_stream_is_gone_says_so_until_it_is_made_again() {
    let mut fixture = Fixture::new().await;
    fixture.send_many("old", 20).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    let owner = fixture.worker_of("gone").await;
    let gone = model::Bucket::of_key("gone").get() % crate::fixture::PARTITIONS;
    let name = format!("PARTITION_{gone}");
    // Duplicates that were sent last may be read after the last end; entries that the checkpoint
    // has not passed would cause an incident.
    let mut stream = fixture.publisher.context().get_stream(&name).await.unwrap();
    let last = i64::try_from(stream.info().await.unwrap().state.last_sequence).unwrap();
    let checkpoint = "SELECT checkpoint FROM partitions WHERE partition_id = $1";
    let passed = async || {
        let query = sqlx::query_scalar::<_, i64>(checkpoint).bind(i16::try_from(gone).unwrap());
        query.fetch_one(&fixture.pool).await.is_ok_and(|checkpoint| checkpoint >= last)
    };
    fixture.until("the checkpoint has passed everything", WAIT_TIMEOUT, passed).await;
    fixture.publisher.context().delete_stream(name).await.unwrap();
    let probe = fixture.fleet.workers[owner].metrics_addr();
    let readyz = async || http::get(probe, "/readyz").await.unwrap();
    let line = format!("partition {gone}: there is no stream");
    fixture.until("the owner is not ready", SOON, async || readyz().await.text.contains(&line)).await;
    assert_eq!(readyz().await.status, 503);
    let refused = fixture.api().say_with("gone", &json!({"content": "hello"}), &[]).await.unwrap();
    assert_eq!((refused.status, refused.json().unwrap()["code"].clone()), (503, json!("nats_unavailable")));
    // After ten seconds without the stream the partition is rebuilt, and waits.
    sleep(Duration::from_secs(12)).await;
    assert!(readyz().await.text.contains(&line), "{:?}", readyz().await);
    assert_eq!(http::get(probe, "/livez").await.unwrap().status, 200);
    fixture.fleet.migrate().await.unwrap();
    // Everything was committed, but a worker cannot know that once the stream is missing.
    let incident = format!("not acknowledged, of partition {gone}");
    fixture
        .until("the incident is named", WAIT_TIMEOUT, async || readyz().await.text.contains(&incident))
        .await;
    assert_eq!(readyz().await.status, 503);
    let env = fixture.command_env();
    let done = invoke(&["incidents", "acknowledge", &gone.to_string()], &env).await.unwrap();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    fixture.until("the owner is ready again", WAIT_TIMEOUT, async || readyz().await.status == 200).await;
    let follower = fixture.following("gone").await;
    let message = pieces("gone", "m", 10);
    fixture.send_part(&message, 0..10).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    assert!(fixture.fleet.workers[owner].has_ended().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_go_on_for_as_long_as_postgres_is_silent() {
    let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
    let link = Link::before(database.url()).await.unwrap();
    // The default; a shorter lease would expire before the first statement fails.
    let mut fleet_options =
        scripted(options(&nats, database.url())).with_env("ANTIPHON_LEASE_TTL_SECONDS", LEASE.as_secs());
    fleet_options.database_url = link.url(database.url()).unwrap();
    let fleet = Fleet::start(fleet_options).await.unwrap();
    let fixture = Fixture::on(fleet, nats, database.pool().await.unwrap(), Some(database)).await;
    let follower = fixture.following("streams").await;
    let count = 2 + 2 * 2 * LEASE.as_secs() as usize;
    let message = pieces("streams", "m", count);
    fixture.send_part(&message, 0..1).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.events >= 1).await.unwrap();
    link.set_silent(true);
    let mut longest = Duration::ZERO;
    for number in 1..count - 1 {
        let sent = Instant::now();
        fixture.send_part(&message, number..number + 1).await;
        follower.wait(WAIT_TIMEOUT, |progress| progress.events > number).await.unwrap();
        longest = longest.max(sent.elapsed());
        sleep(Duration::from_millis(500)).await;
    }
    println!("a chunk was seen after {longest:?} at most");
    assert!(longest < Duration::from_secs(2), "a chunk was seen after {longest:?}");
    link.set_silent(false);
    fixture.send_part(&message, count - 1..count).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    fixture.audit(vec![follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_with_silent_postgres_need_nats_alone() {
    let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
    let link = Link::before(database.url()).await.unwrap();
    let mut fleet_options = scripted(options(&nats, database.url()));
    fleet_options.database_url = link.url(database.url()).unwrap();
    let fleet = Fleet::start(fleet_options).await.unwrap();
    let fixture = Fixture::on(fleet, nats, database.pool().await.unwrap(), Some(database)).await;
    fixture
        .until("every partition has its owner", WAIT_TIMEOUT, async || {
            fixture.shares().await.values().sum::<usize>() == 8
        })
        .await;
    sleep(Duration::from_secs(1)).await;
    let follower = fixture.following("talk").await;
    let before = fixture.api().say("talk", "before").await.unwrap();
    until_ended(&follower, &before.answer).await;
    link.set_silent(true);
    let body = json!({"content": "meanwhile"});
    for _ in 0..2 {
        let began = Instant::now();
        // Two requests with the same input and key are one turn.
        let taken = fixture.api().say_with("talk", &body, &[("idempotency-key", "k")]).await.unwrap();
        println!("an input was taken after {:?}", began.elapsed());
        assert_eq!(taken.status, 202, "{taken:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
    }
    let unknown = fixture.api().say_with("never-heard-of", &body, &[]);
    let in_line = fixture.api().say_with("talk", &body, &[("accept", "text/event-stream")]);
    let history = fixture.api().send("GET", "/v1/threads/talk/history", None, &[]);
    let settings = json!({"workflow": "default", "settings": {"memory": true}});
    let agent = fixture.api().send("PUT", "/v1/agents/talk", Some(&settings), &[]);
    let began = Instant::now();
    let (unknown, in_line, history, agent) = tokio::join!(unknown, in_line, history, agent);
    println!("what waits for Postgres said so after {:?}", began.elapsed());
    assert!(began.elapsed() < BOUNDED, "it took {:?}", began.elapsed());
    for answer in [unknown, in_line, history, agent].map(Result::unwrap) {
        let problem = answer.json().unwrap();
        assert_eq!((answer.status, &problem["code"]), (503, &json!("database_unavailable")), "{answer:?}");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    }
    for process in fixture.fleet.workers.iter().chain(&fixture.fleet.gateways) {
        let lives = http::get(process.metrics_addr(), "/livez").await.unwrap();
        assert_eq!(lives.status, 200, "{}: {}", process.name(), lives.text);
    }
    let probe = fixture.fleet.workers[0].metrics_addr();
    let says_so = async || http::get(probe, "/readyz").await.unwrap().text.contains("postgres: not ready");
    fixture.until("the worker is not ready", BOUNDED, says_so).await;
    link.set_silent(false);
    fixture.until_messages("talk", 4).await;
    fixture.until_settled().await;
    let inputs = fixture.messages_of("talk").await.into_iter().filter(|message| message.role == "user");
    assert_eq!(inputs.map(|input| input.content).collect::<Vec<_>>(), ["before", "meanwhile"]);
}
