//! Queries with and without an owner.

use std::time::Duration;

use anyhow::{Context, Result};
use bus::QueryError;
use bytes::Bytes;
use futures_util::FutureExt;
use model::GatewayId;

use crate::server::{P0, Server, TEST_TIMEOUT};

const SOON: Duration = Duration::from_millis(500);

#[tokio::test]
async fn the_owner_answers_and_without_one_the_server_does() -> Result<()> {
    let mut server = Server::start()?;
    let (gateway, worker) = (server.bus().await?, server.bus().await?);
    let question = || gateway.query_owner(P0, Bytes::from_static(b"open?"), SOON);
    assert_eq!(question().await, Err(QueryError::NoOwner));

    let mut asks = worker.serve_queries(P0).await?;
    let (answer, served) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            question().await
        },
        async {
            let ask = asks.next().await.context("a question")?;
            assert_eq!(&ask.payload[..], b"open?");
            anyhow::Ok(ask.respond(Bytes::from_static(b"nothing")).await?)
        }
    );
    served?;
    assert_eq!(answer, Ok(Bytes::from_static(b"nothing")));
    assert_eq!(question().await, Err(QueryError::Timeout), "an owner that does not answer");

    drop(asks);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(question().await, Err(QueryError::NoOwner));
    server.kill()?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(question().await, Err(QueryError::Away));
    Ok(())
}

#[tokio::test]
async fn a_query_ends_when_its_connection_is_replaced() -> Result<()> {
    let mut server = Server::start()?;
    let (gateway, worker) = (server.bus().await?, server.bus().await?);
    let mut queries = worker.serve_queries(P0).await?;
    let asked = gateway.query_owner(P0, Bytes::from_static(b"open?"), Duration::from_secs(600));
    let replaced = async {
        let query = queries.next().await.context("a query")?;
        server.kill()?;
        server.run()?;
        anyhow::Ok(query)
    };
    let (answer, query) = tokio::time::timeout(TEST_TIMEOUT, async { tokio::join!(asked, replaced) }).await?;
    query?;
    assert_eq!(answer, Err(QueryError::Away));
    Ok(())
}

#[tokio::test]
async fn a_reply_behind_frames_arrives_after_them() -> Result<()> {
    const FRAMES: usize = 100;
    let server = Server::start()?;
    let (gateway, worker) = (server.bus().await?, server.bus().await?);
    let mut queries = worker.serve_queries(P0).await?;
    let id = GatewayId::of_number(1);
    for round in 0..20 {
        let mut frames = gateway.subscribe_live_frames(&id).await?;
        let query = gateway.query_owner(P0, Bytes::from_static(b"changed?"), TEST_TIMEOUT);
        let replied = async {
            let query = queries.next().await.context("a query")?;
            for _ in 0..FRAMES {
                worker.publish_live_frames(&id, Bytes::from(vec![0; 10_000])).await?;
            }
            anyhow::Ok(query.respond_behind_frames(Bytes::from_static(b"all")).await?)
        };
        let (reply, replied) = tokio::join!(query, replied);
        replied?;
        assert_eq!(reply, Ok(Bytes::from_static(b"all")));
        let mut received = 0;
        while let Some(Some(_)) = frames.next().now_or_never() {
            received += 1;
        }
        assert_eq!(received, FRAMES, "round {round}");
    }
    Ok(())
}
