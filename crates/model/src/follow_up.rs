//! Follow-ups: messages that an agent's timer sends to its own thread, so that the agent writes
//! without being asked.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Metadata;

/// Why an agent sends a follow-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerType {
    /// The user has been silent for a while.
    CheckIn,
    /// The agent asked, and the user has not answered.
    QuestionUnanswered,
    /// A task that was discussed is not done.
    TaskIncomplete,
    /// The user has something to decide.
    WaitingForDecision,
}

impl TriggerType {
    pub const ALL: [Self; 4] =
        [Self::CheckIn, Self::QuestionUnanswered, Self::TaskIncomplete, Self::WaitingForDecision];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::CheckIn => "check_in",
            Self::QuestionUnanswered => "question_unanswered",
            Self::TaskIncomplete => "task_incomplete",
            Self::WaitingForDecision => "waiting_for_decision",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|trigger| trigger.name() == name)
    }

    /// Input given to the model. It is a fixed sentence: the model would quote its own text, or a
    /// tag, to the user as the user's words.
    pub fn prompt(self) -> &'static str {
        match self {
            Self::CheckIn => "Continue our conversation naturally.",
            Self::QuestionUnanswered => {
                "You asked the user a question and they have not answered. Follow up on it."
            }
            Self::TaskIncomplete => "Check in about the incomplete task we discussed.",
            Self::WaitingForDecision => "Follow up on the decision the user needs to make.",
        }
    }
}

/// A workflow's request for a follow-up: `follow_up` in the metadata of an answer's last chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowUpHint {
    pub trigger: TriggerType,
    /// Delay after the answer's commit.
    pub after_seconds: u64,
    /// Reason for people who investigate; empty when absent.
    pub reason: Box<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFollowUpHint {
    /// Neither an object nor null.
    #[error("follow_up must be an object")]
    Form,
    /// An unknown field.
    #[error("follow_up: unknown field `{0}`, expected trigger_type, after_seconds or reason")]
    Field(Box<str>),
    /// Absent, or not the name of a [`TriggerType`].
    #[error(
        "follow_up.trigger_type is {0}; expected check_in, question_unanswered, task_incomplete or \
         waiting_for_decision"
    )]
    Trigger(Box<str>),
    /// Absent, or not a whole number.
    #[error("follow_up.after_seconds must be a whole number of seconds")]
    AfterSeconds,
    /// Not a text, or too long.
    #[error("follow_up.reason must be a text of at most {} bytes", FollowUpHint::MAX_REASON)]
    Reason,
}

impl FollowUpHint {
    /// Key in the metadata of a chunk.
    pub const KEY: &'static str = "follow_up";
    /// Maximum bytes of [`FollowUpHint::reason`].
    pub const MAX_REASON: usize = 1_024;

    /// Reads the metadata of an answer's last chunk. `None` if it has no `follow_up`.
    ///
    /// # Errors
    /// The hint is invalid. The answer is valid anyway.
    pub fn of(metadata: &Metadata) -> Result<Option<Self>, InvalidFollowUpHint> {
        match metadata.get(Self::KEY) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Self::of_map(map).map(Some),
            Some(_) => Err(InvalidFollowUpHint::Form),
        }
    }

    /// Metadata of an answer as shown to people: without a valid hint, whose `reason` is internal.
    /// An invalid `follow_up` is shown.
    pub fn hidden_in(metadata: &Metadata) -> Cow<'_, Metadata> {
        match Self::of(metadata) {
            Ok(Some(_)) => Cow::Owned(metadata.clone().with_keys_of(&Metadata::EMPTY, &[Self::KEY])),
            Ok(None) | Err(_) => Cow::Borrowed(metadata),
        }
    }

    fn of_map(map: &Map<String, Value>) -> Result<Self, InvalidFollowUpHint> {
        let known = ["trigger_type", "after_seconds", "reason"];
        if let Some(name) = map.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(InvalidFollowUpHint::Field(name.chars().take(64).collect()));
        }
        let named = map.get("trigger_type");
        let trigger = named.and_then(Value::as_str).and_then(TriggerType::from_name);
        let trigger = trigger.ok_or_else(|| InvalidFollowUpHint::Trigger(shown(named)))?;
        let after_seconds =
            map.get("after_seconds").and_then(whole).ok_or(InvalidFollowUpHint::AfterSeconds)?;
        let reason = match map.get("reason") {
            None | Some(Value::Null) => "",
            Some(Value::String(text)) if text.len() <= Self::MAX_REASON => text,
            Some(_) => return Err(InvalidFollowUpHint::Reason),
        };
        Ok(Self { trigger, after_seconds, reason: reason.into() })
    }
}

/// Reads a whole number. Protobuf has only doubles, so whole doubles up to 1e9 are accepted.
fn whole(value: &Value) -> Option<u64> {
    let of_double = |number: &f64| number.fract() == 0.0 && (0.0..=1e9).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(of_double).map(|number| number as u64))
}

fn shown(value: Option<&Value>) -> Box<str> {
    value.map_or("missing".into(), |value| value.to_string().chars().take(64).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hint(value: Value) -> Result<Option<FollowUpHint>, String> {
        let map = json!({ "follow_up": value, "tokens_used": 3 });
        let metadata = Metadata::new(map.as_object().unwrap().clone()).unwrap();
        FollowUpHint::of(&metadata).map_err(|error| error.to_string())
    }

    #[test]
    fn prompts_are_the_four_sentences_word_for_word() {
        let said = TriggerType::ALL.map(|trigger| (trigger.name(), trigger.prompt()));
        assert_eq!(
            said,
            [
                ("check_in", "Continue our conversation naturally."),
                (
                    "question_unanswered",
                    "You asked the user a question and they have not answered. Follow up on it."
                ),
                ("task_incomplete", "Check in about the incomplete task we discussed."),
                ("waiting_for_decision", "Follow up on the decision the user needs to make."),
            ]
        );
        for trigger in TriggerType::ALL {
            assert_eq!(TriggerType::from_name(trigger.name()), Some(trigger));
        }
        for unknown in ["", "Check_in", "check-in", "summary"] {
            assert_eq!(TriggerType::from_name(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_hint_is_read_and_its_faults_are_named() {
        assert_eq!(hint(json!(null)), Ok(None));
        assert_eq!(FollowUpHint::of(&Metadata::EMPTY), Ok(None));
        let whole = json!({"trigger_type": "check_in", "after_seconds": 60.0, "reason": "quiet"});
        let read = FollowUpHint { trigger: TriggerType::CheckIn, after_seconds: 60, reason: "quiet".into() };
        assert_eq!(hint(whole), Ok(Some(read)));
        let least = hint(json!({"trigger_type": "task_incomplete", "after_seconds": 30})).unwrap().unwrap();
        assert_eq!((least.trigger, &*least.reason), (TriggerType::TaskIncomplete, ""));
        let bad = [
            (json!("check_in"), "must be an object"),
            (json!({"after_seconds": 60}), "trigger_type is missing"),
            (json!({"trigger_type": "summary", "after_seconds": 60}), "trigger_type is \"summary\""),
            (json!({"trigger_type": 7, "after_seconds": 60}), "trigger_type is 7"),
            (json!({"trigger_type": "check_in"}), "after_seconds must be"),
            (json!({"trigger_type": "check_in", "after_seconds": "60"}), "after_seconds must be"),
            (json!({"trigger_type": "check_in", "after_seconds": 60.5}), "after_seconds must be"),
            (json!({"trigger_type": "check_in", "after_seconds": -1}), "after_seconds must be"),
            (
                json!({"trigger_type": "check_in", "after_seconds": 60, "prompt": "x"}),
                "unknown field `prompt`",
            ),
            (json!({"trigger_type": "check_in", "after_seconds": 60, "reason": 1}), "reason must be"),
            (
                json!({"trigger_type": "check_in", "after_seconds": 60, "reason": "x".repeat(1_025)}),
                "at most 1024 bytes",
            ),
        ];
        for (value, why) in bad {
            let error = hint(value.clone()).unwrap_err();
            assert!(error.contains(why), "{value}: {error}");
        }
    }
}
