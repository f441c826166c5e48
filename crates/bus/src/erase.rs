//! Removes single subjects from streams, and reads their entries.

use std::collections::BTreeMap;

use async_nats::jetstream::stream::{DirectGetErrorKind, InfoError, RawMessageErrorKind};
use bytes::Bytes;
use futures_util::TryStreamExt;
use model::Seq;

use crate::connection::Bus;
use crate::error::BusError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    pub seq: Seq,
    pub subject: String,
    pub payload: Bytes,
}

impl Bus {
    /// Counts the entries of a stream for each subject that matches `filter`.
    ///
    /// # Errors
    /// [`BusError::NoStream`] when the stream does not exist. Otherwise the servers do not answer.
    pub async fn subjects(&self, stream: &str, filter: &str) -> Result<BTreeMap<String, u64>, BusError> {
        let stream = self.named_stream(stream.to_owned()).await?;
        let found = stream.info_with_subjects(filter).await?;
        let subjects: BTreeMap<String, usize> =
            found.try_collect().await.map_err(|error: InfoError| BusError::Unexpected(error.to_string()))?;
        Ok(subjects.into_iter().map(|(subject, count)| (subject, count as u64)).collect())
    }

    /// Removes the entries of one subject (only those below `below`, if given), and returns how
    /// many.
    ///
    /// Entries removed from a partition stream must be below its checkpoint, because the reader
    /// treats a hole above the checkpoint as a loss.
    ///
    /// # Errors
    /// The errors of [`Self::subjects`].
    pub async fn purge_subject(
        &self,
        stream: &str,
        subject: &str,
        below: Option<Seq>,
    ) -> Result<u64, BusError> {
        let stream = self.named_stream(stream.to_owned()).await?;
        let purge = stream.purge().filter(subject);
        Ok(match below {
            Some(below) => purge.sequence(below.0).await?.purged,
            None => purge.await?.purged,
        })
    }

    /// The last entry of a subject according to any replica, which may lack the newest entry.
    ///
    /// # Errors
    /// The servers do not answer, the stream does not exist, or this user is not allowed to read
    /// the subject.
    pub async fn last_entry(&self, stream: &str, subject: &str) -> Result<Option<StoredEntry>, BusError> {
        let stream = self.named_stream(stream.to_owned()).await?;
        match stream.direct_get_last_for_subject(subject).await {
            Ok(entry) => Ok(Some(StoredEntry {
                seq: Seq(entry.sequence),
                subject: entry.subject.to_string(),
                payload: entry.payload,
            })),
            Err(error) if matches!(error.kind(), DirectGetErrorKind::NotFound) => Ok(None),
            Err(error) if matches!(error.kind(), DirectGetErrorKind::TimedOut) => {
                Err(BusError::Timeout("last entry of a subject"))
            }
            Err(error) => Err(BusError::Unexpected(format!("the last entry of {subject}: {error}"))),
        }
    }

    /// The first entry at or after `from` with a subject, which may have wildcards.
    ///
    /// # Errors
    /// The errors of [`Self::subjects`].
    pub async fn next_entry(
        &self,
        stream: &str,
        subject: &str,
        from: Seq,
    ) -> Result<Option<StoredEntry>, BusError> {
        let stream = self.named_stream(stream.to_owned()).await?;
        let found = stream.get_first_raw_message_by_subject(subject, from.0).await;
        match found {
            Ok(entry) => Ok(Some(StoredEntry {
                seq: Seq(entry.sequence),
                subject: entry.subject.to_string(),
                payload: entry.payload,
            })),
            Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => Ok(None),
            Err(error) => Err(BusError::Unexpected(error.to_string())),
        }
    }
}
