//! The obligations of one session.

use std::collections::BTreeMap;

use model::{Position, TurnId};
use partition::{Action, Commit, Input, MachineReport, Outgoing, Started, TimerOutcome, TurnStatus};

pub(crate) type RunOfTurn = (TurnId, u32);

/// The obligations of one session.
#[derive(Default)]
pub(crate) struct Promises {
    /// The end of the stream when the session began. Everything up to it is read before any turn
    /// begins.
    pub(crate) tail: u64,
    /// Runs that this session requested and that have not ended.
    pub(crate) silent: BTreeMap<RunOfTurn, Silence>,
    /// Runs that the last applied commit has ended without their workflows knowing.
    pub(crate) ended: Vec<RunOfTurn>,
}

/// Silence of a run: its duration while nothing blocked the owner, ms, and the number of entries
/// seen by then.
#[derive(Default)]
pub(crate) struct Silence {
    pub(crate) is_requested: bool,
    pub(crate) age_ms: i64,
    pub(crate) heard: u32,
}

impl Promises {
    pub(crate) fn on_input(&mut self, input: &Input) {
        if let Input::Started { turn, run, started: Started::Requested(_) } = input
            && let Some(silence) = self.silent.get_mut(&(turn.clone(), *run))
        {
            silence.is_requested = true;
        }
    }

    pub(crate) fn decided(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Start(start) => {
                    self.silent.insert((start.turn.clone(), start.run), Silence::default());
                }
                Action::End(ending) => {
                    if let Some(run) = TurnId::of_answer(&ending.key.message) {
                        self.silent.remove(&run);
                    }
                }
                Action::Report(MachineReport::Timer { timer, outcome: TimerOutcome::Withdrawn, .. }) => {
                    self.silent.retain(|(turn, _), _| timer.turn().as_ref() != Ok(turn));
                }
                Action::Abandon { turn, run } => self.ended.retain(|ended| *ended != (turn.clone(), *run)),
                _ => {}
            }
        }
    }

    /// Updates the obligations when the owner learns that its commit is applied.
    pub(crate) fn applied(&mut self, commit: &Commit) {
        let outgoing = commit.outbox.iter().flat_map(|batch| &batch.outgoing);
        let stopped = outgoing.filter_map(|outgoing| match outgoing {
            Outgoing::TurnEnded(ended) if ended.status == TurnStatus::Stopped => {
                TurnId::of_answer(ended.message.as_ref()?)
            }
            Outgoing::TurnEnded(_) | Outgoing::Task(_) | Outgoing::Pause(_) => None,
        });
        // A refused turn never began here; only a former owner may have requested it.
        let is_ours = |code: &str| code != "producer_error" && code != "busy";
        let failed = commit.failed_turns.iter().filter(|failed| is_ours(&failed.code));
        let failed = failed.map(|failed| (failed.opened.turn.clone(), failed.opened.run));
        let kept = commit.agents.iter().filter_map(|write| {
            let is_kept = write.guard != Position::MAX && write.head < write.guard && write.run > 0;
            let is_ours = write.error.as_ref().is_none_or(|(code, _)| code != "producer_error");
            (is_kept && is_ours).then(|| (TurnId::of_task(&write.agent, write.guard), write.run - 1))
        });
        self.ended = stopped.chain(failed).chain(kept).collect();
    }
}
