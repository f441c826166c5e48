//! The receiver of core NATS, with one subscription for all threads, which is the cheapest
//! possible.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use futures_util::StreamExt;
use tokio::time::{Duration, timeout};

use super::recorder::Board;

/// Prefix of the publisher's subjects, which the thread's number follows.
pub(super) const SUBJECT: &str = "bench.core";

pub(super) async fn receive(url: &str, board: &Board, stop: &AtomicBool) -> Result<()> {
    let client = async_nats::ConnectOptions::new().subscription_capacity(1 << 20).connect(url).await?;
    let mut messages = client.subscribe(format!("{SUBJECT}.*")).await?;
    client.flush().await?;
    board.attach_all();
    while !stop.load(Ordering::Relaxed) {
        let Ok(message) = timeout(Duration::from_millis(100), messages.next()).await else { continue };
        let message = message.context("the connection has ended")?;
        let stream = message.subject.rsplit('.').next().and_then(|token| token.parse().ok());
        board.take(stream.context("a foreign subject")?, &message.payload);
    }
    Ok(())
}
