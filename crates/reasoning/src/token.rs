//! Snapshot tokens, which identify the shown messages and their order.

use std::fmt;

use model::ReasoningSessionId;
use sha2::{Digest, Sha256};

use crate::Number;

/// Identifies the shown messages of a thread. Messages are immutable and numbers are never reused,
/// so the numbers suffice. After an undo a thread has its earlier token again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SnapshotToken([u8; 16]);

impl SnapshotToken {
    /// The token of a session that shows these messages.
    pub(crate) fn of(session: &ReasoningSessionId, shown: impl Iterator<Item = Number>) -> Self {
        let mut hash = Sha256::new();
        hash.update(session.as_str().as_bytes());
        for number in shown {
            hash.update(number.to_be_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut token = [0; 16];
        token.copy_from_slice(&digest[..16]);
        Self(token)
    }
}

impl fmt::Display for SnapshotToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SnapshotToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
