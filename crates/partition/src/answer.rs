//! Answers to gateways: what is open in a thread beyond what they have.

use model::OpenText;

use crate::action::{Answer, Ask};
use crate::open::{Open, Phase};

/// Answers from the open messages of the asker's thread. A page holds at least one chunk when there is one, so that
/// an asker always gets on.
pub(crate) fn answer<'a>(ask: &Ask, epoch: u64, messages: impl Iterator<Item = &'a Open>) -> Answer {
    let mut room = ask.max_bytes.max(1);
    let mut more = false;
    let mut open = Vec::new();
    for message in messages.filter(|message| message.phase != Phase::Unknown) {
        let from = cursor(ask, message);
        let mut chunks = Vec::new();
        for chunk in message.released.iter().skip(from as usize) {
            if room == 0 {
                more = true;
                break;
            }
            room = room.saturating_sub(chunk.size() + 32);
            chunks.push(chunk.clone());
        }
        open.push(OpenText {
            message: message.key.message.clone(),
            attempt: message.attempt,
            role: message.role,
            chunks,
            next: message.released.len() as u32,
        });
    }
    Answer { token: ask.token, epoch, open, more }
}

/// The first id that the asker lacks: 0 when its attempt is another one.
fn cursor(ask: &Ask, message: &Open) -> u32 {
    let known =
        ask.have.iter().find(|(id, attempt, _)| *id == message.key.message && *attempt == message.attempt);
    known.map_or(0, |(_, _, next)| *next)
}
