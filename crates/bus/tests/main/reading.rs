//! The reader must return each entry once and in order, whatever happens to servers, consumers and
//! streams.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bus::{Bus, ExpectedStream, PartitionReader, RawEntry, ReaderEvent};
use bytes::Bytes;
use futures_util::StreamExt;
use model::Seq;

use crate::server::{P0, Server, TEST_TIMEOUT, publish, small_streams};

const MAX: usize = 500;

/// Reads `count` entries and ignores other events in between.
async fn read(reader: &mut PartitionReader, count: usize) -> Result<Vec<RawEntry>> {
    let mut read = Vec::new();
    while read.len() < count {
        match tokio::time::timeout(TEST_TIMEOUT, reader.next_batch(MAX)).await? {
            ReaderEvent::Entries(entries) => read.extend(entries),
            ReaderEvent::CaughtUp(_) | ReaderEvent::Trouble(_) => {}
            ReaderEvent::StreamChanged => anyhow::bail!("the stream changed"),
        }
    }
    Ok(read)
}

/// The next event that is not [`ReaderEvent::Trouble`].
async fn next(reader: &mut PartitionReader) -> Result<ReaderEvent> {
    loop {
        let event = tokio::time::timeout(TEST_TIMEOUT, reader.next_batch(MAX)).await?;
        if !matches!(event, ReaderEvent::Trouble(_)) {
            return Ok(event);
        }
    }
}

fn seqs(entries: &[RawEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.seq.0).collect()
}

fn numbers(entries: &[RawEntry]) -> Result<Vec<u64>> {
    entries.iter().map(|entry| Ok(std::str::from_utf8(&entry.payload)?.parse()?)).collect()
}

async fn consumers(server: &Server) -> Result<Vec<String>> {
    let stream = server.jetstream().await?.get_stream("PARTITION_0").await?;
    let names: Vec<_> = stream.consumer_names().collect().await;
    Ok(names.into_iter().collect::<Result<_, _>>()?)
}

#[tokio::test]
async fn reader_starts_at_a_sequence_with_complete_entries() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    publish(&bus, 1..=300).await?;
    let json = Bytes::from_static(b"{}");
    bus.publish_acked("tasks.0.agent", json.clone(), Some("application/json"), TEST_TIMEOUT).await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(5), ExpectedStream::default()).await?;
    assert_eq!(reader.stream().last_seq, Seq(301));
    let ReaderEvent::Entries(first) = reader.next_batch(10).await else {
        anyhow::bail!("entries come first")
    };
    assert!((1..=10).contains(&first.len()), "{}", first.len());
    let mut entries = first;
    let missing = 297 - entries.len();
    entries.extend(read(&mut reader, missing).await?);
    assert_eq!(seqs(&entries), (5..=301).collect::<Vec<_>>());
    let (chunk, task) = (&entries[0], &entries[296]);
    assert_eq!(
        (&*chunk.subject, chunk.content_type.as_deref(), &chunk.payload[..]),
        ("chunks.0.t-1", None, &b"5"[..])
    );
    assert_eq!((&*task.subject, task.content_type.as_deref()), ("tasks.0.agent", Some("application/json")));
    assert_eq!(task.payload, json);
    let age_ms = reader.stream().created_at.0 - chunk.stored_at().0;
    assert!(age_ms.abs() < 60_000, "{age_ms}");
    reader.restart(Seq(300));
    assert_eq!(seqs(&read(&mut reader, 2).await?), [300, 301]);
    assert_eq!(reader.restarts(), 0, "a wish, not a doubt");
    reader.close().await;
    assert_eq!(consumers(&server).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn it_tells_when_it_has_caught_up_and_when_it_has_lost_contact() -> Result<()> {
    let mut server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    assert_eq!(next(&mut reader).await?, ReaderEvent::CaughtUp(true), "nothing is there");
    publish(&bus, 1..=3).await?;
    assert_eq!(read(&mut reader, 3).await?.len(), 3);
    let quiet = tokio::time::timeout(Duration::from_secs(4), reader.next_batch(MAX)).await;
    assert!(quiet.is_err(), "idle is no news: {quiet:?}");
    assert_eq!(reader.restarts(), 0);
    let killed = Instant::now();
    server.kill()?;
    assert_eq!(next(&mut reader).await?, ReaderEvent::CaughtUp(false));
    assert!(killed.elapsed() < Duration::from_secs(4), "{:?}", killed.elapsed());
    server.run()?;
    assert_eq!(next(&mut reader).await?, ReaderEvent::CaughtUp(true));
    reader.restart(Seq(1));
    assert_eq!(next(&mut reader).await?, ReaderEvent::CaughtUp(false));
    assert!(matches!(next(&mut reader).await?, ReaderEvent::Entries(_)));
    Ok(())
}

#[tokio::test]
async fn entries_come_before_it_has_caught_up() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    publish(&bus, 1..=50).await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    let mut seen = 0;
    while seen < 50 {
        match next(&mut reader).await? {
            ReaderEvent::Entries(entries) => seen += entries.len(),
            other => anyhow::bail!("{other:?} after {seen} entries"),
        }
    }
    assert_eq!(next(&mut reader).await?, ReaderEvent::CaughtUp(true));
    Ok(())
}

#[tokio::test]
async fn a_consumer_deleted_behind_its_back_is_made_anew() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut reader = PartitionReader::open(&bus, P0, 7, Seq(1), ExpectedStream::default()).await?;
    publish(&bus, 1..=10).await?;
    read(&mut reader, 10).await?;
    let consumer = consumers(&server).await?.pop().context("its consumer")?;
    assert!(consumer.starts_with("p0-e7-"), "{consumer}");
    server.jetstream().await?.delete_consumer_from_stream(&consumer, "PARTITION_0").await?;
    let deleted = Instant::now();
    publish(&bus, 11..=20).await?;
    assert_eq!(seqs(&read(&mut reader, 10).await?), (11..=20).collect::<Vec<_>>());
    assert!(deleted.elapsed() < Duration::from_secs(3), "{:?}", deleted.elapsed());
    assert_eq!(reader.restarts(), 1);
    Ok(())
}

#[tokio::test]
async fn a_new_epoch_evicts_the_reader_of_the_old_one() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let zombie = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    let owner = PartitionReader::open(&bus, P0, 2, Seq(1), ExpectedStream::default()).await?;
    let left = consumers(&server).await?;
    assert!(left.len() == 1 && left[0].starts_with("p0-e2-"), "{left:?}");
    drop((zombie, owner));
    Ok(())
}

#[tokio::test]
async fn killed_server_under_load_loses_and_repeats_nothing() -> Result<()> {
    let mut server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = tokio::spawn(publish_until(bus.clone(), stop.clone()));
    let mut entries = Vec::new();
    for _ in 0..3 {
        entries.extend(read(&mut reader, 300).await?);
        server.kill()?;
        server.run()?;
    }
    entries.extend(read(&mut reader, 300).await?);
    stop.store(true, Ordering::Relaxed);
    let acked = publisher.await??;
    let last = bus.stream_state(P0).await?.last_seq.0 as usize;
    let missing = last - entries.len();
    entries.extend(read(&mut reader, missing).await?);
    assert_eq!(seqs(&entries), (1..=last as u64).collect::<Vec<_>>());
    let read: BTreeSet<_> = numbers(&entries)?.into_iter().collect();
    ensure!(acked.iter().all(|number| read.contains(number)), "an acked entry is missing");
    ensure!(acked.len() > 900, "{} acked", acked.len());
    Ok(())
}

/// Publishes ascending numbers and returns those that were acked.
async fn publish_until(bus: Bus, stop: Arc<AtomicBool>) -> Result<Vec<u64>> {
    let mut acked = Vec::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let window = number..number + 50;
        let sent = window.clone().map(|number| publish(&bus, [number]));
        for sent in futures_util::future::join_all(sent).await {
            sent?;
        }
        acked.extend(window);
        number += 50;
    }
    Ok(acked)
}

#[tokio::test]
async fn a_server_that_hangs_is_noticed_and_read_again() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    publish(&bus, 1..=10).await?;
    assert_eq!(read(&mut reader, 10).await?.len(), 10);
    server.pause()?;
    let paused = Instant::now();
    let lost = loop {
        match next(&mut reader).await? {
            ReaderEvent::CaughtUp(false) => break paused.elapsed(),
            ReaderEvent::CaughtUp(true) => {}
            other => anyhow::bail!("{other:?}"),
        }
    };
    assert!(lost < Duration::from_secs(4), "{lost:?}");
    let _ = tokio::time::timeout(Duration::from_secs(4), reader.next_batch(MAX)).await;
    server.resume()?;
    publish(&bus, 11..=20).await?;
    // Later entries may include one that was published again because its ack was lost.
    assert_eq!(seqs(&read(&mut reader, 10).await?)[..10], (11..=20).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn reader_reports_an_unreadable_stream_and_its_recovery() -> Result<()> {
    let mut server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    let trouble = async |reader: &mut PartitionReader| loop {
        let event = tokio::time::timeout(TEST_TIMEOUT, reader.next_batch(MAX)).await?;
        if let ReaderEvent::Trouble(trouble) = event {
            return anyhow::Ok(trouble);
        }
    };
    server.kill()?;
    server.run_without_jetstream()?;
    trouble(&mut reader).await?.context("why")?;
    server.kill()?;
    server.run()?;
    while trouble(&mut reader).await?.is_some() {}
    server.jetstream().await?.delete_stream("PARTITION_0").await?;
    let trouble = trouble(&mut reader).await?.context("why")?;
    assert!(trouble.contains("there is no stream"), "{trouble}");
    let event = loop {
        match next(&mut reader).await? {
            ReaderEvent::CaughtUp(_) => {}
            event => break event,
        }
    };
    assert_eq!(event, ReaderEvent::StreamChanged);
    Ok(())
}

#[tokio::test]
async fn a_stream_that_was_made_anew_is_noticed() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    publish(&bus, 1..=5).await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    read(&mut reader, 5).await?;
    let before = reader.stream().incarnation.clone();
    server.jetstream().await?.delete_stream("PARTITION_0").await?;
    bus.ensure_streams(model::PartitionCount::new(1)?, &small_streams()).await?;
    publish(&bus, 1..=9).await?;
    let event = loop {
        match next(&mut reader).await? {
            ReaderEvent::CaughtUp(_) => {}
            event => break event,
        }
    };
    assert_eq!(event, ReaderEvent::StreamChanged);
    assert_eq!(next(&mut reader).await?, ReaderEvent::StreamChanged, "and it stays so");
    let mut reader = PartitionReader::open(&bus, P0, 2, Seq(1), ExpectedStream::default()).await?;
    assert_ne!(reader.stream().incarnation, before);
    assert_eq!(read(&mut reader, 9).await?.len(), 9);
    Ok(())
}

#[tokio::test]
async fn a_stream_that_stays_away_or_ends_too_early_is_noticed() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    publish(&bus, 1..=5).await?;
    let mut ahead = PartitionReader::open(&bus, P0, 1, Seq(7), ExpectedStream::default()).await?;
    assert_eq!(next(&mut ahead).await?, ReaderEvent::StreamChanged, "the checkpoint is ahead of the stream");
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(6), ExpectedStream::default()).await?;
    assert_eq!(next(&mut reader).await?, ReaderEvent::CaughtUp(true));
    server.jetstream().await?.delete_stream("PARTITION_0").await?;
    assert_eq!(next(&mut reader).await?, ReaderEvent::CaughtUp(false));
    assert_eq!(next(&mut reader).await?, ReaderEvent::StreamChanged);
    Ok(())
}

#[tokio::test]
async fn large_entries_come_in_pulls_bounded_by_bytes() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let large = Bytes::from(vec![b'x'; 900_000]);
    for _ in 0..30 {
        bus.publish_acked("chunks.0.t", large.clone(), None, TEST_TIMEOUT).await?;
    }
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let ReaderEvent::Entries(ahead) = next(&mut reader).await? else { anyhow::bail!("entries come first") };
    assert!(ahead.len() * large.len() <= 8 << 20, "{} entries were sent ahead", ahead.len());
    let missing = 30 - ahead.len();
    read(&mut reader, missing).await?;
    assert_eq!(reader.restarts(), 0);
    Ok(())
}

#[tokio::test]
async fn a_jump_in_the_sequences_is_handed_on() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    publish(&bus, 1..=10).await?;
    bus.purge_below(P0, Seq(8)).await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(3), ExpectedStream::default()).await?;
    assert_eq!(seqs(&read(&mut reader, 3).await?), [8, 9, 10]);
    assert_eq!(reader.restarts(), 0);
    Ok(())
}

#[tokio::test]
async fn a_call_given_up_loses_nothing() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    let publisher = tokio::spawn({
        let bus = bus.clone();
        async move { publish(&bus, 1..=2000).await }
    });
    let mut entries = Vec::new();
    let mut round = 0_u64;
    while entries.len() < 2000 {
        round += 1;
        if round == 200 {
            reader.restart(Seq(entries.len() as u64 + 1));
        }
        let brief = Duration::from_micros(round % 7 * 100);
        if let Ok(ReaderEvent::Entries(more)) = tokio::time::timeout(brief, reader.next_batch(3)).await {
            entries.extend(more);
        }
    }
    publisher.await??;
    assert_eq!(seqs(&entries), (1..=2000).collect::<Vec<_>>());
    Ok(())
}

/// A publisher with its own implementation of the protocol can store headers that break the client
/// library.
#[tokio::test]
async fn entries_with_broken_headers_do_not_stop_it() -> Result<()> {
    let server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    publish(&bus, [1]).await?;
    let mut raw = std::net::TcpStream::connect(("127.0.0.1", server.port()))?;
    raw.write_all(b"CONNECT {\"headers\":true,\"verbose\":false}\r\n")?;
    let broken: [&[u8]; 5] = [
        b"NATS/1.0\r\nno colon\r\ncontent-type: text/plain\r\n\r\n",
        b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n",
        b"NATS/1.0\r\nA: lone\rreturn\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
        b"NATS/1.0 nonsense\r\n\r\n",
    ];
    for headers in broken {
        raw.write_all(format!("HPUB chunks.0.t-1 {} {}\r\n", headers.len(), headers.len() + 1).as_bytes())?;
        raw.write_all(headers)?;
        raw.write_all(b"2\r\n")?;
    }
    while bus.stream_state(P0).await?.last_seq < Seq(6) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    publish(&bus, [3]).await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    let entries = read(&mut reader, 7).await?;
    assert_eq!(seqs(&entries), (1..=7).collect::<Vec<_>>());
    assert_eq!(numbers(&entries)?, [1, 2, 2, 2, 2, 2, 3]);
    assert_eq!(entries[1].content_type.as_deref(), Some("text/plain"));
    assert!(entries[1].stored_at().0 > 1_700_000_000_000);
    Ok(())
}

/// The next event that is neither [`ReaderEvent::Trouble`] nor [`ReaderEvent::CaughtUp`].
async fn telling(reader: &mut PartitionReader) -> Result<ReaderEvent> {
    loop {
        match next(reader).await? {
            ReaderEvent::CaughtUp(_) => {}
            event => return Ok(event),
        }
    }
}

#[tokio::test]
async fn truncated_and_rewritten_stream_is_another_stream() -> Result<()> {
    let mut server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    publish(&bus, 1..=7).await?;
    server.kill()?;
    let copy = server.copy()?;
    server.run()?;
    publish(&bus, 8..=10).await?;
    let mut reader = PartitionReader::open(&bus, P0, 1, Seq(1), ExpectedStream::default()).await?;
    let entries = read(&mut reader, 10).await?;
    let (seventh, tenth) = (entries[6].mark(), entries[9].mark());
    assert_eq!(bus.stored_at_ns(P0, Seq(7)).await?, Some(seventh.stored_at_ns));
    assert_eq!(bus.stored_at_ns(P0, Seq(11)).await?, None);
    server.kill()?;
    server.put_back(&copy)?;
    server.run()?;
    // The stream is longer than before and has the same name, so only its entries show the change.
    publish(&bus, 100..=105).await?;
    assert_eq!(telling(&mut reader).await?, ReaderEvent::StreamChanged);
    let incarnation = Some(bus.stream_state(P0).await?.incarnation);
    let of = |read| ExpectedStream { incarnation: incarnation.clone(), read: Some(read) };
    let mut other = PartitionReader::open(&bus, P0, 2, Seq(11), of(tenth)).await?;
    assert_eq!(telling(&mut other).await?, ReaderEvent::StreamChanged);
    let mut same = PartitionReader::open(&bus, P0, 3, Seq(8), of(seventh)).await?;
    assert_eq!(numbers(&read(&mut same, 6).await?)?, [100, 101, 102, 103, 104, 105]);
    // After a purge, the entry that was read can no longer be compared.
    bus.purge_below(P0, Seq(12)).await?;
    let mut purged = PartitionReader::open(&bus, P0, 4, Seq(11), of(tenth)).await?;
    assert_eq!(seqs(&read(&mut purged, 2).await?), [12, 13]);
    Ok(())
}
