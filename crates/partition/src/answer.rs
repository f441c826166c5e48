//! Answers to gateways: one consistent cut of a thread, with the open text that they lack.

use model::{Cut, OpenText};

use crate::action::{Answer, Query};
use crate::open::{Open, Phase};

/// Answers from the open messages of the asker's thread: those that it names first, then the oldest, as many as it wants. A page holds at least
/// one chunk when there is one, so that an asker always gets on.
pub(crate) fn answer<'a>(ask: &Query, cut: Cut, messages: impl Iterator<Item = &'a Open>) -> Answer {
    let have = |message: &Open| ask.have.iter().find(|(id, ..)| *id == message.key.message);
    // Of one that the store has not been asked about nothing is said, but that it may be there, to whoever knows of it.
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for message in messages {
        match have(message) {
            Some(known) => named.push((message, Some(known))),
            None if message.phase != Phase::Unknown => others.push((message, None)),
            None => {}
        }
    }
    let left_out = named.len() + others.len() > ask.most_messages.max(named.len());
    let room = ask.most_messages.saturating_sub(named.len());
    let (mut bytes, mut more, mut open) = (ask.max_bytes.max(1), false, Vec::new());
    for (message, known) in named.into_iter().chain(others.into_iter().take(room)) {
        let released = if message.phase == Phase::Unknown { &[] } else { message.released.as_slice() };
        let same = known.filter(|(_, attempt, _)| *attempt == message.attempt);
        let from = same.map_or(0, |(_, _, next)| *next as usize);
        let mut chunks = Vec::new();
        for chunk in released.iter().skip(from) {
            if bytes == 0 {
                more = true;
                break;
            }
            bytes = bytes.saturating_sub(chunk.size() + 32);
            chunks.push(chunk.clone());
        }
        open.push(OpenText {
            message: message.key.message.clone(),
            attempt: message.attempt,
            role: message.role,
            batch_type: message.batch_type(),
            chunks,
            next: released.len() as u32,
        });
    }
    Answer { token: ask.token, cut, open, left_out, more }
}
