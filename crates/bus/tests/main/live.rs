//! Live frames, and the behaviour while the server is unreachable.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bus::{Bus, BusConfig, BusError, Disposition, LiveMessage};
use bytes::Bytes;
use model::GatewayId;

use crate::server::{P0, Server, TEST_TIMEOUT, thread};

#[tokio::test]
async fn what_is_published_after_a_subscription_comes() -> Result<()> {
    let server = Server::start()?;
    let (gateway, worker) = (server.bus().await?, server.bus().await?);
    let id = GatewayId::of_number(1);
    worker.publish_live_frames(&GatewayId::of_number(2), Bytes::from_static(b"for another one")).await?;
    for round in 0..50_u8 {
        let mut subscription = gateway.subscribe_live_frames(&id).await?;
        worker.publish_live_frames(&id, Bytes::from(vec![round])).await?;
        let next = tokio::time::timeout(TEST_TIMEOUT, subscription.next()).await?;
        assert_eq!(next, Some(LiveMessage::Frames(Bytes::from(vec![round]))));
        worker.announce_owner(P0, round.into()).await?;
        let next = tokio::time::timeout(TEST_TIMEOUT, subscription.next()).await?;
        assert_eq!(next, Some(LiveMessage::Owner(wire::live::encode_owner(P0, round.into()))));
    }
    Ok(())
}

#[tokio::test]
async fn a_subscription_stands_again_after_a_restart_of_the_server() -> Result<()> {
    let mut server = Server::start()?;
    let (gateway, worker) = (server.bus().await?, server.bus().await?);
    let id = GatewayId::of_number(1);
    let mut subscription = gateway.subscribe_live_frames(&id).await?;
    server.kill()?;
    server.run()?;
    let frame = tokio::time::timeout(TEST_TIMEOUT, async {
        loop {
            let _ = worker.publish_live_frames(&id, Bytes::from_static(b"again")).await;
            let frame = tokio::time::timeout(Duration::from_millis(100), subscription.next()).await;
            if let Ok(frame) = frame {
                return frame;
            }
        }
    });
    assert_eq!(frame.await?, Some(LiveMessage::Frames(Bytes::from_static(b"again"))));
    Ok(())
}

#[tokio::test]
async fn while_the_server_is_away_publishing_neither_blocks_nor_spins() -> Result<()> {
    let mut server = Server::start()?;
    let bus = server.bus_with_stream().await?;
    server.kill()?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!bus.is_connected());
    let cpu_before = cpu_ms()?;
    let begun = Instant::now();
    for _ in 0..1000 {
        let error = bus
            .publish_live_frames(&GatewayId::of_number(1), Bytes::from_static(b"x"))
            .await
            .expect_err("away");
        assert_eq!((&error, error.disposition()), (&BusError::Away, Disposition::Retry));
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let subject = wire::subject::chunks_in(P0, &thread()?);
    let stored = bus.publish_acked(&subject, Bytes::from_static(b"kept"), None, TEST_TIMEOUT);
    let (stored, restarted) = tokio::join!(stored, async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        server.run()
    });
    restarted?;
    assert_eq!(stored?.seq.0, 1);
    let cpu = cpu_ms()? - cpu_before;
    assert!(cpu < 1000, "{cpu} ms of CPU in {:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn connecting_waits_for_the_server() -> Result<()> {
    let mut server = Server::absent()?;
    let connecting = tokio::spawn({
        let url = server.url();
        async move { Bus::connect(&BusConfig::new(url, "test")).await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!connecting.is_finished());
    server.run()?;
    assert!(tokio::time::timeout(TEST_TIMEOUT, connecting).await???.is_connected());
    Ok(())
}

/// CPU time used by this process, ms.
fn cpu_ms() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().context("fields")?.split_whitespace();
    let ticks = fields.skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(ticks * 10)
}
