//! Layers: what is shown of a session since a compression.

use model::Timestamp;

use crate::text::check_name;
use crate::{Number, Reason, Refusal, Runs, Valid};

/// The id of a layer in its session: from 1, rising. 0 is the state before any compression.
pub type LayerId = u64;

/// A compression: copy-on-write, so that the newest layer that is not undone says what is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Its id.
    pub id: LayerId,
    /// The layer that was the newest before it.
    pub previous: LayerId,
    /// What it replaced, in the order in which it was shown.
    pub replaced: Vec<Number>,
    /// The message that stands for it.
    pub summary: Number,
    /// What is shown of the numbers up to [`Layer::summary`]. What was appended later follows.
    pub shown: Runs,
    /// Whether it was taken back.
    pub is_undone: bool,
}

/// A named layer to which a session can return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its name, unique in the session: made again, it names the newer state.
    pub name: String,
    /// The newest layer when it was made.
    pub layer: LayerId,
    /// When it was made.
    pub at: Timestamp,
}

/// Checks the name of a checkpoint.
///
/// # Errors
/// It is blank, too long, or has control characters.
pub fn checkpoint_name(name: &str) -> Result<(), Refusal> {
    Ok(check_name("the name of a checkpoint", name)?)
}

/// Why a checkpoint cannot be returned to: there is none of that name, or the state that it names was taken back. `checkpoints` are all
/// of the session, with whether their state still stands.
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
