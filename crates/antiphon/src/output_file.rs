//! The destination of long output: a file or standard output.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::exit::ExitError;
use crate::output::write_error;

/// Writes lines. A file has another name until it is complete.
pub(crate) struct OutputFile {
    out: Box<dyn Write + Send>,
    names: Option<(PathBuf, PathBuf)>,
}

impl OutputFile {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, ExitError> {
        let Some(path) = path else {
            return Ok(Self { out: Box::new(BufWriter::new(io::stdout())), names: None });
        };
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(|error| {
            ExitError::Failed(format!("{} cannot be written: {error}", partial.display()))
        })?;
        let out = Box::new(BufWriter::with_capacity(1 << 20, file));
        Ok(Self { out, names: Some((partial, path.to_owned())) })
    }

    pub(crate) fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), ExitError> {
        self.out.write_all(bytes.as_ref()).map_err(|error| write_error(&error))
    }

    pub(crate) fn close(mut self) -> Result<(), ExitError> {
        self.out.flush().map_err(|error| write_error(&error))?;
        match &self.names {
            Some((partial, path)) => std::fs::rename(partial, path).map_err(|error| write_error(&error)),
            None => Ok(()),
        }
    }
}
