//! Rows that the store refuses permanently, regardless of the rest of the statement: only the items
//! of these rows fail.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use model::{AgentId, Command, MessageKey, TaskId, TurnId};
use partition::isolate::parts;
use partition::{CommandKey, EntryBody};

use crate::publisher::Planned;
use crate::rng::Rng;
use crate::scenario::Scenario;

#[derive(Debug)]
pub(crate) struct RefusedRows {
    rng: Rng,
    /// The share of rows that are refused.
    rate: f64,
    /// Messages without a turn whose look-up is refused.
    pub(crate) messages: BTreeSet<MessageKey>,
    /// Inputs of persons whose look-up is refused.
    pub(crate) turns: BTreeSet<TurnId>,
    /// Tasks whose look-up is refused.
    pub(crate) tasks: BTreeSet<(AgentId, TaskId)>,
}

impl RefusedRows {
    pub(crate) fn draw(
        mut rng: Rng,
        scenario: &Scenario,
        planned: &[Planned],
        bare: impl Iterator<Item = MessageKey>,
    ) -> Self {
        let rate = if rng.chance(0.3) { rng.pick([0.02, 0.1, 0.3]) } else { 0.0 };
        let messages = bare.filter(|_| rng.chance(rate)).collect();
        let (mut turns, mut tasks) = (BTreeSet::new(), BTreeSet::new());
        // A refused input must not be a message of a person that a follow-up would yield to.
        let is_apart = scenario.follow_ups.is_none();
        for planned in planned.iter().filter(|_| is_apart) {
            match &planned.body {
                EntryBody::Command(Command::Turn(opened), _) if rng.chance(rate) => {
                    turns.insert(opened.turn.clone());
                }
                EntryBody::Command(Command::Task(task), _) if rng.chance(rate) => {
                    tasks.insert((task.agent.clone(), task.id.clone()));
                }
                EntryBody::Frame(_) | EntryBody::Refused { .. } | EntryBody::Command(..) => {}
            }
        }
        Self { rng, rate, messages, turns, tasks }
    }

    /// Draws whether this one read is refused.
    pub(crate) fn now(&mut self) -> bool {
        self.rng.chance(self.rate / 4.0)
    }

    pub(crate) fn has_command(&self, key: &CommandKey) -> bool {
        match key {
            CommandKey::Turn(_, turn, _) => self.turns.contains(turn),
            CommandKey::Task(agent, task, _) => self.tasks.contains(&(agent.clone(), task.clone())),
            CommandKey::Control(..) => false,
        }
    }
}

/// The result that a driver gets for these items if the store refuses every statement with a
/// refused row; `None`: the item itself is refused.
pub(crate) fn answered<Q, A>(
    items: &[Q],
    is_refused: impl Fn(&Q) -> bool,
    answer: impl Fn(&[Q]) -> Vec<A>,
) -> Vec<Option<A>> {
    let ask = |part: &[Q]| {
        let answer = if part.iter().any(&is_refused) { Err(()) } else { Ok(answer(part)) };
        std::future::ready(Ok::<_, ()>(answer))
    };
    let mut asked = pin!(parts(items, ask));
    let answers = loop {
        // The future never waits for anything.
        if let Poll::Ready(answers) = asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            break answers.unwrap_or_default();
        }
    };
    let flat = answers.into_iter().flat_map(|(_, answer)| match answer {
        Ok(found) => found.into_iter().map(Some).collect(),
        Err(()) => vec![None],
    });
    flat.collect()
}
