//! What the settings of an agent say when a turn starts. The parameters of the turn's input stand
//! for them, so that they differ from turn to turn.

use model::{Metadata, TurnOptions};
use serde_json::{Value, json};

use crate::rng::Rng;

const WORK_REQUEST: &str = "work_request";
const MEMORY: &str = "memory";

/// The parameters of an input. `rate`: that of inputs whose turn each kind of task follows.
pub(crate) fn parameters(number: usize, rate: f64, rng: &mut Rng) -> Option<Metadata> {
    let parameters = json!({ "seed": number, WORK_REQUEST: rng.chance(rate), MEMORY: rng.chance(rate) });
    Metadata::new(parameters.as_object()?.clone()).ok()
}

/// Whether `work_request` and `memory` tasks follow a turn with these options.
pub(crate) fn wanted_tasks(options: &TurnOptions) -> (bool, bool) {
    let is_wanted = |key| options.parameters.get(key) == Some(&Value::Bool(true));
    (is_wanted(WORK_REQUEST), is_wanted(MEMORY))
}
