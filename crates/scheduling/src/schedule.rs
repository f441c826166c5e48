//! Schedules: when an agent's work falls due by the calendar.
//!
//! Entry: [`Schedule::parse`], [`Schedule::next_occurrence`], [`decide_schedule`].

mod cron_pattern;
mod cron_time;
mod decide;

use croner::Cron;
use jiff::civil::DateTime;
use model::Timestamp;

pub use decide::{ScheduleFacts, ScheduleVerdict, SkipReason, decide_schedule};

use self::cron_time::CronTime;
use crate::zone::{Zone, of_instant};

/// What happens when an occurrence falls due while the one before is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OverlapRule {
    /// It does not take place.
    #[default]
    Skip,
    /// It waits in the agent's queue.
    Queue,
}

/// What happens to occurrences that fell due while there was no worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MissedRule {
    /// They do not take place.
    #[default]
    Skip,
    /// One of them does.
    One,
}

impl OverlapRule {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Skip, Self::Queue];

    /// The name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
        }
    }

    /// The rule of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

impl MissedRule {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Skip, Self::One];

    /// The name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::One => "one",
        }
    }

    /// The rule of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// When work falls due, and what becomes of it when it cannot be done then.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    when: When,
    /// While the one before is not done.
    pub overlap: OverlapRule,
    /// After an outage.
    pub missed: MissedRule,
}

#[derive(Debug, Clone, PartialEq)]
enum When {
    Cron(Box<Cron>, Zone),
    At(Timestamp),
}

/// No schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    /// Both or neither.
    #[error("a schedule has either cron or at")]
    Form,
    /// Not five fields, or a field is wrong.
    #[error("cron: {0}")]
    Cron(Box<str>),
    /// Such a day does not come.
    #[error("cron: `{0}` never occurs")]
    Never(Box<str>),
    /// Neither an instant nor a local time.
    #[error("at: `{0}` is no time: write 2026-12-24T18:00:00Z, or 2026-12-24T18:00 in time_zone")]
    At(Box<str>),
    /// Not in the database.
    #[error("time_zone: {0}")]
    Zone(#[from] crate::zone::UnknownZone),
}

impl Schedule {
    /// Most bytes of a cron pattern.
    pub const MAX_CRON: usize = 256;

    /// A schedule by the five fields of cron (`minute hour day month weekday`) or at one time, which is an instant with an offset or what
    /// the wall clock of the zone shows. Of a time that comes twice the first counts, and one that does not exist is when the clock
    /// has gone past it.
    ///
    /// # Errors
    /// It makes no sense; the part that is wrong is named.
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

    /// As [`Self::parse`], for a schedule that is written now: what can be read and is hardly meant is refused, too.
    ///
    /// # Errors
    /// As of [`Self::parse`]; also an empty item of a list, and a step that is greater than its range.
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

    /// When it occurs next, strictly after `after`. `None` when it does not any more.
    pub fn next_occurrence(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.when {
            When::At(at) => (*at > after).then_some(*at),
            When::Cron(cron, zone) => next_of(cron, zone, after),
        }
    }

    /// The next `count` occurrences after `after`.
    pub fn occurrences(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        let first = self.next_occurrence(after);
        std::iter::successors(first, |last| self.next_occurrence(*last)).take(count).collect()
    }
}

fn next_of(cron: &Cron, zone: &Zone, after: Timestamp) -> Option<Timestamp> {
    let mut from = CronTime::new(zone, after);
    // What croner finds within the second that it starts from is not after it.
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
    // From a fixed day, over more years than there are between two leap days of one weekday.
    let epoch = Timestamp(1_704_067_200_000);
    match next_of(&cron, &Zone::UTC, epoch) {
        Some(_) => Ok(cron),
        None => Err(InvalidSchedule::Never(text.into())),
    }
}

fn moment(text: &str, zone: &Zone) -> Result<Timestamp, InvalidSchedule> {
    let wrong = || InvalidSchedule::At(text.chars().take(64).collect());
    // A zone in brackets would be ignored, which is not what it says.
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
