//! The errors with which a process ends.

use bus::BusError;
use erasing::EraseError;
use store::{MigrateError, StoreError};
use tokenizer::VocabularyError;
use workflow::WorkflowError;

#[derive(Debug)]
pub(crate) enum ExitError {
    /// An operator or user has to change something.
    Configuration(String),
    /// A service or task that the process needs has failed.
    Failed(String),
    /// The reader of the output has closed it, as `head` does when it has enough.
    OutputClosed,
}

impl From<StoreError> for ExitError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Url(_)
            | StoreError::Tls(_)
            | StoreError::Refused(_)
            | StoreError::Pooler(_)
            | StoreError::PartitionCount { .. } => Self::Configuration(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<MigrateError> for ExitError {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Store(error) => error.into(),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<BusError> for ExitError {
    fn from(error: BusError) -> Self {
        match error {
            BusError::Config(_) | BusError::OtherInstallation { .. } => {
                Self::Configuration(error.to_string())
            }
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<EraseError> for ExitError {
    fn from(error: EraseError) -> Self {
        match error {
            EraseError::Store(error) => error.into(),
            EraseError::Bus(error) => error.into(),
            error @ EraseError::NotMigrated => Self::Failed(error.to_string()),
        }
    }
}

impl From<VocabularyError> for ExitError {
    fn from(error: VocabularyError) -> Self {
        Self::Configuration(error.to_string())
    }
}

impl From<WorkflowError> for ExitError {
    fn from(error: WorkflowError) -> Self {
        match error {
            WorkflowError::Endpoint(_) => Self::Configuration(error.to_string()),
            WorkflowError::Bus(_) => Self::Failed(error.to_string()),
        }
    }
}
