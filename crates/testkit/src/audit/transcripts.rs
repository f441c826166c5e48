//! What clients saw: as the shared checker wants it, and by the rules that need the connections of HTTP.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use model::{Chunk, ChunkKind, MessageId, MessageKey, ThreadId};
use simulation::checker::{self, Fate, Seen};

use super::Findings;
use crate::{
    sse::{ChunkEvent, End, Event, Transcript},
    tables::{StoredDeadLetter, StoredMessage},
};

/// What is known of every message.
pub(super) struct Known<'a> {
    pub(super) fates: BTreeMap<MessageKey, Fate>,
    pub(super) messages: &'a [checker::StoredMessage],
}

/// The connections of one client as one transcript of the shared checker: its text goes on from connection to
/// connection, as its cursor does.
pub(super) fn translate(
    number: usize,
    thread: &str,
    transcripts: &[Transcript],
    known: &Known<'_>,
    findings: &mut Findings,
) -> Option<checker::Transcript> {
    let id = ThreadId::parse(thread)
        .map_err(|error| findings.add("a thread has an id", thread, error.to_string()));
    let mut translation = Translation { thread: id.ok()?, known, at: BTreeMap::new(), seen: Vec::new() };
    for (connection, transcript) in transcripts.iter().enumerate() {
        if connection > 0 {
            translation.seen.push(Seen::Cut);
        }
        for received in &transcript.events {
            if let Err(error) = translation.take(&received.event) {
                let place = format!("{thread}, connection {connection} to {}", transcript.gateway);
                findings.add("an event makes sense", place, format!("{:?}: {error:#}", received.event));
            }
        }
    }
    Some(checker::Transcript {
        client: number.to_string(),
        thread: translation.thread,
        seen: translation.seen,
        is_connected: true,
    })
}

struct Translation<'a> {
    thread: ThreadId,
    known: &'a Known<'a>,
    /// Attempt and next chunk of each message.
    at: BTreeMap<MessageId, (u32, u32)>,
    seen: Vec<Seen>,
}

impl Translation<'_> {
    fn take(&mut self, event: &Event) -> Result<()> {
        let seen = match event {
            Event::Chunk(event) => self.chunk(event)?,
            Event::Reset { message, attempt } => {
                let message = MessageId::parse(message)?;
                self.at.insert(message.clone(), (*attempt, 0));
                Seen::Reset { message, attempt: *attempt }
            }
            Event::Complete { message, position } => Seen::Complete {
                message: MessageId::parse(message)?,
                position: position.as_deref().map(str::parse).transpose()?,
            },
            Event::Failed { message, .. } => Seen::Failed { message: MessageId::parse(message)? },
            Event::Other { .. } => return Ok(()),
        };
        self.seen.push(seen);
        Ok(())
    }

    fn chunk(&mut self, event: &ChunkEvent) -> Result<Seen> {
        let message = MessageId::parse(&event.message)?;
        let kind = ChunkKind::from_name(&event.kind).context("an unknown type")?;
        // Followers keep no metadata: what audited runs publish has none.
        let chunk = Chunk { kind, ..Chunk::content(event.id, &event.text, event.is_final) };
        let is_rest = self.is_rest(&message, event.attempt, &chunk);
        self.at.insert(message.clone(), (event.attempt, event.id + 1));
        Ok(match is_rest {
            true => Seen::Rest { message, text: event.text.clone() },
            false => Seen::Chunk { message, attempt: event.attempt, chunk: Arc::new(chunk) },
        })
    }

    /// Of a persisted message a gateway sends the rest as one final chunk with the next number. Whatever else is not
    /// in the log stays a chunk, and the checker says so.
    fn is_rest(&self, message: &MessageId, attempt: u32, chunk: &Chunk) -> bool {
        let key = MessageKey { thread: self.thread.clone(), message: message.clone() };
        let fate = self.known.fates.get(&key);
        let published = fate.and_then(|fate| fate.attempts.get(&attempt)?.get(&chunk.id));
        let expected = self.at.get(message).copied().unwrap_or((attempt, 0));
        let is_stored = |row: &checker::StoredMessage| row.key == key && row.attempt == attempt;
        chunk.is_final
            && published.is_none_or(|published| **published != *chunk)
            && expected == (attempt, chunk.id)
            && self.known.messages.iter().any(is_stored)
    }
}

/// A body that ends in order says that there is nothing more: no message may be open then.
pub(super) fn check_ends(thread: &str, transcripts: &[Transcript], findings: &mut Findings) {
    for (number, transcript) in transcripts.iter().enumerate() {
        let (begun, ended) = begun_and_ended(std::slice::from_ref(transcript));
        let open: Vec<_> = begun.difference(&ended).collect();
        if transcript.end == Some(End::Clean) && !open.is_empty() {
            let place = format!("{thread}, connection {number} to {}", transcript.gateway);
            findings.add("no clean end without a terminal", place, format!("open: {open:?}"));
        }
    }
}

/// A failure is told with the reason that is stored.
pub(super) fn check_reasons(
    thread: &str,
    transcripts: &[Transcript],
    letters: &[StoredDeadLetter],
    findings: &mut Findings,
) {
    for received in transcripts.iter().flat_map(|transcript| &transcript.events) {
        let Event::Failed { message, code, .. } = &received.event else { continue };
        let is_its = |letter: &&StoredDeadLetter| {
            letter.thread_id.as_deref() == Some(thread) && letter.message_id.as_ref() == Some(message)
        };
        if let Some(letter) = letters.iter().find(is_its).filter(|letter| letter.reason != *code) {
            let found = format!("{code:?}, but the dead letter says {}", letter.reason);
            findings.add("a failure names its reason", format!("{thread}/{message}"), found);
        }
    }
}

/// No message is missing that was persisted after the first one that the client saw complete.
pub(super) fn check_missed(
    thread: &str,
    transcripts: &[Transcript],
    messages: &[StoredMessage],
    findings: &mut Findings,
) {
    let (_, ended) = begun_and_ended(transcripts);
    for missed in missed(thread, &ended, messages) {
        findings.add("a client misses no message", thread, missed);
    }
}

/// Whether a client has learned all that it must in the end: the end of what it saw begin, and every message after
/// the first one that it saw complete.
pub fn knows_all(thread: &str, transcripts: &[Transcript], messages: &[StoredMessage]) -> bool {
    let (begun, ended) = begun_and_ended(transcripts);
    begun.is_subset(&ended) && missed(thread, &ended, messages).next().is_none()
}

/// In the order of positions: everything after the first one.
fn missed<'a>(
    thread: &'a str,
    ended: &'a BTreeSet<&str>,
    messages: &'a [StoredMessage],
) -> impl Iterator<Item = &'a str> {
    let of_thread = messages.iter().filter(move |message| message.thread_id == thread);
    let ids = of_thread.map(|message| message.message_id.as_str());
    ids.skip_while(|id| !ended.contains(id)).filter(|id| !ended.contains(id))
}

/// The messages of which a client saw a chunk, and those of which it saw the end.
fn begun_and_ended(transcripts: &[Transcript]) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let (mut begun, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for received in transcripts.iter().flat_map(|transcript| &transcript.events) {
        match &received.event {
            Event::Chunk(chunk) => _ = begun.insert(chunk.message.as_str()),
            Event::Complete { message, .. } | Event::Failed { message, .. } => {
                _ = ended.insert(message.as_str())
            }
            Event::Reset { .. } | Event::Other { .. } => {}
        }
    }
    (begun, ended)
}
