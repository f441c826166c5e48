//! Turn requests are taken one at a time, redelivered, deleted and rejected.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream::{DiscardPolicy, RetentionPolicy, StorageType};
use bus::{Bus, BusError, WorkItem, WorkOptions, WorkSubscription};
use bytes::Bytes;
use futures_util::StreamExt;
use model::{Seq, ThreadId, TurnId, WorkflowName};
use tokio::time::{Instant, timeout};

use crate::server::{Server, TEST_TIMEOUT};

fn workflow() -> Result<WorkflowName> {
    Ok(WorkflowName::parse("w-1")?)
}

async fn request(bus: &Bus, id: &str) -> Result<bus::PublishAck> {
    let subject = wire::subject::work(&workflow()?);
    let payload = Bytes::from(id.to_owned());
    Ok(bus.publish_with_id(&subject, payload, Some("application/json"), id, TEST_TIMEOUT).await?)
}

async fn next(work: &mut WorkSubscription) -> Result<WorkItem> {
    Ok(timeout(TEST_TIMEOUT, work.next()).await.context("a turn request")??)
}

async fn nothing_comes(work: &mut WorkSubscription) -> bool {
    timeout(Duration::from_millis(400), work.next()).await.is_err()
}

async fn left(server: &Server) -> Result<u64> {
    Ok(server.jetstream().await?.get_stream("WORK").await?.cached_info().state.messages)
}

#[tokio::test]
async fn both_streams_are_as_promised() -> Result<()> {
    let server = Server::start()?;
    let _bus = server.bus_with_stream().await?;
    let jetstream = server.jetstream().await?;
    let work = jetstream.get_stream("WORK").await?.cached_info().config.clone();
    assert_eq!(work.subjects, ["work.*"]);
    assert_eq!((work.storage, work.retention), (StorageType::File, RetentionPolicy::WorkQueue));
    assert_eq!((work.discard, work.max_bytes), (DiscardPolicy::New, 64 << 20));
    assert_eq!(work.max_age, Duration::from_secs(7 * 24 * 3600), "a turn may wait for a person's decision");
    assert_eq!(work.duplicate_window, Duration::from_secs(600));
    let turns = jetstream.get_stream("TURNS").await?.cached_info().config.clone();
    assert_eq!(turns.subjects, ["turns.*"]);
    assert_eq!((turns.storage, turns.retention), (StorageType::File, RetentionPolicy::Limits));
    assert_eq!((turns.discard, turns.max_bytes), (DiscardPolicy::Old, 64 << 20));
    assert_eq!(turns.max_age, Duration::from_secs(7 * 24 * 3600));
    assert_eq!(turns.duplicate_window, Duration::from_secs(600));
    Ok(())
}

#[tokio::test]
async fn a_repetition_is_the_first_one_again() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let first = request(&bus, "t.0").await?;
    let again = request(&bus, "t.0").await?;
    assert_eq!((first.stream.as_str(), first.seq, first.is_duplicate), ("WORK", Seq(1), false));
    assert_eq!((again.seq, again.is_duplicate), (Seq(1), true));
    assert_eq!(request(&bus, "t.1").await?.seq, Seq(2));
    for subject in ["turns.t1", "tasks.0.a1"] {
        let publish = || bus.publish_with_id(subject, Bytes::from_static(b"x"), None, "id", TEST_TIMEOUT);
        assert_eq!([publish().await?.is_duplicate, publish().await?.is_duplicate], [false, true]);
    }
    Ok(())
}

#[tokio::test]
async fn services_share_requests_and_each_is_done_once() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut one = bus.work(&workflow()?, WorkOptions { max_in_hand: 7 });
    let other_bus = server.bus().await?;
    let mut two = other_bus.work(&workflow()?, WorkOptions::default());
    assert!(nothing_comes(&mut one).await);
    for id in ["a", "b"] {
        request(&bus, id).await?;
    }
    let first = next(&mut one).await?;
    let second = next(&mut two).await?;
    let mut payloads = [first.payload.clone(), second.payload.clone()];
    payloads.sort();
    assert_eq!(payloads, [Bytes::from_static(b"a"), Bytes::from_static(b"b")]);
    assert_eq!((first.delivered, second.delivered), (1, 1));
    first.ack().await?;
    second.ack().await?;
    assert_eq!(left(&server).await?, 0);
    let consumer: PullConsumer =
        server.jetstream().await?.get_consumer_from_stream("WORKFLOW_w-1", "WORK").await?;
    let config = &consumer.cached_info().config;
    assert_eq!(config.max_ack_pending, 7, "the second service leaves the consumer as it is");
    assert_eq!((config.ack_wait, config.max_deliver), (bus::ACK_WAIT, 16));
    assert_eq!(config.filter_subject, "work.w-1");
    Ok(())
}

#[tokio::test]
async fn nothing_lies_ready_in_a_service_that_has_no_time() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let (mut busy, mut idle) = (bus.work(&workflow()?, WorkOptions::default()), {
        let other = server.bus().await?;
        other.work(&workflow()?, WorkOptions::default())
    });
    for id in ["a", "b", "c"] {
        request(&bus, id).await?;
    }
    let _in_hand = next(&mut busy).await?;
    let rest = [next(&mut idle).await?, next(&mut idle).await?];
    assert_eq!(rest.map(|item| (item.payload, item.delivered)), [("b".into(), 1), ("c".into(), 1)]);
    Ok(())
}

/// Services start and end while requests are stored continuously.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_ends_has_what_was_on_its_way() -> Result<()> {
    const REQUESTS: u64 = 3_000;
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let stored = bus.clone();
    let storing = tokio::spawn(async move {
        for number in 0..REQUESTS {
            request(&stored, &number.to_string()).await?;
        }
        anyhow::Ok(())
    });
    let mut done = 0;
    while done < REQUESTS {
        let mut work = bus.work(&workflow()?, WorkOptions::default());
        let mut items = vec![next(&mut work).await?];
        // A request was sent but its answer not received: the state of a service when its drain
        // begins.
        let on_its_way = timeout(Duration::from_micros(done % 700), work.next()).await;
        items.extend(on_its_way.ok().transpose()?);
        items.extend(work.end().await);
        for item in items {
            assert_eq!(item.delivered, 1, "{:?}", item.payload);
            item.ack().await?;
            done += 1;
        }
    }
    storing.await??;
    assert_eq!(left(&server).await?, 0);
    Ok(())
}

#[tokio::test]
async fn returned_request_is_redelivered_and_terminated_is_not() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut work = bus.work(&workflow()?, WorkOptions::default());
    request(&bus, "a").await?;
    next(&mut work).await?.nak(Duration::from_millis(600)).await?;
    assert!(nothing_comes(&mut work).await, "not before the delay");
    let again = next(&mut work).await?;
    assert_eq!((&again.payload[..], again.delivered), (&b"a"[..], 2));
    again.in_progress().await?;
    again.term().await?;
    assert!(nothing_comes(&mut work).await);
    assert_eq!(left(&server).await?, 0);
    Ok(())
}

#[tokio::test]
async fn unanswered_request_is_redelivered_unless_in_progress() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    // The consumer that a service creates, but with a shorter ack wait.
    let config = async_nats::jetstream::consumer::pull::Config {
        durable_name: Some("WORKFLOW_w-1".to_owned()),
        filter_subject: "work.w-1".to_owned(),
        ack_wait: Duration::from_secs(1),
        ..Default::default()
    };
    server.jetstream().await?.create_consumer_on_stream(config, "WORK").await?;
    let mut work = bus.work(&workflow()?, WorkOptions::default());
    let mut other = bus.work(&workflow()?, WorkOptions::default());
    request(&bus, "a").await?;
    let first = next(&mut work).await?;
    for _ in 0..4 {
        first.in_progress().await?;
        assert!(nothing_comes(&mut other).await, "the work goes on");
    }
    let again = next(&mut other).await?;
    assert_eq!((again.delivered, again.seq), (2, first.seq));
    Ok(())
}

#[tokio::test]
async fn a_request_can_be_taken_back_until_it_is_done() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let stored = request(&bus, "a").await?;
    assert!(bus.delete_work(stored.seq).await?);
    assert!(!bus.delete_work(stored.seq).await?, "it is not there any more");
    assert!(!bus.delete_work(Seq(99)).await?, "it was never there");
    let mut work = bus.work(&workflow()?, WorkOptions::default());
    assert!(nothing_comes(&mut work).await);
    let done = request(&bus, "b").await?;
    next(&mut work).await?.ack().await?;
    assert!(!bus.delete_work(done.seq).await?);
    Ok(())
}

#[tokio::test]
async fn a_service_reads_on_after_the_server_was_killed() -> Result<()> {
    let mut server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut work = bus.work(&workflow()?, WorkOptions::default());
    request(&bus, "a").await?;
    next(&mut work).await?.ack().await?;
    server.kill()?;
    assert!(nothing_comes(&mut work).await);
    let away = bus.delete_work(Seq(1)).await.expect_err("NATS is away");
    assert_eq!(away.disposition(), bus::Disposition::Retry, "{away}");
    server.run()?;
    request(&bus, "b").await?;
    let item = next(&mut work).await?;
    assert_eq!((&item.payload[..], item.delivered), (&b"b"[..], 1));
    item.ack().await?;
    Ok(())
}

/// If the consumer has no leader, the server answers "no responders", which is not a confirmation.
#[tokio::test]
async fn an_acknowledgement_without_a_consumer_is_an_error() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut work = bus.work(&workflow()?, WorkOptions::default());
    request(&bus, "a").await?;
    let item = next(&mut work).await?;
    item.in_progress().await?;
    server.jetstream().await?.delete_consumer_from_stream("WORKFLOW_w-1", "WORK").await?;
    for answer in
        [item.in_progress().await, item.nak(Duration::ZERO).await, item.term().await, item.ack().await]
    {
        let error = answer.expect_err("there is no consumer");
        assert_eq!(error.disposition(), bus::Disposition::Retry, "{error}");
    }
    assert_eq!(left(&server).await?, 1);
    Ok(())
}

/// After a reconnect, a request could be sent as answer to a pull of the previous connection. It
/// would then be redelivered only after the ack wait.
#[tokio::test(flavor = "multi_thread")]
async fn requests_stored_at_a_reconnect_come_at_once() -> Result<()> {
    let mut server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut work = bus.work(&workflow()?, WorkOptions::default());
    for round in 0..10 {
        let (before, after) = (format!("{round}.before"), format!("{round}.after"));
        request(&bus, &before).await?;
        next(&mut work).await?.ack().await?;
        server.kill()?;
        server.run()?;
        let (item, stored) = tokio::join!(next(&mut work), request(&bus, &after));
        let item = item?;
        assert_eq!((&item.payload[..], item.delivered, stored?.seq), (after.as_bytes(), 1, item.seq));
        item.ack().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_service_that_comes_before_the_streams_waits_for_them() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus().await?;
    let mut work = bus.work(&workflow()?, WorkOptions::default());
    assert!(nothing_comes(&mut work).await);
    let bus = server.bus_with_stream().await?;
    request(&bus, "a").await?;
    assert_eq!(&next(&mut work).await?.payload[..], b"a");
    Ok(())
}

#[tokio::test]
async fn a_stop_reaches_who_works_on_that_run() -> Result<()> {
    let mut server = Server::start()?;
    let (worker, service) = (server.bus().await?, server.bus().await?);
    let turn = TurnId::foreground(&ThreadId::parse("t1")?, "x")?;
    let mut first = service.subscribe_cancel(&turn, 0).await?;
    let mut second = service.subscribe_cancel(&turn, 1).await?;
    // The subscription and the message use two connections, so wait for the subscription.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let soon = Duration::from_millis(200);
    // A publisher can make JetStream reply to any subject, even to one that the publisher has no
    // right to publish to.
    let chunk = "chunks.0.t1";
    let publisher = async_nats::connect(server.url()).await?;
    publisher.publish_with_reply(chunk, wire::subject::stop(&turn, 1), "x".into()).await?;
    publisher.publish(wire::subject::stop(&turn, 1), "".into()).await?;
    assert!(timeout(soon, second.stopped()).await.is_err(), "no worker said so");
    worker.publish_cancel(&turn, 1).await?;
    timeout(TEST_TIMEOUT, second.stopped()).await?;
    assert!(timeout(soon, first.stopped()).await.is_err(), "another run");
    server.kill()?;
    tokio::time::sleep(soon).await;
    assert_eq!(worker.publish_cancel(&turn, 0).await, Err(BusError::Away));
    assert!(timeout(soon, first.stopped()).await.is_err(), "a lost connection is no stop");
    Ok(())
}

/// The service polls at intervals, as its loop does, and still notices that a pull gets no answer.
#[tokio::test]
async fn a_pull_without_an_answer_is_sent_again() -> Result<()> {
    let mut server = Server::absent()?;
    server.run_without_jetstream()?;
    let client = async_nats::connect(server.url()).await?;
    let mut infos = client.subscribe("$JS.API.CONSUMER.INFO.WORK.*").await?;
    let mut pulls = client.subscribe("$JS.API.CONSUMER.MSG.NEXT.WORK.*").await?;
    client.flush().await?;
    let replying = client.clone();
    tokio::spawn(async move {
        while let Some(request) = infos.next().await {
            let reply = request.reply.expect("a reply");
            replying.publish(reply, CONSUMER_INFO.into()).await.expect("it is connected");
        }
    });
    let bus = server.bus().await?;
    let mut work = bus.work(&workflow()?, WorkOptions::default());
    let mut pulled_at = Vec::new();
    while pulled_at.len() < 2 {
        tokio::select! {
            item = timeout(Duration::from_secs(3), work.next()) => assert!(item.is_err(), "nothing answers"),
            pull = pulls.next() => {
                ensure!(pull.is_some());
                pulled_at.push(Instant::now());
            }
        }
        ensure!(pulled_at.first().is_none_or(|first| first.elapsed() < TEST_TIMEOUT), "it is not sent again");
    }
    let pause = pulled_at[1] - pulled_at[0];
    assert!((9..15).contains(&pause.as_secs()), "{pause:?}");
    Ok(())
}

const CONSUMER_INFO: &str = r#"{"type": "io.nats.jetstream.api.v1.consumer_info_response", "stream_name": "WORK", "name": "WORKFLOW_w-1",
    "created": "2026-01-01T00:00:00Z", "config": {"durable_name": "WORKFLOW_w-1", "deliver_policy": "all", "ack_policy": "explicit",
    "replay_policy": "instant"}, "delivered": {"consumer_seq": 0, "stream_seq": 0}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
    "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0, "num_pending": 0}"#;
