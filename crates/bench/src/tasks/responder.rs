//! A workflow that answers at once, so that only the round trip to it is measured.

use anyhow::Result;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::task::JoinHandle;

/// The subject of requests; it ends with the agent's number.
const SUBJECT: &str = "noop.*";
const ANSWER: &[u8] = &[b'y'; 400];

/// Answers requests until it is dropped.
#[derive(Debug)]
pub(super) struct Responder {
    answering: JoinHandle<()>,
}

impl Responder {
    /// Subscribes and begins to answer.
    pub(super) async fn start(nats_url: &str) -> Result<Self> {
        let client = async_nats::connect(nats_url).await?;
        let mut requests = client.subscribe(SUBJECT).await?;
        client.flush().await?;
        let answering = tokio::spawn(async move {
            while let Some(request) = requests.next().await {
                let Some(reply) = request.reply else { continue };
                // A failure means that the connection is closed permanently, and the stream ends
                // next.
                let _ = client.publish(reply, Bytes::from_static(ANSWER)).await;
            }
        });
        Ok(Self { answering })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.answering.abort();
    }
}
