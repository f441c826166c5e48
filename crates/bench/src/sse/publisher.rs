//! Publishes events: frames into the stream for Antiphon, posts over persistent connections for the
//! others. A publisher does not wait for an answer before the next send. It waits for all answers
//! at the end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use async_nats::{Client, Subject, Subscriber};
use futures_util::{FutureExt, StreamExt};
use model::{Chunk, Frame, IncomingChunk, MessageId, PartitionCount, Role, ThreadId};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::{Instant, sleep},
};

use super::{
    load::PARTITIONS,
    target::{ServerKind, Target},
    timestamped_payload::{Stamp, Watch},
};

/// Maximum number of missing answers; beyond it the publisher waits.
const WINDOW: u64 = 4_000;
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);
/// Number of connections for posts. All posts of a thread use the same one.
const CONNECTIONS: usize = 8;

/// The events to publish.
#[derive(Debug, Clone, Copy)]
pub(super) struct Supply {
    pub(super) threads: usize,
    /// Bytes of an event's text.
    pub(super) bytes: usize,
    /// Number of chunks per message of Antiphon. The other servers have no messages.
    pub(super) message_chunks: u32,
    /// True if the first messages have different lengths, so that they do not all end at once.
    pub(super) is_staggered: bool,
}

/// One publisher for all threads.
#[derive(Debug)]
pub(super) struct Publisher {
    watch: Watch,
    supply: Supply,
    /// Number of sent events, by thread.
    sent: Vec<u32>,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Nats(Box<NatsPublisher>),
    Http(Http),
}

impl Publisher {
    /// Connects. Only Antiphon needs `nats_url`.
    pub(super) async fn connect(
        target: &Target,
        nats_url: &str,
        supply: Supply,
        watch: Watch,
    ) -> Result<Self> {
        let way = match target.kind {
            ServerKind::Antiphon => {
                Way::Nats(Box::new(NatsPublisher::connect(target, nats_url, supply).await?))
            }
            ServerKind::Nchan | ServerKind::Durable => Way::Http(Http::connect(target, supply).await?),
        };
        Ok(Self { watch, supply, sent: vec![0; supply.threads], way })
    }

    /// Adds `count` events of a thread back to back. [`Publisher::flush`] writes them.
    pub(super) async fn send(&mut self, thread: usize, count: u32) -> Result<()> {
        let first = self.sent[thread];
        let sent_ns = self.watch.ns();
        let text = |number| Stamp { sent_ns, number }.text(self.supply.bytes);
        let texts: Vec<String> = (first..first + count).map(text).collect();
        self.sent[thread] += count;
        match &mut self.way {
            Way::Nats(nats) => nats.send(thread, &texts).await,
            Way::Http(http) => {
                http.send(thread, &texts);
                Ok(())
            }
        }
    }

    /// Writes all added events, and waits if too many answers are missing.
    pub(super) async fn flush(&mut self) -> Result<()> {
        match &mut self.way {
            Way::Nats(nats) => nats.take_answers().await,
            Way::Http(http) => http.flush().await,
        }
    }

    /// Waits until all answers have arrived, and returns the number of sent events by thread.
    pub(super) async fn settle(&mut self) -> Result<Vec<u32>> {
        self.flush().await?;
        match &mut self.way {
            Way::Nats(nats) => nats.take_all_answers().await?,
            Way::Http(http) => http.until_answered(0).await?,
        }
        Ok(self.sent.clone())
    }
}

/// Publishes to the streams of partitions.
#[derive(Debug)]
struct NatsPublisher {
    client: Client,
    inbox: String,
    answers: Subscriber,
    open: u64,
    threads: Vec<PublishedThread>,
    message_chunks: u32,
}

#[derive(Debug)]
struct PublishedThread {
    id: ThreadId,
    subject: Subject,
    messages: u32,
    /// The id of the next chunk, and the number of chunks of the message.
    next: u32,
    length: u32,
}

impl NatsPublisher {
    async fn connect(target: &Target, url: &str, supply: Supply) -> Result<Self> {
        let client = async_nats::ConnectOptions::new().client_capacity(16 << 10).connect(url).await?;
        let inbox = client.new_inbox();
        let answers = client.subscribe(inbox.clone()).await?;
        client.flush().await?;
        let count = PartitionCount::new(PARTITIONS.into())?;
        let thread = |number: usize| {
            let id = ThreadId::parse(&target.thread(number))?;
            let length = supply.message_chunks;
            let first = 1 + u32::try_from(number * length as usize / supply.threads).unwrap_or(length);
            Ok(PublishedThread {
                subject: wire::subject::partition_chunks(count, &id).into(),
                id,
                messages: 0,
                next: 0,
                length: if supply.is_staggered { first } else { length },
            })
        };
        let threads = (0..supply.threads).map(thread).collect::<Result<_>>()?;
        Ok(Self { client, inbox, answers, open: 0, threads, message_chunks: supply.message_chunks })
    }

    /// Sends one frame per text, like a publisher that gets its chunks one by one.
    async fn send(&mut self, thread: usize, texts: &[String]) -> Result<()> {
        let length = self.message_chunks;
        for text in texts {
            let thread = &mut self.threads[thread];
            let payload = wire::encode_frame(&thread.frame(text, length)?);
            self.client.publish_with_reply(thread.subject.clone(), self.inbox.clone(), payload).await?;
            self.open += 1;
        }
        Ok(())
    }

    async fn take_answers(&mut self) -> Result<()> {
        while let Some(answer) = self.answers.next().now_or_never() {
            self.count(answer)?;
        }
        while self.open > WINDOW {
            let answer = self.answers.next().await;
            self.count(answer)?;
        }
        Ok(())
    }

    async fn take_all_answers(&mut self) -> Result<()> {
        while self.open > 0 {
            let answer = tokio::time::timeout(ANSWER_LIMIT, self.answers.next()).await;
            self.count(answer.context("acknowledgements are missing")?)?;
        }
        Ok(())
    }

    fn count(&mut self, answer: Option<async_nats::Message>) -> Result<()> {
        let answer = answer.context("the connection has ended")?;
        ensure!(answer.payload.starts_with(b"{\"stream\""), "not stored: {answer:?}");
        self.open -= 1;
        Ok(())
    }
}

impl PublishedThread {
    fn frame(&mut self, text: &str, length: u32) -> Result<Frame> {
        let is_final = self.length == self.next + 1;
        let arrival = IncomingChunk {
            message: MessageId::parse(&format!("message-{:04}", self.messages))?,
            attempt: 0,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(Chunk::content(self.next, text, is_final)),
        };
        self.next += 1;
        if is_final {
            (self.messages, self.next, self.length) = (self.messages + 1, 0, length);
        }
        Ok(Frame { token: None, thread: self.id.clone(), chunks: vec![arrival] })
    }
}

/// Posts over a few persistent connections.
#[derive(Debug)]
struct Http {
    target: Target,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedWriteHalf,
    out: Vec<u8>,
    asked: u64,
    answers: Arc<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    good: AtomicU64,
    bad: AtomicU64,
}

impl Http {
    async fn connect(target: &Target, supply: Supply) -> Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS.min(supply.threads) {
            let socket = TcpStream::connect(target.addr).await?;
            socket.set_nodelay(true)?;
            let (reading, socket) = socket.into_split();
            let answers = Arc::new(Answers::default());
            tokio::spawn(read_answers(reading, Arc::clone(&answers)));
            connections.push(Connection { socket, out: Vec::new(), asked: 0, answers });
        }
        Ok(Self { target: target.clone(), connections })
    }

    fn send(&mut self, thread: usize, texts: &[String]) {
        let at = thread % self.connections.len();
        let connection = &mut self.connections[at];
        connection.out.extend(self.target.post(thread, texts));
        connection.asked += self.target.posts(texts.len());
    }

    async fn flush(&mut self) -> Result<()> {
        for connection in self.connections.iter_mut().filter(|connection| !connection.out.is_empty()) {
            connection.socket.write_all(&connection.out).await.context("publishing")?;
            connection.out.clear();
        }
        self.until_answered(WINDOW).await
    }

    /// Waits until at most `missing` answers are missing.
    async fn until_answered(&self, missing: u64) -> Result<()> {
        let mut deadline = Instant::now() + ANSWER_LIMIT;
        let mut before = u64::MAX;
        loop {
            let mut open = 0;
            for connection in &self.connections {
                let Answers { good, bad } = &*connection.answers;
                ensure!(bad.load(Ordering::Relaxed) == 0, "{} refused a post", self.target.kind.name());
                open += connection.asked - good.load(Ordering::Relaxed);
            }
            if open <= missing {
                return Ok(());
            }
            if open < before {
                (before, deadline) = (open, Instant::now() + ANSWER_LIMIT);
            }
            if Instant::now() > deadline {
                bail!("{} leaves {open} posts without an answer", self.target.kind.name());
            }
            sleep(POLL).await;
        }
    }
}

async fn read_answers(mut socket: OwnedReadHalf, answers: Arc<Answers>) {
    let mut buffer = Vec::with_capacity(64 << 10);
    while let Ok(1..) = socket.read_buf(&mut buffer).await {
        let (done, good, bad) = statuses(&buffer);
        answers.good.fetch_add(good, Ordering::Relaxed);
        answers.bad.fetch_add(bad, Ordering::Relaxed);
        buffer.drain(..done);
    }
}

/// Parses answers. Returns the number of bytes consumed, and the numbers of good and bad answers in
/// them.
fn statuses(bytes: &[u8]) -> (usize, u64, u64) {
    const LINE: &[u8] = b"HTTP/1.1 ";
    let (mut at, mut good, mut bad) = (0, 0, 0);
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'H') {
        at += found;
        let Some(status) = bytes.get(at..=at + LINE.len()) else { return (at, good, bad) };
        if status.starts_with(LINE) {
            match status[LINE.len()] {
                b'2' => good += 1,
                _ => bad += 1,
            }
            at += LINE.len();
        } else {
            at += 1;
        }
    }
    (bytes.len(), good, bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_also_when_they_come_in_two_pieces() {
        let text = "HTTP/1.1 201 Created\r\nX: Host\r\n\r\nHHTTP/1.1 204 No\r\n\r\nHTTP/1.1 403 No\r\n\r\n";
        for cut in 0..text.len() {
            let (first, second) = text.as_bytes().split_at(cut);
            let (done, good, bad) = statuses(first);
            let (_, more_good, more_bad) = statuses(&[&first[done..], second].concat());
            assert_eq!((good + more_good, bad + more_bad), (2, 1), "cut at {cut}");
        }
    }

    #[test]
    fn messages_follow_each_other_when_they_have_a_length() {
        let thread = ThreadId::parse("t").unwrap();
        let mut thread = PublishedThread { id: thread, subject: "s".into(), messages: 0, next: 0, length: 2 };
        let mut next = || {
            let chunk = thread.frame("x", 3).unwrap().chunks.remove(0);
            (chunk.message.to_string(), chunk.chunk.id, chunk.chunk.is_final)
        };
        let seen: Vec<_> = (0..6).map(|_| next()).collect();
        let (first, second) = ("message-0000".to_owned(), "message-0001".to_owned());
        assert_eq!(seen[..2], [(first.clone(), 0, false), (first, 1, true)]);
        assert_eq!(
            seen[2..5].iter().map(|(_, id, last)| (*id, *last)).collect::<Vec<_>>(),
            [(0, false), (1, false), (2, true)]
        );
        assert_eq!(seen[2].0, second);
    }
}
