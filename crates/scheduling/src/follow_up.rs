//! Follow-ups: when an agent may speak first, and when it may not.
//!
//! [`arm`] decides after a turn whether a timer is set, [`decide_follow_up`] when it is due whether it fires. Nothing is counted here:
//! what the rules ask for is derived from what is stored, so that there is no counter that could be forgotten. Every rule is checked
//! before a model is called.

mod arm;
mod decide;
mod quiet_hours;
mod rules;

pub use arm::{ArmRefusal, ArmSource, Armed, FinishedTurn, TurnOrigin, arm};
pub use decide::{
    AgentHold, FollowUpFacts, FollowUpVerdict, RestraintRule, RuleCheck, RuleOutcome, check_rules,
    decide_follow_up,
};
pub use quiet_hours::QuietHours;
pub use rules::{DefaultFollowUp, FollowUpRules, InvalidFollowUpRules};
