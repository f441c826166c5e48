//! Time zones of the IANA database and their wall clocks.

use std::fmt;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use model::Timestamp;

/// A time zone of the IANA database.
#[derive(Clone, PartialEq)]
pub struct Zone(TimeZone);

/// No time zone of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no time zone of the IANA database")]
pub struct UnknownZone(Box<str>);

/// Instants at which a wall clock shows a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instants {
    One(Timestamp),
    /// Twice, because the clock goes back.
    Two(Timestamp, Timestamp),
    /// The wall clock never shows this time, because it skips it: contains the moment of the
    /// change.
    Skipped(Timestamp),
}

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// The zone of that name, ignoring case.
    ///
    /// # Errors
    /// There is no such zone.
    pub fn named(name: &str) -> Result<Self, UnknownZone> {
        let found = TimeZoneDatabase::bundled().get(name);
        found.map(Self).map_err(|_| UnknownZone(name.chars().take(64).collect()))
    }

    /// Name in the database.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// Time shown by the wall clock at that instant.
    pub(crate) fn wall_clock(&self, at: Timestamp) -> DateTime {
        self.0.to_datetime(instant(at))
    }

    /// Instants at which the wall clock shows this time.
    pub(crate) fn instants(&self, shown: DateTime) -> Instants {
        let ambiguous = self.0.to_ambiguous_timestamp(shown);
        let of =
            |offset: jiff::tz::Offset| offset.to_timestamp(shown).map_or(Timestamp(i64::MAX), of_instant);
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { offset } => Instants::One(of(offset)),
            AmbiguousOffset::Fold { before, after } => Instants::Two(of(before), of(after)),
            AmbiguousOffset::Gap { before, after } => {
                // The instant computed with the later offset is before the change.
                let begin = after.to_timestamp(shown).ok();
                let change = begin.and_then(|begin| self.0.following(begin).next());
                Instants::Skipped(change.map_or(of(before), |change| of_instant(change.timestamp())))
            }
        }
    }

    /// First instant at which the wall clock shows this time; for a skipped time, the moment of the
    /// change.
    pub(crate) fn first_instant(&self, shown: DateTime) -> Timestamp {
        match self.instants(shown) {
            Instants::One(at) | Instants::Two(at, _) | Instants::Skipped(at) => at,
        }
    }

    /// Clock changes after this instant, in order.
    pub(crate) fn changes_after(&self, at: Timestamp) -> impl Iterator<Item = Timestamp> {
        self.0.following(instant(at)).map(|change| of_instant(change.timestamp()))
    }

    /// Start of the day that contains this instant.
    pub fn day_start(&self, at: Timestamp) -> Timestamp {
        let date: Date = self.wall_clock(at).date();
        self.first_instant(date.to_datetime(Time::midnight()))
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Clamps to the range of the calendar, which ends with the year 9999.
pub(crate) fn instant(at: Timestamp) -> jiff::Timestamp {
    let end = if at.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
    jiff::Timestamp::from_millisecond(at.0).unwrap_or(end)
}

pub(crate) fn of_instant(at: jiff::Timestamp) -> Timestamp {
    Timestamp(at.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        of_instant(text.parse().unwrap())
    }

    #[test]
    fn zones_are_those_of_the_database() {
        for good in ["Europe/Berlin", "europe/berlin", "UTC", "America/St_Johns", "Etc/GMT+3"] {
            assert!(Zone::named(good).is_ok(), "{good}");
        }
        for bad in ["", "Berlin", "+02:00", "Mars/Base", "../UTC", "/etc/passwd", "localtime"] {
            assert!(Zone::named(bad).is_err(), "{bad}");
        }
        assert_eq!(Zone::named("europe/berlin").unwrap().name(), "Europe/Berlin");
        assert_eq!(Zone::UTC.name(), "UTC");
    }

    #[test]
    fn wall_clock_times_are_found_once_twice_or_skipped() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let shown = |text: &str| text.parse::<DateTime>().unwrap();
        assert_eq!(berlin.instants(shown("2026-03-28T02:30")), Instants::One(at("2026-03-28T01:30Z")));
        for skipped in ["2026-03-29T02:00", "2026-03-29T02:30", "2026-03-29T02:59:59"] {
            assert_eq!(berlin.instants(shown(skipped)), Instants::Skipped(at("2026-03-29T01:00Z")));
        }
        assert_eq!(
            berlin.instants(shown("2026-10-25T02:30")),
            Instants::Two(at("2026-10-25T00:30Z"), at("2026-10-25T01:30Z"))
        );
    }

    #[test]
    fn moments_outside_the_calendar_are_clamped_to_its_ends() {
        assert_eq!(instant(Timestamp(i64::MIN)), jiff::Timestamp::MIN);
        assert_eq!(instant(Timestamp(i64::MAX)), jiff::Timestamp::MAX);
        assert_eq!(instant(Timestamp(-1)).as_millisecond(), -1);
    }

    #[test]
    fn a_day_begins_with_its_first_moment() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        assert_eq!(berlin.day_start(at("2026-03-29T12:00Z")), at("2026-03-28T23:00Z"));
        assert_eq!(berlin.day_start(at("2026-03-28T22:59:59.999Z")), at("2026-03-27T23:00Z"));
        assert_eq!(berlin.day_start(at("2026-03-28T23:00Z")), at("2026-03-28T23:00Z"));
        // The clock goes forward at midnight there.
        let santiago = Zone::named("America/Santiago").unwrap();
        assert_eq!(santiago.day_start(at("2026-09-06T12:00Z")), at("2026-09-06T04:00Z"));
        assert_eq!(Zone::UTC.day_start(Timestamp(i64::MAX)).0 % 86_400_000, 0);
    }
}
