//! How far saving what is open has come.

use model::{MessageKey, TurnId};

/// What is on its way to the store.
#[derive(Debug)]
pub(crate) struct SaveUnderWay {
    pub(crate) messages: Vec<MessageKey>,
    pub(crate) turns: Vec<TurnId>,
}

/// The save under way, and whether another one is due.
#[derive(Debug, Default)]
pub(crate) struct Saving {
    pub(crate) under_way: Option<SaveUnderWay>,
    /// A replay would take too long, and what the first half of it is needed for is not saved yet.
    pub(crate) is_due: bool,
    /// Nothing could be saved the last time; until the next tick that stays so.
    pub(crate) is_resting: bool,
}
