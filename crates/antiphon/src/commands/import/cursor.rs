//! The progress of an import, saved in a file.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use batches::export_import::Cursor;
use model::Position;
use serde_json::{Value, json};

use crate::exit::ExitError;

/// The saved state from which an import continues.
#[derive(Debug)]
pub(super) struct Saved {
    /// The last batch that is stored.
    pub(super) cursor: Cursor,
    /// Stored batches of the same thread that extend beyond the cursor's batch, with their last
    /// messages.
    pub(super) beside: Vec<(Position, Position)>,
}

/// Serialized progress of the import.
#[derive(Debug)]
pub(super) struct Mark(String);

/// The file with the progress, if one is given.
#[derive(Debug)]
pub(super) struct CursorFile {
    path: Option<PathBuf>,
    reached: Option<Cursor>,
}

impl CursorFile {
    pub(super) fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), reached: None }
    }

    /// Where the import continues; `None` from the beginning.
    pub(super) fn read(&self) -> Result<Option<Saved>, ExitError> {
        let Some(path) = &self.path else { return Ok(None) };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(path, &error)),
        };
        let wrong = || ExitError::Failed(format!("{} is not a cursor of an import", path.display()));
        let value: Value = serde_json::from_str(&text).map_err(|_| wrong())?;
        let cursor = serde_json::from_value(value["cursor"].clone()).map_err(|_| wrong())?;
        let beside = serde_json::from_value(value["beside"].clone()).map_err(|_| wrong())?;
        Ok(Some(Saved { cursor, beside }))
    }

    /// Records that this batch was read; it is not stored yet.
    pub(super) fn reached(&mut self, cursor: Cursor) {
        self.reached = Some(cursor);
    }

    /// The progress once everything that was read so far is stored; `None` without a cursor file.
    pub(super) fn mark(&self, beside: &[(Position, Position)]) -> Option<Mark> {
        let cursor = self.path.as_ref().and(self.reached.as_ref())?;
        Some(Mark(json!({ "cursor": cursor, "beside": beside }).to_string()))
    }

    /// Saves the mark. Everything up to it must be stored.
    pub(super) fn write(&self, mark: &Mark) -> Result<(), ExitError> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        fs::write(&partial, &mark.0)
            .and_then(|()| fs::rename(&partial, path))
            .map_err(|error| failed(path, &error))
    }

    /// Removes the file at the end of the import.
    pub(super) fn remove(&self) -> Result<(), ExitError> {
        match self.path.as_ref().map(|path| (path, fs::remove_file(path))) {
            Some((path, Err(error))) if error.kind() != ErrorKind::NotFound => Err(failed(path, &error)),
            _ => Ok(()),
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> ExitError {
    ExitError::Failed(format!("the cursor {} cannot be kept: {error}", path.display()))
}
