//! Decides whether a due follow-up is sent.

use model::{Position, Timestamp};

use super::rules::FollowUpRules;

/// Why an agent starts no turn at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentHold {
    /// Paused by an operator, for an unlimited time.
    Paused,
    /// Backs off until this time.
    Backoff(Timestamp),
}

/// Stored facts about a thread when a follow-up is due.
#[derive(Debug, Clone, PartialEq)]
pub struct FollowUpFacts {
    /// Current time by the database's clock.
    pub now: Timestamp,
    /// Due time after every delay, by the same clock.
    pub due: Timestamp,
    /// Position and time of a person's newest input in the thread.
    pub last_real_input: Option<(Position, Timestamp)>,
    /// Position of the thread when the timer was set.
    pub armed_position: Position,
    /// True if a person's input is open, queued or active.
    pub has_open_input: bool,
    /// Number of follow-ups sent after a person's last input.
    pub fired_since_real_input: u32,
    /// Time at which the last follow-up was sent, whichever input it followed.
    pub last_fired: Option<Timestamp>,
    /// Number of follow-ups sent in the thread since [`FollowUpRules::day_start`].
    pub fired_today: u32,
    /// True if a budget that applies to the follow-up's turn is spent.
    pub is_over_budget: bool,
    /// Why the agent would not start a turn.
    pub hold: Option<AgentHold>,
    /// `time_zone` in the metadata of a person's last input.
    pub time_zone: Option<Box<str>>,
}

/// A rule that prevents or delays a follow-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RestraintRule {
    /// The agent's settings do not enable follow-ups.
    Disabled,
    /// The follow-up has been due for longer than `max_lateness_seconds`, so its occasion has
    /// passed.
    TooLate,
    /// `max_in_a_row` follow-ups were sent since a person's last input.
    MaxInARow,
    /// `max_per_day` follow-ups were sent today.
    MaxPerDay,
    /// A budget of the tenant, the agent or the user is spent.
    Budget,
    /// The agent is paused.
    Paused,
    /// The agent backs off.
    Backoff,
    /// The cooldown since the last follow-up is not over.
    Cooldown,
    /// The time is within the quiet hours of the user's time zone.
    QuietHours,
}

impl RestraintRule {
    /// In the order in which they are checked.
    pub const ALL: [Self; 9] = [
        Self::Disabled,
        Self::TooLate,
        Self::MaxInARow,
        Self::MaxPerDay,
        Self::Budget,
        Self::Paused,
        Self::Backoff,
        Self::Cooldown,
        Self::QuietHours,
    ];

    /// Name in JSON, Postgres and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::TooLate => "too_late",
            Self::MaxInARow => "max_in_a_row",
            Self::MaxPerDay => "max_per_day",
            Self::Budget => "budget",
            Self::Paused => "paused",
            Self::Backoff => "backoff",
            Self::Cooldown => "cooldown",
            Self::QuietHours => "quiet_hours",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleOutcome {
    /// The rule allows the follow-up.
    Passes,
    /// The follow-up is dropped.
    Refuses,
    /// The follow-up is not sent before this time.
    Delays(Timestamp),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleCheck {
    pub rule: RestraintRule,
    pub outcome: RuleOutcome,
}

/// Decision on a due follow-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowUpVerdict {
    /// The follow-up is sent.
    Fire,
    /// A person has written since the timer was set: the follow-up is dropped, regardless of the
    /// rules.
    Superseded,
    /// The follow-up is dropped by this rule.
    Refused(RestraintRule),
    /// The follow-up is delayed.
    Later {
        /// New due time, after `now`.
        until: Timestamp,
        /// Rule that delays it.
        rule: RestraintRule,
    },
}

/// Decides a due follow-up before a model is called.
pub fn decide_follow_up(rules: &FollowUpRules, facts: &FollowUpFacts) -> FollowUpVerdict {
    let is_answered = facts.last_real_input.is_some_and(|(position, _)| position > facts.armed_position);
    if facts.has_open_input || is_answered {
        return FollowUpVerdict::Superseded;
    }
    let against =
        check_rules(rules, facts).into_iter().find_map(|RuleCheck { rule, outcome }| match outcome {
            RuleOutcome::Passes => None,
            RuleOutcome::Refuses => Some(FollowUpVerdict::Refused(rule)),
            RuleOutcome::Delays(until) => Some(FollowUpVerdict::Later { until, rule }),
        });
    against.unwrap_or(FollowUpVerdict::Fire)
}

/// Outcome of each rule. Rules that drop a follow-up come before those that delay it, so that a
/// follow-up that can never be sent is not kept.
pub fn check_rules(rules: &FollowUpRules, facts: &FollowUpFacts) -> [RuleCheck; RestraintRule::ALL.len()] {
    RestraintRule::ALL.map(|rule| RuleCheck { rule, outcome: check(rule, rules, facts) })
}

fn check(rule: RestraintRule, rules: &FollowUpRules, facts: &FollowUpFacts) -> RuleOutcome {
    let refuses = |is_against: bool| if is_against { RuleOutcome::Refuses } else { RuleOutcome::Passes };
    let delays = |until: Option<Timestamp>| match until.filter(|until| *until > facts.now) {
        Some(until) => RuleOutcome::Delays(until),
        None => RuleOutcome::Passes,
    };
    match rule {
        RestraintRule::Disabled => refuses(!rules.enabled),
        RestraintRule::TooLate => refuses(facts.now.since_ms(facts.due) > rules.max_lateness_ms),
        RestraintRule::MaxInARow => refuses(facts.fired_since_real_input >= rules.max_in_a_row),
        RestraintRule::MaxPerDay => refuses(facts.fired_today >= rules.max_per_day),
        RestraintRule::Budget => refuses(facts.is_over_budget),
        RestraintRule::Paused => refuses(facts.hold == Some(AgentHold::Paused)),
        RestraintRule::Backoff => delays(match facts.hold {
            Some(AgentHold::Backoff(until)) => Some(until),
            Some(AgentHold::Paused) | None => None,
        }),
        RestraintRule::Cooldown => delays(facts.last_fired.map(|fired| fired.plus_ms(rules.cooldown_ms))),
        RestraintRule::QuietHours => delays(quiet_until(rules, facts)),
    }
}

fn quiet_until(rules: &FollowUpRules, facts: &FollowUpFacts) -> Option<Timestamp> {
    let hours = rules.quiet_hours?;
    hours.quiet_until(&rules.zone(facts.time_zone.as_deref()), facts.now)
}

#[cfg(test)]
mod tests;
