use model::{AgentId, Position};
use serde_json::{Map, json};

use super::*;
use crate::due_timer::DueSchedule;

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn metadata(value: Value) -> Metadata {
    Metadata::new(map(value)).unwrap()
}

fn timer() -> DueTimer {
    let thread = ThreadId::parse("t").unwrap();
    DueTimer {
        id: TimerId::follow_up(&thread, Position::from_stored(100)),
        kind: TimerKind::FollowUp,
        thread: Some(thread),
        agent: AgentId::parse("a").unwrap(),
        state: TimerState::Pending,
        body: metadata(json!({"trigger_type": "check_in", "reason": "quiet", "armed_position": "100"})),
        now: NOW,
        due: NOW.plus_ms(-10),
        is_due: true,
        settings: map(json!({"follow_ups": {"enabled": true, "max_per_day": 5, "min_delay_seconds": 40}})),
        paused: false,
        is_over_budget: false,
        backoff_until: Some(NOW.plus_ms(-1)),
        real_input: Some((Position::from_stored(90), NOW.plus_ms(-60_000), Metadata::EMPTY)),
        is_history_gone: false,
        is_taken: false,
        is_erased: false,
        fired_since_real_input: 0,
        fired_at: Vec::new(),
        schedule: None,
    }
}

fn verdict(timer: DueTimer) -> TimerVerdict {
    decide_timer(timer.id.clone(), Some(timer), &mut Vec::new()).verdict
}

fn fires(timer: DueTimer) -> TurnOpened {
    match verdict(timer) {
        TimerVerdict::Fire { work: NewWork::Turn(opened), next: None } => *opened,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_follow_up_fires_as_a_synthetic_input() {
    let opened = fires(timer());
    assert_eq!(opened.turn, timer().id.turn().unwrap());
    assert_eq!(opened.content, "Continue our conversation naturally.");
    let said = json!({
        "synthetic": true, "trigger_type": "check_in", "trigger_reason": "quiet", "timer_id": timer().id.as_str(),
    });
    assert_eq!(opened.input_metadata().to_value(), said);
    assert_eq!(opened.origin.timer(), Some(&timer().id));
    let language = json!({"language": "de-AT"});
    let mut in_german = timer();
    in_german.real_input = Some((Position::from_stored(90), NOW, metadata(language)));
    let prompts = json!({"check_in": {"de": "Mach weiter."}});
    in_german.settings = map(json!({"follow_ups": {"enabled": true, "prompts": prompts}}));
    assert_eq!(fires(in_german).content, "Mach weiter.");
}

#[test]
fn rules_are_asked_with_what_the_store_knows() {
    let off = DueTimer { settings: Map::new(), ..timer() };
    let bad = DueTimer { settings: map(json!({"follow_ups": {"enabled": true, "x": 1}})), ..timer() };
    let mut complaints = Vec::new();
    decide_timer(bad.id.clone(), Some(bad.clone()), &mut complaints);
    assert!(complaints.len() == 1 && complaints[0].contains("unknown field `x`"), "{complaints:?}");
    let many = DueTimer { fired_since_real_input: 3, ..timer() };
    let today = DueTimer { fired_at: (1..=5).map(|n| NOW.plus_ms(-n * 20_000)).collect(), ..timer() };
    let paused = DueTimer { paused: true, ..timer() };
    let refused = [
        (off, "disabled"),
        (bad, "disabled"),
        (many, "max_in_a_row"),
        (today, "max_per_day"),
        (paused, "paused"),
    ];
    for (timer, rule) in refused {
        assert_eq!(verdict(timer), end(TimerEnd::Refused, rule));
    }
    let backs_off = DueTimer { backoff_until: Some(NOW.plus_ms(5_000)), ..timer() };
    let cools = DueTimer { fired_at: vec![NOW.plus_ms(-14_999)], ..timer() };
    for (timer, wait_ms, rule) in [(backs_off, 5_000, "backoff"), (cools, 1, "cooldown")] {
        let next = NextDue { at: NOW.plus_ms(wait_ms), wait_ms };
        assert_eq!(verdict(timer), TimerVerdict::Later { next, by: Some(rule.to_owned()) });
    }
    fires(DueTimer { fired_at: vec![NOW.plus_ms(-15_000)], ..timer() });
}

#[test]
fn what_a_person_wrote_since_cancels_it() {
    let mut answered = timer();
    answered.real_input = Some((Position::from_stored(101), NOW, Metadata::EMPTY));
    let gone = DueTimer { is_history_gone: true, ..timer() };
    for timer in [answered, gone] {
        assert!(timer.is_superseded());
        assert_eq!(verdict(timer), end(TimerEnd::Cancelled, "message"));
    }
    assert!(!timer().is_superseded());
    assert!(DueTimer { state: TimerState::Ended, ..timer() }.is_superseded());
}

#[test]
fn a_timer_that_is_not_due_or_not_there_writes_nothing() {
    let early = DueTimer { is_due: false, due: NOW.plus_ms(300), ..timer() };
    let next = NextDue { at: NOW.plus_ms(300), wait_ms: 300 };
    assert_eq!(verdict(early), TimerVerdict::Later { next, by: None });
    for state in [TimerState::Fired, TimerState::Ended] {
        assert_eq!(verdict(DueTimer { state, ..timer() }), TimerVerdict::Gone);
    }
    assert_eq!(decide_timer(timer().id, None, &mut Vec::new()).verdict, TimerVerdict::Gone);
    let erased = DueTimer { is_erased: true, ..timer() };
    assert_eq!(verdict(erased), end(TimerEnd::Cancelled, "erased"));
    let spoilt = DueTimer { body: metadata(json!({"armed_position": "100"})), ..timer() };
    assert_eq!(verdict(spoilt), end(TimerEnd::Refused, "unreadable"));
}

fn scheduled(cron: Option<&str>, at: Option<&str>, unfinished: u32) -> DueTimer {
    let agent = AgentId::parse("a").unwrap();
    let put = DueSchedule {
        cron: cron.map(str::to_owned),
        at: at.map(str::to_owned),
        time_zone: "UTC".to_owned(),
        overlap: "skip".to_owned(),
        missed: "skip".to_owned(),
        content: "report".to_owned(),
        metadata: Metadata::EMPTY,
        unfinished,
    };
    DueTimer {
        id: TimerId::of_agent(TimerKind::Schedule, &agent, "daily").unwrap(),
        kind: TimerKind::Schedule,
        thread: None,
        agent,
        body: metadata(json!({"schedule": "daily"})),
        schedule: Some(put),
        ..timer()
    }
}

#[test]
fn a_schedule_fires_tasks_named_by_their_occurrences() {
    let due = scheduled(Some("*/10 * * * *"), None, 0);
    let id = format!("{}-{}", due.id, due.due.0);
    let TimerVerdict::Fire { work: NewWork::Task(task), next: Some(next) } = verdict(due) else {
        panic!("it is due")
    };
    assert_eq!((task.id.as_str(), &*task.content), (&*id, "report"));
    assert!(matches!(task.origin, TaskOrigin::Scheduled { .. }));
    assert_eq!(next.at.0 % 600_000, 0);
    assert!(next.at > NOW && next.wait_ms == next.at.since_ms(NOW));
    let busy = verdict(scheduled(Some("*/10 * * * *"), None, 1));
    assert!(matches!(&busy, TimerVerdict::Later { by: Some(by), .. } if by == "overlap"), "{busy:?}");
    let once = verdict(scheduled(None, Some("2027-01-15T08:00:00Z"), 0));
    assert!(matches!(once, TimerVerdict::Fire { next: None, .. }), "{once:?}");
    let gone = DueTimer { schedule: None, ..scheduled(None, None, 0) };
    assert_eq!(verdict(gone), end(TimerEnd::Cancelled, "schedule"));
    assert_eq!(verdict(scheduled(Some("nonsense"), None, 0)), end(TimerEnd::Refused, "unreadable"));
}

#[test]
fn a_delayed_task_is_sent_as_it_was_put() {
    let agent = AgentId::parse("a").unwrap();
    let task = json!({"id": "k1", "kind": "task", "content": "later", "metadata": "{\"a\": 1.0}"});
    let delayed = DueTimer {
        id: TimerId::of_agent(TimerKind::Task, &agent, "k1").unwrap(),
        kind: TimerKind::Task,
        thread: None,
        body: metadata(json!({ "task": task })),
        ..timer()
    };
    let TimerVerdict::Fire { work: NewWork::Task(task), next: None } = verdict(delayed.clone()) else {
        panic!("it is due")
    };
    assert_eq!((task.id.as_str(), &*task.content, &task.origin), ("k1", "later", &TaskOrigin::SENT));
    assert_eq!(task.metadata.get("a"), Some(&json!(1.0)));
    let taken = DueTimer { is_taken: true, ..delayed.clone() };
    assert_eq!(verdict(taken), end(TimerEnd::Cancelled, "duplicate"), "its id is used once");
    let spoilt = DueTimer { body: metadata(json!({"task": {"id": "k1"}})), ..delayed };
    assert_eq!(verdict(spoilt), end(TimerEnd::Refused, "unreadable"));
}

/// 08:00 in UTC.
#[test]
fn a_fired_follow_up_is_checked_again_when_its_turn_begins() {
    let fired = || DueTimer {
        state: TimerState::Fired,
        fired_since_real_input: 1,
        fired_at: vec![NOW.plus_ms(-10)],
        ..timer()
    };
    let with = |settings: Value| DueTimer { settings: map(json!({ "follow_ups": settings })), ..fired() };
    let quiet = |from: &str| json!({"enabled": true, "quiet_hours": {"from": from, "to": "09:00"}, "time_zone": "UTC"});
    assert_eq!(fired().superseded_by(), None, "neither its own firing nor a cooldown counts against it");
    assert_eq!(with(quiet("08:30")).superseded_by(), None);
    assert_eq!(with(quiet("07:30")).superseded_by(), Some("quiet_hours"));
    assert_eq!(with(json!({"enabled": false})).superseded_by(), Some("disabled"));
    assert_eq!(DueTimer { due: NOW.plus_ms(-3_600_000), ..fired() }.superseded_by(), None);
    assert_eq!(DueTimer { due: NOW.plus_ms(-3_600_001), ..fired() }.superseded_by(), Some("too_late"));
    assert_eq!(DueTimer { is_over_budget: true, ..fired() }.superseded_by(), Some("budget"));
    assert_eq!(with(json!({"enabled": true, "x": 1})).superseded_by(), Some("disabled"), "as when it is due");
    assert_eq!(DueTimer { state: TimerState::Ended, ..fired() }.superseded_by(), Some("message"));
    let answered = Some((Position::from_stored(101), NOW, Metadata::EMPTY));
    assert_eq!(DueTimer { real_input: answered, ..with(quiet("07:30")) }.superseded_by(), Some("message"));
}
