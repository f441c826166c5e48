//! Ownership of streams: the metadata of each stream has the id of its installation.
//!
//! Entry point: [`Bus::check_installation`]. Two fleets on one NATS account would read each other's
//! streams, so every user of streams checks first. Only [`Bus::ensure_streams`] writes the id.

use async_nats::jetstream::stream::Config;
use futures_util::{StreamExt, TryStreamExt};
use model::PartitionCount;
use wire::subject;

use crate::connection::Bus;
use crate::error::BusError;

/// The key of the installation id in a stream's metadata.
pub const INSTALLATION: &str = "antiphon.installation";

/// Streams checked concurrently.
const CONCURRENT_STREAMS: usize = 8;

/// The installation that a stream belongs to; `None`: the stream is not marked yet.
pub(crate) fn of_stream(config: &Config) -> Option<&str> {
    config.metadata.get(INSTALLATION).map(String::as_str)
}

impl Bus {
    /// Fails when a stream of a fleet with `count` partitions belongs to an installation other than
    /// `ours`. Missing and unmarked streams belong to no installation.
    ///
    /// # Errors
    /// [`BusError::OtherInstallation`]. Otherwise the servers do not answer.
    pub async fn check_installation(&self, ours: &str, count: PartitionCount) -> Result<(), BusError> {
        let partitions = count.all().map(subject::stream_name);
        let fleet_wide =
            [subject::WORK_STREAM, subject::TURNS_STREAM, subject::TOOL_CALLS_STREAM].map(str::to_owned);
        self.check_streams(fleet_wide.into_iter().chain(partitions), ours).await
    }

    /// Does [`Self::check_installation`] for one stream, in a process that is not allowed to query
    /// other streams.
    ///
    /// # Errors
    /// The errors of [`Self::check_installation`].
    pub async fn check_stream_installation(&self, stream: &str, ours: &str) -> Result<(), BusError> {
        match self.installation_of(stream).await? {
            Some(theirs) if theirs != ours => {
                Err(BusError::OtherInstallation { stream: stream.to_owned(), theirs, ours: ours.to_owned() })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Partition streams beyond those of a fleet with `count` partitions. A change of the number
    /// has left them behind.
    ///
    /// # Errors
    /// The servers do not answer.
    pub async fn streams_beyond(&self, count: PartitionCount) -> Result<Vec<String>, BusError> {
        let names = self.shared.api.stream_names().try_collect::<Vec<String>>().await;
        let mut names = names.map_err(|error| BusError::Unexpected(error.to_string()))?;
        let number = |name: &str| name.strip_prefix("PARTITION_")?.parse::<u16>().ok();
        names.retain(|name| number(name).is_some_and(|number| number >= count.get()));
        names.sort_by_key(|name| number(name));
        Ok(names)
    }

    pub(crate) async fn check_streams(
        &self,
        names: impl Iterator<Item = String>,
        ours: &str,
    ) -> Result<(), BusError> {
        let checked = futures_util::stream::iter(names)
            .map(|name| async move { self.check_stream_installation(&name, ours).await })
            .buffered(CONCURRENT_STREAMS);
        checked.try_collect().await
    }

    /// The installation that a stream belongs to; `None`: the stream does not exist or is not
    /// marked.
    ///
    /// # Errors
    /// The servers do not answer.
    pub async fn installation_of(&self, stream: &str) -> Result<Option<String>, BusError> {
        match self.info_of(stream.to_owned()).await {
            Ok(info) => Ok(of_stream(&info.config).map(str::to_owned)),
            Err(BusError::NoStream(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
