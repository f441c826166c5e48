//! Acknowledgements of streams, for a publisher that does not wait after each entry.

use anyhow::{Context as _, Result, ensure};
use async_nats::{Client, Subscriber};
use futures_util::{FutureExt, StreamExt};

/// Maximum number of missing acknowledgements; beyond it the publisher waits.
const WINDOW: u64 = 4_000;

/// A window of acknowledgements.
pub(super) struct Acks {
    /// The reply subject of entries, which receives their acknowledgements.
    pub(super) inbox: String,
    messages: Subscriber,
    open: u64,
}

impl Acks {
    pub(super) async fn new(client: &Client) -> Result<Self> {
        let inbox = client.new_inbox();
        Ok(Self { messages: client.subscribe(inbox.clone()).await?, inbox, open: 0 })
    }

    /// Records that an entry was sent.
    pub(super) fn sent(&mut self) {
        self.open += 1;
    }

    /// Takes the acknowledgements that have arrived, and waits while the window is full.
    pub(super) async fn take(&mut self) -> Result<()> {
        while let Some(ack) = self.messages.next().now_or_never() {
            self.count(ack)?;
        }
        while self.open > WINDOW {
            let ack = self.messages.next().await;
            self.count(ack)?;
        }
        Ok(())
    }

    /// Waits for all missing acknowledgements.
    pub(super) async fn take_all(&mut self) -> Result<()> {
        while self.open > 0 {
            let ack = tokio::time::timeout(std::time::Duration::from_secs(10), self.messages.next()).await;
            self.count(ack.context("acknowledgements are missing")?)?;
        }
        Ok(())
    }

    fn count(&mut self, ack: Option<async_nats::Message>) -> Result<()> {
        let ack = ack.context("the connection has ended")?;
        ensure!(ack.payload.starts_with(b"{\"stream\""), "not stored: {ack:?}");
        self.open -= 1;
        Ok(())
    }
}
