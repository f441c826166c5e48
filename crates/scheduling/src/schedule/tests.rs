use proptest::prelude::*;

use super::*;
use crate::zone::instant;

fn at(text: &str) -> Timestamp {
    of_instant(text.parse().unwrap())
}

fn cron(text: &str, zone: &str) -> Schedule {
    Schedule::parse(Some(text), None, zone, OverlapRule::Skip, MissedRule::Skip).unwrap()
}

fn once(text: &str, zone: &str) -> Schedule {
    Schedule::parse(None, Some(text), zone, OverlapRule::Skip, MissedRule::One).unwrap()
}

fn next(schedule: &Schedule, after: &str) -> String {
    schedule.next_occurrence(at(after)).map_or("never".to_owned(), |at| instant(at).to_string())
}

#[test]
fn patterns_have_five_fields_and_occur() {
    for good in
        ["* * * * *", "*/15 9-17 * * MON-FRI", "0 0 29 2 *", "0 0 L * *", "0 12 * * 5#2", "0 0 29 2 MON"]
    {
        assert!(
            Schedule::parse(Some(good), None, "UTC", OverlapRule::Skip, MissedRule::Skip).is_ok(),
            "{good}"
        );
    }
    let bad = [
        ("", "five fields"),
        ("@daily", "five fields"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("60 * * * *", "cron: minute `60`: expected *, or numbers from 0 to 59"),
        ("* 24 * * *", "cron: hour `24`: "),
        ("* * 0 * *", "cron: day `0`: "),
        ("* * * 13 *", "cron: month `13`: "),
        ("* * * * 8", "cron: weekday `8`: "),
        ("*/0 * * * *", "cron: minute `*/0`: "),
        ("*/70 * * * *", "cron: minute `*/70`: the step is greater than the range from 0 to 59"),
        ("0 0-5/24 * * *", "cron: hour `0-5/24`: the step"),
        ("1,2,,3 * * * *", "cron: minute `1,2,,3`: an item of the list is empty"),
        ("0 0 1, * *", "cron: day `1,`: an item"),
        ("a b c d e", "cron: minute `a`: "),
        ("0 0 30 2 *", "never occurs"),
        ("0 0 31 4 *", "never occurs"),
    ];
    for (text, why) in bad {
        let error =
            Schedule::parse_new(Some(text), None, "UTC", OverlapRule::Skip, MissedRule::Skip).unwrap_err();
        assert!(error.to_string().contains(why), "{text}: {error}");
    }
    // A pattern stored before this rule existed continues to work.
    for text in ["0 */24 * * *", "*/60 * * * *", "0 0 1 */12 *"] {
        let parse = |parse: fn(_, _, _, _, _) -> _| {
            parse(Some(text), None, "UTC", OverlapRule::Skip, MissedRule::Skip)
        };
        assert!(parse(Schedule::parse).is_ok() && parse(Schedule::parse_new).is_err(), "{text}");
    }
    let parse = |cron, at, zone| Schedule::parse(cron, at, zone, OverlapRule::Skip, MissedRule::Skip);
    assert_eq!(parse(None, None, "UTC"), Err(InvalidSchedule::Form));
    assert_eq!(parse(Some("* * * * *"), Some("2026-01-01T00:00Z"), "UTC"), Err(InvalidSchedule::Form));
    let bracketed = parse(None, Some("2027-03-28T02:30[Europe/Paris]"), "UTC").unwrap_err();
    assert!(bracketed.to_string().contains("is no time"), "{bracketed}");
    let error = parse(Some("* * * * *"), None, "Mars/Base").unwrap_err();
    assert_eq!(error.to_string(), "time_zone: `Mars/Base` is no time zone of the IANA database");
}

#[test]
fn a_pattern_occurs_in_its_zone_strictly_after() {
    let nine = cron("0 9 * * MON-FRI", "Europe/Berlin");
    for (after, found) in [
        ("2026-01-15T07:59:59.999Z", "2026-01-15T08:00:00Z"),
        ("2026-01-15T08:00:00Z", "2026-01-16T08:00:00Z"),
        ("2026-01-15T08:00:00.001Z", "2026-01-16T08:00:00Z"),
        ("2026-01-16T08:00:00Z", "2026-01-19T08:00:00Z"),
        ("2026-03-27T08:00:00Z", "2026-03-30T07:00:00Z"),
    ] {
        assert_eq!(next(&nine, after), found, "{after}");
    }
    let five: Vec<_> = nine.occurrences(at("2026-01-15T12:00Z"), 5).into_iter().map(instant).collect();
    assert_eq!(five.len(), 5);
    assert_eq!(five[4].to_string(), "2026-01-22T08:00:00Z");
}

#[test]
fn a_time_that_does_not_exist_moves_forward() {
    let early = cron("30 2 * * *", "Europe/Berlin");
    assert_eq!(next(&early, "2026-03-28T12:00Z"), "2026-03-29T01:00:00Z");
    assert_eq!(next(&early, "2026-03-29T01:00Z"), "2026-03-30T00:30:00Z");
    assert_eq!(
        once("2026-03-29T02:30", "Europe/Berlin").next_occurrence(at("2026-01-01T00:00Z")),
        Some(at("2026-03-29T01:00Z"))
    );
}

#[test]
fn a_fixed_time_that_comes_twice_occurs_once() {
    let early = cron("30 2 * * *", "Europe/Berlin");
    assert_eq!(next(&early, "2026-10-24T12:00Z"), "2026-10-25T00:30:00Z");
    assert_eq!(next(&early, "2026-10-25T00:30Z"), "2026-10-26T01:30:00Z");
    let half_hours = cron("*/30 * * * *", "Europe/Berlin");
    let found = half_hours.occurrences(at("2026-10-24T23:59Z"), 6);
    let expected = (0..6).map(|n| at("2026-10-25T00:00Z").plus_ms(n * 1_800_000)).collect::<Vec<_>>();
    assert_eq!(found, expected, "what runs all the time has no gap");
}

#[test]
fn a_time_is_an_instant_or_that_of_the_zone() {
    let berlin = |text| once(text, "Europe/Berlin").next_occurrence(Timestamp(0)).unwrap();
    assert_eq!(berlin("2026-12-24T18:00"), at("2026-12-24T17:00Z"));
    assert_eq!(berlin("2026-12-24T18:00:00Z"), at("2026-12-24T18:00Z"));
    assert_eq!(berlin("2026-12-24T18:00:00+05:30"), at("2026-12-24T12:30Z"));
    let christmas = once("2026-12-24T18:00:00Z", "UTC");
    assert_eq!(christmas.next_occurrence(at("2026-12-24T18:00Z")), None);
    assert_eq!(christmas.occurrences(Timestamp(0), 5).len(), 1);
    for bad in ["", "tomorrow", "2026-13-01T00:00Z", "2026-12-24", "18:00"] {
        let error = Schedule::parse(None, Some(bad), "UTC", OverlapRule::Skip, MissedRule::Skip).unwrap_err();
        assert!(matches!(error, InvalidSchedule::At(_)), "{bad}: {error}");
    }
}

fn facts(now: &str, due: &str, unfinished: u32) -> ScheduleFacts {
    ScheduleFacts { now: at(now), due: at(due), unfinished }
}

#[test]
fn an_occurrence_in_time_fires_and_the_next_is_after_now() {
    let hourly = cron("0 * * * *", "UTC");
    let fire = |occurrence: &str, next: &str| ScheduleVerdict::Fire {
        occurrence: at(occurrence),
        next_due: Some(at(next)),
    };
    let (ten, eleven, twelve) = ("2026-01-15T10:00Z", "2026-01-15T11:00Z", "2026-01-15T12:00Z");
    assert_eq!(decide_schedule(&hourly, &facts(ten, ten, 0)), fire(ten, eleven));
    assert_eq!(decide_schedule(&hourly, &facts("2026-01-15T10:01Z", ten, 0)), fire(ten, eleven));
    let early = facts("2026-01-15T09:59:59.999Z", ten, 0);
    assert_eq!(decide_schedule(&hourly, &early), ScheduleVerdict::Wait(at(ten)));
    // One millisecond beyond the grace period it counts as missed.
    let missed = ScheduleVerdict::Skip { reason: SkipReason::Missed, next_due: Some(at(eleven)) };
    assert_eq!(decide_schedule(&hourly, &facts("2026-01-15T10:01:00.001Z", ten, 0)), missed);
    // After an outage there may be a newer occurrence that is in time.
    assert_eq!(decide_schedule(&hourly, &facts("2026-01-15T11:00:30Z", ten, 0)), fire(eleven, twelve));
}

#[test]
fn of_missed_occurrences_one_takes_place_where_wanted() {
    let one = Schedule { missed: MissedRule::One, ..cron("0 9 * * *", "Europe/Berlin") };
    // Three days, over a change of the clock.
    let verdict = decide_schedule(&one, &facts("2026-03-30T12:00Z", "2026-03-28T08:00Z", 0));
    let fire = ScheduleVerdict::Fire {
        occurrence: at("2026-03-28T08:00Z"),
        next_due: Some(at("2026-03-31T07:00Z")),
    };
    assert_eq!(verdict, fire);
    let once = once("2026-01-15T10:00Z", "UTC");
    let verdict = decide_schedule(&once, &facts("2026-01-17T10:00Z", "2026-01-15T10:00Z", 0));
    let fire = ScheduleVerdict::Fire { occurrence: at("2026-01-15T10:00Z"), next_due: None };
    assert_eq!(verdict, fire);
    let skipped = Schedule { missed: MissedRule::Skip, ..once };
    let verdict = decide_schedule(&skipped, &facts("2026-01-17T10:00Z", "2026-01-15T10:00Z", 0));
    assert_eq!(verdict, ScheduleVerdict::Skip { reason: SkipReason::Missed, next_due: None });
}

#[test]
fn an_occurrence_over_an_unfinished_one_is_skipped_or_queued() {
    let ten = "2026-01-15T10:00Z";
    let skip = cron("0 * * * *", "UTC");
    let queue = Schedule { overlap: OverlapRule::Queue, ..skip.clone() };
    let fires = |schedule: &Schedule, unfinished| {
        matches!(decide_schedule(schedule, &facts(ten, ten, unfinished)), ScheduleVerdict::Fire { .. })
    };
    assert!(fires(&skip, 0) && !fires(&skip, 1));
    assert!(fires(&queue, 99) && !fires(&queue, 100), "a queue has an end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn occurrences_rise_and_match_the_wall_clock(
        minute in 0u32..60, hour in 0u32..24, days in 0i64..3_650,
        zone in prop::sample::select(vec!["Europe/Berlin", "America/New_York", "Australia/Lord_Howe",
            "America/Santiago", "Asia/Kathmandu", "UTC"]),
    ) {
        let schedule = cron(&format!("{minute} {hour} * * *"), zone);
        let zone = Zone::named(zone).unwrap();
        let after = at("2020-01-01T00:00Z").plus_ms(days * 86_400_000);
        let found = schedule.occurrences(after, 6);
        prop_assert_eq!(found.len(), 6);
        let mut last = after;
        for at in found {
            prop_assert!(at > last && at.since_ms(last) <= 50 * 3_600_000);
            let shown = zone.wall_clock(at);
            let is_asked = (shown.hour() as u32, shown.minute() as u32) == (hour, minute);
            let skipped = shown.date().at(hour as i8, minute as i8, 0, 0);
            prop_assert!(is_asked || zone.instants(skipped) == crate::zone::Instants::Skipped(at));
            last = at;
        }
    }

    #[test]
    fn an_outage_never_fires_more_than_once(minutes in 0i64..10_000, every in 1u32..60, one in any::<bool>()) {
        let missed = if one { MissedRule::One } else { MissedRule::Skip };
        let schedule = Schedule { missed, ..cron(&format!("*/{every} * * * *"), "Europe/Berlin") };
        let due = schedule.next_occurrence(at("2026-03-28T20:00Z")).unwrap();
        let now = due.plus_ms(minutes * 60_000 + 30_000);
        match decide_schedule(&schedule, &ScheduleFacts { now, due, unfinished: 0 }) {
            ScheduleVerdict::Fire { occurrence, next_due } => {
                prop_assert!(occurrence <= now && next_due.is_some_and(|next| next > now));
                prop_assert!(one || now.since_ms(occurrence) <= Schedule::GRACE_MS);
            }
            ScheduleVerdict::Skip { reason, next_due } => {
                prop_assert!(!one && reason == SkipReason::Missed && next_due.is_some_and(|next| next > now));
            }
            ScheduleVerdict::Wait(_) => prop_assert!(false),
        }
    }
}

#[test]
fn rules_have_their_names() {
    assert_eq!(OverlapRule::ALL.map(OverlapRule::name), ["skip", "queue"]);
    assert_eq!(OverlapRule::ALL.map(|rule| OverlapRule::from_name(rule.name())), OverlapRule::ALL.map(Some));
    assert_eq!(MissedRule::ALL.map(MissedRule::name), ["skip", "one"]);
    assert_eq!(MissedRule::ALL.map(|rule| MissedRule::from_name(rule.name())), MissedRule::ALL.map(Some));
    assert_eq!((OverlapRule::from_name("one"), MissedRule::from_name("queue")), (None, None));
    assert_eq!((SkipReason::Overlap.name(), SkipReason::Missed.name()), ("overlap", "missed"));
}

#[test]
fn a_pattern_of_the_greatest_length_is_read() {
    let of_length = |length: usize| format!("{}* * * * *", " ".repeat(length - 9));
    let parse = |text: &str| Schedule::parse(Some(text), None, "UTC", OverlapRule::Skip, MissedRule::Skip);
    assert!(parse(&of_length(Schedule::MAX_CRON)).is_ok());
    assert!(parse(&of_length(Schedule::MAX_CRON + 1)).is_err());
}

#[test]
fn a_moment_with_all_its_parts_is_read() {
    let parse = |text: &str| Schedule::parse(None, Some(text), "UTC", OverlapRule::Skip, MissedRule::Skip);
    let moment = "2026-12-24T18:00:00.123456789+01:00";
    assert!(parse(moment).is_ok());
    assert!(parse(&format!("{moment}{}", " ".repeat(64))).is_err());
}
