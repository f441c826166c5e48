//! Layers: the messages of a session shown since a compression.

use model::Timestamp;

use crate::text::check_name;
use crate::{Number, Reason, Refusal, Runs, Valid};

/// The id of a layer in its session: ascending from 1. 0 is the state before any compression.
pub type LayerId = u64;

/// A compression. The newest layer that is not undone decides what is shown (copy-on-write).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub id: LayerId,
    /// The newest layer before it.
    pub previous: LayerId,
    /// The replaced messages, in the order in which they were shown.
    pub replaced: Vec<Number>,
    /// The message that replaces them.
    pub summary: Number,
    /// The shown numbers up to [`Layer::summary`]. Later messages follow.
    pub shown: Runs,
    /// Whether it was undone.
    pub is_undone: bool,
}

/// A named layer to which a session can return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Unique in the session: a repeated name moves to the newer state.
    pub name: String,
    /// The newest layer when it was made.
    pub layer: LayerId,
    pub at: Timestamp,
}

/// Checks the name of a checkpoint.
///
/// # Errors
/// It is blank, too long, or has control characters.
pub fn checkpoint_name(name: &str) -> Result<(), Refusal> {
    Ok(check_name("the name of a checkpoint", name)?)
}

/// The layer of a checkpoint, or a refusal if there is none with that name or its layer was undone.
/// `checkpoints` are all of the session, each with whether its layer is still valid.
pub fn restorable(name: &str, checkpoints: &[(Checkpoint, bool)]) -> Result<LayerId, Refusal> {
    let names =
        checkpoints.iter().filter(|(_, stands)| *stands).map(|(checkpoint, _)| checkpoint.name.clone());
    let refuse = |reason| Refusal { reason, valid: Valid::Names(names.collect()) };
    match checkpoints.iter().find(|(checkpoint, _)| checkpoint.name == name) {
        Some((checkpoint, true)) => Ok(checkpoint.layer),
        Some(_) => Err(refuse(Reason::CheckpointUndone(name.to_owned()))),
        None => Err(refuse(Reason::UnknownCheckpoint(name.to_owned()))),
    }
}
