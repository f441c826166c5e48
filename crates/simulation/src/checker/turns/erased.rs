//! Removes erased threads and the follow-on work of their turns from the evidence: none of it has
//! to end.

use std::collections::BTreeSet;

use model::{AgentId, MessageKey, Position, TaskId, ThreadId, TurnId};

use crate::checker::turns::evidence::{Ordered, Transition, TransitionKind, Turns, part_of};
use model::Command;

#[derive(Debug)]
struct Erased<'a> {
    threads: &'a BTreeSet<ThreadId>,
    tasks: BTreeSet<(AgentId, TaskId)>,
    turns: BTreeSet<TurnId>,
}

/// Removes the evidence of these threads. Queues that had tasks of these threads are named in the
/// rules, because their order is no longer known.
pub(super) fn without(turns: &Turns, threads: &BTreeSet<ThreadId>) -> Turns {
    let mut erased = Erased { threads, tasks: BTreeSet::new(), turns: BTreeSet::new() };
    // Follow-on work of a turn may have follow-on work itself.
    while erased.grows(turns) {}
    let mut rest = turns.clone();
    rest.rules.erased_turns = erased.turns.clone();
    let queues = erased.tasks.iter().map(|(agent, _)| agent.clone());
    rest.rules.unordered = queues.chain(threads.iter().map(ThreadId::agent)).collect();
    rest.ledger.retain(|ordered| !erased.has_order(&ordered.command));
    let is_kept = |key: &MessageKey| {
        !threads.contains(&key.thread)
            && part_of(&key.message).is_none_or(|(turn, _)| !erased.turns.contains(&turn))
    };
    rest.rows.retain(|row| is_kept(&row.key));
    rest.usage.retain(|row| is_kept(&row.answer));
    rest.history.retain(|happened| !erased.has_happened(happened));
    rest.audit.retain(|audited| !threads.contains(&audited.subject.thread()));
    rest.failed_turns.retain(|(thread, ..)| !threads.contains(thread));
    rest.published.retain(|event| !erased.turns.contains(&event.turn));
    rest
}

impl Erased<'_> {
    fn grows(&mut self, turns: &Turns) -> bool {
        let before = self.tasks.len() + self.turns.len();
        for Ordered { command, .. } in &turns.ledger {
            let follows = |turn: Option<&TurnId>| turn.is_some_and(|turn| self.turns.contains(turn));
            match command {
                Command::Turn(opened)
                    if self.threads.contains(&opened.thread) || follows(opened.origin.turn()) =>
                {
                    self.turns.insert(opened.turn.clone());
                }
                Command::Task(task)
                    if self.threads.contains(&task.agent.thread())
                        || task.origin.source_thread().is_some_and(|of| self.threads.contains(of))
                        || follows(task.origin.turn()) =>
                {
                    self.tasks.insert((task.agent.clone(), task.id.clone()));
                }
                Command::DelayedTask(delayed) if self.threads.contains(&delayed.task.agent.thread()) => {
                    self.tasks.insert((delayed.task.agent.clone(), delayed.task.id.clone()));
                }
                Command::Turn(_) | Command::Task(_) | Command::DelayedTask(_) | Command::Control(_) => {}
            }
        }
        for happened in &turns.history {
            let turn = |agent: &AgentId, at: i64| TurnId::of_task(agent, Position::from_stored(at));
            match &happened.what {
                TransitionKind::Queued { agent, task, position }
                    if self.tasks.contains(&(agent.clone(), task.clone())) =>
                {
                    self.turns.insert(turn(agent, *position));
                }
                TransitionKind::Requeued { agent, from, to } if self.turns.contains(&turn(agent, *from)) => {
                    self.turns.insert(turn(agent, *to));
                }
                TransitionKind::Ended { turn, thread, .. } | TransitionKind::Started { turn, thread, .. }
                    if self.threads.contains(thread) =>
                {
                    self.turns.insert(turn.clone());
                }
                _ => {}
            }
        }
        self.tasks.len() + self.turns.len() > before
    }

    fn has_order(&self, command: &Command) -> bool {
        match command {
            Command::Turn(opened) => self.turns.contains(&opened.turn),
            Command::Task(task) => self.tasks.contains(&(task.agent.clone(), task.id.clone())),
            Command::DelayedTask(delayed) => self.threads.contains(&delayed.task.agent.thread()),
            Command::Control(control) => self.threads.contains(&control.subject.thread()),
        }
    }

    fn has_happened(&self, happened: &Transition) -> bool {
        let is_at = |agent: &AgentId, at: i64| {
            self.turns.contains(&TurnId::of_task(agent, Position::from_stored(at)))
        };
        let is_own = |agent: &AgentId| self.threads.contains(&agent.thread());
        match &happened.what {
            TransitionKind::Started { turn, .. }
            | TransitionKind::Ended { turn, .. }
            | TransitionKind::TakenBack { turn } => self.turns.contains(turn),
            TransitionKind::Queued { agent, task, .. } => {
                is_own(agent) || self.tasks.contains(&(agent.clone(), task.clone()))
            }
            TransitionKind::Agent { agent, .. } | TransitionKind::Acted { subject: agent, .. } => {
                is_own(agent)
            }
            TransitionKind::Marked { agent, position, .. } | TransitionKind::Removed { agent, position } => {
                is_own(agent) || is_at(agent, *position)
            }
            TransitionKind::Requeued { agent, from, to } => {
                is_own(agent) || is_at(agent, *from) || is_at(agent, *to)
            }
            TransitionKind::Dropped { thread, .. } => self.threads.contains(thread),
        }
    }
}

/// The transitions from which queues can be replayed: those of queues with a known order.
pub(super) fn ordered(turns: &Turns) -> Vec<Transition> {
    let rules = &turns.rules;
    let is_ordered = |happened: &&Transition| match &happened.what {
        TransitionKind::TakenBack { .. } => true,
        TransitionKind::Started { thread, .. }
        | TransitionKind::Ended { thread, .. }
        | TransitionKind::Dropped { thread, .. } => !rules.unordered.contains(&thread.agent()),
        TransitionKind::Queued { agent, .. }
        | TransitionKind::Agent { agent, .. }
        | TransitionKind::Marked { agent, .. }
        | TransitionKind::Requeued { agent, .. }
        | TransitionKind::Removed { agent, .. }
        | TransitionKind::Acted { subject: agent, .. } => !rules.unordered.contains(agent),
    };
    turns.history.iter().filter(is_ordered).cloned().collect()
}
