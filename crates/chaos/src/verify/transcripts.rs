//! Converts the events that clients received for the shared checker, and checks the rules that
//! concern HTTP connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use model::{Chunk, ChunkKind, MessageId, ThreadId};
use simulation::checker::{self, SeenEvent};

use super::evidence::Findings;
use testkit::{
    db_snapshot::{DeadLetterRow, EndRow},
    sse::{ReceivedChunk, StreamEnd, StreamEvent, Transcript},
};

/// The connections of one client as one transcript of the shared checker. Its text continues from
/// connection to connection, like its cursor.
pub(super) fn translate(
    number: usize,
    thread: &str,
    transcripts: &[Transcript],
    findings: &mut Findings,
) -> Option<checker::Transcript> {
    let id = ThreadId::parse(thread)
        .map_err(|error| findings.add("a thread has an id", thread, error.to_string()));
    let (mut seen, mut ids) = (Vec::new(), BTreeSet::<&str>::new());
    for (connection, transcript) in transcripts.iter().enumerate() {
        if connection > 0 {
            seen.push(SeenEvent::Cut);
        }
        for received in &transcript.events {
            match &received.event {
                // Ids repeat in a message that is sent again, and after a position to which the
                // client went back.
                StreamEvent::Reset { message, .. } => ids.retain(|id| !names(id, message)),
                StreamEvent::Restart { after } => {
                    let after = base(after);
                    ids.retain(|id| base(id) < after);
                }
                _ => {}
            }
            if let Some(id) = received.id.as_deref().filter(|id| !ids.insert(id)) {
                seen.push(SeenEvent::RepeatedId { id: id.to_owned() });
            }
            match translated(&received.event) {
                Ok(event) => seen.extend(event),
                Err(error) => {
                    let place = format!("{thread}, connection {connection} to {}", transcript.gateway);
                    findings.add("an event makes sense", place, format!("{:?}: {error:#}", received.event));
                }
            }
        }
    }
    Some(checker::Transcript {
        client: number.to_string(),
        thread: id.ok()?,
        since: since(transcripts),
        seen,
        is_connected: true,
    })
}

/// The position after which a client must receive every end. It comes from the cursor that the
/// client sent, or otherwise from the `ready` of its first connection.
pub(super) fn since(transcripts: &[Transcript]) -> Option<i64> {
    let cursor =
        |connection: &Transcript| connection.last_event_id.clone().or_else(|| connection.ready.clone());
    transcripts.iter().find_map(cursor).and_then(|id| base(&id))
}

/// True if an event's id contains the client's place in this message. The id has
/// `<position>~<message>.<attempt>...` for each open message.
fn names(id: &str, message: &str) -> bool {
    let of_message = |part: &str| part.strip_prefix(message).is_some_and(|rest| rest.starts_with('.'));
    id.split('~').skip(1).any(of_message)
}

/// The position in an event's id.
fn base(id: &str) -> Option<i64> {
    id.split('~').next().and_then(|base| base.parse().ok())
}

fn translated(event: &StreamEvent) -> Result<Option<SeenEvent>> {
    let number = |position: &Option<String>| position.as_deref().map(str::parse).transpose();
    Ok(Some(match event {
        StreamEvent::Chunk(event) => chunk(event)?,
        StreamEvent::Reset { message, attempt } => {
            SeenEvent::Reset { message: MessageId::parse(message)?, attempt: *attempt }
        }
        StreamEvent::Complete { message, position, .. } => {
            SeenEvent::Complete { message: MessageId::parse(message)?, position: number(position)? }
        }
        StreamEvent::Failed { message, position, .. } => {
            SeenEvent::Failed { message: MessageId::parse(message)?, position: number(position)? }
        }
        StreamEvent::Restart { after } => SeenEvent::Restart { after: after.parse()? },
        StreamEvent::Other { .. } => return Ok(None),
    }))
}

fn chunk(event: &ReceivedChunk) -> Result<SeenEvent> {
    let message = MessageId::parse(&event.message)?;
    let kind = ChunkKind::from_name(&event.kind).context("an unknown type")?;
    // Subscribers here keep no metadata, because verified runs publish none.
    let chunk = Arc::new(Chunk { kind, ..Chunk::content(event.id, &event.text, event.is_final) });
    Ok(match event.is_compacted {
        true => SeenEvent::Rest { message, chunk },
        false => SeenEvent::Chunk { message, attempt: event.attempt, chunk },
    })
}

/// Checks the ends of connections. If a body ends properly, the server has nothing more to send, so
/// no message may be open.
pub(super) fn check_ends(thread: &str, transcripts: &[Transcript], findings: &mut Findings) {
    for (number, transcript) in transcripts.iter().enumerate() {
        let (begun, ended) = begun_and_ended(std::slice::from_ref(transcript));
        let open: Vec<_> = begun.difference(&ended).collect();
        if transcript.end == Some(StreamEnd::Clean) && !open.is_empty() {
            let place = format!("{thread}, connection {number} to {}", transcript.gateway);
            findings.add("no clean end without a terminal", place, format!("open: {open:?}"));
        }
    }
}

/// Checks that a failure is sent with the stored reason.
pub(super) fn check_reasons(
    thread: &str,
    transcripts: &[Transcript],
    letters: &[DeadLetterRow],
    findings: &mut Findings,
) {
    for received in transcripts.iter().flat_map(|transcript| &transcript.events) {
        let StreamEvent::Failed { message, code, .. } = &received.event else { continue };
        let is_its = |letter: &&DeadLetterRow| {
            letter.thread_id.as_deref() == Some(thread) && letter.message_id.as_ref() == Some(message)
        };
        if let Some(letter) = letters.iter().find(is_its).filter(|letter| letter.reason != *code) {
            let found = format!("{code:?}, but the dead letter says {}", letter.reason);
            findings.add("a failure names its reason", format!("{thread}/{message}"), found);
        }
    }
}

/// True if a client has all required ends: those of every message whose start it received, and
/// every end after its start position.
pub fn knows_all(thread: &str, transcripts: &[Transcript], ends: &[EndRow]) -> bool {
    let (begun, ended) = begun_and_ended(transcripts);
    let since = since(transcripts).unwrap_or(i64::MAX);
    let mut wanted = ends.iter().filter(|end| end.thread_id == thread && end.position > since);
    begun.is_subset(&ended) && wanted.all(|end| ended.contains(end.message_id.as_str()))
}

/// The messages of which a client received a chunk, and those of which it received the end. Both
/// are without those that a restart has withdrawn.
fn begun_and_ended(transcripts: &[Transcript]) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let (mut begun, mut ended) = (BTreeSet::new(), BTreeMap::new());
    for received in transcripts.iter().flat_map(|transcript| &transcript.events) {
        match &received.event {
            StreamEvent::Chunk(chunk) => _ = begun.insert(chunk.message.as_str()),
            StreamEvent::Complete { message, position, .. }
            | StreamEvent::Failed { message, position, .. } => {
                _ = ended.insert(message.as_str(), position.as_deref().and_then(base))
            }
            StreamEvent::Restart { after } => {
                let after = base(after);
                ended.retain(|_, position| position.is_none() || *position <= after);
                begun.retain(|message| ended.contains_key(message));
            }
            StreamEvent::Reset { .. } | StreamEvent::Other { .. } => {}
        }
    }
    (begun, ended.into_keys().collect())
}
