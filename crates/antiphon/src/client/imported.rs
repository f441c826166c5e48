//! Sends the lines of an export, and shows what was imported.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use reqwest::{Body, Client, Response};
use serde_json::Value;
use tokio::sync::mpsc;

use super::arguments::Call;
use super::refusal::unreachable;
use super::request::send_body;
use crate::exit::ExitError;
use crate::output;

const JSON_LINES: &str = "application/x-ndjson";
/// Bytes that are read at once, and parts that wait to be sent.
const PART_BYTES: usize = 256 << 10;
const PARTS: usize = 2;
/// Maximum size of a line of the answer.
const MAX_LINE_BYTES: usize = 1 << 20;

/// # Errors
/// The file cannot be read, or not all of it was imported.
pub(super) async fn run(client: &Client, call: &Call) -> Result<(), ExitError> {
    let body = body(call.file.as_deref())?;
    let response = send_body(client, call, &call.query, Some((JSON_LINES, body))).await?;
    let end = end_of(call, response).await?;
    let counts = &end["counts"];
    output::print(call.output.format(), counts, || output::key_value_table(counts))?;
    let count = |name: &str| counts[name].as_u64().unwrap_or_default();
    let again = format!(
        "{} new messages are stored; import the whole file again to complete it",
        count("new_messages")
    );
    match (end["complete"] == true, count("refused")) {
        (true, 0) => Ok(()),
        (true, refused) => Err(ExitError::Failed(format!("{refused} threads or sessions were refused"))),
        (false, _) => {
            let error = &end["error"];
            let (detail, code) = (output::cell(&error["detail"]), output::cell(&error["code"]));
            Err(ExitError::Failed(format!("{detail} ({code}); {again}")))
        }
    }
}

/// The input as a body. A thread of its own reads it, because standard input may be slow.
fn body(path: Option<&Path>) -> Result<Body, ExitError> {
    let input: Box<dyn Read + Send> = match path {
        Some(path) => Box::new(
            File::open(path)
                .map_err(|error| ExitError::Failed(format!("{} cannot be read: {error}", path.display())))?,
        ),
        None => Box::new(io::stdin()),
    };
    let (parts, received) = mpsc::channel::<io::Result<Bytes>>(PARTS);
    // It ends with the input or with the receiver.
    tokio::task::spawn_blocking(move || read(input, &parts));
    let parts = stream::unfold(received, |mut received| async {
        let part = received.recv().await?;
        Some((part, received))
    });
    Ok(Body::wrap_stream(parts))
}

fn read(mut input: Box<dyn Read + Send>, parts: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut bytes = BytesMut::zeroed(PART_BYTES);
        let part = match input.read(&mut bytes) {
            Ok(0) => return,
            Ok(read) => {
                bytes.truncate(read);
                Ok(bytes.freeze())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = part.is_err();
        if parts.blocking_send(part).is_err() || is_last {
            return;
        }
    }
}

/// Prints the reports, and returns the last line.
async fn end_of(call: &Call, mut response: Response) -> Result<Value, ExitError> {
    let mut open = Vec::new();
    while let Some(bytes) = response.chunk().await.map_err(|error| unreachable(call, &error))? {
        open.extend_from_slice(&bytes);
        while let Some(at) = open.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = open.drain(..=at).collect();
            let mut line: Value = serde_json::from_slice(&line).unwrap_or_default();
            if let Some(detail) = line["report"]["detail"].as_str() {
                output::eprint_line(detail);
            }
            let end = line["end"].take();
            if end.is_object() {
                return Ok(end);
            }
        }
        if open.len() > MAX_LINE_BYTES {
            break;
        }
    }
    let why = "the answer was cut: import the whole file again, what is stored does not change";
    Err(ExitError::Failed(why.to_owned()))
}
