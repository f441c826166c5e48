//! Schedules: when an agent's work is due by the calendar.
//!
//! Entry points: [`Schedule::parse`], [`Schedule::next_occurrence`], [`decide_schedule`].

mod cron_pattern;
mod cron_time;
mod decide;

use croner::Cron;
use jiff::civil::DateTime;
use model::Timestamp;

pub use decide::{ScheduleFacts, ScheduleVerdict, SkipReason, decide_schedule};

use self::cron_time::CronTime;
use crate::zone::{Zone, of_instant};

/// Handling of an occurrence that is due while the previous one is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OverlapRule {
    /// The occurrence is skipped.
    #[default]
    Skip,
    /// The occurrence waits in the agent's queue.
    Queue,
}

/// Handling of occurrences that were due while there was no worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MissedRule {
    /// They are skipped.
    #[default]
    Skip,
    /// One of them takes place.
    One,
}

impl OverlapRule {
    pub const ALL: [Self; 2] = [Self::Skip, Self::Queue];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

impl MissedRule {
    pub const ALL: [Self; 2] = [Self::Skip, Self::One];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::One => "one",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// When work is due, and what happens if it cannot be done then.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    when: When,
    /// Applies while the previous occurrence is not done.
    pub overlap: OverlapRule,
    /// Applies after an outage.
    pub missed: MissedRule,
}

#[derive(Debug, Clone, PartialEq)]
enum When {
    Cron(Box<Cron>, Zone),
    At(Timestamp),
}

/// An invalid schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    /// Both or neither of cron and at.
    #[error("a schedule has either cron or at")]
    Form,
    /// Not five fields, or a field is invalid.
    #[error("cron: {0}")]
    Cron(Box<str>),
    /// The pattern never occurs.
    #[error("cron: `{0}` never occurs")]
    Never(Box<str>),
    /// Neither an instant nor a local time.
    #[error("at: `{0}` is no time: write 2026-12-24T18:00:00Z, or 2026-12-24T18:00 in time_zone")]
    At(Box<str>),
    /// Not in the time zone database.
    #[error("time_zone: {0}")]
    Zone(#[from] crate::zone::UnknownZone),
}

impl Schedule {
    /// Maximum bytes of a cron pattern.
    pub const MAX_CRON: usize = 256;

    /// Parses a schedule: the five fields of cron (`minute hour day month weekday`), or one time.
    /// The time is an instant with an offset, or a local time in the zone. If a local time occurs
    /// twice, the first one counts. A skipped local time means the moment at which the clock skips
    /// it.
    ///
    /// # Errors
    /// The schedule is invalid; the error names the invalid part.
    pub fn parse(
        cron: Option<&str>,
        at: Option<&str>,
        time_zone: &str,
        overlap: OverlapRule,
        missed: MissedRule,
    ) -> Result<Self, InvalidSchedule> {
        let zone = Zone::named(time_zone)?;
        let when = match (cron, at) {
            (Some(cron), None) => When::Cron(Box::new(pattern(cron)?), zone),
            (None, Some(at)) => When::At(moment(at, &zone)?),
            (Some(_), Some(_)) | (None, None) => return Err(InvalidSchedule::Form),
        };
        Ok(Self { when, overlap, missed })
    }

    /// Like [`Self::parse`], for a new schedule: patterns that are valid but hardly intended are
    /// refused too.
    ///
    /// # Errors
    /// Those of [`Self::parse`]; also an empty item of a list, and a step greater than its range.
    pub fn parse_new(
        cron: Option<&str>,
        at: Option<&str>,
        time_zone: &str,
        overlap: OverlapRule,
        missed: MissedRule,
    ) -> Result<Self, InvalidSchedule> {
        let meant = cron.map_or(Ok(()), cron_pattern::check_meant);
        meant.map_err(|why| InvalidSchedule::Cron(why.into()))?;
        Self::parse(cron, at, time_zone, overlap, missed)
    }

    /// Next occurrence, strictly after `after`. `None` if there is none.
    pub fn next_occurrence(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.when {
            When::At(at) => (*at > after).then_some(*at),
            When::Cron(cron, zone) => next_of(cron, zone, after),
        }
    }

    pub fn occurrences(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        let first = self.next_occurrence(after);
        std::iter::successors(first, |last| self.next_occurrence(*last)).take(count).collect()
    }
}

fn next_of(cron: &Cron, zone: &Zone, after: Timestamp) -> Option<Timestamp> {
    let mut from = CronTime::new(zone, after);
    // croner may return a match within the second that the search starts from, which is not after
    // it.
    for _ in 0..3 {
        let found = cron.find_next_occurrence(&from, false).ok()?;
        if found.timestamp() > after {
            return Some(found.timestamp());
        }
        from = CronTime::new(zone, found.timestamp().plus_ms(1_000));
    }
    None
}

fn pattern(text: &str) -> Result<Cron, InvalidSchedule> {
    let wrong = |why: String| InvalidSchedule::Cron(why.into());
    if text.len() > Schedule::MAX_CRON {
        return Err(wrong(format!("at most {} bytes are expected", Schedule::MAX_CRON)));
    }
    let cron = cron_pattern::parse(text).map_err(wrong)?;
    // The search starts on a fixed day. It covers more years than there are between two leap days
    // on the same weekday.
    let epoch = Timestamp(1_704_067_200_000);
    match next_of(&cron, &Zone::UTC, epoch) {
        Some(_) => Ok(cron),
        None => Err(InvalidSchedule::Never(text.into())),
    }
}

fn moment(text: &str, zone: &Zone) -> Result<Timestamp, InvalidSchedule> {
    let wrong = || InvalidSchedule::At(text.chars().take(64).collect());
    // A zone in brackets would be ignored silently.
    if text.len() > 64 || text.contains('[') {
        return Err(wrong());
    }
    match (text.parse::<jiff::Timestamp>(), text.parse::<DateTime>()) {
        (Ok(instant), _) => Ok(of_instant(instant)),
        (Err(_), Ok(shown)) if text.contains([':', 'T']) => Ok(zone.first_instant(shown)),
        (Err(_), _) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests;
