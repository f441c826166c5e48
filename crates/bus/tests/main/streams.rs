//! The configuration of streams, and their incarnation.

use anyhow::Result;
use async_nats::jetstream::stream::{DiscardPolicy, RetentionPolicy, StorageType};
use bus::{Bus, BusConfig, BusError, Disposition, INCARNATION, INSTALLATION, StreamOptions, StreamOwner};
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
    assert_eq!(config.subjects, ["chunks.1.*", "commands.1.*", "messages.1.*", "tasks.1.*"]);
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

/// If two writers have read the same entry, only one can replace it. The stream keeps the last
/// entry of each subject.
#[tokio::test]
async fn an_entry_replaces_only_the_one_that_was_read() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let (place, other) = ("tool_calls.w.t.u0001-t.0-a", "tool_incidents.w.t.u0001-t.0-a");
    let replace = async |place: &str, text: &'static str, replaced: u64| {
        bus.replace_entry(place, Bytes::from(text), Seq(replaced), TEST_TIMEOUT).await
    };
    assert_eq!(bus.last_entry("TOOL_CALLS", place).await?, None);
    assert_eq!(replace(place, "first", 0).await?, Some(Seq(1)));
    assert_eq!(replace(place, "second", 0).await?, None, "there is one");
    assert_eq!(replace(other, "other", 0).await?, Some(Seq(2)));
    assert_eq!(replace(place, "third", 1).await?, Some(Seq(3)));
    assert_eq!(replace(place, "fourth", 1).await?, None, "another has replaced it");
    let last = bus.last_entry("TOOL_CALLS", place).await?.expect("an entry");
    assert_eq!((last.seq, last.subject.as_str(), &last.payload[..]), (Seq(3), place, &b"third"[..]));
    let kept = server.jetstream().await?.get_stream("TOOL_CALLS").await?.cached_info().clone();
    assert_eq!((kept.state.messages, kept.config.max_messages_per_subject), (2, 1));
    assert_eq!((kept.config.max_bytes, kept.config.discard), (16 << 20, DiscardPolicy::Old));
    assert_eq!(bus.subjects("TOOL_CALLS", "tool_incidents.*.t.*.*").await?.len(), 1);
    Ok(())
}

/// Streams are updated that were created by a build before the subjects of commands, or by one
/// before the installation id.
#[tokio::test]
async fn streams_of_earlier_builds_get_their_subjects_and_their_owner() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let context = server.jetstream().await?;
    let mut config = context.get_stream("PARTITION_0").await?.cached_info().config.clone();
    config.subjects = vec!["chunks.0.*".to_owned(), "tasks.0.*".to_owned()];
    context.update_stream(config).await?;
    publish(&bus, 0..3).await?;
    let ours = StreamOptions { owner: StreamOwner::Installation("ours".to_owned()), ..small_streams() };
    bus.ensure_streams(PartitionCount::new(1)?, &ours).await?;
    let stream = context.get_stream("PARTITION_0").await?;
    let info = stream.cached_info();
    assert_eq!(info.config.subjects, ["chunks.0.*", "commands.0.*", "messages.0.*", "tasks.0.*"]);
    assert_eq!((info.state.messages, bus.installation_of("WORK").await?), (3, Some("ours".to_owned())));
    Ok(())
}

#[tokio::test]
async fn foreign_streams_are_refused_and_adopted_when_asked() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus().await?;
    let (one, two) = (PartitionCount::new(1)?, PartitionCount::new(2)?);
    let of = |owner| StreamOptions { owner, ..small_streams() };
    let installation = |id: &str| of(StreamOwner::Installation(id.to_owned()));
    bus.check_installation("theirs", two).await?;
    bus.ensure_streams(one, &installation("theirs")).await?;
    bus.check_installation("theirs", two).await?;
    let refusal = |error: BusError| match &error {
        BusError::OtherInstallation { theirs, ours, .. } => {
            assert_eq!((theirs.as_str(), ours.as_str()), ("theirs", "ours"));
            assert_eq!(error.disposition(), Disposition::Fatal);
            assert_eq!(error.to_string().lines().count(), 1);
        }
        other => panic!("{other}"),
    };
    refusal(bus.check_installation("ours", two).await.unwrap_err());
    let larger = StreamOptions { max_bytes: 128 << 20, ..installation("ours") };
    refusal(bus.ensure_streams(two, &larger).await.unwrap_err());
    refusal(bus.close_streams(two, &larger).await.unwrap_err());
    refusal(bus.open_streams(two.all(), &larger).await.unwrap_err());
    let context = server.jetstream().await?;
    for name in ["PARTITION_0", "WORK", "TURNS"] {
        let config = context.get_stream(name).await?.cached_info().config.clone();
        assert_eq!(config.max_bytes, 64 << 20, "{name}");
        assert_eq!(config.metadata.get(INSTALLATION).map(String::as_str), Some("theirs"), "{name}");
    }
    let calls = context.get_stream("TOOL_CALLS").await?.cached_info().config.clone();
    assert_eq!(calls.max_bytes, 16 << 20, "a quarter of the others");
    assert_eq!(calls.metadata.get(INSTALLATION).map(String::as_str), Some("theirs"));
    assert!(context.get_stream("PARTITION_1").await.is_err(), "nothing was made");
    // One foreign stream is enough for a refusal, because another fleet would read the entries of
    // this fleet there.
    context.delete_stream("WORK").await?;
    context.delete_stream("TURNS").await?;
    refusal(bus.ensure_streams(two, &installation("ours")).await.unwrap_err());
    bus.ensure_streams(two, &of(StreamOwner::Adopted("ours".to_owned()))).await?;
    bus.check_installation("ours", two).await?;
    bus.ensure_streams(two, &installation("ours")).await?;
    assert!(bus.check_installation("theirs", two).await.is_err());
    // A stream created without an installation has no id, so the next migration claims it.
    context.delete_stream("TURNS").await?;
    bus.ensure_streams(two, &small_streams()).await?;
    assert_eq!(bus.installation_of("TURNS").await?, None);
    bus.ensure_streams(two, &installation("ours")).await?;
    assert_eq!(bus.installation_of("TURNS").await?, Some("ours".to_owned()));
    assert_eq!(bus.streams_beyond(one).await?, ["PARTITION_1"]);
    Ok(())
}

/// At most one of two concurrent migrations succeeds.
#[tokio::test]
async fn of_two_installations_that_begin_at_once_at_most_one_goes_on() -> Result<()> {
    for _ in 0..5 {
        let server = Server::start()?;
        let (first, second) = (server.bus().await?, server.bus().await?);
        let count = PartitionCount::new(4)?;
        let of =
            |id: &str| StreamOptions { owner: StreamOwner::Installation(id.to_owned()), ..small_streams() };
        let (one, two) = (of("one"), of("two"));
        let ensured = tokio::join!(first.ensure_streams(count, &one), second.ensure_streams(count, &two));
        assert!(ensured.0.is_err() || ensured.1.is_err(), "both took them");
        if ensured.0.is_ok() || ensured.1.is_ok() {
            let owner = if ensured.0.is_ok() { "one" } else { "two" };
            first.check_installation(owner, count).await?;
        }
    }
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
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "it is not tried again");
    Ok(())
}
