//! Snapshots for gateways: one consistent cut of a thread, with the inputs and the open text that
//! the gateway lacks.

use std::sync::Arc;

use model::{Cut, KnownMessage, MessageId, OpenInput, PartialText, Role};

use crate::action::{SnapshotReply, SnapshotRequest};
use crate::open::{OpenMessage, Phase};

/// An open message, an input that has no answer yet, or both.
struct Entry<'a> {
    message: MessageId,
    open: Option<&'a OpenMessage>,
    input: Option<&'a Arc<OpenInput>>,
    known: Option<&'a KnownMessage>,
}

/// Builds a snapshot of a thread. The messages known to the gateway come first, then the oldest, up
/// to the requested number. A page holds at least one chunk or input if there is one, so that the
/// next request makes progress.
pub(crate) fn snapshot<'a>(
    request: &SnapshotRequest,
    cut: Cut,
    messages: impl Iterator<Item = &'a OpenMessage>,
    inputs: &[Arc<OpenInput>],
) -> SnapshotReply {
    let known = |message: &MessageId| request.known.iter().find(|known| known.message == *message);
    let answers: Vec<MessageId> = inputs.iter().map(|input| input.answer()).collect();
    let input = |message: &MessageId| {
        answers.iter().position(|answer| answer == message).and_then(|index| inputs.get(index))
    };
    let messages: Vec<&OpenMessage> = messages.collect();
    let is_open = |answer: &MessageId| messages.iter().any(|open| open.key.message == *answer);
    let open = messages.iter().map(|open| (open.key.message.clone(), Some(*open)));
    let unanswered = answers.iter().filter(|answer| !is_open(answer)).map(|answer| (answer.clone(), None));
    // A message that is not yet looked up in the store is left out, unless the gateway knows it and
    // so may already show it.
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for (message, open) in open.chain(unanswered) {
        let entry = Entry { known: known(&message), input: input(&message), open, message };
        match entry.known {
            Some(_) => named.push(entry),
            None if open.is_none_or(|open| open.phase != Phase::Unknown) => others.push(entry),
            None => {}
        }
    }
    let left_out = named.len() + others.len() > request.max_messages.max(named.len());
    let room = request.max_messages.saturating_sub(named.len());
    let mut page = ReplyRoom { room_bytes: request.max_bytes, is_empty: true, more: false };
    let entries = named.into_iter().chain(others.into_iter().take(room));
    let open = entries.map(|entry| partial_text(entry, &mut page)).collect();
    SnapshotReply { token: request.token, cut, open, left_out, more: page.more }
}

/// What still fits into a reply.
struct ReplyRoom {
    room_bytes: usize,
    is_empty: bool,
    more: bool,
}

impl ReplyRoom {
    /// True if an item of this size is in the reply.
    fn takes(&mut self, size: usize) -> bool {
        self.more |= size > self.room_bytes && !self.is_empty;
        if !self.more {
            (self.room_bytes, self.is_empty) = (self.room_bytes.saturating_sub(size), false);
        }
        !self.more
    }
}

fn partial_text(entry: Entry<'_>, page: &mut ReplyRoom) -> PartialText {
    let Entry { message, open, input, known } = entry;
    let has_input = known.is_some_and(|known| known.has_input);
    let input = input.filter(|input| !has_input && page.takes(input.size())).cloned();
    let released = match open {
        Some(open) if open.phase != Phase::Unknown => open.released.as_slice(),
        Some(_) | None => &[],
    };
    let attempt = open.map_or(0, |open| open.attempt);
    let same = known.filter(|known| known.attempt == attempt);
    let from = same.map_or(0, |known| known.next as usize);
    let chunks = released.iter().skip(from).take_while(|chunk| page.takes(chunk.size() + 32));
    PartialText {
        attempt,
        role: open.map_or(Role::Assistant, |open| open.role),
        batch_type: open.map_or(model::BatchType::UserRequest, OpenMessage::batch_type),
        chunks: chunks.cloned().collect(),
        next: released.len() as u32,
        input,
        message,
    }
}
