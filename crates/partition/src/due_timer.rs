//! A due timer with all stored data that the decision about it needs.

use model::{AgentId, Metadata, Position, ThreadId, TimerId, TimerKind, Timestamp};
use scheduling::follow_up::{
    AgentHold, FollowUpFacts, FollowUpRules, InvalidFollowUpRules, RestraintRule, RuleCheck, RuleOutcome,
    check_rules,
};
use serde_json::{Map, Value};

use crate::turn_state::SUPERSEDED_BY_MESSAGE;

/// State of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerState {
    /// The timer has not fired yet.
    Pending,
    /// The timer has fired.
    Fired,
    /// The timer will never fire, or the turn or task that it started was withdrawn.
    Ended,
}

/// The schedule of a due timer.
#[derive(Debug, Clone, PartialEq)]
pub struct DueSchedule {
    /// Cron expression with five fields; `None` if `at` is set.
    pub cron: Option<String>,
    /// A single time, with its UTC offset.
    pub at: Option<String>,
    /// IANA time zone.
    pub time_zone: String,
    /// `skip` or `queue`.
    pub overlap: String,
    /// `skip` or `one`.
    pub missed: String,
    /// Text of its tasks.
    pub content: String,
    /// Metadata of its tasks.
    pub metadata: Metadata,
    /// Number of tasks of earlier occurrences that are neither done nor given up.
    pub unfinished: u32,
}

/// A timer that is due, or whose turn is about to start, with all data that the decision needs.
#[derive(Debug, Clone, PartialEq)]
pub struct DueTimer {
    pub id: TimerId,
    /// Kind of the timer, which decides what it fires.
    pub kind: TimerKind,
    /// Thread of the follow-up, if it is one.
    pub thread: Option<ThreadId>,
    /// Agent that the timer belongs to.
    pub agent: AgentId,
    /// State of the timer as stored.
    pub state: TimerState,
    /// Content of the column `timers.body`.
    pub body: Metadata,
    /// Current time by the database's clock.
    pub now: Timestamp,
    /// Due time by the same clock.
    pub due: Timestamp,
    /// True if it is due.
    pub is_due: bool,
    /// Settings of the agent; empty if it has none.
    pub settings: Map<String, Value>,
    /// True if the agent is paused.
    pub paused: bool,
    /// For a follow-up: true if a budget that applies to its turn is spent.
    pub is_over_budget: bool,
    /// Past or future end of the agent's backoff.
    pub backoff_until: Option<Timestamp>,
    /// Newest input of a person in the thread's history: position, time, metadata.
    pub real_input: Option<(Position, Timestamp, Metadata)>,
    /// True if the thread has continued since a follow-up was armed and retention has deleted the
    /// answer that armed it. A later message of a person may be deleted too, so the follow-up
    /// counts as answered.
    pub is_history_gone: bool,
    /// True if the thread was erased.
    pub is_erased: bool,
    /// Number of the thread's follow-ups fired after `real_input`.
    pub fired_since_real_input: u32,
    /// Times at which follow-ups of the thread fired, newest first; at most 256.
    pub fired_at: Vec<Timestamp>,
    /// For a delayed task: true if the agent has a task with its id already.
    pub is_taken: bool,
    /// For the timer of a schedule; `None` if the schedule no longer exists or is disabled.
    pub schedule: Option<DueSchedule>,
}

impl DueTimer {
    /// Position of the thread when the follow-up was armed.
    pub fn armed_position(&self) -> Position {
        let text = self.body.get("armed_position").and_then(Value::as_str);
        Position::from_stored(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// Follow-up rules in the agent's settings.
    ///
    /// # Errors
    /// The rules are invalid: such settings were not written over HTTP.
    pub fn follow_up_rules(&self) -> Result<FollowUpRules, InvalidFollowUpRules> {
        FollowUpRules::of(&self.settings)
    }

    /// Value of this key in the metadata of a person's last message.
    pub fn said(&self, key: &str) -> Option<&str> {
        self.real_input.as_ref().and_then(|(_, _, said)| said.get(key)).and_then(Value::as_str)
    }

    /// Facts that the rules check. Inputs that are not in the history are known only to the owner
    /// of the thread.
    pub fn follow_up_facts(&self, rules: &FollowUpRules) -> FollowUpFacts {
        let time_zone = self.said("time_zone");
        let day_start = rules.day_start(time_zone, self.now);
        let hold = match (self.paused, self.backoff_until.filter(|until| *until > self.now)) {
            (true, _) => Some(AgentHold::Paused),
            (false, until) => until.map(AgentHold::Backoff),
        };
        let today = self.fired_at.iter().filter(|at| **at >= day_start).count();
        FollowUpFacts {
            now: self.now,
            due: self.due,
            last_real_input: self.real_input.as_ref().map(|(position, at, _)| (*position, *at)),
            armed_position: self.armed_position(),
            has_open_input: false,
            fired_since_real_input: self.fired_since_real_input,
            last_fired: self.fired_at.first().copied(),
            fired_today: today.try_into().unwrap_or(u32::MAX),
            is_over_budget: self.is_over_budget,
            hold,
            time_zone: time_zone.map(Into::into),
        }
    }

    /// True if a person has written, or may have written, since the follow-up was armed.
    pub fn is_answered(&self) -> bool {
        self.is_history_gone
            || self.real_input.as_ref().is_some_and(|(position, ..)| *position > self.armed_position())
    }

    /// True if a fired follow-up must not start: it was cancelled, or a person has written.
    pub fn is_superseded(&self) -> bool {
        self.state == TimerState::Ended || self.is_erased || self.is_answered()
    }

    /// Why the turn of a fired follow-up must not start, according to its row; `None` if it may
    /// start. The turn may have waited for a budget, a limit or the end of a pause, and the rules
    /// may refuse it now. Such a turn is not sent.
    pub fn superseded_by(&self) -> Option<&'static str> {
        if self.is_superseded() {
            return Some(SUPERSEDED_BY_MESSAGE);
        }
        let rules = self.follow_up_rules().unwrap_or(FollowUpRules::OFF);
        let forbids = |check: &RuleCheck| {
            let is_asked = matches!(
                check.rule,
                RestraintRule::Disabled
                    | RestraintRule::TooLate
                    | RestraintRule::Budget
                    | RestraintRule::QuietHours
            );
            is_asked && check.outcome != RuleOutcome::Passes
        };
        let checked = check_rules(&rules, &self.follow_up_facts(&rules));
        checked.iter().find(|check| forbids(check)).map(|check| check.rule.name())
    }
}
