//! Timers that are armed, postponed, fired or ended: rows of `timers`.

use partition::TimerWrite;

use super::columns::{agent_bucket, object, smallint, storable};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts =
    TableParts::new(&[ArmedTimerRow::ROWS, TimerChangeRow::ROWS], include_str!("timers.sql"));

row! {
    /// A timer to arm.
    struct ArmedTimerRow<'a> as armed_timer_rows of armed {
        bucket: i16,
        timer_id: &'a str,
        kind: &'a str,
        thread_id: Option<&'a str>,
        agent_id: &'a str,
        agent_bucket: i16,
        wait_ms: i64,
        body: String,
    }
}

fn armed(given: Given<'_>) -> impl Iterator<Item = ArmedTimerRow<'_>> {
    given.submission.commit.timers.iter().filter_map(|write| match write {
        TimerWrite::Arm(armed) => Some(ArmedTimerRow {
            bucket: smallint(armed.id.bucket().get()),
            timer_id: armed.id.as_str(),
            kind: armed.id.kind().name(),
            thread_id: armed.thread.as_ref().map(model::ThreadId::as_str),
            agent_id: armed.agent.as_str(),
            agent_bucket: agent_bucket(&armed.agent),
            wait_ms: armed.wait_ms,
            body: object(&armed.body),
        }),
        TimerWrite::Fire { .. } | TimerWrite::Postpone { .. } | TimerWrite::End { .. } => None,
    })
}

row! {
    /// A timer and its new state.
    struct TimerChangeRow<'a> as timer_change_rows of changes {
        bucket: i16,
        timer_id: &'a str,
        state: &'a str,
        /// The cause of its end.
        ended_by: Option<String>,
        /// The turn that the timer started.
        fired_turn: Option<&'a str>,
        /// The new due time.
        due_ms: Option<i64>,
    }
}

fn changes(given: Given<'_>) -> impl Iterator<Item = TimerChangeRow<'_>> {
    given.submission.commit.timers.iter().filter_map(change)
}

fn change(write: &TimerWrite) -> Option<TimerChangeRow<'_>> {
    let pending = TimerChangeRow {
        bucket: smallint(write.id().bucket().get()),
        timer_id: write.id().as_str(),
        state: "pending",
        ended_by: None,
        fired_turn: None,
        due_ms: None,
    };
    Some(match write {
        TimerWrite::Arm(_) => return None,
        TimerWrite::Fire { turn, next, .. } => {
            let state = if next.is_some() { "pending" } else { "fired" };
            let fired_turn = turn.as_ref().map(model::TurnId::as_str);
            TimerChangeRow { state, fired_turn, due_ms: next.map(|next| next.at.0), ..pending }
        }
        TimerWrite::Postpone { next, by, .. } => {
            TimerChangeRow { ended_by: by.as_deref().map(storable), due_ms: Some(next.at.0), ..pending }
        }
        TimerWrite::End { state, by, .. } => {
            TimerChangeRow { state: state.name(), ended_by: Some(storable(by)), ..pending }
        }
    })
}
