//! Reads the state of streams and of workflow consumers, for people.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use futures_util::TryStreamExt;
use model::Seq;
use wire::subject;

use crate::connection::Bus;
use crate::error::BusError;

/// A stream at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamUsage {
    pub entries: u64,
    pub bytes: u64,
    /// The limit in bytes; `None`: no limit.
    pub max_bytes: Option<u64>,
    /// The last sequence ever assigned.
    pub last_seq: Seq,
    /// The configured number of replicas.
    pub replicas: usize,
    /// Replicas other than the leader that are offline or behind.
    pub lagging_replicas: usize,
}

/// The consumer through which the services of one workflow take turn requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowConsumer {
    pub workflow: String,
    /// Requests that no service has taken yet.
    pub pending: u64,
    /// Requests that are being answered.
    pub in_hand: usize,
    /// Pulls that wait for a request: at least one for each service with free capacity.
    pub waiting_pulls: usize,
}

impl Bus {
    /// The usage of a stream; `None` if no stream has that name.
    ///
    /// # Errors
    /// The servers do not answer, or refuse.
    pub async fn stream_usage(&self, stream: &str) -> Result<Option<StreamUsage>, BusError> {
        let found = match self.shared.api.get_stream(stream).await {
            Ok(found) => found,
            Err(error) => {
                return match error.kind() {
                    GetStreamErrorKind::JetStream(refusal)
                        if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                    {
                        Ok(None)
                    }
                    _ => Err(BusError::Unexpected(error.to_string())),
                };
            }
        };
        let info = found.cached_info();
        let lagging = info.cluster.iter().flat_map(|cluster| &cluster.replicas);
        Ok(Some(StreamUsage {
            entries: info.state.messages,
            bytes: info.state.bytes,
            max_bytes: u64::try_from(info.config.max_bytes).ok(),
            last_seq: Seq(info.state.last_sequence),
            replicas: info.config.num_replicas,
            lagging_replicas: lagging.filter(|replica| replica.offline || !replica.current).count(),
        }))
    }

    /// The consumers of all workflows whose services have ever run.
    ///
    /// # Errors
    /// [`BusError::NoStream`] when the stream of turn requests does not exist. Otherwise the
    /// servers do not answer.
    pub async fn workflow_consumers(&self) -> Result<Vec<WorkflowConsumer>, BusError> {
        let stream = self.named_stream(subject::WORK_STREAM.to_owned()).await?;
        let found: Vec<_> = stream
            .consumers()
            .try_collect()
            .await
            .map_err(|error| BusError::Unexpected(error.to_string()))?;
        let shown = |info: async_nats::jetstream::consumer::Info| {
            let workflow = subject::workflow_of_consumer(&info.name)?.to_owned();
            Some(WorkflowConsumer {
                workflow,
                pending: info.num_pending,
                in_hand: info.num_ack_pending,
                waiting_pulls: info.num_waiting,
            })
        };
        Ok(found.into_iter().filter_map(shown).collect())
    }
}
