//! A timer that is due, with everything that decides about it, as the store has it.

use model::{AgentId, Metadata, Position, ThreadId, TimerId, TimerKind, Timestamp};
use scheduling::follow_up::{
    AgentHold, FollowUpFacts, FollowUpRules, InvalidFollowUpRules, RestraintRule, RuleCheck, RuleOutcome,
    check_rules,
};
use serde_json::{Map, Value};

use crate::turn_state::MESSAGE;

/// How a timer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerState {
    /// It is to fire.
    Pending,
    /// It has fired.
    Fired,
    /// It never will, or what it fired was taken back.
    Ended,
}

/// A schedule as it was put, when its timer is due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueSchedule {
    /// Five fields; or `at`.
    pub cron: Option<String>,
    /// One time, with its offset.
    pub at: Option<String>,
    /// IANA.
    pub time_zone: String,
    /// `skip` or `queue`.
    pub overlap: String,
    /// `skip` or `one`.
    pub missed: String,
    /// The text of its tasks.
    pub content: String,
    /// Their metadata.
    pub metadata: Metadata,
    /// Tasks of earlier occurrences that are neither done nor given up.
    pub unfinished: u32,
}

/// A timer that is due, or whose turn is about to start, with everything that decides about it.
#[derive(Debug, Clone, PartialEq)]
pub struct DueTimer {
    /// Which.
    pub id: TimerId,
    /// What it fires.
    pub kind: TimerKind,
    /// Where a follow-up takes place.
    pub thread: Option<ThreadId>,
    /// Whose it is.
    pub agent: AgentId,
    /// How it stands.
    pub state: TimerState,
    /// See the table.
    pub body: Metadata,
    /// By the database's clock.
    pub now: Timestamp,
    /// When it is due, by the same.
    pub due: Timestamp,
    /// It is.
    pub is_due: bool,
    /// The agent's settings; empty when it has none.
    pub settings: Map<String, Value>,
    /// The agent is paused.
    pub paused: bool,
    /// Of a follow-up: a budget that its turn would count in is spent.
    pub is_over_budget: bool,
    /// When its backoff ends, or has ended.
    pub backoff_until: Option<Timestamp>,
    /// The newest input of a person in the thread's history: its place, when it was written, its metadata.
    pub real_input: Option<(Position, Timestamp, Metadata)>,
    /// The thread has gone on since a follow-up was armed, and retention has deleted the answer that armed it: a person's message that came
    /// since may be deleted too, so it counts as one.
    pub is_history_gone: bool,
    /// The thread was erased.
    pub is_erased: bool,
    /// Follow-ups of the thread that were fired after that input.
    pub fired_since_real_input: u32,
    /// When follow-ups of the thread were fired, the newest first; at most 256.
    pub fired_at: Vec<Timestamp>,
    /// Of the timer of a schedule; `None` when there is no such schedule any more, or it is disabled.
    pub schedule: Option<DueSchedule>,
}

impl DueTimer {
    /// Where the thread stood when a follow-up was armed.
    pub fn armed_position(&self) -> Position {
        let text = self.body.get("armed_position").and_then(Value::as_str);
        Position::from_stored(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// What the agent's settings say of follow-ups.
    ///
    /// # Errors
    /// They make no sense: such settings were not written over HTTP.
    pub fn follow_up_rules(&self) -> Result<FollowUpRules, InvalidFollowUpRules> {
        FollowUpRules::of(&self.settings)
    }

    /// What a person's last message says under this key of its metadata.
    pub fn said(&self, key: &str) -> Option<&str> {
        self.real_input.as_ref().and_then(|(_, _, said)| said.get(key)).and_then(Value::as_str)
    }

    /// What the rules are asked about. Inputs that are not in the history are known to the owner of the thread alone.
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

    /// A person has written since it was armed, or may have.
    pub fn is_answered(&self) -> bool {
        self.is_history_gone
            || self.real_input.as_ref().is_some_and(|(position, ..)| *position > self.armed_position())
    }

    /// What a follow-up has fired may not begin: it was cancelled, or a person has written.
    pub fn is_superseded(&self) -> bool {
        self.state == TimerState::Ended || self.is_erased || self.is_answered()
    }

    /// Why the turn of a follow-up that has fired may not begin, as its row tells it; `None`: it may. The turn may have waited since for a budget, a
    /// limit or the end of a pause, so that it is not the time any more at which the rules let it pass: then it is not sent at all.
    pub fn superseded_by(&self) -> Option<&'static str> {
        if self.is_superseded() {
            return Some(MESSAGE);
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
