//! The progress of an import, saved in a file.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use transfer::ImportMark;

use crate::exit::ExitError;

/// The file with the progress, if one is given.
#[derive(Debug)]
pub(super) struct MarkFile(Option<PathBuf>);

impl MarkFile {
    pub(super) fn new(path: Option<&Path>) -> Self {
        Self(path.map(Path::to_owned))
    }

    /// Where the import continues; `None` from the beginning.
    pub(super) fn read(&self) -> Result<Option<ImportMark>, ExitError> {
        let Some(path) = &self.0 else { return Ok(None) };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(path, &error)),
        };
        let wrong = |_| ExitError::Failed(format!("{} is not a cursor of an import", path.display()));
        serde_json::from_str(&text).map(Some).map_err(wrong)
    }

    /// Saves the mark. Everything up to it must be stored.
    pub(super) fn write(&self, mark: &ImportMark) -> Result<(), ExitError> {
        let Some(path) = &self.0 else { return Ok(()) };
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        serde_json::to_vec(mark)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&partial, text))
            .and_then(|()| fs::rename(&partial, path))
            .map_err(|error| failed(path, &error))
    }

    /// Removes the file at the end of the import.
    pub(super) fn remove(&self) -> Result<(), ExitError> {
        match self.0.as_ref().map(|path| (path, fs::remove_file(path))) {
            Some((path, Err(error))) if error.kind() != ErrorKind::NotFound => Err(failed(path, &error)),
            _ => Ok(()),
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> ExitError {
    ExitError::Failed(format!("the cursor {} cannot be kept: {error}", path.display()))
}
