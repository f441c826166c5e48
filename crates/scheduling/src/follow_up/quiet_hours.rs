//! Hours of the day in which no follow-ups are sent.

use jiff::civil::{Time, time};
use model::Timestamp;

use crate::zone::{Instants, Zone};

/// Maximum number of clock changes considered within one night.
const MOST_CHANGES: usize = 4;

/// A range from one time of day to another, which may be on the next day. The range follows the
/// wall clock: a skipped hour is over when the clock has passed it, and a repeated hour is quiet
/// twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuietHours {
    from: Time,
    to: Time,
}

impl QuietHours {
    /// Parses two times of day as `HH:MM`. `None` if one is invalid, or both are the same.
    pub fn parse(from: &str, to: &str) -> Option<Self> {
        let (from, to) = (minute(from)?, minute(to)?);
        (from != to).then_some(Self { from, to })
    }

    /// End of the quiet hours if this time is quiet in that zone.
    pub fn quiet_until(&self, zone: &Zone, now: Timestamp) -> Option<Timestamp> {
        let mut end = now;
        // If the clock skips the end of the quiet hours, the time after it may be in the next quiet
        // hours.
        for _ in 0..4 {
            if !self.contains(zone.wall_clock(end).time()) {
                break;
            }
            end = self.end_after(zone, end);
        }
        (end > now).then_some(end)
    }

    fn contains(&self, at: Time) -> bool {
        match self.from < self.to {
            true => (self.from..self.to).contains(&at),
            false => at >= self.from || at < self.to,
        }
    }

    /// End of the quiet hours that contain `now`: the wall clock shows their end, or is set to a
    /// time that is not quiet.
    fn end_after(&self, zone: &Zone, now: Timestamp) -> Timestamp {
        let end = self.end_shown(zone, now);
        let changes = zone.changes_after(now).take_while(|change| *change < end);
        let is_over = |change: &Timestamp| !self.contains(zone.wall_clock(*change).time());
        changes.take(MOST_CHANGES).find(is_over).unwrap_or(end)
    }

    /// Next time after the quiet moment `now` at which the wall clock shows the end of the quiet
    /// hours.
    fn end_shown(&self, zone: &Zone, now: Timestamp) -> Timestamp {
        let shown = zone.wall_clock(now);
        let date = match shown.time() < self.to {
            true => Ok(shown.date()),
            false => shown.date().tomorrow(),
        };
        let Ok(date) = date else { return Timestamp(i64::MAX) };
        match zone.instants(date.to_datetime(self.to)) {
            Instants::Two(first, second) => {
                if first > now {
                    first
                } else {
                    second
                }
            }
            Instants::One(at) | Instants::Skipped(at) => at,
        }
    }
}

fn minute(text: &str) -> Option<Time> {
    let is_form = text.len() == 5
        && text.bytes().enumerate().all(|(at, byte)| match at {
            2 => byte == b':',
            _ => byte.is_ascii_digit(),
        });
    let (hour, minute) = text.split_once(':').filter(|_| is_form)?;
    let (hour, minute): (i8, i8) = (hour.parse().ok()?, minute.parse().ok()?);
    ((0..24).contains(&hour) && (0..60).contains(&minute)).then(|| time(hour, minute, 0, 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::zone::of_instant;

    const MINUTE: i64 = 60_000;

    fn at(text: &str) -> Timestamp {
        of_instant(text.parse().unwrap())
    }

    fn until(hours: (&str, &str), zone: &str, now: &str) -> Option<Timestamp> {
        QuietHours::parse(hours.0, hours.1).unwrap().quiet_until(&Zone::named(zone).unwrap(), at(now))
    }

    #[test]
    fn times_of_the_day_are_read_strictly() {
        assert!(QuietHours::parse("22:00", "07:30").is_some());
        for (from, to) in [
            ("22:00", "22:00"),
            ("24:00", "07:00"),
            ("7:00", "08:00"),
            ("22:60", "07:00"),
            ("22.00", "07:00"),
            ("-1:00", "07:00"),
            ("22:00", ""),
            ("22:00:00", "07:00"),
            ("+1:00", "07:00"),
        ] {
            assert_eq!(QuietHours::parse(from, to), None, "{from} {to}");
        }
    }

    #[test]
    fn quiet_hours_are_those_of_the_zone_and_end_exclusively() {
        let night = ("22:00", "08:00");
        for (now, end) in [
            ("2026-01-15T20:59:59.999Z", None),
            ("2026-01-15T21:00Z", Some("2026-01-16T07:00Z")),
            ("2026-01-16T06:59:59.999Z", Some("2026-01-16T07:00Z")),
            ("2026-01-16T07:00Z", None),
        ] {
            assert_eq!(until(night, "Europe/Berlin", now), end.map(at), "{now}");
        }
        assert_eq!(
            until(("12:00", "13:00"), "Asia/Tokyo", "2026-01-15T03:30Z"),
            Some(at("2026-01-15T04:00Z"))
        );
        assert_eq!(until(("12:00", "13:00"), "Asia/Tokyo", "2026-01-15T12:30Z"), None, "by UTC it would be");
    }

    #[test]
    fn an_end_that_does_not_exist_moves_forward() {
        let night = ("22:00", "02:30");
        let change = "2026-03-29T01:00Z";
        assert_eq!(until(night, "Europe/Berlin", "2026-03-29T00:59:59.999Z"), Some(at(change)));
        assert_eq!(until(night, "Europe/Berlin", change), None, "it is three o'clock");
        // A start that does not exist: the hours begin when the clock has passed it.
        let late = ("02:30", "05:00");
        assert_eq!(until(late, "Europe/Berlin", "2026-03-29T00:59:59.999Z"), None);
        assert_eq!(until(late, "Europe/Berlin", change), Some(at("2026-03-29T03:00Z")));
        assert_eq!(until(("02:10", "02:50"), "Europe/Berlin", change), None, "all of it does not exist");
    }

    #[test]
    fn an_hour_that_comes_twice_is_quiet_twice() {
        let whole = ("02:00", "03:00");
        for now in ["2026-10-25T00:00Z", "2026-10-25T00:59:59.999Z", "2026-10-25T01:00Z", "2026-10-25T01:59Z"]
        {
            assert_eq!(until(whole, "Europe/Berlin", now), Some(at("2026-10-25T02:00Z")), "{now}");
        }
        let half = ("22:00", "02:30");
        assert_eq!(until(half, "Europe/Berlin", "2026-10-25T00:29Z"), Some(at("2026-10-25T00:30Z")));
        assert_eq!(until(half, "Europe/Berlin", "2026-10-25T00:30Z"), None);
        assert_eq!(until(half, "Europe/Berlin", "2026-10-25T01:29Z"), Some(at("2026-10-25T01:30Z")));
    }

    #[test]
    fn a_day_that_was_skipped_ends_no_quiet_hours_early() {
        // Samoa had no 30 December 2011: the night of the 29th ends on the 31st.
        let end = until(("22:00", "08:00"), "Pacific/Apia", "2011-12-30T09:00Z");
        assert_eq!(end, Some(at("2011-12-30T18:00Z")));
    }

    #[test]
    fn a_clock_that_goes_back_may_end_quiet_hours() {
        // At two o'clock the clock goes back to one, which is not quiet.
        let short = ("01:45", "02:15");
        let change = "2026-11-01T04:30Z";
        assert_eq!(until(short, "America/St_Johns", "2026-11-01T04:20Z"), Some(at(change)));
        assert_eq!(until(short, "America/St_Johns", change), None);
        assert_eq!(until(short, "America/St_Johns", "2026-11-01T05:20Z"), Some(at("2026-11-01T05:45Z")));
        // The clock goes back by half an hour on this island.
        let short = ("01:45", "02:15");
        assert_eq!(until(short, "Australia/Lord_Howe", "2027-04-03T14:50Z"), Some(at("2027-04-03T15:00Z")));
    }

    proptest! {
        #[test]
        fn quiet_lasts_until_its_end_in_nights_of_a_change(
            zone in prop::sample::select(vec!["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Casablanca"]),
            year in 0..30i64, number in 0..2usize, before in -200..200i64, from in -120..120i64, length in 1..300i64,
        ) {
            let text = |minute: i64| format!("{:02}:{:02}", minute.rem_euclid(1_440) / 60, minute.rem_euclid(60));
            let zone = Zone::named(zone).unwrap();
            // From 2010.
            let start = Timestamp((21_038_400 + year * 525_960) * MINUTE);
            let Some(change) = zone.changes_after(start).nth(number) else { return Ok(()) };
            let shown = zone.wall_clock(change.plus_ms(-MINUTE)).time();
            let from = i64::from(shown.hour()) * 60 + i64::from(shown.minute()) + from;
            let hours = QuietHours::parse(&text(from), &text(from + length)).unwrap();
            let now = change.plus_ms(before * MINUTE);
            let is_quiet = |at| hours.contains(zone.wall_clock(at).time());
            let end = hours.quiet_until(&zone, now).unwrap_or(now);
            prop_assert!(!is_quiet(end));
            let mut at = now;
            while at < end {
                prop_assert!(is_quiet(at), "{at:?} of {now:?}..{end:?}");
                at = at.plus_ms(MINUTE);
            }
        }

        #[test]
        fn quiet_lasts_exactly_until_its_end(
            zone in prop::sample::select(vec!["Europe/Berlin", "America/New_York", "Australia/Lord_Howe",
                "America/Santiago", "Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca", "UTC"]),
            from in 0..1_440i64, length in 1..1_440i64, minute in 0..15_778_463i64,
        ) {
            let text = |minute: i64| format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
            let hours = QuietHours::parse(&text(from), &text(from + length)).unwrap();
            let zone = Zone::named(zone).unwrap();
            // Within thirty years from 2010.
            let now = Timestamp((21_038_400 + minute) * MINUTE);
            let is_quiet = |at| hours.contains(zone.wall_clock(at).time());
            match hours.quiet_until(&zone, now) {
                None => prop_assert!(!is_quiet(now)),
                Some(end) => {
                    prop_assert!(!is_quiet(end) && end.since_ms(now) <= 2 * 1_440 * MINUTE);
                    let mut at = now;
                    while at < end {
                        prop_assert!(is_quiet(at), "{at:?} of {now:?}..{end:?}");
                        at = at.plus_ms(MINUTE);
                    }
                }
            }
        }
    }
}
