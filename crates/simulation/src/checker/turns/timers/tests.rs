#![allow(clippy::unwrap_used, reason = "a test")]

use model::{BusyPolicy, Metadata, Position, TurnOpened, TurnOptions, TurnOrigin};

use super::*;
use crate::checker::turns::{Ordered, Transition};

fn thread() -> ThreadId {
    ThreadId::parse("t").unwrap()
}

fn timer(position: i64) -> TimerId {
    TimerId::follow_up(&thread(), Position::from_stored(position))
}

fn event(timer: TimerId, number: u64, step: TimerStep) -> TimerEvent {
    let at_ms = number as i64 * 1_000_000;
    TimerEvent { timer, thread: Some(thread()), at_ms, database_ms: at_ms, number, step }
}

fn refused(number: u64, decided_after: u64) -> TimerEvent {
    let step = TimerStep::Ended { state: "refused", by: "max_in_a_row".to_owned(), decided_after };
    event(timer(2), number, step)
}

/// A follow-up fires in transaction 1, with a limit of one in a row; a person's turn ends in
/// transaction 3.
fn judged(refusal: TimerEvent) -> Vec<Invariant> {
    let turn = TurnId::foreground(&thread(), "i0").unwrap();
    let opened = TurnOpened {
        turn: turn.clone(),
        thread: thread(),
        agent: thread().agent(),
        run: 0,
        content: "hello".to_owned(),
        origin: TurnOrigin::PERSON,
        metadata: Metadata::EMPTY,
        actor: None,
        options: TurnOptions { busy_policy: BusyPolicy::Enqueue, ..TurnOptions::default() },
    };
    let partition = model::PartitionId(0);
    let command = Command::Turn(Box::new(opened));
    let what = TransitionKind::Ended { turn, run: 0, thread: thread(), end: RunEnd::Completed };
    let fired = TimerStep::Fired { turn: None, task: None, due_ms: 0, decided_ms: 500_000 };
    let mut turns = Turns {
        ledger: vec![Ordered { partition, seq: 1, at_ms: 1, payload: bytes::Bytes::new(), command }],
        history: vec![Transition { at_ms: 3_000_000, partition, number: 3, what }],
        timers: vec![event(timer(1), 1, fired), refusal],
        ..Turns::default()
    };
    turns.rules.follow_ups = Some(FollowUpLimits {
        max_in_a_row: 1,
        max_per_day: 9,
        cooldown_ms: 0,
        quiet: None,
        summer: [i64::MAX; 2],
    });
    let mut violations = Vec::new();
    check(&Evidence::default(), &turns, &mut violations);
    violations.into_iter().map(|violation| violation.invariant).collect()
}

#[test]
fn a_refusal_is_judged_by_what_was_there_when_it_was_decided() {
    for number in [2, 3, 4] {
        assert_eq!(judged(refused(number, 1)), [], "committed in transaction {number}");
        assert_eq!(judged(refused(number, 0)), [Invariant::Restraint], "none had fired");
    }
    assert_eq!(judged(refused(4, 3)), [Invariant::Restraint], "a person had written");
}
