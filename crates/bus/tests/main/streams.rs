//! Streams are made as the design says, and keep their incarnation.

use anyhow::Result;
use async_nats::jetstream::stream::{DiscardPolicy, RetentionPolicy, StorageType};
use bus::{Bus, BusConfig, BusError, Disposition, INCARNATION, StreamOptions};
use bytes::Bytes;
use model::{PartitionCount, PartitionId, Seq};

use crate::server::{P0, Server, TEST_TIMEOUT, publish, small_streams};

#[tokio::test]
async fn streams_are_as_promised_and_keep_their_incarnation() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus().await?;
    let two = PartitionCount::new(2)?;
    bus.ensure_streams(two, &small_streams()).await?;
    let made = bus.stream_state(PartitionId(1)).await?;
    assert_eq!((made.first_seq, made.last_seq, made.messages), (Seq(1), Seq(0), 0));
    let config = server.jetstream().await?.get_stream("PARTITION_1").await?.cached_info().config.clone();
    assert_eq!(config.subjects, ["chunks.1.*", "tasks.1.*"]);
    assert_eq!((config.storage, config.retention), (StorageType::File, RetentionPolicy::Limits));
    assert_eq!((config.discard, config.num_replicas), (DiscardPolicy::New, 1));
    assert!(config.deny_delete && !config.deny_purge && config.allow_direct && config.max_age.is_zero());
    assert_eq!((config.max_bytes, config.max_message_size, config.max_consumers), (64 << 20, 1 << 20, 32));
    assert_eq!(config.metadata.get(INCARNATION), Some(&made.incarnation));

    bus.ensure_streams(two, &StreamOptions { max_bytes: 32 << 20, ..small_streams() }).await?;
    let updated = server.jetstream().await?.get_stream("PARTITION_1").await?.cached_info().config.clone();
    assert_eq!(updated.max_bytes, 32 << 20);
    assert_eq!(bus.stream_state(PartitionId(1)).await?.incarnation, made.incarnation);
    assert_ne!(bus.stream_state(P0).await?.incarnation, made.incarnation);
    let missing = bus.stream_state(PartitionId(2)).await.expect_err("only two were made");
    assert!(matches!(missing, BusError::NoStream(_)), "{missing}");
    Ok(())
}

#[tokio::test]
async fn replicas_of_a_server_alone_are_refused_at_once() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus().await?;
    let (one, three) = (PartitionCount::new(1)?, StreamOptions { replicas: 3, ..small_streams() });
    let refused = async || {
        let ensured = tokio::time::timeout(TEST_TIMEOUT, bus.ensure_streams(one, &three)).await;
        ensured.map(|ensured| ensured.expect_err("there is no cluster"))
    };
    assert_eq!(refused().await?, BusError::NoCluster { replicas: 3 }, "to make them");
    bus.ensure_streams(one, &small_streams()).await?;
    let error = refused().await?;
    assert_eq!(error, BusError::NoCluster { replicas: 3 }, "to change them");
    assert_eq!(error.disposition(), Disposition::Fatal);
    Ok(())
}

#[tokio::test]
async fn a_purge_removes_what_is_below_and_never_more() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    assert_eq!(bus.purge_below(P0, Seq(1)).await?, 0);
    publish(&bus, 0..10).await?;
    assert_eq!(bus.purge_below(P0, Seq(0)).await?, 0);
    assert_eq!(bus.purge_below(P0, Seq(1)).await?, 0);
    assert_eq!(bus.purge_below(P0, Seq(4)).await?, 3);
    let state = bus.stream_state(P0).await?;
    assert_eq!((state.first_seq, state.last_seq, state.messages), (Seq(4), Seq(10), 7));
    assert!(state.bytes > 0 && state.created_at.0 > 1_700_000_000_000);
    assert_eq!(bus.purge_below(P0, Seq(1000)).await?, 7);
    let state = bus.stream_state(P0).await?;
    assert_eq!((state.first_seq, state.last_seq, state.messages), (Seq(11), Seq(10), 0));
    assert_eq!(publish(&bus, [11]).await?, [Seq(11)]);
    Ok(())
}

#[tokio::test]
async fn a_publish_that_can_never_succeed_is_refused_at_once() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let large = Bytes::from(vec![0; 2 << 20]);
    let error = bus.publish_acked("chunks.0.t", large, None, TEST_TIMEOUT).await.expect_err("2 MiB");
    assert_eq!(error.disposition(), Disposition::Reject, "{error}");
    let just_over = Bytes::from(vec![0; (1 << 20) - 10]);
    let error = bus.publish_acked("chunks.0.t", just_over, Some("text/plain"), TEST_TIMEOUT).await;
    assert_eq!(error.expect_err("the headers count").disposition(), Disposition::Reject);
    let soon = std::time::Duration::from_millis(300);
    let error = bus.publish_acked("nowhere.0.t", Bytes::new(), None, soon).await.expect_err("no stream");
    assert!(matches!(error, BusError::NoStream(_)), "{error}");
    Ok(())
}

#[tokio::test]
async fn credentials_in_the_url_are_used() -> Result<()> {
    let server = Server::start_with(&["--user", "us:er", "--pass", "p@ss/w%rd"])?;
    let address = server.url().trim_start_matches("nats://").to_owned();
    let url = format!("nats://us%3Aer:p%40ss%2Fw%25rd@{address}");
    let bus = Bus::connect(&BusConfig::new(url, "test")).await?;
    bus.ensure_streams(PartitionCount::new(1)?, &small_streams()).await?;
    publish(&bus, [1]).await?;
    let wrong = Bus::connect(&BusConfig::new(format!("nats://us:wrong@{address}"), "test")).await;
    let error = wrong.map(|_| ()).expect_err("a wrong password");
    assert_eq!(error.disposition(), Disposition::Fatal, "{error}");
    Ok(())
}

#[tokio::test]
async fn streams_larger_than_the_storage_are_refused_at_once() -> Result<()> {
    let server = Server::start()?;
    let options = StreamOptions { max_bytes: 1 << 50, ..StreamOptions::default() };
    let started = std::time::Instant::now();
    let error = server.bus().await?.ensure_streams(PartitionCount::new(1)?, &options).await.unwrap_err();
    assert!(matches!(error, BusError::NoStorage { max_bytes: 1_125_899_906_842_624, .. }), "{error:?}");
    assert_eq!(error.disposition(), Disposition::Fatal);
    assert!(error.to_string().contains("lower ANTIPHON_STREAM_MAX_BYTES"), "{error}");
    assert!(started.elapsed() < TEST_TIMEOUT, "it is not tried again");
    Ok(())
}
