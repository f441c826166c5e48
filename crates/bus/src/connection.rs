//! The connections of a process to NATS.
//!
//! One task drives and parses each connection, on one core. Kinds of traffic that must not delay
//! each other have separate connections: requests to JetStream, publishing, subscriptions of
//! gateways, and readers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::{Client, ClientError, ConnectError, ConnectErrorKind, ConnectOptions, Event};
use runtime::certificates::refused_certificate;
use runtime::{Backoff, retry};
use tokio::sync::{Mutex, watch};

use crate::config::{BusConfig, PreparedConfig, REQUEST_TIMEOUT};
use crate::error::BusError;
use crate::servers::leave_lost_ones;

/// Maximum number of JetStream publishes that wait for an ack.
const ACKS_IN_FLIGHT: usize = 4096;
/// How long one try of a JetStream publish waits for its ack. Over a slow link, an ack in transit
/// must not cause another publish.
const ACK_TIMEOUT: Duration = Duration::from_secs(4);

/// The connections to NATS. Clones share them.
#[derive(Clone)]
pub struct Bus {
    pub(crate) shared: Arc<Connections>,
}

/// The smallest `max_payload` of a server that the fleet supports.
const MIN_MAX_PAYLOAD: usize = 64 << 10;
/// Maximum bytes of text in a message that has several chunks or frames.
const PAGE_BYTES: usize = 256 << 10;
/// The text of such a message may take `max_payload` divided by this. The rest of the message and
/// one more frame need room as well.
const PARTS_OF_PAYLOAD: usize = 4;

pub(crate) struct Connections {
    prepared: PreparedConfig,
    pub(crate) control: ConnectionHandle,
    pub(crate) publishing: ConnectionHandle,
    listening: Channel,
    reading: Channel,
    /// The context for requests to JetStream.
    pub(crate) api: Context,
    pub(crate) store: Context,
    counters: Arc<Counters>,
    pub(crate) consumers_named: AtomicU64,
}

#[derive(Default)]
struct Counters {
    slow_consumer_drops: AtomicU64,
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("name", &self.shared.prepared.name).finish_non_exhaustive()
    }
}

impl Bus {
    /// Connects; waits while NATS is unreachable, and logs that once.
    ///
    /// # Errors
    /// Only [`BusError::Config`]: the settings are wrong, or the server does not accept them.
    pub async fn connect(config: &BusConfig) -> Result<Self, BusError> {
        crate::metrics::register();
        let prepared = config.prepare().await?;
        let counters = Arc::new(Counters::default());
        let control = ConnectionHandle::open(&prepared, &counters, "control", |options| options).await?;
        let publishing =
            ConnectionHandle::open(&prepared, &counters, "publishing", |it| it.client_capacity(16_384))
                .await?;
        let max_payload = publishing.client.max_payload();
        if max_payload < MIN_MAX_PAYLOAD {
            return Err(BusError::Config(format!(
                "the server takes messages of at most {max_payload} bytes: set its max_payload to {MIN_MAX_PAYLOAD} or more (1 MiB is its default)"
            )));
        }
        let api = ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(control.client.clone());
        let store = ContextBuilder::new().timeout(ACK_TIMEOUT).ack_timeout(ACK_TIMEOUT);
        let store = store.max_ack_inflight(ACKS_IN_FLIGHT).build(publishing.client.clone());
        let shared = Connections {
            prepared,
            control,
            publishing,
            listening: Channel::new("listening"),
            reading: Channel::new("reading"),
            api,
            store,
            counters,
            consumers_named: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// True if the connections for requests and for publishing are up now.
    pub fn is_connected(&self) -> bool {
        self.shared.control.is_connected() && self.shared.publishing.is_connected()
    }

    /// The open connections, each with its role.
    pub(crate) fn connections(&self) -> Vec<(&'static str, ConnectionHandle)> {
        let shared = &self.shared;
        let mut open = vec![("control", shared.control.clone()), ("publishing", shared.publishing.clone())];
        for channel in [&shared.listening, &shared.reading] {
            open.extend(channel.opened().map(|link| (channel.role, link)));
        }
        open
    }

    /// The maximum size of a message in bytes, headers included.
    pub fn max_payload(&self) -> usize {
        self.shared.publishing.client.max_payload()
    }

    /// Maximum bytes of text in a message that has several chunks or frames, so that the message
    /// fits the server's current limit.
    pub fn page_bytes(&self) -> usize {
        PAGE_BYTES.min(self.max_payload() / PARTS_OF_PAYLOAD)
    }

    /// A lower bound for the number of messages that the client dropped because a subscription was
    /// read too slowly.
    pub fn slow_consumer_drops(&self) -> u64 {
        self.shared.counters.slow_consumer_drops.load(Ordering::Relaxed)
    }

    /// The connection that all partition readers share.
    pub(crate) async fn reading(&self) -> Result<ConnectionHandle, BusError> {
        self.shared.reading.link(&self.shared).await
    }

    /// The connection on which gateways subscribe and query. One connection preserves the order:
    /// the reply to a query cannot overtake a message that was published after a subscription.
    pub(crate) async fn listening(&self) -> Result<ConnectionHandle, BusError> {
        self.shared.listening.link(&self.shared).await
    }
}

/// One connection and its events.
#[derive(Clone)]
pub(crate) struct ConnectionHandle {
    pub(crate) client: Client,
    /// Changes shortly after each connect; closed when the connection's task has ended for good.
    connects: watch::Receiver<()>,
}

impl ConnectionHandle {
    async fn open(
        prepared: &PreparedConfig,
        counters: &Arc<Counters>,
        role: &'static str,
        tune: impl FnOnce(ConnectOptions) -> ConnectOptions,
    ) -> Result<Self, BusError> {
        let (connected, connects) = watch::channel(());
        let counters = counters.clone();
        let options = leave_lost_ones(tune(prepared.options.clone()))
            .name(format!("{} {role}", prepared.name))
            .event_callback(move |event| {
                observe(&event, role, &connected, &counters);
                std::future::ready(())
            });
        let client = connect_until_ready(prepared, &options, role).await?;
        Ok(Self { client, connects })
    }

    pub(crate) fn is_connected(&self) -> bool {
        !self.is_closed() && self.client.connection_state() == State::Connected
    }

    /// Creates a watch of this connection that fires when the client reconnects.
    pub(crate) fn watch(&self) -> LivenessWatch {
        LivenessWatch { connects: self.connects.clone(), baseline: self.connect_count(), link: self.clone() }
    }

    fn connect_count(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Acquire)
    }

    /// True if the connection's task has ended for good.
    pub(crate) fn is_closed(&self) -> bool {
        self.connects.has_changed().is_err()
    }
}

/// Detects any reconnect since it was created.
pub(crate) struct LivenessWatch {
    link: ConnectionHandle,
    connects: watch::Receiver<()>,
    baseline: u64,
}

/// The way in which a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disconnected {
    /// The client has reconnected.
    Reconnected,
    /// The task of the connection has ended.
    Closed,
}

impl LivenessWatch {
    pub(crate) fn link(&self) -> &ConnectionHandle {
        &self.link
    }

    /// Watches the current connection from now on.
    pub(crate) fn renew(&mut self) {
        self.baseline = self.link.connect_count();
    }

    /// Waits for the end of the connection. Cancel-safe.
    pub(crate) async fn lost(&mut self) -> Disconnected {
        // The event arrives after the connect, so only the count shows whether the event is old.
        while self.link.connect_count() == self.baseline {
            if self.connects.changed().await.is_err() {
                return Disconnected::Closed;
            }
        }
        Disconnected::Reconnected
    }
}

/// A connection that is opened on demand, and again after it has ended for good.
struct Channel {
    role: &'static str,
    link: Mutex<Option<ConnectionHandle>>,
}

impl Channel {
    fn new(role: &'static str) -> Self {
        Self { role, link: Mutex::new(None) }
    }

    /// The connection, if it is open and is not being opened now.
    fn opened(&self) -> Option<ConnectionHandle> {
        self.link.try_lock().ok()?.clone()
    }

    async fn link(&self, shared: &Connections) -> Result<ConnectionHandle, BusError> {
        let mut place = self.link.lock().await;
        match &*place {
            Some(link) if !link.is_closed() => Ok(link.clone()),
            _ => {
                let link =
                    ConnectionHandle::open(&shared.prepared, &shared.counters, self.role, |options| options)
                        .await?;
                Ok(place.insert(link).clone())
            }
        }
    }
}

async fn connect_until_ready(
    prepared: &PreparedConfig,
    options: &ConnectOptions,
    role: &'static str,
) -> Result<Client, BusError> {
    retry(Backoff::default(), "connecting to NATS", || async {
        match options.clone().connect(&prepared.servers[..]).await {
            Ok(client) => Ok(Ok(client)),
            Err(error) => match final_error(prepared, &error) {
                Some(wrong) => Ok(Err(wrong)),
                None => Err(format!("{} ({role}): {error}", prepared.describe())),
            },
        }
    })
    .await
}

/// The error for a failure that waiting does not remove. An unknown host name is not such a
/// failure: in a cluster, names appear together with their hosts.
fn final_error(prepared: &PreparedConfig, error: &ConnectError) -> Option<BusError> {
    if let Some(refused) = refused_certificate(error) {
        let why = refused.describe(&prepared.authorities);
        return Some(BusError::Config(format!("{}: {why}", prepared.describe())));
    }
    match error.kind() {
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::Tls => Some(BusError::Config(error.to_string())),
        ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => None,
    }
}

fn observe(event: &Event, role: &'static str, connected: &watch::Sender<()>, counters: &Counters) {
    match event {
        Event::Connected => {
            connected.send_replace(());
            tracing::info!(role, "connected to NATS");
        }
        Event::Disconnected => tracing::warn!(role, "connection to NATS lost"),
        Event::LameDuckMode => tracing::info!(role, "the NATS server is about to stop"),
        Event::SlowConsumer(_) => {
            let before = counters.slow_consumer_drops.fetch_add(1, Ordering::Relaxed);
            // Many drops must not produce many log lines.
            if (before + 1).is_power_of_two() {
                tracing::warn!(
                    role,
                    drops = before + 1,
                    "messages dropped: a subscription is not read fast enough"
                );
            }
        }
        // This event is the only sign of a publish that permissions forbid.
        Event::ServerError(error) => tracing::warn!(role, %error, "NATS refused something"),
        Event::ClientError(ClientError::Other(error)) => {
            tracing::debug!(role, error, "cannot connect to NATS")
        }
        Event::ClientError(error) => tracing::warn!(role, %error, "NATS client"),
        Event::Draining | Event::Closed => tracing::debug!(role, %event, "NATS client"),
    }
}
