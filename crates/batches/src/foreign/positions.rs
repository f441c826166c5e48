//! Assigns positions, batches, numbers and ids to the messages of a foreign thread.

use std::collections::BTreeMap;

use model::{MessageId, Metadata, Position, Positions, Role, ThreadId, Timestamp, TurnId};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::boundaries;
use super::notes::{ImportNote, NoteKind};
use super::thread::ForeignMessage;
use crate::Item;

/// The messages of a thread with their positions, batches and numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbered {
    pub items: Vec<Item>,
    /// Notes about messages that were changed or dropped.
    pub notes: Vec<ImportNote>,
    /// Number of messages without a time. Each gets the time of the previous message, or the first
    /// moment of 2024.
    pub undated: usize,
}

/// Timeout in ms of an input that the other system has not answered. With this value it never
/// expires in practice.
const KEPT_OPEN_MS: i64 = 100 * 365 * 86_400_000;

/// Keeps an unanswered last input open. Otherwise, its age would make it abandoned directly after
/// the import.
pub fn keep_last_input_open(items: &mut [Item]) {
    let Some(last) = items.last().map(|item| item.batch_id) else { return };
    let of_last = |item: &&mut Item| item.batch_id == last;
    if items.iter().any(|item| item.batch_id == last && item.role != Role::User) {
        return;
    }
    if let Some(input) = items.iter_mut().find(of_last)
        && input.metadata.get("timeout_ms").is_none()
    {
        let mut map = input.metadata.as_map().cloned().unwrap_or_default();
        map.insert("timeout_ms".to_owned(), Value::from(KEPT_OPEN_MS));
        input.metadata = Metadata::new(map).unwrap_or_default();
    }
}

/// Assigns positions, batches and numbers to the messages of a thread. Positions follow the order,
/// and also the times where these agree with the order. A message without a time is placed right
/// after the previous one. `now` only decides which times are invalid.
pub fn assign_positions(thread: &ThreadId, messages: Vec<ForeignMessage>, now: Timestamp) -> Numbered {
    let bucket = thread.bucket();
    // Positions start in 2024. Older messages keep their order and time, and are placed at the
    // beginning.
    let base = Position::from_stored(0).timestamp().plus_ms(1);
    let mut positions = Positions::above(Timestamp(0));
    let mut ids = Ids::default();
    let mut notes = Vec::new();
    let mut items: Vec<Item> = Vec::with_capacity(messages.len());
    let mut origins = Vec::with_capacity(messages.len());
    let mut undated = 0;
    for message in messages {
        let index = message.index;
        let mut note = |what| notes.push(ImportNote { index, id: message.id.clone(), what });
        let (message_id, changed) = match ids.take(&message) {
            Id::Kept(id) => (id, false),
            Id::Made(id) => (id, message.id.is_some()),
            Id::Twice => {
                note(NoteKind::Twice);
                continue;
            }
        };
        if changed {
            note(NoteKind::IdChanged { to: message_id.clone() });
        }
        let created_at = message.created_at.filter(|at| *at <= now);
        if created_at != message.created_at {
            note(NoteKind::Future);
        }
        undated += usize::from(created_at.is_none());
        let at = created_at.unwrap_or(positions.high_water()).max(base);
        let position = positions.next(bucket, at);
        origins.push((index, message.id.clone()));
        items.push(Item {
            position,
            message_id,
            batch_id: position,
            number: None,
            sequence_num: 0,
            batch_type: model::BatchType::UserRequest,
            role: message.role,
            content: message.content,
            tool_calls: message.tool_calls,
            tool_call_id: message.tool_call_id,
            metadata: message.metadata,
            token_count: message.token_count,
            created_at: created_at.unwrap_or(at),
            started_at: None,
        });
    }
    let orphans = boundaries::detect(&mut items);
    let orphan = |at: &usize| {
        let (index, id) = origins.get(*at)?.clone();
        Some(ImportNote { index, id, what: NoteKind::Orphan })
    };
    notes.extend(orphans.iter().filter_map(orphan));
    Numbered { items, notes, undated }
}

/// The ids of a thread: each message keeps its own id if possible.
#[derive(Default)]
struct Ids {
    taken: BTreeMap<MessageId, [u8; 32]>,
    /// Number of equal messages without ids, so that the next free number is known without a
    /// search.
    equal: BTreeMap<[u8; 32], u64>,
}

enum Id {
    Kept(MessageId),
    Made(MessageId),
    Twice,
}

impl Ids {
    fn take(&mut self, message: &ForeignMessage) -> Id {
        let digest = digest(message);
        let own = message.id.as_deref().and_then(|id| MessageId::parse(id).ok());
        let own = own.filter(|id| !TurnId::is_reserved(id));
        match own.as_ref().and_then(|id| self.taken.get(id)) {
            Some(known) if *known == digest => return Id::Twice,
            Some(_) => {}
            None => {
                if let Some(id) = own {
                    self.taken.insert(id.clone(), digest);
                    return Id::Kept(id);
                }
            }
        }
        // Two equal messages without ids remain two messages: the number distinguishes them.
        let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let first = self.equal.get(&digest).copied().filter(|_| message.id.is_none()).unwrap_or_default();
        for number in first.. {
            let text =
                if number == 0 { format!("imported-{hex}") } else { format!("imported-{hex}-{number}") };
            let Ok(id) = MessageId::parse(&text) else { break };
            match self.taken.get(&id) {
                Some(_) if message.id.is_some() => return Id::Twice,
                Some(_) => {}
                None => {
                    self.taken.insert(id.clone(), digest);
                    self.equal.insert(digest, number + 1);
                    return Id::Made(id);
                }
            }
        }
        Id::Twice
    }
}

/// Digest of a message's content and id.
fn digest(message: &ForeignMessage) -> [u8; 32] {
    let mut hash = Sha256::new();
    let calls = message.tool_calls.as_ref().map(Value::to_string);
    let parts = [
        message.id.as_deref(),
        Some(message.role.name()),
        Some(&message.content),
        calls.as_deref(),
        message.tool_call_id.as_deref(),
    ];
    for part in parts {
        hash.update((part.map_or(u64::MAX, |part| part.len() as u64)).to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    hash.update(message.created_at.map_or(0, |at| at.0).to_be_bytes());
    hash.finalize().into()
}
