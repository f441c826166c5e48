//! What a client may have seen, connection by connection.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ending, Endings, Findings, first_difference};
use crate::{
    sse::{ChunkEvent, End, Event, Transcript},
    tables::StoredMessage,
};

/// What a client holds of one message, over all of its connections.
#[derive(Debug, Default)]
struct Held {
    attempt: u32,
    next: Option<u32>,
    text: String,
    /// The text is known from its first chunk on.
    from_start: bool,
}

/// Checks the connections of one client. Its text goes on from connection to connection, as its cursor does.
pub(super) fn check(
    thread: &str,
    transcripts: &[Transcript],
    endings: &Endings<'_>,
    findings: &mut Findings,
) {
    let mut held: BTreeMap<String, Held> = BTreeMap::new();
    let mut seen_ends: BTreeSet<String> = BTreeSet::new();
    for (number, transcript) in transcripts.iter().enumerate() {
        let place = format!("{thread}, connection {number} to {}", transcript.gateway);
        let mut open: BTreeSet<String> = BTreeSet::new();
        let mut ended: BTreeSet<String> = BTreeSet::new();
        for received in &transcript.events {
            match &received.event {
                Event::Chunk(chunk) => {
                    if ended.contains(&chunk.message) || seen_ends.contains(&chunk.message) {
                        findings.add(
                            "nothing follows a terminal",
                            &place,
                            format!("{} chunk {}", chunk.message, chunk.id),
                        );
                    }
                    open.insert(chunk.message.clone());
                    take_chunk(held.entry(chunk.message.clone()).or_default(), chunk, &place, findings);
                }
                Event::Reset { message, attempt } => {
                    let message = held.entry(message.clone()).or_default();
                    *message =
                        Held { attempt: *attempt, next: Some(0), text: String::new(), from_start: true };
                }
                Event::Complete { message, .. } | Event::Failed { message, .. } => {
                    open.remove(message);
                    if !ended.insert(message.clone()) || !seen_ends.insert(message.clone()) {
                        findings.add("one terminal per message", &place, message.clone());
                    }
                    take_terminal(
                        thread,
                        message,
                        &received.event,
                        held.get(message),
                        endings,
                        &place,
                        findings,
                    );
                }
                Event::Other { .. } => {}
            }
        }
        if transcript.end == Some(End::Clean) && !open.is_empty() {
            findings.add("no clean end without a terminal", &place, format!("open: {open:?}"));
        }
    }
    for (message, held) in &held {
        check_prefix(thread, message, held, endings, findings);
    }
}

fn take_chunk(held: &mut Held, chunk: &ChunkEvent, place: &str, findings: &mut Findings) {
    if held.next.is_none() {
        *held = Held {
            attempt: chunk.attempt,
            next: Some(chunk.id),
            text: String::new(),
            from_start: chunk.id == 0,
        };
    }
    if chunk.attempt != held.attempt {
        let found =
            format!("{}: attempt {} after {} without a reset", chunk.message, chunk.attempt, held.attempt);
        findings.add("a new attempt begins with a reset", place, found);
    }
    if held.next != Some(chunk.id) {
        let found = format!("{}: chunk {} instead of {:?}", chunk.message, chunk.id, held.next);
        findings.add("each chunk once and in order", place, found);
    }
    held.next = Some(chunk.id + 1);
    if chunk.kind == "content" {
        held.text.push_str(&chunk.text);
    }
}

/// A terminal says what the tables say, and a complete text is the persisted one.
fn take_terminal(
    thread: &str,
    message: &str,
    event: &Event,
    held: Option<&Held>,
    endings: &Endings<'_>,
    place: &str,
    findings: &mut Findings,
) {
    let ending = endings.get(&(thread.to_owned(), message.to_owned()));
    match (event, ending) {
        (Event::Complete { position, .. }, Some(Ending::Persisted(stored))) => {
            if position.as_deref().is_some_and(|position| position != stored.position.to_string()) {
                let found = format!("{message}: {position:?}, persisted at {}", stored.position);
                findings.add("a terminal names the position", place, found);
            }
            let text = held.map_or("", |held| held.text.as_str());
            let same = match held {
                Some(held) if !held.from_start => stored.content.ends_with(text),
                _ => stored.content == text,
            };
            if !same {
                let found = format!("{message}: {}", first_difference(&stored.content, text));
                findings.add("a complete text is the persisted one", place, found);
            }
        }
        (Event::Failed { code, .. }, Some(Ending::GivenUp(letter))) if *code == letter.reason => {}
        (event, ending) => {
            let stored = ending.map_or("nothing".to_owned(), Ending::describe);
            findings.add("a terminal is true", place, format!("{event:?}, but the tables have {stored}"));
        }
    }
}

/// What was received of a persisted message is where its text begins.
fn check_prefix(thread: &str, message: &str, held: &Held, endings: &Endings<'_>, findings: &mut Findings) {
    let ending = endings.get(&(thread.to_owned(), message.to_owned()));
    if let Some(Ending::Persisted(stored)) = ending
        && i64::from(held.attempt) == stored.attempt
        && held.from_start
        && !stored.content.starts_with(&held.text)
    {
        let found = first_difference(&stored.content, &held.text);
        findings.add("what a client received is a prefix", format!("{thread}/{message}"), found);
    }
}

/// After everything has come to rest: no message that a client saw begin is without an end, and no message is missing
/// that was persisted after the first one that the client saw complete.
pub(super) fn check_settled(
    thread: &str,
    transcripts: &[Transcript],
    messages: &[StoredMessage],
    findings: &mut Findings,
) {
    let (begun, ended) = begun_and_ended(transcripts);
    for message in begun.difference(&ended) {
        findings.add("what a client saw begin it sees end", thread, message.clone());
    }
    let mut stored = messages.iter().filter(|message| message.thread_id == thread);
    // In the order of positions: everything after the first one.
    let Some(_) = stored.find(|message| ended.contains(&message.message_id)) else { return };
    for missed in stored.filter(|message| !ended.contains(&message.message_id)) {
        findings.add("a client misses no message", thread, missed.message_id.clone());
    }
}

/// The messages of which a client saw a chunk, and those of which it saw the end.
fn begun_and_ended(transcripts: &[Transcript]) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut begun, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for received in transcripts.iter().flat_map(|transcript| &transcript.events) {
        match &received.event {
            Event::Chunk(chunk) => _ = begun.insert(chunk.message.clone()),
            Event::Complete { message, .. } | Event::Failed { message, .. } => {
                _ = ended.insert(message.clone())
            }
            Event::Reset { .. } | Event::Other { .. } => {}
        }
    }
    (begun, ended)
}
