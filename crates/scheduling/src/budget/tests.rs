use proptest::prelude::*;

use super::*;
use crate::zone::{instant, of_instant};

/// Zones whose clocks change at midnight, go back over it, skipped a whole day, or differ by part
/// of an hour.
const ZONES: [&str; 9] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "America/Havana",
    "America/Asuncion",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
];

fn at(text: &str) -> Timestamp {
    of_instant(text.parse().unwrap())
}

fn around(period: BudgetPeriod, zone: &str, text: &str) -> [String; 2] {
    let (begins, ends) = period.around(&Zone::named(zone).unwrap(), at(text));
    [begins, ends].map(|moment| instant(moment).to_string())
}

#[test]
fn days_have_23_to_25_hours() {
    for (zone, now, expected) in [
        ("UTC", "2026-02-28T23:59:59.999Z", ["2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z"]),
        ("Europe/Berlin", "2026-03-29T12:00:00Z", ["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"]),
        ("Europe/Berlin", "2026-10-25T12:00:00Z", ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"]),
        // The day begins at one o'clock there.
        ("America/Santiago", "2026-09-06T12:00:00Z", ["2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"]),
        // There was no 30th of December.
        ("Pacific/Apia", "2011-12-30T09:59:59Z", ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"]),
    ] {
        assert_eq!(around(BudgetPeriod::Day, zone, now), expected, "{zone} {now}");
    }
}

#[test]
fn months_have_28_to_31_days() {
    for (zone, now, expected) in [
        ("UTC", "2026-02-28T23:59:59.999Z", ["2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"]),
        ("UTC", "2028-02-29T00:00:00Z", ["2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"]),
        ("Europe/Berlin", "2026-12-31T23:00:00Z", ["2026-12-31T23:00:00Z", "2027-01-31T23:00:00Z"]),
        ("Europe/Berlin", "2026-03-31T12:00:00Z", ["2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"]),
    ] {
        assert_eq!(around(BudgetPeriod::Month, zone, now), expected, "{zone} {now}");
    }
}

#[test]
fn amounts_are_exact() {
    use BudgetUnit::{Cost, Tokens};
    for (unit, text, amount, shown) in [
        (Tokens, "0", 0, "0"),
        (Tokens, "1000000", 1_000_000, "1000000"),
        (Tokens, "7.0", 7, "7"),
        (Cost, "12.50", 12_500_000_000, "12.5"),
        (Cost, "0.000000001", 1, "0.000000001"),
        (Cost, "100", 100_000_000_000, "100"),
        (Cost, "0", 0, "0"),
    ] {
        assert_eq!(unit.exact(text), Some(amount), "{text}");
        assert_eq!(unit.show(amount), shown);
    }
    for bad in ["", ".", "1.", ".5", "-1", "+1", "1e3", "1,5", " 1", "99999999999999999999999"] {
        assert_eq!(Cost.exact(bad), None, "{bad}");
        assert_eq!(Tokens.exact(bad), None, "{bad}");
    }
    assert_eq!((Tokens.exact("1.5"), Tokens.floor("1.5")), (None, Some(1)));
    assert_eq!((Cost.exact("0.0000000009"), Cost.floor("0.0000000019")), (None, Some(1)));
    assert_eq!(Cost.floor("99999999999999999999999.5"), Some(u64::MAX));
}

#[test]
fn nothing_left_is_spent() {
    assert_eq!(decide_budget(10, 9), BudgetVerdict::Within(1));
    assert_eq!(decide_budget(10, 10), BudgetVerdict::Spent);
    assert_eq!(decide_budget(10, u64::MAX), BudgetVerdict::Spent);
    assert_eq!(decide_budget(0, 0), BudgetVerdict::Spent, "no calls at all");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Each time is in one period. The period is the same for every time in it, and the next period
    /// starts at its end.
    #[test]
    fn periods_follow_each_other(
        now_ms in 0_i64..4_102_444_800_000,
        into in 0.0..1.0_f64,
        zone in prop::sample::select(&ZONES[..]),
        period in prop::sample::select(&BudgetPeriod::ALL[..]),
    ) {
        let (zone, now) = (Zone::named(zone).unwrap(), Timestamp(now_ms));
        let (begins, ends) = period.around(&zone, now);
        prop_assert!(begins <= now && now < ends, "{begins:?} {now:?} {ends:?}");
        let another = begins.plus_ms((ends.since_ms(begins) as f64 * into) as i64);
        prop_assert_eq!(period.around(&zone, another), (begins, ends));
        prop_assert_eq!(period.around(&zone, ends).0, ends);
        prop_assert_eq!(period.around(&zone, begins.plus_ms(-1)).1, begins);
        let hours = ends.since_ms(begins) / 3_600_000;
        let (least, most) = if period == BudgetPeriod::Day { (22, 26) } else { (28 * 24 - 26, 31 * 24 + 2) };
        prop_assert!((least..=most).contains(&hours), "{} hours", hours);
    }

    /// More spending never leaves more, and a sum with smaller parts reaches a limit when its whole
    /// part does.
    #[test]
    fn spending_more_leaves_less(limit in 0..1_000_000_u64, spent in 0..1_000_000_u64, more in 0..1_000_000_u64) {
        let left = |spent| match decide_budget(limit, spent) {
            BudgetVerdict::Within(left) => left,
            BudgetVerdict::Spent => 0,
        };
        prop_assert!(left(spent + more) <= left(spent));
        prop_assert_eq!(left(spent) == 0, spent >= limit);
    }

    #[test]
    fn amounts_are_shown_as_they_are_read(amount in 0..u64::MAX, tail in "[0-9]{0,4}") {
        for unit in BudgetUnit::ALL {
            let shown = unit.show(amount);
            prop_assert_eq!(unit.exact(&shown), Some(amount));
            let point = if shown.contains('.') { "" } else { "." };
            if unit == BudgetUnit::Cost && !shown.contains('.') {
                prop_assert_eq!(unit.floor(&format!("{shown}{point}000000000{tail}")), Some(amount));
            }
        }
    }
}

#[test]
fn units_and_periods_have_their_names() {
    assert_eq!(BudgetUnit::ALL.map(BudgetUnit::name), ["tokens", "cost"]);
    assert_eq!(BudgetUnit::ALL.map(|unit| BudgetUnit::from_name(unit.name())), BudgetUnit::ALL.map(Some));
    assert_eq!(BudgetPeriod::ALL.map(BudgetPeriod::name), ["day", "month"]);
    assert_eq!(
        BudgetPeriod::ALL.map(|period| BudgetPeriod::from_name(period.name())),
        BudgetPeriod::ALL.map(Some)
    );
    assert_eq!((BudgetUnit::from_name("Tokens"), BudgetPeriod::from_name("")), (None, None));
}
