use model::{BatchType, Timestamp};
use serde_json::json;

use super::*;
use crate::BatchHeader;
use crate::testing::position;

const NOW: Timestamp = Timestamp(1_000_000);

fn header(id: i64, tokens: u64) -> BatchHeader {
    BatchHeader {
        id: position(id),
        last: position(id + 1),
        batch_type: BatchType::UserRequest,
        is_complete: true,
        messages: 2,
        tokens,
        bytes: tokens * 3,
        last_at: Timestamp(id * 1_000),
        is_pinned: false,
        importance: 0.5,
    }
}

/// Batches 10, 20, … of 100 tokens each.
fn headers(count: i64) -> Vec<BatchHeader> {
    (1..=count).map(|number| header(number * 10, 100)).collect()
}

fn input(batches: &[BatchHeader]) -> PlanInput<'_> {
    PlanInput {
        batches,
        active: None,
        live: None,
        budget: 1_000,
        system_tokens: 0,
        summary_tokens: 0,
        timeout_ms: 60_000,
        now: NOW,
    }
}

fn rules(strategy: Strategy) -> CompactionRules {
    CompactionRules { strategy, summary_tokens: 100, ..CompactionRules::default() }
}

fn ids(positions: &[Position]) -> Vec<i64> {
    positions.iter().map(|position| position.get()).collect()
}

#[test]
fn compaction_begins_above_high_mark_and_stops_at_low_mark() {
    assert_eq!(plan(&input(&headers(9)), &rules(Strategy::DropOldest)), None);
    let plan = plan(&input(&headers(10)), &rules(Strategy::DropOldest)).unwrap();
    assert_eq!(ids(&plan.replaces), [10, 20, 30, 40]);
    assert_eq!((plan.through, plan.kept.len(), plan.messages), (position(40), 0, 8));
    assert_eq!((plan.tokens_before, plan.tokens_after, plan.summary), (1_000, 600, Summary::None));
}

#[test]
fn a_summary_has_its_room_and_takes_the_one_before_in() {
    let first = plan(&input(&headers(10)), &rules(Strategy::Summarise)).unwrap();
    assert_eq!(ids(&first.replaces), [10, 20, 30, 40, 50]);
    assert_eq!(first.summary, Summary::Wanted { before: None });
    assert_eq!(first.tokens_after, 600);
    let live = first.into_compaction(position(105), Some("what was".to_owned()));
    let batches = headers(15);
    let second = PlanInput { live: Some(&live), summary_tokens: 100, ..input(&batches) };
    let second = plan(&second, &rules(Strategy::Summarise)).unwrap();
    assert_eq!(ids(&second.replaces), [60, 70, 80, 90, 100]);
    assert_eq!((second.summary, second.previous), (Summary::Wanted { before: Some(live.id) }, Some(live.id)));
    assert_eq!(second.through, position(100));
    // Another strategy keeps the summary.
    let dropping = PlanInput { live: Some(&live), summary_tokens: 100, ..input(&batches) };
    let dropping = plan(&dropping, &rules(Strategy::DropOldest)).unwrap();
    assert_eq!(dropping.summary, Summary::Carried(live.id));
}

#[test]
fn the_least_important_leave_and_the_others_are_kept() {
    let mut batches = headers(10);
    for (index, importance) in [0.9, 0.1, 0.8, 0.2, 0.5, 0.3, 0.7, 0.4, 0.6, 0.0].into_iter().enumerate() {
        batches[index].importance = importance;
    }
    let plan = plan(&input(&batches), &rules(Strategy::Importance)).unwrap();
    assert_eq!(ids(&plan.replaces), [20, 40, 60, 80], "100 is the least important, but the newest");
    assert_eq!(plan.through, position(80));
    assert_eq!(ids(&plan.kept), [10, 30, 50, 70]);
}

#[test]
fn what_is_too_old_leaves_with_what_is_nearly_so() {
    let batches = headers(9);
    let aged = |max_age_ms| {
        let rules = CompactionRules { max_age_ms: Some(max_age_ms), ..rules(Strategy::Age) };
        plan(&input(&batches), &rules).map(|plan| ids(&plan.replaces))
    };
    // Ages range from 910 s (batch 90) to 990 s (batch 10).
    assert_eq!(aged(990_000), None);
    assert_eq!(aged(989_000), Some((1..=8).map(|number| number * 10).collect()), "two thirds of the age");
    // To reduce the size, the oldest batches are removed, whatever their age.
    let batches = headers(10);
    let rules = CompactionRules { max_age_ms: Some(i64::MAX / 100), ..rules(Strategy::Age) };
    assert_eq!(ids(&plan(&input(&batches), &rules).unwrap().replaces), [10, 20, 30, 40]);
}

#[test]
fn the_active_one_pinned_ones_and_incomplete_ones_never_leave() {
    let mut batches = headers(12);
    batches[0].is_pinned = true;
    batches[1].is_complete = false;
    batches[2].is_complete = false;
    batches[2].last_at = NOW;
    let input = PlanInput { active: Some(position(40)), ..input(&batches) };
    for strategy in [Strategy::DropOldest, Strategy::Importance, Strategy::Summarise] {
        let plan = plan(&input, &rules(strategy)).unwrap();
        assert!(!plan.replaces.iter().any(|id| id.get() <= 40), "{strategy:?}");
        assert_eq!(
            ids(&plan.kept),
            [10, 30, 40],
            "pinned, still waited for, active; but not the abandoned one"
        );
    }
    let pinned: Vec<BatchHeader> =
        headers(12).into_iter().map(|batch| BatchHeader { is_pinned: true, ..batch }).collect();
    assert_eq!(plan(&self::input(&pinned), &rules(Strategy::DropOldest)), None);
}

#[test]
fn the_newest_always_stay() {
    let batches = [header(10, 100), header(20, 5_000)];
    let replaced = |keep_newest| {
        let rules = CompactionRules { keep_newest, ..rules(Strategy::DropOldest) };
        plan(&input(&batches), &rules).map(|plan| ids(&plan.replaces))
    };
    assert_eq!(replaced(1), Some(vec![10]));
    assert_eq!(replaced(2), None);
    assert_eq!(replaced(0), Some(vec![10, 20]));
}

#[test]
fn kept_ones_can_leave_later() {
    let mut batches = headers(10);
    batches[0].importance = 1.0;
    let first = plan(&input(&batches), &rules(Strategy::Importance)).unwrap();
    let live = first.into_compaction(position(105), None);
    assert_eq!((ids(&live.kept), live.through), (vec![10], position(50)));
    batches.extend((11..=14).map(|number| header(number * 10, 100)));
    let next =
        plan(&PlanInput { live: Some(&live), ..input(&batches) }, &rules(Strategy::DropOldest)).unwrap();
    assert_eq!(ids(&next.replaces), [10, 60, 70, 80]);
    assert_eq!((next.through, next.kept.len()), (position(80), 0));
    assert_eq!(next.tokens_before, 1_000, "what was compacted weighs nothing");
}

#[test]
fn what_is_away_stays_away_when_only_a_kept_one_leaves() {
    let mut batches = headers(10);
    batches[0].importance = 1.0;
    let live =
        plan(&input(&batches), &rules(Strategy::Importance)).unwrap().into_compaction(position(105), None);
    batches[0].tokens = 600;
    let next =
        plan(&PlanInput { live: Some(&live), ..input(&batches) }, &rules(Strategy::DropOldest)).unwrap();
    assert_eq!((ids(&next.replaces), next.through), (vec![10], position(50)));
    assert!(next.kept.is_empty());
}

#[test]
fn what_is_to_stay_after_all_is_seen_as_before() {
    let mut batches = headers(10);
    let first = plan(&input(&batches), &rules(Strategy::Summarise)).unwrap();
    let some = first.without(&batches[2..5], None);
    assert_eq!((ids(&some.replaces), some.through, some.kept.len()), (vec![10, 20], position(20), 0));
    assert_eq!((some.messages, some.tokens_after), (4, 900));
    // Two batches lie in the compacted range. The one that was kept is removed, and the one that
    // has continued stays.
    let live = Compaction {
        kept: vec![position(10)],
        ..plan(&input(&batches), &rules(Strategy::DropOldest)).unwrap().into_compaction(position(105), None)
    };
    batches.extend(headers(14).split_off(10));
    batches[1].last = position(145);
    let input = PlanInput { live: Some(&live), ..input(&batches) };
    let second = plan(&input, &rules(Strategy::Summarise)).unwrap();
    assert_eq!(ids(&second.replaces), [10, 20, 50, 60, 70, 80, 90]);
    let leaving: Vec<BatchHeader> =
        batches.iter().filter(|batch| second.replaces.contains(&batch.id)).cloned().collect();
    let some = second.without(&leaving[1..], Some(&live));
    assert_eq!((ids(&some.replaces), some.through, ids(&some.kept)), (vec![10], live.through, vec![20]));
}

#[test]
fn undoing_makes_the_one_before_count_again() {
    let made = |id, through, previous: Option<i64>| Compaction {
        id: position(id),
        through: position(through),
        kept: Vec::new(),
        summary: None,
        strategy: Strategy::DropOldest,
        provenance: Provenance::default(),
        previous: previous.map(position),
        counts_from: position(id),
        undone_at: None,
    };
    let mut all = [made(105, 40, None), made(205, 140, Some(105))];
    assert_eq!(live(&all).map(|live| live.id), Some(position(205)));
    all[1].undone_at = Some(position(305));
    assert_eq!(live(&all), Some(&all[0]));
    assert_eq!(live_at(&all, position(250)).map(|live| live.id), Some(position(205)), "as it was then");
    assert_eq!(live_at(&all, position(150)).map(|live| live.id), Some(position(105)));
    assert_eq!(live_at(&all, position(100)), None);
    all[1] = Compaction { counts_from: position(240), undone_at: None, ..all[1].clone() };
    assert_eq!(live_at(&all, position(239)), Some(&all[0]), "its summary had not come");
    assert_eq!(live_at(&all, position(240)).map(|live| live.id), Some(position(205)));
}

#[test]
fn a_batch_that_goes_on_is_seen_again() {
    let compaction = plan(&input(&headers(10)), &rules(Strategy::DropOldest)).unwrap();
    let compaction = compaction.into_compaction(position(105), None);
    assert!(compaction.hides(position(10), position(11)));
    assert!(!compaction.hides(position(10), position(106)));
    assert!(!compaction.hides(position(50), position(51)));
}

#[test]
fn a_batch_that_has_gone_on_weighs_again_and_can_leave_again() {
    let first = plan(&input(&headers(10)), &rules(Strategy::DropOldest)).unwrap();
    let live = first.into_compaction(position(105), None);
    let mut batches = headers(14);
    batches.retain(|batch| batch.id > live.through);
    assert_eq!(
        plan(&PlanInput { live: Some(&live), ..input(&batches[..9]) }, &rules(Strategy::DropOldest)),
        None
    );
    batches.push(BatchHeader { last: position(145), ..header(20, 400) });
    let next =
        plan(&PlanInput { live: Some(&live), ..input(&batches) }, &rules(Strategy::DropOldest)).unwrap();
    assert_eq!((next.tokens_before, ids(&next.replaces)), (1_400, vec![20, 50, 60, 70, 80]));
    assert_eq!((next.through, next.kept.len()), (position(80), 0));
    assert!(next.into_compaction(position(155), None).hides(position(20), position(145)));
}

#[test]
fn rules_are_read_and_checked() {
    let rules: CompactionRules = serde_json::from_value(json!({"strategy": "age", "max_age_ms": 5})).unwrap();
    assert_eq!((rules.strategy, rules.high_percent, rules.low_percent), (Strategy::Age, 90, 60));
    assert_eq!(rules.check(), Ok(()));
    assert_eq!(CompactionRules { max_age_ms: None, ..rules }.check(), Err(InvalidRules::Age));
    let marks = CompactionRules { low_percent: 90, ..CompactionRules::default() };
    assert_eq!(marks.check(), Err(InvalidRules::Marks { low: 90, high: 90 }));
    assert!(serde_json::from_value::<CompactionRules>(json!({"strategie": "age"})).is_err());
    assert_eq!(Strategy::from_name("importance"), Some(Strategy::Importance));
}
