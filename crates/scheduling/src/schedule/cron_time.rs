//! Timestamps in a zone, in the form that `croner` searches.

use std::cmp::Ordering;

use croner::errors::CronError;
use croner::{CivilDateTime, CronDateTime, Resolution, Weekday};
use jiff::civil::DateTime;
use model::Timestamp;

use crate::zone::{Instants, Zone};

/// A time in a zone.
#[derive(Clone)]
pub(super) struct CronTime<'a> {
    zone: &'a Zone,
    at: Timestamp,
}

impl<'a> CronTime<'a> {
    /// Truncates to seconds, the resolution of patterns.
    pub(super) fn new(zone: &'a Zone, at: Timestamp) -> Self {
        Self { zone, at: Timestamp(at.0.div_euclid(1_000) * 1_000) }
    }

    pub(super) fn timestamp(&self) -> Timestamp {
        self.at
    }

    fn moved(&self, at: Timestamp) -> Self {
        Self { zone: self.zone, at }
    }
}

impl CronDateTime for CronTime<'_> {
    fn to_civil(&self) -> CivilDateTime {
        let shown = self.zone.wall_clock(self.at);
        let (date, time) = (shown.date(), shown.time());
        let part = |number: i8| number.unsigned_abs().into();
        CivilDateTime::new(
            croner::CivilDate::from_parts_unchecked(date.year().into(), part(date.month()), part(date.day())),
            croner::CivilTime::from_parts_unchecked(
                part(time.hour()),
                part(time.minute()),
                part(time.second()),
            ),
        )
    }

    fn civil_weekday(&self) -> Weekday {
        let days = self.zone.wall_clock(self.at).weekday().to_sunday_zero_offset();
        Weekday::from_days_from_sunday(days.unsigned_abs().into())
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let year = i16::try_from(civil.year()).map_err(|_| CronError::InvalidDate)?;
        let part = |number: u32| i8::try_from(number).map_err(|_| CronError::InvalidTime);
        let (month, day) = (part(civil.month())?, part(civil.day())?);
        let (hour, minute, second) = (part(civil.hour())?, part(civil.minute())?, part(civil.second())?);
        let shown =
            DateTime::new(year, month, day, hour, minute, second, 0).map_err(|_| CronError::InvalidDate)?;
        Ok(match self.zone.instants(shown) {
            Instants::One(at) => Resolution::Single(self.moved(at)),
            Instants::Two(first, second) => Resolution::Ambiguous(self.moved(first), self.moved(second)),
            Instants::Skipped(_) => Resolution::Gap,
        })
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        let ms = seconds.checked_mul(1_000)?;
        Some(self.moved(Timestamp(self.at.0.checked_add(ms)?)))
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}
