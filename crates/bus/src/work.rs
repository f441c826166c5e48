//! Turn requests, which workflow services take from the stream `WORK`, one at a time.
//!
//! A request is fetched only when a caller waits for it. If a busy client prefetched a request, it
//! would be redelivered to another service, as another attempt, and answered twice.

mod progress;
mod pull;
mod stalled;

use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull as pull_consumer};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::message::Message;
use async_nats::{Request, RequestErrorKind, Subject};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::{Seq, WorkflowName};
use runtime::Backoff;
use runtime::traces::TraceContext;
use wire::subject;

use crate::config::REQUEST_TIMEOUT;
use crate::connection::{Bus, ConnectionHandle};
use crate::error::{BusError, Disposition};
use crate::trace::trace_of;
pub use progress::{StoredWork, WorkAck, WorkAckKind, WorkAcks, WorkProgress};
use pull::PullRequests;

/// A request is redelivered after this time without progress from the service.
pub const ACK_WAIT: Duration = Duration::from_secs(30);

/// Maximum number of deliveries of one request. A turn fails by its deadline long before; this
/// limits a request that crashes its services.
const MAX_DELIVER: i64 = 16;

/// Options of a workflow's services for their requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkOptions {
    /// Maximum number of requests that all services of the workflow together may hold. Only the
    /// first service sets it, because they share the consumer.
    pub max_in_hand: u32,
}

impl Default for WorkOptions {
    fn default() -> Self {
        Self { max_in_hand: 10_000 }
    }
}

impl Bus {
    /// The turn requests for a workflow. No request is sent to the server before
    /// [`WorkSubscription::next`].
    pub fn work(&self, workflow: &WorkflowName, options: WorkOptions) -> WorkSubscription {
        let workflow = workflow.clone();
        WorkSubscription {
            bus: self.clone(),
            workflow,
            options,
            open: None,
            opening: None,
            backoff: Backoff::default(),
            said: false,
        }
    }

    /// Creates the consumer that the services of a workflow share, so that they need no right to
    /// create one.
    ///
    /// # Errors
    /// The servers do not answer, or refuse.
    pub async fn ensure_workflow_consumer(&self, workflow: &WorkflowName) -> Result<(), BusError> {
        consumer(&self.shared.api, workflow, &WorkOptions::default()).await.map(drop)
    }

    /// Creates the durable consumer through which an integrator reads the ends of turns. An
    /// existing one does not change.
    ///
    /// # Errors
    /// The servers do not answer, or refuse.
    pub async fn ensure_integrator_consumer(&self, integrator: &WorkflowName) -> Result<(), BusError> {
        let name = subject::integrator_consumer(integrator);
        let config = pull_consumer::Config {
            durable_name: Some(name.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            ..pull_consumer::Config::default()
        };
        known_or_made(&self.shared.api, subject::TURNS_STREAM, &name, config).await.map(drop)
    }

    /// Deletes a turn request. Returns false when it no longer exists.
    ///
    /// # Errors
    /// The servers do not answer.
    pub async fn delete_work(&self, seq: Seq) -> Result<bool, BusError> {
        let stream = self.named_stream(subject::WORK_STREAM.to_owned()).await?;
        match stream.delete_message(seq.0).await.map_err(BusError::from) {
            Ok(deleted) => Ok(deleted),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// True if the request was acknowledged or never stored. The server has one code for every failed
/// deletion, so only the text distinguishes them.
fn is_gone(error: &BusError) -> bool {
    match error {
        BusError::JetStream { code: 10057, detail, .. } => {
            ["no message found", "EOF", "deleted message"].iter().any(|text| detail.contains(text))
        }
        BusError::JetStream { code, .. } => matches!(code, 10037 | 10043),
        _ => false,
    }
}

/// The turn requests for one workflow; its services share them.
pub struct WorkSubscription {
    bus: Bus,
    workflow: WorkflowName,
    options: WorkOptions,
    open: Option<PullRequests>,
    /// The consumer being opened. It is kept when [`WorkSubscription::next`] is dropped, because
    /// over a slow link opening takes longer than some callers wait.
    opening: Option<BoxFuture<'static, Result<PullRequests, BusError>>>,
    backoff: Backoff,
    said: bool,
}

impl WorkSubscription {
    /// The next request. Waits while there is none, or NATS or the stream is unavailable.
    /// Cancel-safe.
    ///
    /// # Errors
    /// Only errors that waiting does not remove, such as missing permissions.
    pub async fn next(&mut self) -> Result<WorkItem, BusError> {
        loop {
            let error = match self.try_next().await {
                Ok(item) => return Ok(item),
                Err(error) if error.disposition() == Disposition::Retry => error,
                Err(error) => return Err(error),
            };
            self.open = None;
            if !std::mem::replace(&mut self.said, true) {
                tracing::warn!(workflow = %self.workflow, %error, "no turn requests can be read; waiting");
            }
            tokio::time::sleep(self.backoff.next_delay()).await;
        }
    }

    /// Stops requesting, and returns the requests that the server has already sent. If these were
    /// dropped, they would be redelivered only after [`ACK_WAIT`].
    pub async fn end(self) -> Vec<WorkItem> {
        let Some(open) = self.open else { return Vec::new() };
        let link = open.link().clone();
        let messages = open.end().await.into_iter();
        messages.filter_map(|message| WorkItem::of(link.clone(), message).ok()).collect()
    }

    async fn try_next(&mut self) -> Result<WorkItem, BusError> {
        let open = match &mut self.open {
            Some(open) => open,
            place => {
                let opening = self.opening.get_or_insert_with(|| {
                    open(self.bus.clone(), self.workflow.clone(), self.options.clone()).boxed()
                });
                let opened = opening.await;
                self.opening = None;
                place.insert(opened?)
            }
        };
        let message = open.next().await?;
        self.backoff.reset();
        if std::mem::take(&mut self.said) {
            tracing::info!(workflow = %self.workflow, "turn requests come again");
        }
        WorkItem::of(open.link().clone(), message)
    }
}

async fn open(bus: Bus, workflow: WorkflowName, options: WorkOptions) -> Result<PullRequests, BusError> {
    let link = bus.listening().await?;
    if !link.is_connected() {
        return Err(BusError::Away);
    }
    let context = ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(link.client.clone());
    let consumer = consumer(&context, &workflow, &options).await?;
    PullRequests::open(&link, context, subject::WORK_STREAM, &consumer.cached_info().name).await
}

/// The consumer that the services of a workflow share. An existing one does not change, because it
/// may have been tuned.
async fn consumer(
    context: &Context,
    workflow: &WorkflowName,
    options: &WorkOptions,
) -> Result<Consumer<pull_consumer::Config>, BusError> {
    let name = subject::work_consumer(workflow);
    let config = pull_consumer::Config {
        durable_name: Some(name.clone()),
        filter_subject: subject::work(workflow),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_ack_pending: options.max_in_hand.into(),
        max_deliver: MAX_DELIVER,
        ..pull_consumer::Config::default()
    };
    match known_or_made(context, subject::WORK_STREAM, &name, config).await {
        // A NATS user without the right to create a consumer gets no answer.
        Err(BusError::Timeout(MAKING)) => Err(BusError::NoConsumer { name, workflow: workflow.to_string() }),
        made => made,
    }
}

/// The text of the timeout error of a consumer creation.
const MAKING: &str = "consumer creation";

async fn known_or_made(
    context: &Context,
    stream: &str,
    name: &str,
    config: pull_consumer::Config,
) -> Result<Consumer<pull_consumer::Config>, BusError> {
    match context.get_consumer_from_stream(name, stream).await.map_err(BusError::from) {
        Err(BusError::JetStream { code: 10014, .. }) => {}
        known => return known,
    }
    Ok(context.create_consumer_on_stream(config, stream).await?)
}

/// One turn request that this service holds. Without an answer within [`ACK_WAIT`] it is
/// redelivered.
pub struct WorkItem {
    pub payload: Bytes,
    /// The number of deliveries of the request, from 1.
    pub delivered: u32,
    /// The sequence of the request in the stream.
    pub seq: Seq,
    /// The trace that the owner of the turn has set.
    pub trace: Option<TraceContext>,
    link: ConnectionHandle,
    /// The subject for acknowledgements.
    reply: Subject,
}

impl WorkItem {
    fn of(link: ConnectionHandle, message: Message) -> Result<Self, BusError> {
        let (delivered, seq) = {
            let info = message.info().map_err(|error| BusError::Unexpected(error.to_string()))?;
            (u32::try_from(info.delivered).unwrap_or(1).max(1), Seq(info.stream_sequence))
        };
        let message = message.message;
        let reply =
            message.reply.ok_or_else(|| BusError::Unexpected("a request without a reply".to_owned()))?;
        let trace = message.headers.as_ref().filter(|_| runtime::traces::is_on()).and_then(trace_of);
        Ok(Self { payload: message.payload, delivered, seq, trace, link, reply })
    }

    /// Reports progress, so that [`ACK_WAIT`] restarts. Returns when the server has answered. The
    /// server answers even for a delivery that it has forgotten.
    ///
    /// # Errors
    /// The server does not answer: the request may be redelivered.
    pub async fn in_progress(&self) -> Result<(), BusError> {
        self.acknowledge(AckKind::Progress).await
    }

    /// Acknowledges the finished request. Returns when the server has answered.
    ///
    /// # Errors
    /// The errors of [`Self::in_progress`].
    pub async fn ack(&self) -> Result<(), BusError> {
        self.acknowledge(AckKind::Ack).await
    }

    /// Returns the request to the server, which redelivers it after `delay`.
    ///
    /// # Errors
    /// The errors of [`Self::in_progress`].
    pub async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        self.acknowledge(AckKind::Nak(Some(delay))).await
    }

    /// Rejects the request for good, so that it is not redelivered.
    ///
    /// # Errors
    /// The errors of [`Self::in_progress`].
    pub async fn term(&self) -> Result<(), BusError> {
        self.acknowledge(AckKind::Term).await
    }

    /// Sends an acknowledgement as a request. The client library's own functions take the status
    /// "no responders" for a confirmation. The server sends that status while the consumer has no
    /// leader and acknowledgements are lost.
    async fn acknowledge(&self, kind: AckKind) -> Result<(), BusError> {
        // Without a connection the client would queue messages, and then block without end.
        if !self.link.is_connected() {
            return Err(BusError::Away);
        }
        let request = Request::new().payload(kind.into()).timeout(None);
        let answered = self.link.client.send_request(self.reply.clone(), request);
        match tokio::time::timeout(REQUEST_TIMEOUT, answered).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Err(BusError::Away),
            Ok(Err(error)) => Err(BusError::Unexpected(error.to_string())),
            Err(_) => Err(BusError::Timeout("answer to a turn request")),
        }
    }
}
