//! Decides a due timer from the data in the store.

use model::{
    BusyPolicy, Metadata, Task, TaskId, TaskKind, TaskOrigin, ThreadId, TimerId, TimerKind, Timestamp,
    TriggerType, TurnOpened, TurnOptions, TurnOrigin,
};
use scheduling::follow_up::{FollowUpRules, FollowUpVerdict, decide_follow_up};
use scheduling::schedule::{
    MissedRule, OverlapRule, Schedule, ScheduleFacts, ScheduleVerdict, decide_schedule,
};
use serde_json::Value;

use crate::due_timer::{DueTimer, TimerState};
use crate::timers::{NextDue, TimerDecision, TimerEnd, TimerVerdict};
use crate::types::NewWork;

/// Cause of the end of a delayed task whose agent has had a task with the same id meanwhile.
const DUPLICATE: &str = "duplicate";

/// Decides a timer; `found` is its stored state. Invalid data is added to `complaints`, for the
/// log.
pub fn decide_timer(id: TimerId, found: Option<DueTimer>, complaints: &mut Vec<String>) -> TimerDecision {
    let Some(timer) = found.filter(|timer| timer.state == TimerState::Pending) else {
        return TimerDecision { id, thread: None, verdict: TimerVerdict::Gone };
    };
    let verdict = match (timer.is_due, timer.is_erased, timer.kind) {
        (_, true, _) => end(TimerEnd::Cancelled, "erased"),
        (false, ..) => TimerVerdict::Later { next: next(&timer, timer.due), by: None },
        (true, _, TimerKind::FollowUp) => follow_up(&timer, complaints),
        (true, _, TimerKind::Schedule) => schedule(&timer, complaints),
        (true, _, TimerKind::Task) => delayed_task(&timer, complaints),
    };
    TimerDecision { id, thread: timer.thread, verdict }
}

fn end(state: TimerEnd, by: &str) -> TimerVerdict {
    TimerVerdict::End { state, by: by.to_owned() }
}

fn next(timer: &DueTimer, at: Timestamp) -> NextDue {
    NextDue { at, wait_ms: at.since_ms(timer.now).max(1) }
}

fn follow_up(timer: &DueTimer, complaints: &mut Vec<String>) -> TimerVerdict {
    let rules = match timer.follow_up_rules() {
        Ok(rules) => rules,
        Err(error) => {
            complaints
                .push(format!("the settings of {} make no sense, and none is sent: {error}", timer.agent));
            FollowUpRules::OFF
        }
    };
    if timer.is_answered() {
        return end(TimerEnd::Cancelled, "message");
    }
    match decide_follow_up(&rules, &timer.follow_up_facts(&rules)) {
        FollowUpVerdict::Superseded => end(TimerEnd::Cancelled, "message"),
        FollowUpVerdict::Refused(rule) => end(TimerEnd::Refused, rule.name()),
        FollowUpVerdict::Later { until, rule } => {
            TimerVerdict::Later { next: next(timer, until), by: Some(rule.name().to_owned()) }
        }
        FollowUpVerdict::Fire => match opened(timer, &rules, timer.said("language")) {
            Some(opened) => TimerVerdict::Fire { work: NewWork::Turn(Box::new(opened)), next: None },
            None => {
                complaints.push(format!("a follow-up cannot be read, and is refused: {:?}", timer.body));
                end(TimerEnd::Refused, "unreadable")
            }
        },
    }
}

/// The input of a follow-up.
fn opened(timer: &DueTimer, rules: &FollowUpRules, language: Option<&str>) -> Option<TurnOpened> {
    let thread: &ThreadId = timer.thread.as_ref()?;
    let text = |key: &str| timer.body.get(key).and_then(Value::as_str);
    let trigger = TriggerType::from_name(text("trigger_type")?)?;
    let reason = text("reason").unwrap_or_default().into();
    Some(TurnOpened {
        turn: timer.id.turn().ok()?,
        thread: thread.clone(),
        agent: timer.agent.clone(),
        run: 0,
        content: rules.prompt(trigger, language).to_owned(),
        origin: TurnOrigin::FollowUp { timer: timer.id.clone(), trigger, reason },
        metadata: Metadata::EMPTY,
        actor: None,
        options: TurnOptions { busy_policy: BusyPolicy::Enqueue, ..TurnOptions::default() },
    })
}

fn delayed_task(timer: &DueTimer, complaints: &mut Vec<String>) -> TimerVerdict {
    if timer.is_taken {
        return end(TimerEnd::Cancelled, DUPLICATE);
    }
    match task_of(timer) {
        Some(task) => TimerVerdict::Fire { work: NewWork::Task(task), next: None },
        None => {
            complaints.push("a delayed task cannot be read, and is refused".to_owned());
            end(TimerEnd::Refused, "unreadable")
        }
    }
}

fn task_of(timer: &DueTimer) -> Option<Task> {
    let task = timer.body.get("task")?.as_object()?;
    let text = |key: &str| task.get(key).and_then(Value::as_str);
    let metadata = match text("metadata") {
        None => Metadata::EMPTY,
        Some(json) => Metadata::new(serde_json::from_str(json).ok()?).ok()?,
    };
    Some(Task {
        agent: timer.agent.clone(),
        id: TaskId::parse(text("id")?).ok()?,
        kind: TaskKind::Task,
        content: text("content")?.to_owned(),
        origin: TaskOrigin::of_sender(&metadata),
        metadata,
    })
}

fn schedule(timer: &DueTimer, complaints: &mut Vec<String>) -> TimerVerdict {
    let Some(put) = &timer.schedule else { return end(TimerEnd::Cancelled, "schedule") };
    let overlap = OverlapRule::from_name(&put.overlap).unwrap_or_default();
    let missed = MissedRule::from_name(&put.missed).unwrap_or_default();
    let schedule =
        match Schedule::parse(put.cron.as_deref(), put.at.as_deref(), &put.time_zone, overlap, missed) {
            Ok(schedule) => schedule,
            Err(error) => {
                complaints.push(format!("a schedule of {} cannot be read, and ends: {error}", timer.agent));
                return end(TimerEnd::Refused, "unreadable");
            }
        };
    let facts = ScheduleFacts { now: timer.now, due: timer.due, unfinished: put.unfinished };
    match decide_schedule(&schedule, &facts) {
        ScheduleVerdict::Wait(at) => TimerVerdict::Later { next: next(timer, at), by: None },
        ScheduleVerdict::Skip { reason, next_due: Some(at) } => {
            TimerVerdict::Later { next: next(timer, at), by: Some(reason.name().to_owned()) }
        }
        ScheduleVerdict::Skip { reason, next_due: None } => end(TimerEnd::Refused, reason.name()),
        ScheduleVerdict::Fire { occurrence, next_due } => {
            // The id is derived from the occurrence alone, so that the occurrence fires once.
            let Ok(id) = TaskId::parse(&format!("{}-{}", timer.id.series(), occurrence.0)) else {
                return end(TimerEnd::Refused, "unreadable");
            };
            let (agent, content, metadata) = (timer.agent.clone(), put.content.clone(), put.metadata.clone());
            let origin = TaskOrigin::of_schedule(&metadata);
            let task = Task { agent, id, kind: TaskKind::Task, content, origin, metadata };
            TimerVerdict::Fire { work: NewWork::Task(task), next: next_due.map(|at| next(timer, at)) }
        }
    }
}

#[cfg(test)]
mod tests;
