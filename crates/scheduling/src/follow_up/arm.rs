//! Decides whether a turn that has ended sets a timer.

use model::{FollowUpHint, InvalidFollowUpHint, Metadata, TriggerType};

use super::rules::ArmingRules;

/// Properties of an ended turn that decide what follows it. The turn answered an input: a person's,
/// a continuation, or a follow-up, which may be followed by another one up to the maximum in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedTurn {
    /// True if the turn ended as its workflow intended: without an error, a stop or a continuation.
    pub is_complete: bool,
    /// True if the answer has neither text nor calls.
    pub is_empty: bool,
}

/// Origin of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArmSource {
    /// Requested by the last chunk of the answer.
    Hint,
    /// Set by the rule of the agent's settings for answers without a hint.
    Default,
}

impl ArmSource {
    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hint => "hint",
            Self::Default => "default",
        }
    }
}

/// A timer to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Armed {
    pub trigger: TriggerType,
    /// Delay after the commit of the answer.
    pub delay_ms: i64,
    /// Reason for people who investigate.
    pub reason: Box<str>,
    pub source: ArmSource,
}

/// Why a turn that requested a follow-up sets no timer. The turn itself is valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArmRefusal {
    /// The hint is invalid.
    #[error(transparent)]
    Hint(#[from] InvalidFollowUpHint),
    /// The delay is outside the range of the agent's settings.
    #[error("follow_up.after_seconds is {after_seconds}; allowed is {least} to {most}")]
    Delay {
        after_seconds: u64,
        /// Minimum delay in seconds.
        least: u64,
        /// Maximum delay in seconds.
        most: u64,
    },
    /// The answer was empty.
    #[error("the answer was empty")]
    NothingToSay,
}

impl ArmRefusal {
    /// All names, for metrics.
    pub const NAMES: [&str; 3] = ["invalid_hint", "delay", "nothing_to_say"];

    /// Name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hint(_) => "invalid_hint",
            Self::Delay { .. } => "delay",
            Self::NothingToSay => "nothing_to_say",
        }
    }
}

/// Decides whether a turn sets a timer; `last` is the metadata of the answer's last chunk. `None`
/// if no follow-up is requested.
///
/// # Errors
/// The requested follow-up cannot be set.
pub fn arm(rules: &ArmingRules, turn: FinishedTurn, last: &Metadata) -> Result<Option<Armed>, ArmRefusal> {
    if !turn.is_complete {
        return Ok(None);
    }
    let Some(armed) = wanted(rules, last)? else { return Ok(None) };
    match turn.is_empty {
        true => Err(ArmRefusal::NothingToSay),
        false => Ok(Some(armed)),
    }
}

fn wanted(rules: &ArmingRules, last: &Metadata) -> Result<Option<Armed>, ArmRefusal> {
    let Some(hint) = FollowUpHint::of(last)? else { return Ok(rules.default.map(of_default)) };
    let (least, most) = rules.delay_seconds;
    let after_seconds = hint.after_seconds;
    if !(least..=most).contains(&after_seconds) {
        return Err(ArmRefusal::Delay { after_seconds, least, most });
    }
    let delay_ms = after_seconds as i64 * 1_000;
    Ok(Some(Armed { trigger: hint.trigger, delay_ms, reason: hint.reason, source: ArmSource::Hint }))
}

fn of_default(rule: super::rules::DefaultFollowUp) -> Armed {
    let delay_ms = rule.after_seconds as i64 * 1_000;
    Armed { trigger: rule.trigger, delay_ms, reason: "no hint".into(), source: ArmSource::Default }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::follow_up::FollowUpRules;

    const ORDINARY: FinishedTurn = FinishedTurn { is_complete: true, is_empty: false };

    fn rules(written: Value) -> ArmingRules {
        FollowUpRules::parse(&written).unwrap().arming().unwrap()
    }

    fn hint(after_seconds: u64) -> Metadata {
        let hint =
            json!({"follow_up": {"trigger_type": "check_in", "after_seconds": after_seconds, "reason": "r"}});
        Metadata::new(hint.as_object().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_hint_after_an_ordinary_turn_arms() {
        let rules = rules(json!({"enabled": true}));
        let armed = arm(&rules, ORDINARY, &hint(60)).unwrap().unwrap();
        assert_eq!((armed.trigger, armed.delay_ms, &*armed.reason), (TriggerType::CheckIn, 60_000, "r"));
        assert_eq!(armed.source, ArmSource::Hint);
    }

    #[test]
    fn nothing_arms_after_an_error_or_when_it_is_off() {
        let on =
            rules(json!({"enabled": true, "default": {"trigger_type": "check_in", "after_seconds": 60}}));
        assert_eq!(arm(&on, FinishedTurn { is_complete: false, ..ORDINARY }, &hint(60)), Ok(None));
        assert_eq!(FollowUpRules::OFF.arming(), None);
    }

    #[test]
    fn sources_and_refusals_have_their_names() {
        assert_eq!([ArmSource::Hint, ArmSource::Default].map(ArmSource::name), ["hint", "default"]);
        let on = rules(json!({"enabled": true}));
        let malformed = json!({"follow_up": 1});
        let malformed = Metadata::new(malformed.as_object().unwrap().clone()).unwrap();
        let refusals = [
            (ORDINARY, malformed),
            (ORDINARY, hint(1)),
            (FinishedTurn { is_empty: true, ..ORDINARY }, hint(60)),
        ];
        assert_eq!(refusals.map(|(turn, last)| arm(&on, turn, &last).unwrap_err().name()), ArmRefusal::NAMES);
    }

    #[test]
    fn an_empty_answer_that_wanted_a_follow_up_is_counted() {
        let empty = FinishedTurn { is_empty: true, ..ORDINARY };
        let without_default = rules(json!({"enabled": true}));
        assert_eq!(arm(&without_default, empty, &hint(60)), Err(ArmRefusal::NothingToSay));
        assert_eq!(arm(&without_default, empty, &Metadata::EMPTY), Ok(None));
    }

    #[test]
    fn delays_at_the_bounds_arm_and_beyond_them_do_not() {
        let rules = rules(json!({"enabled": true}));
        for (after, is_allowed) in [(29, false), (30, true), (3_600, true), (3_601, false)] {
            assert_eq!(arm(&rules, ORDINARY, &hint(after)).is_ok(), is_allowed, "{after}");
        }
        let refused = arm(&rules, ORDINARY, &hint(29)).unwrap_err();
        assert_eq!(refused.to_string(), "follow_up.after_seconds is 29; allowed is 30 to 3600");
    }

    #[test]
    fn the_default_rule_counts_only_without_a_hint() {
        let rules = rules(
            json!({"enabled": true, "default": {"trigger_type": "task_incomplete", "after_seconds": 90}}),
        );
        let by_rule = arm(&rules, ORDINARY, &Metadata::EMPTY).unwrap().unwrap();
        assert_eq!((by_rule.trigger, by_rule.delay_ms), (TriggerType::TaskIncomplete, 90_000));
        assert_eq!(by_rule.source, ArmSource::Default);
        assert_eq!(arm(&rules, ORDINARY, &hint(60)).unwrap().unwrap().trigger, TriggerType::CheckIn);
        assert!(arm(&rules, ORDINARY, &hint(1)).is_err(), "a wrong hint is no absent one");
    }

    proptest! {
        #[test]
        fn whatever_arms_is_within_the_bounds(least in 30u64..=3_600, spread in 0u64..3_600, after in 0u64..5_000) {
            let most = (least + spread).min(3_600);
            let rules = rules(json!({"enabled": true, "min_delay_seconds": least, "max_delay_seconds": most}));
            let armed = arm(&rules, ORDINARY, &hint(after));
            prop_assert_eq!(armed.is_ok(), (least..=most).contains(&after));
            if let Ok(Some(armed)) = armed {
                prop_assert_eq!(armed.delay_ms, after as i64 * 1_000);
            }
        }
    }
}
