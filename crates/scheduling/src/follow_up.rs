//! Follow-ups: when an agent may write without being asked, and when it must not.
//!
//! After a turn, [`arm()`] decides whether to set a timer; when it is due, [`decide_follow_up`]
//! decides whether it fires. Nothing is counted here: the facts for the rules are derived from
//! stored data, so no counter can get lost. Every rule is checked before a model is called.

mod arm;
mod decide;
mod quiet_hours;
mod rules;

pub use arm::{ArmRefusal, ArmSource, Armed, FinishedTurn, arm};
pub use decide::{
    AgentHold, FollowUpFacts, FollowUpVerdict, RestraintRule, RuleCheck, RuleOutcome, check_rules,
    decide_follow_up,
};
pub use quiet_hours::QuietHours;
pub use rules::{ArmingRules, DefaultFollowUp, FollowUpRules, InvalidFollowUpRules};
