//! A minimal relay from a stream to clients. One thread reads the stream without acknowledgements
//! and writes each entry unchanged to the socket of its thread. It does not order, store or resume
//! anything. Its streams are configured like those of the fleet.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use async_nats::jetstream::{
    self,
    consumer::{self, DeliverPolicy},
};
use futures_util::{StreamExt, stream::select_all};
use model::PartitionId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{
    load::{PARTITIONS, RELAY},
    recorder::Board,
    subscribers,
};

/// Entries per request.
const BATCH: usize = 2_000;
const BUFFER_BYTES: usize = 32 << 10;

/// Creates the relay's streams, which must exist before the first publish.
pub(super) async fn prepare(url: &str) -> Result<()> {
    let context = jetstream::new(async_nats::connect(url).await?);
    for partition in 0..PARTITIONS {
        let stream = context.get_stream(wire::subject::stream_name(PartitionId(partition))).await?;
        let mut config = stream.cached_info().config.clone();
        config.name = format!("{RELAY}-{partition}");
        config.subjects = vec![format!("{RELAY}.{partition}.*")];
        context.create_stream(config).await?;
    }
    Ok(())
}

/// Listens, reads the streams and forwards the entries, until it is stopped.
pub(super) async fn run(url: &str, listener: TcpListener, streams: usize, stop: &AtomicBool) -> Result<()> {
    let mut sockets: Vec<Option<TcpStream>> = (0..streams).map(|_| None).collect();
    for _ in 0..streams {
        let (mut socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let number = socket.read_u32().await? as usize;
        *sockets.get_mut(number).context("a foreign client")? = Some(socket);
    }
    let context = jetstream::new(async_nats::connect(url).await?);
    let mut readers = Vec::new();
    for partition in 0..PARTITIONS {
        let stream = context.get_stream(format!("{RELAY}-{partition}")).await?;
        let config = consumer::pull::Config {
            ack_policy: consumer::AckPolicy::None,
            deliver_policy: DeliverPolicy::All,
            memory_storage: true,
            num_replicas: 1,
            ..consumer::pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await?;
        readers.push(consumer.stream().max_messages_per_batch(BATCH).messages().await?);
    }
    let mut entries = select_all(readers);
    for socket in sockets.iter_mut().flatten() {
        socket.write_u8(b'\n').await?;
    }
    while !stop.load(Ordering::Relaxed) {
        let Ok(entry) = timeout(Duration::from_millis(100), entries.next()).await else { continue };
        let entry = entry.context("the streams have ended")?.map_err(|error| anyhow!("reading: {error}"))?;
        let number = entry.subject.rsplit('.').next().and_then(|token| token.parse::<usize>().ok());
        let socket =
            number.and_then(|number| sockets.get_mut(number)?.as_mut()).context("a foreign subject")?;
        socket.write_all(&entry.payload).await?;
    }
    Ok(())
}

/// Runs a client for each thread.
pub(super) async fn receive(
    addr: SocketAddr,
    streams: usize,
    board: &Arc<Board>,
    stop: &AtomicBool,
) -> Result<()> {
    subscribers::one_each(streams, stop, |stream| client(addr, stream, Arc::clone(board))).await
}

async fn client(addr: SocketAddr, stream: usize, board: Arc<Board>) -> Result<()> {
    let mut socket = TcpStream::connect(addr).await?;
    socket.write_u32(u32::try_from(stream)?).await?;
    ensure!(socket.read_u8().await? == b'\n', "the relay answers something else");
    board.attach();
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    loop {
        let done = board.take(stream, &buffer);
        buffer.drain(..done);
        if socket.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}
