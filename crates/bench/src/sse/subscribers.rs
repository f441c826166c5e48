//! Subscribers: plain sockets that each follow one thread of one server. Some read slowly, and all
//! can be disconnected at once.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    counters::Tally,
    stream::{SseStream, Taken},
    target::Target,
};

const BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of concurrent connection attempts, because the server's backlog is limited.
const ARRIVING: usize = 200;
const ARRIVAL_LIMIT: Duration = Duration::from_secs(30);
/// Maximum bytes per second that a slow subscriber reads, and the size of its kernel buffer.
const SLOW_BYTES: usize = 1_000;
const SLOW_BUFFER: u32 = 4 << 10;
/// Interval at which the subscribers are checked for completeness: the resolution of a storm's
/// time.
const POLL: Duration = Duration::from_millis(2);

/// A command for the subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ViewerCommand {
    /// Follow the thread. Slow subscribers read slowly until they are disconnected.
    Follow,
    /// Break the connection at once, even within an event.
    Leave,
    /// Follow the thread. Slow subscribers read as fast as the others.
    Hurry,
}

/// The thread and the speed of one subscriber.
#[derive(Debug, Clone, Copy)]
pub(super) struct ViewerPlan {
    /// The thread's number.
    pub(super) thread: usize,
    /// True if the subscriber reads [`SLOW_BYTES`] per second, until the server disconnects it.
    pub(super) is_slow: bool,
}

/// All subscribers of a measurement.
#[derive(Debug)]
pub(super) struct Viewers {
    places: Vec<ViewerPlan>,
    next: Arc<Vec<AtomicU32>>,
    orders: watch::Sender<ViewerCommand>,
    /// The counters of the fast and of the slow subscribers.
    pub(super) fast: Arc<Tally>,
    pub(super) slow: Arc<Tally>,
    following: JoinSet<Result<()>>,
}

impl Viewers {
    /// Connects all subscribers, and waits until the server has begun to answer each.
    pub(super) async fn bring(
        target: &Target,
        places: Vec<ViewerPlan>,
        fast: Arc<Tally>,
        slow: Arc<Tally>,
    ) -> Result<Self> {
        let (orders, _) = watch::channel(ViewerCommand::Follow);
        let next: Arc<Vec<AtomicU32>> = Arc::new(places.iter().map(|_| AtomicU32::new(0)).collect());
        let arriving = Arc::new(Semaphore::new(ARRIVING));
        let mut following = JoinSet::new();
        for (number, place) in places.iter().enumerate() {
            let tally = Arc::clone(if place.is_slow { &slow } else { &fast });
            let viewer = ViewerTask {
                target: target.clone(),
                place: *place,
                number,
                next: Arc::clone(&next),
                tally,
                arriving: Arc::clone(&arriving),
                orders: orders.subscribe(),
                cursor: None,
                is_slow: place.is_slow,
            };
            following.spawn(viewer.follow());
        }
        let mut viewers = Self { places, next, orders, fast, slow, following };
        viewers.until_attached(viewers.places.len()).await?;
        Ok(viewers)
    }

    /// Sends a command to all subscribers at once.
    pub(super) fn order(&self, order: ViewerCommand) {
        self.orders.send_replace(order);
    }

    /// Waits until `count` subscribers are attached.
    pub(super) async fn until_attached(&mut self, count: usize) -> Result<()> {
        let deadline = Instant::now() + ARRIVAL_LIMIT;
        loop {
            self.check()?;
            let attached = self.fast.attached_now() + self.slow.attached_now();
            if attached == count {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{attached} of {} viewers are attached, and not {count}", self.places.len());
            }
            sleep(POLL).await;
        }
    }

    /// Waits until this fraction of the subscribers has all sent events, whose numbers are given by
    /// thread. Returns false on timeout.
    pub(super) async fn until_complete(&mut self, part: f64, sent: &[u32], limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        let wanted = (self.places.len() as f64 * part).ceil() as usize;
        while self.places.len() - self.incomplete(sent) < wanted {
            self.check()?;
            if Instant::now() > deadline {
                return Ok(false);
            }
            sleep(POLL).await;
        }
        Ok(true)
    }

    /// The number of events that the subscribers lack. `sent` has the number of sent events by
    /// thread.
    pub(super) fn missing(&self, sent: &[u32]) -> u64 {
        let lacks = |(place, next): (&ViewerPlan, &AtomicU32)| {
            u64::from(sent[place.thread].saturating_sub(next.load(Ordering::Relaxed)))
        };
        self.places.iter().zip(self.next.iter()).map(lacks).sum()
    }

    fn incomplete(&self, sent: &[u32]) -> usize {
        let lacks =
            |(place, next): &(&ViewerPlan, &AtomicU32)| next.load(Ordering::Relaxed) < sent[place.thread];
        self.places.iter().zip(self.next.iter()).filter(lacks).count()
    }

    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    fn check(&mut self) -> Result<()> {
        match self.following.try_join_next() {
            None => Ok(()),
            Some(ended) => match ended? {
                Ok(()) => bail!("a viewer has gone by itself"),
                Err(error) => Err(error.context("a viewer was refused")),
            },
        }
    }
}

struct ViewerTask {
    target: Target,
    place: ViewerPlan,
    number: usize,
    next: Arc<Vec<AtomicU32>>,
    tally: Arc<Tally>,
    arriving: Arc<Semaphore>,
    orders: watch::Receiver<ViewerCommand>,
    cursor: Option<Vec<u8>>,
    is_slow: bool,
}

/// The way in which a connection ended.
enum Left {
    /// The server ended the connection, or it broke.
    Ended,
    /// The subscriber ended it on the command to leave.
    Told,
}

impl ViewerTask {
    /// Runs one connection after the other.
    async fn follow(mut self) -> Result<()> {
        loop {
            let arriving = Arc::clone(&self.arriving);
            let place = arriving.acquire().await?;
            let socket =
                timeout(ARRIVAL_LIMIT, self.connect()).await.context("connecting takes too long")??;
            let mut stream = SseStream::new(self.target.dialect, self.cursor.take());
            let left = self.read(socket, &mut stream, place).await?;
            if stream.is_open() {
                self.tally.attached(false);
            }
            self.cursor = stream.into_cursor();
            match left {
                Left::Ended => self.tally.ended(),
                Left::Told => {
                    let back = self.orders.wait_for(|order| *order != ViewerCommand::Leave);
                    back.await.map_err(|_| anyhow!("the bench has gone"))?;
                }
            }
            // After a subscriber was disconnected for being slow, it reads at full speed.
            self.is_slow = false;
        }
    }

    async fn connect(&self) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if self.is_slow {
            socket.set_recv_buffer_size(SLOW_BUFFER)?;
        }
        let mut stream = socket.connect(self.target.addr).await.context("connecting")?;
        stream.set_nodelay(true)?;
        // The socket is closed at once, as when a client's network breaks, so that no port stays in
        // use for a minute.
        #[allow(deprecated, reason = "with 0 it does not block, which is what the warning is about")]
        stream.set_linger(Some(Duration::ZERO))?;
        let request = self.target.request(self.place.thread, self.cursor.as_deref());
        stream.write_all(request.as_bytes()).await?;
        Ok(stream)
    }

    async fn read(
        &mut self,
        mut socket: TcpStream,
        stream: &mut SseStream,
        arriving: tokio::sync::SemaphorePermit<'_>,
    ) -> Result<Left> {
        let mut arriving = Some(arriving);
        let mut buffer = vec![0; if self.is_slow { SLOW_BYTES } else { 4 << 10 }];
        let mut taken = Taken::default();
        let mut due = Instant::now();
        loop {
            let read = tokio::select! {
                biased;
                changed = self.orders.changed() => {
                    changed.map_err(|_| anyhow!("the bench has gone"))?;
                    match *self.orders.borrow_and_update() {
                        ViewerCommand::Leave => return Ok(Left::Told),
                        ViewerCommand::Hurry => self.is_slow = false,
                        ViewerCommand::Follow => {}
                    }
                    continue;
                }
                () = sleep_until(due), if self.is_slow && due > Instant::now() => continue,
                read = socket.read(&mut buffer), if !self.is_slow || due <= Instant::now() => read,
            };
            let Ok(count @ 1..) = read else { return Ok(Left::Ended) };
            let was_open = stream.is_open();
            stream.feed(&buffer[..count], &mut taken)?;
            if stream.is_open() && !was_open {
                self.tally.attached(true);
                arriving.take();
            }
            self.tally.take(&self.next[self.number], count, &taken.stamps);
            taken.stamps.clear();
            if taken.is_ended {
                return Ok(Left::Ended);
            }
            if self.is_slow {
                due = Instant::now() + Duration::from_secs(1);
            } else if count == buffer.len() && buffer.len() < BUFFER_BYTES {
                buffer.resize(BUFFER_BYTES, 0);
            }
        }
    }
}

/// Waits until a server accepts connections.
pub(super) async fn until_listening(addr: SocketAddr, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    while let Err(error) = TcpStream::connect(addr).await {
        if Instant::now() > deadline {
            return Err(error).with_context(|| format!("nothing listens at {addr} after {limit:?}"));
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::{
        super::{
            target::ServerKind,
            timestamped_payload::{Stamp, Watch},
        },
        *,
    };

    /// Sends the events after the cursor, up to the current number.
    async fn serve(listener: TcpListener, count: watch::Receiver<u32>) {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(follow(socket, count.clone()));
        }
    }

    async fn follow(mut socket: TcpStream, mut count: watch::Receiver<u32>) -> Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            socket.read_buf(&mut head).await?;
        }
        let head = String::from_utf8(head)?;
        let cursor = head.split("last-event-id: ").nth(1).and_then(|rest| rest.lines().next());
        let mut next = cursor.map_or(Ok(0), |id| id.parse::<u32>().map(|id| id + 1))?;
        socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n: hi\n\n").await?;
        loop {
            while next < *count.borrow_and_update() {
                let text = Stamp { sent_ns: 0, number: next }.text(200);
                socket.write_all(format!("id: {next}\ndata: {text}\n\n").as_bytes()).await?;
                next += 1;
            }
            count.changed().await?;
        }
    }

    #[tokio::test]
    async fn disconnected_subscriber_resumes_and_slow_one_speeds_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::new(ServerKind::Nchan, listener.local_addr().unwrap(), "t");
        let (count, counts) = watch::channel(5);
        tokio::spawn(serve(listener, counts));
        let (fast, slow) = (Tally::new(Watch::start()), Tally::new(Watch::start()));
        let place = |is_slow| ViewerPlan { thread: 0, is_slow };
        let places = vec![place(false), place(false), place(true)];
        let mut viewers = Viewers::bring(&target, places, fast, slow).await.unwrap();
        let soon = Duration::from_millis(300);
        // The slow subscriber reads six hundred bytes too few.
        assert!(viewers.until_complete(0.6, &[5], soon).await.unwrap());
        assert!(!viewers.until_complete(1.0, &[5], soon).await.unwrap());

        viewers.order(ViewerCommand::Leave);
        viewers.until_attached(0).await.unwrap();
        count.send_replace(40);
        assert!(viewers.missing(&[40]) >= 3 * 35);
        viewers.order(ViewerCommand::Hurry);
        viewers.until_attached(3).await.unwrap();
        assert!(viewers.until_complete(1.0, &[40], SLOW_LIMIT).await.unwrap());
        let counts = [viewers.fast.counts(), viewers.slow.counts()];
        assert_eq!(
            counts.map(|it| (it.events, it.repeated, it.skipped, it.ends)),
            [(80, 0, 0, 0), (40, 0, 0, 0)]
        );
    }

    const SLOW_LIMIT: Duration = Duration::from_secs(5);
}
