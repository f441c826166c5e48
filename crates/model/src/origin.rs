//! What opens a turn, as a type. [`TurnOrigin::metadata`] writes the keys that people, models and
//! exports see. [`TurnOrigin::split`] reads them in data of earlier builds, which have no typed
//! origin.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::origin_keys::{
    CONTINUES, HEARTBEAT, NUMBER, SYNTHETIC, TIMER, TRIGGER_REASON, TRIGGER_TYPE, TURN,
};
use crate::{Metadata, Position, TaskId, TimerId, TriggerType, TurnId};

/// The batch that a sender requests for its own input: `continues` and `heartbeat` in its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestedBatch {
    /// A batch of its own.
    #[default]
    New,
    /// This batch, whatever its state is.
    Continue(Position),
    /// This batch. The turn is refused unless it is complete and the last of its thread.
    Heartbeat(Position),
}

impl RequestedBatch {
    /// Reads the metadata of a sender. Anything but a position in decimal digits, as a string,
    /// requests no batch.
    pub fn of(metadata: &Metadata) -> Self {
        match (position(metadata, CONTINUES), metadata.is_true(HEARTBEAT)) {
            (None, _) => Self::New,
            (Some(batch), false) => Self::Continue(batch),
            (Some(batch), true) => Self::Heartbeat(batch),
        }
    }

    pub(crate) fn continues(self) -> Option<Position> {
        match self {
            Self::New => None,
            Self::Continue(batch) | Self::Heartbeat(batch) => Some(batch),
        }
    }

    pub(crate) fn heartbeat_of(self) -> Option<Position> {
        match self {
            Self::New | Self::Continue(_) => None,
            Self::Heartbeat(batch) => Some(batch),
        }
    }
}

/// The next input of a batch, requested by the previous answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContinuedBatch {
    pub batch: Position,
    /// Number of continuations in a row, including this one.
    pub number: u64,
    /// Turn whose answer requested it.
    pub turn: TurnId,
}

impl ContinuedBatch {
    /// Id of the task that continues a task's turn.
    pub fn task(&self) -> Option<TaskId> {
        TaskId::parse(&format!("{}-h", self.turn)).ok().filter(|_| !self.turn.is_foreground())
    }

    pub(crate) fn of_stored(metadata: &Metadata) -> Option<Self> {
        Some(Self {
            batch: position(metadata, CONTINUES)?,
            number: metadata.get(NUMBER)?.as_u64()?,
            turn: turn(metadata)?,
        })
    }

    pub(crate) fn entries(&self) -> Vec<(&'static str, Value)> {
        vec![
            (SYNTHETIC, json!(true)),
            (CONTINUES, json!(self.batch.to_string())),
            (NUMBER, json!(self.number)),
            (TURN, json!(self.turn.as_str())),
        ]
    }
}

/// What opens a turn that answers an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TurnOrigin {
    /// A person, or a client for a person.
    Person {
        /// Read from the metadata, and so not encoded.
        #[serde(skip)]
        requested: RequestedBatch,
    },
    /// A client's request to continue a batch. The turn is refused unless the batch is complete and
    /// the last of its thread.
    Heartbeat { batch: Position },
    /// The answer before it.
    Continuation(ContinuedBatch),
    /// A timer: the agent writes without being asked.
    FollowUp {
        timer: TimerId,
        trigger: TriggerType,
        /// For people who investigate.
        reason: Box<str>,
    },
}

impl TurnOrigin {
    /// The origin of a person's input that begins a batch.
    pub const PERSON: Self = Self::Person { requested: RequestedBatch::New };

    /// The origin of a person's input with this metadata.
    pub fn of_person(metadata: &Metadata) -> Self {
        Self::Person { requested: RequestedBatch::of(metadata) }
    }

    /// Separates the origin of an input from its whole metadata, and returns it with the rest.
    /// `decoded` is `None` in data of earlier builds, and in the store for a person's input.
    pub fn split(decoded: Option<Self>, input: Metadata) -> (Self, Metadata) {
        let origin = match decoded.or_else(|| Self::of_stored(&input)) {
            None | Some(Self::Person { .. }) => Self::of_person(&input),
            Some(origin) => origin,
        };
        let rest = input.without(&origin.metadata());
        (origin, rest)
    }

    fn of_stored(metadata: &Metadata) -> Option<Self> {
        if !metadata.is_synthetic() {
            return None;
        }
        let text = |key: &str| metadata.get(key).and_then(Value::as_str);
        if let Some(timer) = text(TIMER) {
            return Some(Self::FollowUp {
                timer: TimerId::parse(timer).ok()?,
                trigger: TriggerType::from_name(text(TRIGGER_TYPE)?)?,
                reason: text(TRIGGER_REASON)?.into(),
            });
        }
        match RequestedBatch::of(metadata) {
            RequestedBatch::Heartbeat(batch) => Some(Self::Heartbeat { batch }),
            _ => ContinuedBatch::of_stored(metadata).map(Self::Continuation),
        }
    }

    /// True if the system created the input. It is not shown to people.
    pub fn is_synthetic(&self) -> bool {
        !matches!(self, Self::Person { .. })
    }

    /// True if a turn with this id can have this origin. The ids of inputs that the system creates
    /// are derived.
    pub fn fits(&self, turn: &TurnId) -> bool {
        match self {
            Self::Person { .. } => true,
            Self::Heartbeat { .. } | Self::Continuation(_) => turn.is_continuation(),
            Self::FollowUp { timer, .. } => timer.turn().as_ref() == Ok(turn),
        }
    }

    /// The stored batch that the turn continues.
    pub fn continues(&self) -> Option<Position> {
        match self {
            Self::Person { requested } => requested.continues(),
            Self::Heartbeat { batch } => Some(*batch),
            Self::Continuation(continued) => Some(continued.batch),
            Self::FollowUp { .. } => None,
        }
    }

    /// The batch of [`TurnOrigin::continues`] if the turn is refused unless that batch is complete
    /// and the last one.
    pub fn heartbeat_of(&self) -> Option<Position> {
        match self {
            Self::Person { requested } => requested.heartbeat_of(),
            Self::Heartbeat { batch } => Some(*batch),
            Self::Continuation(_) | Self::FollowUp { .. } => None,
        }
    }

    /// Number of continuations in a row, including this one.
    pub fn continuation_number(&self) -> u64 {
        match self {
            Self::Person { .. } | Self::FollowUp { .. } => 0,
            Self::Heartbeat { .. } => 1,
            Self::Continuation(continued) => continued.number,
        }
    }

    /// The turn whose answer requested the input.
    pub fn turn(&self) -> Option<&TurnId> {
        match self {
            Self::Continuation(continued) => Some(&continued.turn),
            Self::Person { .. } | Self::Heartbeat { .. } | Self::FollowUp { .. } => None,
        }
    }

    /// Timer that fired the input; `Some` means that the turn is a follow-up.
    pub fn timer(&self) -> Option<&TimerId> {
        match self {
            Self::FollowUp { timer, .. } => Some(timer),
            Self::Person { .. } | Self::Heartbeat { .. } | Self::Continuation(_) => None,
        }
    }

    /// The keys by which people, models and exports see the origin. A person's input has none: its
    /// metadata are the sender's.
    pub fn metadata(&self) -> Metadata {
        Metadata::of_entries(match self {
            Self::Person { .. } => return Metadata::EMPTY,
            Self::Heartbeat { batch } => vec![
                (SYNTHETIC, json!(true)),
                (CONTINUES, json!(batch.to_string())),
                (NUMBER, json!(1)),
                (HEARTBEAT, json!(true)),
            ],
            Self::Continuation(continued) => continued.entries(),
            Self::FollowUp { timer, trigger, reason } => vec![
                (SYNTHETIC, json!(true)),
                (TRIGGER_TYPE, json!(trigger.name())),
                (TRIGGER_REASON, json!(reason.replace('\0', ""))),
                (TIMER, json!(timer.as_str())),
            ],
        })
    }
}

pub(crate) fn turn(metadata: &Metadata) -> Option<TurnId> {
    TurnId::parse(metadata.get(TURN)?.as_str()?).ok()
}

/// A position as a decimal string, like all positions in JSON.
pub(crate) fn position(metadata: &Metadata, key: &str) -> Option<Position> {
    let number = metadata.get(key)?.as_str()?.parse().ok().filter(|number: &i64| *number > 0)?;
    Some(Position::from_stored(number))
}
