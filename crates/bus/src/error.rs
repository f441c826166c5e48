//! Errors of the bus, classified by the action that should follow.

use async_nats::jetstream;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::stream::{
    ConsumerError, ConsumerErrorKind, DeleteMessageError, DeleteMessageErrorKind, PurgeError, PurgeErrorKind,
};

/// The action that should follow an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Try again after a pause. The cause is the state of the servers, not the request.
    Retry,
    /// Reject this input, because it will always be refused.
    Reject,
    /// Stop the start, because a person must change something.
    Fatal,
}

/// An operation on the bus failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// The URL, the credentials or the certificates are wrong, or the server does not accept them.
    #[error("the NATS settings are wrong: {0}")]
    Config(String),
    #[error("NATS is away")]
    Away,
    #[error("NATS did not answer in time: {0}")]
    Timeout(&'static str),
    /// The stream does not exist, or has no leader.
    #[error("there is no stream: {0}")]
    NoStream(String),
    /// The replica that answers for the stream may lag behind the others.
    #[error("no leader that a majority of the replicas follows answers for {0}")]
    NoLeader(String),
    /// The message is larger than the server or the stream accepts.
    #[error("the message is too large: {0}")]
    TooLarge(String),
    #[error("{0:?} is not a subject to publish to")]
    InvalidSubject(String),
    /// The storage limit of the server or the account leaves no room for a new stream.
    #[error(
        "JetStream cannot reserve {max_bytes} bytes for the stream {stream}: raise max_file_store of the NATS server (or the account's \
         limit), or lower ANTIPHON_STREAM_MAX_BYTES"
    )]
    NoStorage {
        stream: String,
        /// Bytes to reserve.
        max_bytes: i64,
    },
    /// Several replicas were requested, but the server has no cluster.
    #[error(
        "NATS runs as one server and cannot keep {replicas} replicas of a stream: set ANTIPHON_STREAM_REPLICAS to 1, or run three servers as a \
         cluster"
    )]
    NoCluster {
        /// The requested number of replicas.
        replicas: usize,
    },
    /// Two fleets use one NATS account.
    #[error(
        "the stream {stream} belongs to another installation ({theirs}; this database is {ours}): give each fleet a NATS account of its own, or \
         mend NATS_URL or DATABASE_URL; if this database takes the place of the other one, stop the other fleet and run `antiphon migrate \
         --adopt-streams`"
    )]
    OtherInstallation {
        stream: String,
        /// The installation that the stream belongs to.
        theirs: String,
        /// The installation of the caller.
        ours: String,
    },
    /// The consumer of a workflow is missing, and this NATS user is not allowed to create it.
    #[error(
        "there is no consumer {name}, and it could not be made: run `antiphon migrate --workflows {workflow}` as an operator, or let this NATS \
         user make it"
    )]
    NoConsumer { name: String, workflow: String },
    /// JetStream refused the request.
    #[error("JetStream: {detail} (error {code})")]
    JetStream {
        /// Status of the answer, similar to an HTTP status.
        status: usize,
        /// JetStream's own code.
        code: u64,
        detail: String,
    },
    /// NATS sent an unexpected answer.
    #[error("NATS answered with something unexpected: {0}")]
    Unexpected(String),
}

impl BusError {
    /// The action that should follow.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Away
            | Self::Timeout(_)
            | Self::NoStream(_)
            | Self::NoLeader(_)
            | Self::NoConsumer { .. }
            | Self::Unexpected(_) => Disposition::Retry,
            Self::TooLarge(_) | Self::InvalidSubject(_) => Disposition::Reject,
            Self::Config(_)
            | Self::NoStorage { .. }
            | Self::NoCluster { .. }
            | Self::OtherInstallation { .. } => Disposition::Fatal,
            // There are too many consumers. Consumers of dead readers expire, so a later try may
            // succeed.
            Self::JetStream { code: 10026, .. } => Disposition::Retry,
            // The same message was sent a moment ago, and the cluster has not stored it yet.
            Self::JetStream { code: 10158, .. } => Disposition::Retry,
            Self::JetStream { status, .. } if *status >= 500 => Disposition::Retry,
            Self::JetStream { .. } => Disposition::Fatal,
        }
    }

    pub(crate) fn api(error: &jetstream::Error) -> Self {
        match error.error_code() {
            ErrorCode::STREAM_NOT_FOUND => Self::NoStream(error.to_string()),
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => Self::TooLarge(error.to_string()),
            code => Self::JetStream { status: error.code(), code: code.0, detail: error.to_string() },
        }
    }
}

impl From<RequestError> for BusError {
    fn from(error: RequestError) -> Self {
        // The library wraps JetStream's own errors in "other".
        let source = std::error::Error::source(&error).and_then(|it| it.downcast_ref::<jetstream::Error>());
        if let Some(source) = source {
            return Self::api(source);
        }
        match error.kind() {
            RequestErrorKind::NoResponders => Self::JetStream {
                status: 503,
                code: 0,
                detail: "no JetStream answers (not enabled, not up yet, or not permitted)".to_owned(),
            },
            RequestErrorKind::TimedOut => Self::Timeout("JetStream request"),
            RequestErrorKind::InvalidSubject | RequestErrorKind::Other => Self::Unexpected(error.to_string()),
        }
    }
}

impl From<CreateStreamError> for BusError {
    fn from(error: CreateStreamError) -> Self {
        match error.kind() {
            CreateStreamErrorKind::JetStream(error) => Self::api(&error),
            CreateStreamErrorKind::NotFound => Self::NoStream(error.to_string()),
            CreateStreamErrorKind::TimedOut => Self::Timeout("stream creation"),
            _ => Self::Unexpected(error.to_string()),
        }
    }
}

impl From<ConsumerError> for BusError {
    fn from(error: ConsumerError) -> Self {
        match error.kind() {
            ConsumerErrorKind::JetStream(error) => Self::api(&error),
            ConsumerErrorKind::TimedOut => Self::Timeout("consumer creation"),
            _ => Self::Unexpected(error.to_string()),
        }
    }
}

impl From<PurgeError> for BusError {
    fn from(error: PurgeError) -> Self {
        match error.kind() {
            PurgeErrorKind::JetStream(error) => Self::api(&error),
            PurgeErrorKind::TimedOut => Self::Timeout("purge"),
            PurgeErrorKind::Request => Self::Unexpected(error.to_string()),
        }
    }
}

impl From<DeleteMessageError> for BusError {
    fn from(error: DeleteMessageError) -> Self {
        match error.kind() {
            DeleteMessageErrorKind::JetStream(error) => Self::api(&error),
            DeleteMessageErrorKind::TimedOut => Self::Timeout("deletion of a message"),
            DeleteMessageErrorKind::Request => Self::Unexpected(error.to_string()),
        }
    }
}

impl From<async_nats::PublishError> for BusError {
    fn from(error: async_nats::PublishError) -> Self {
        match error.kind() {
            async_nats::PublishErrorKind::MaxPayloadExceeded => Self::TooLarge(error.to_string()),
            async_nats::PublishErrorKind::InvalidSubject => Self::InvalidSubject(error.to_string()),
            async_nats::PublishErrorKind::Send => Self::Away,
        }
    }
}

impl From<async_nats::SubscribeError> for BusError {
    fn from(error: async_nats::SubscribeError) -> Self {
        match error.kind() {
            async_nats::SubscribeErrorKind::InvalidSubject => Self::InvalidSubject(error.to_string()),
            async_nats::SubscribeErrorKind::InvalidQueueName | async_nats::SubscribeErrorKind::Other => {
                Self::Away
            }
        }
    }
}
