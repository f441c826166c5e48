//! Snapshots for gateways: one consistent cut of a thread, with the open text that the gateway
//! lacks.

use model::{Cut, PartialText};

use crate::action::{SnapshotReply, SnapshotRequest};
use crate::open::{OpenMessage, Phase};

/// Builds a snapshot of a thread. The messages known to the gateway come first, then the oldest, up
/// to the requested number. A page holds at least one chunk if there is one, so that the next
/// request makes progress.
pub(crate) fn snapshot<'a>(
    request: &SnapshotRequest,
    cut: Cut,
    messages: impl Iterator<Item = &'a OpenMessage>,
) -> SnapshotReply {
    let known = |message: &OpenMessage| request.known.iter().find(|(id, ..)| *id == message.key.message);
    // A message that is not yet looked up in the store is left out, unless the gateway knows it and
    // so may already show it.
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for message in messages {
        match known(message) {
            Some(known) => named.push((message, Some(known))),
            None if message.phase != Phase::Unknown => others.push((message, None)),
            None => {}
        }
    }
    let left_out = named.len() + others.len() > request.max_messages.max(named.len());
    let room = request.max_messages.saturating_sub(named.len());
    let (mut room_bytes, mut is_empty, mut more, mut open) = (request.max_bytes, true, false, Vec::new());
    for (message, known) in named.into_iter().chain(others.into_iter().take(room)) {
        let released = if message.phase == Phase::Unknown { &[] } else { message.released.as_slice() };
        let same = known.filter(|(_, attempt, _)| *attempt == message.attempt);
        let from = same.map_or(0, |(_, _, next)| *next as usize);
        let mut chunks = Vec::new();
        for chunk in released.iter().skip(from) {
            let size = chunk.size() + 32;
            if more || (size > room_bytes && !is_empty) {
                more = true;
                break;
            }
            (room_bytes, is_empty) = (room_bytes.saturating_sub(size), false);
            chunks.push(chunk.clone());
        }
        open.push(PartialText {
            message: message.key.message.clone(),
            attempt: message.attempt,
            role: message.role,
            batch_type: message.batch_type(),
            chunks,
            next: released.len() as u32,
        });
    }
    SnapshotReply { token: request.token, cut, open, left_out, more }
}
