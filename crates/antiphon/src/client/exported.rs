//! Writes the lines of an export into a file, as they come.

use reqwest::Response;
use serde_json::Value;

use super::arguments::Call;
use super::refusal::unreachable;
use crate::exit::ExitError;
use crate::output;
use crate::output::OutputFormat;
use crate::output_file::OutputFile;

/// Beginning of the last line of a complete export.
const TRAILER: &[u8] = b"{\"trailer\":";

/// # Errors
/// The file cannot be written, or the export was cut.
pub(super) async fn run(call: &Call, mut response: Response) -> Result<(), ExitError> {
    let (mut file, mut last) = (OutputFile::open(call.file.as_deref())?, Vec::new());
    while let Some(bytes) = response.chunk().await.map_err(|error| unreachable(call, &error))? {
        file.write(&bytes)?;
        keep_last_line(&mut last, &bytes);
    }
    // Servers between this program and the gateway may end a response that was cut.
    if !last.starts_with(TRAILER) || !last.ends_with(b"\n") {
        return Err(ExitError::Failed("the export was cut: it has no last line with its counts".to_owned()));
    }
    file.close()?;
    let trailer: Value = serde_json::from_slice(&last).unwrap_or_default();
    let counts = &trailer["trailer"];
    match (call.output.format(), &call.file) {
        (format, Some(_)) => output::print(format, counts, || output::key_value_table(counts)),
        (OutputFormat::Table, None) => {
            let said = |name: &str| format!("{} {name}", output::cell(&counts[name]));
            let names = ["threads", "batches", "messages", "compactions"].map(said);
            output::eprint_line(&names.join(", "));
            Ok(())
        }
        (OutputFormat::Json, None) => Ok(()),
    }
}

/// Keeps the last line, even if it is not complete yet.
fn keep_last_line(last: &mut Vec<u8>, bytes: &[u8]) {
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if last.ends_with(b"\n") {
            last.clear();
        }
        // Only a trailer is looked at, and it is short.
        if last.len() < 4_096 || line.ends_with(b"\n") {
            last.extend_from_slice(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_last_line_is_a_trailer() {
        let text = b"{\"antiphon_export\":2}\n{\"message\":{}}\n{\"trailer\":{\"threads\":1}}\n";
        for at in 0..text.len() {
            let mut last = Vec::new();
            for part in [&text[..at], &text[at..]] {
                keep_last_line(&mut last, part);
            }
            assert_eq!(last, b"{\"trailer\":{\"threads\":1}}\n", "{at}");
        }
        let mut cut = Vec::new();
        keep_last_line(&mut cut, &text[..text.len() - 20]);
        assert!(!cut.ends_with(b"\n"));
    }
}
