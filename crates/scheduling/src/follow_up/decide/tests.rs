use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The instant 2026-01-15T12:00:00Z.
const NOW: Timestamp = Timestamp(1_768_478_400_000);
const HOUR: i64 = 3_600_000;

fn rules(written: Value) -> FollowUpRules {
    FollowUpRules::parse(&written).unwrap()
}

fn on() -> FollowUpRules {
    rules(json!({"enabled": true}))
}

fn position(number: i64) -> Position {
    Position::from_stored(number)
}

fn facts() -> FollowUpFacts {
    FollowUpFacts {
        now: NOW,
        due: NOW,
        last_real_input: Some((position(10), NOW.plus_ms(-600_000))),
        armed_position: position(11),
        has_open_input: false,
        fired_since_real_input: 0,
        last_fired: None,
        fired_today: 0,
        is_over_budget: false,
        hold: None,
        time_zone: None,
    }
}

#[test]
fn a_follow_up_fires_when_nothing_is_against_it() {
    assert_eq!(decide_follow_up(&on(), &facts()), FollowUpVerdict::Fire);
    let without_input = FollowUpFacts { last_real_input: None, ..facts() };
    assert_eq!(decide_follow_up(&on(), &without_input), FollowUpVerdict::Fire);
}

#[test]
fn follow_ups_of_an_agent_that_is_off_are_refused() {
    let verdict = decide_follow_up(&FollowUpRules::OFF, &facts());
    assert_eq!(verdict, FollowUpVerdict::Refused(RestraintRule::Disabled));
}

#[test]
fn the_fourth_in_a_row_is_refused() {
    for (fired, verdict) in [
        (2, FollowUpVerdict::Fire),
        (3, FollowUpVerdict::Refused(RestraintRule::MaxInARow)),
        (9, FollowUpVerdict::Refused(RestraintRule::MaxInARow)),
    ] {
        let facts = FollowUpFacts { fired_since_real_input: fired, ..facts() };
        assert_eq!(decide_follow_up(&on(), &facts), verdict, "{fired}");
    }
    let fewer = rules(json!({"enabled": true, "max_in_a_row": 1}));
    let facts = FollowUpFacts { fired_since_real_input: 1, ..facts() };
    assert_eq!(decide_follow_up(&fewer, &facts), FollowUpVerdict::Refused(RestraintRule::MaxInARow));
}

#[test]
fn the_cooldown_ends_after_exactly_15_seconds() {
    let after = |ms: i64| FollowUpFacts { last_fired: Some(NOW.plus_ms(-ms)), ..facts() };
    let later = |ms: i64| FollowUpVerdict::Later { until: NOW.plus_ms(ms), rule: RestraintRule::Cooldown };
    assert_eq!(decide_follow_up(&on(), &after(14_999)), later(1));
    assert_eq!(decide_follow_up(&on(), &after(15_000)), FollowUpVerdict::Fire);
    // The clock went back since the last follow-up.
    assert_eq!(decide_follow_up(&on(), &after(-5_000)), later(20_000));
}

#[test]
fn the_budget_of_a_day_is_a_number_of_follow_ups() {
    let few = rules(json!({"enabled": true, "max_per_day": 2}));
    for (today, verdict) in
        [(1, FollowUpVerdict::Fire), (2, FollowUpVerdict::Refused(RestraintRule::MaxPerDay))]
    {
        assert_eq!(decide_follow_up(&few, &FollowUpFacts { fired_today: today, ..facts() }), verdict);
    }
}

#[test]
fn one_that_is_too_late_is_refused() {
    let late = |ms: i64| FollowUpFacts { due: NOW.plus_ms(-ms), ..facts() };
    let too_late = FollowUpVerdict::Refused(RestraintRule::TooLate);
    assert_eq!(decide_follow_up(&on(), &late(HOUR)), FollowUpVerdict::Fire);
    assert_eq!(decide_follow_up(&on(), &late(HOUR + 1)), too_late);
    let soon = rules(json!({"enabled": true, "max_lateness_seconds": 60}));
    assert_eq!(decide_follow_up(&soon, &late(60_000)), FollowUpVerdict::Fire);
    assert_eq!(decide_follow_up(&soon, &late(60_001)), too_late);
}

#[test]
fn one_whose_budget_is_spent_is_refused() {
    let spent = FollowUpFacts { is_over_budget: true, ..facts() };
    assert_eq!(decide_follow_up(&on(), &spent), FollowUpVerdict::Refused(RestraintRule::Budget));
}

#[test]
fn a_message_since_it_was_armed_supersedes_it() {
    for newer in [
        FollowUpFacts { last_real_input: Some((position(12), NOW)), ..facts() },
        FollowUpFacts { has_open_input: true, ..facts() },
    ] {
        assert_eq!(decide_follow_up(&on(), &newer), FollowUpVerdict::Superseded);
        assert_eq!(decide_follow_up(&FollowUpRules::OFF, &newer), FollowUpVerdict::Superseded);
    }
    let same = FollowUpFacts { last_real_input: Some((position(11), NOW)), ..facts() };
    assert_eq!(
        decide_follow_up(&on(), &same),
        FollowUpVerdict::Fire,
        "it is the one that it was armed after"
    );
}

#[test]
fn quiet_hours_are_those_of_the_user() {
    let quiet = rules(json!({
        "enabled": true, "quiet_hours": {"from": "22:00", "to": "08:00"}, "time_zone": "Europe/Berlin",
    }));
    let in_zone = |zone: Option<&str>| FollowUpFacts { time_zone: zone.map(Into::into), ..facts() };
    let later = |until| FollowUpVerdict::Later { until, rule: RestraintRule::QuietHours };
    assert_eq!(decide_follow_up(&quiet, &in_zone(None)), FollowUpVerdict::Fire);
    // It is four in the morning in Los Angeles.
    assert_eq!(decide_follow_up(&quiet, &in_zone(Some("America/Los_Angeles"))), later(NOW.plus_ms(4 * HOUR)));
    assert_eq!(decide_follow_up(&quiet, &in_zone(Some("Mars/Base"))), FollowUpVerdict::Fire, "as if none");
}

#[test]
fn a_paused_agent_refuses_and_one_that_backs_off_delays() {
    let held = |hold| FollowUpFacts { hold: Some(hold), ..facts() };
    assert_eq!(
        decide_follow_up(&on(), &held(AgentHold::Paused)),
        FollowUpVerdict::Refused(RestraintRule::Paused)
    );
    let until = NOW.plus_ms(1);
    assert_eq!(
        decide_follow_up(&on(), &held(AgentHold::Backoff(until))),
        FollowUpVerdict::Later { until, rule: RestraintRule::Backoff }
    );
    assert_eq!(decide_follow_up(&on(), &held(AgentHold::Backoff(NOW))), FollowUpVerdict::Fire);
}

#[test]
fn rules_have_names_of_their_own() {
    for rule in RestraintRule::ALL {
        assert_eq!(RestraintRule::from_name(rule.name()), Some(rule));
    }
    assert_eq!(RestraintRule::from_name("other"), None);
}

fn any_facts() -> impl Strategy<Value = FollowUpFacts> {
    let hold = prop_oneof![
        Just(None),
        Just(Some(AgentHold::Paused)),
        (-HOUR..HOUR).prop_map(|ms| Some(AgentHold::Backoff(NOW.plus_ms(ms)))),
    ];
    let inputs = (proptest::option::of(0i64..20), any::<bool>(), 0u32..6, 0u32..15);
    let times = (0i64..48 * HOUR, proptest::option::of(-30_000i64..30_000), -1i64..HOUR + 2, any::<bool>());
    let zone = prop::sample::select(vec![None, Some("Asia/Tokyo"), Some("America/New_York"), Some("?")]);
    (inputs, times, hold, zone).prop_map(
        |((last, open, fired, today), (ms, fired_ago, late_ms, is_spent), hold, zone)| {
            let now = NOW.plus_ms(ms);
            FollowUpFacts {
                now,
                due: now.plus_ms(-late_ms),
                last_real_input: last.map(|last| (position(last), now)),
                armed_position: position(11),
                has_open_input: open,
                fired_since_real_input: fired,
                last_fired: fired_ago.map(|ago| now.plus_ms(-ago)),
                fired_today: today,
                is_over_budget: is_spent,
                hold,
                time_zone: zone.map(Into::into),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_fires_breaks_no_rule(facts in any_facts(), enabled in any::<bool>(), most in 0u32..=3) {
        let rules = rules(json!({
            "enabled": enabled, "max_in_a_row": most, "quiet_hours": {"from": "22:00", "to": "08:00"},
        }));
        let verdict = decide_follow_up(&rules, &facts);
        let hour = rules.zone(facts.time_zone.as_deref()).wall_clock(facts.now).hour();
        if verdict == FollowUpVerdict::Fire {
            prop_assert!(enabled && facts.fired_since_real_input < most && facts.fired_today < 10);
            prop_assert!(!facts.has_open_input && facts.last_real_input.is_none_or(|(at, _)| at.get() <= 11));
            prop_assert!(facts.last_fired.is_none_or(|at| facts.now.0 - at.0 >= 15_000));
            prop_assert!((8..22).contains(&hour));
            prop_assert!(facts.hold != Some(AgentHold::Paused) && !facts.is_over_budget);
            prop_assert!(facts.now.since_ms(facts.due) <= HOUR);
        }
        if let FollowUpVerdict::Later { until, .. } = verdict {
            prop_assert!(until > facts.now, "a timer that is due again at once would never rest");
        }
    }

    #[test]
    fn a_delayed_follow_up_ends_within_a_few_looks(facts in any_facts()) {
        let rules = rules(json!({"enabled": true, "quiet_hours": {"from": "22:00", "to": "08:00"}}));
        let mut facts = facts;
        for _ in 0..4 {
            match decide_follow_up(&rules, &facts) {
                FollowUpVerdict::Later { until, .. } => (facts.now, facts.due) = (until, until),
                FollowUpVerdict::Fire | FollowUpVerdict::Superseded | FollowUpVerdict::Refused(_) => return Ok(()),
            }
        }
        prop_assert!(false, "{facts:?}");
    }
}
