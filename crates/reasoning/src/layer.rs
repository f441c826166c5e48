//! Layers: the messages of a session that are shown after a compression.

use model::Timestamp;

use crate::text::check_name;
use crate::{Number, Reason, Refusal, Runs, Valid};

/// The id of a layer in its session. Ids ascend from 1; 0 is the state before any compression.
pub type LayerId = u64;

/// A compression. The newest layer that is not undone decides which messages are shown
/// (copy-on-write).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub id: LayerId,
    /// The newest layer before this one.
    pub previous: LayerId,
    /// The replaced messages, in the order in which they were shown.
    pub replaced: Vec<Number>,
    /// The message that replaces them.
    pub summary: Number,
    /// The shown numbers up to [`Layer::summary`]. Later messages follow.
    pub shown: Runs,
    /// True if the layer was undone.
    pub is_undone: bool,
}

/// A named layer to which a session can return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name, which is unique in the session. If a name is used again, it moves to the newer
    /// state.
    pub name: String,
    /// The newest layer when the checkpoint was made.
    pub layer: LayerId,
    pub at: Timestamp,
}

/// Checks the name of a checkpoint.
///
/// # Errors
/// The name is blank, too long, or has control characters.
pub fn checkpoint_name(name: &str) -> Result<(), Refusal> {
    Ok(check_name("the name of a checkpoint", name)?)
}

/// The layer of a checkpoint. Refused if no checkpoint has that name or its layer was undone.
/// `checkpoints` has all checkpoints of the session, each with a flag that is true if its layer is
/// still valid.
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
