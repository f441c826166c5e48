//! Persons and operators: they retry failed turns, pause agents, stop turns, change tasks, and ask
//! why things wait.

use model::{
    AgentId, BusyPolicy, Command, CommandId, Control, ControlKind, Metadata, QueryTarget, TaskEdit, TaskId,
    ThreadId, TurnId, TurnOpened, TurnOptions,
};
use partition::{FailedTurn, Input, StatusQuery};

use super::World;
use crate::world::event::{SessionEvent, WorldEvent};

impl World {
    /// An operator sends a command now and then.
    pub(super) fn operators(&mut self) {
        if self.is_quiet {
            return;
        }
        let next = self.rng.range(1, self.scenario.turn_profile.people_ms * 2);
        self.schedule(next, WorldEvent::Operators);
        match self.rng.below(4) {
            0 => self.ask_why(),
            1 | 2 => self.do_something(),
            _ => self.retry_a_turn(),
        }
    }

    /// Retries a failed turn; twice if the ack is lost, or if another operator does the same.
    fn retry_a_turn(&mut self) {
        let failed: Vec<FailedTurn> =
            self.store.tables.iter().flat_map(|tables| tables.failed_turns.values().cloned()).collect();
        if failed.is_empty() {
            return;
        }
        let FailedTurn { opened, .. } = failed[self.rng.index(failed.len())].clone();
        let is_same = self.rng.chance(0.5);
        let busy_policy = if is_same { opened.options.busy_policy } else { BusyPolicy::Enqueue };
        let options = TurnOptions { busy_policy, ..opened.options.clone() };
        let actor = Some("operator".into());
        let again = TurnOpened { run: opened.run + 1, options, actor, ..opened };
        self.coverage.retries += 1;
        self.publish_command(Command::Turn(Box::new(again.clone())));
        if self.rng.chance(0.3) {
            self.publish_command(Command::Turn(Box::new(again)));
        }
    }

    fn do_something(&mut self) {
        let tables = self.rng.index(self.store.tables.len());
        let agents: Vec<AgentId> = self.store.tables[tables].agents.keys().cloned().collect();
        if agents.is_empty() {
            return;
        }
        let agent = agents[self.rng.index(agents.len())].clone();
        let control = match self.rng.below(10) {
            0 => Some((agent, ControlKind::Pause)),
            1 => Some((agent, ControlKind::Resume)),
            2 => Some((agent, ControlKind::ClearBackoff)),
            3 | 4 => self.some_turn().map(|(thread, turn)| (thread.agent(), ControlKind::StopTurn(turn))),
            5 => self
                .some_failed_turn()
                .map(|(thread, turn)| (thread.agent(), ControlKind::DropFailedTurn(turn))),
            kind => self.some_task(&agent).map(|task| {
                let what = match kind {
                    6 | 7 => ControlKind::RetryTask(task),
                    8 => ControlKind::DropTask(task),
                    _ => ControlKind::EditTask {
                        task,
                        edit: TaskEdit {
                            content: Some("edited".to_owned()),
                            metadata: Some(Metadata::EMPTY),
                        },
                    },
                };
                (agent, what)
            }),
        };
        if let Some((subject, what)) = control {
            self.act_on(subject, what);
        }
    }

    fn act_on(&mut self, subject: AgentId, kind: ControlKind) {
        self.operators.controls += 1;
        let Ok(id) = CommandId::parse(&format!("act{}", self.operators.controls)) else { return };
        let control = Control { id, actor: "operator".into(), subject, kind };
        self.coverage.control_commands += 1;
        self.publish_command(Command::Control(control.clone()));
        if !self.is_quiet && self.rng.chance(self.scenario.turn_profile.duplicate) {
            self.publish_command(Command::Control(control));
        }
    }

    fn some_turn(&mut self) -> Option<(ThreadId, TurnId)> {
        // One of the last turns, which may be in progress.
        let known = &self.operators.begun;
        let recent = known.len().min(3);
        let index = self.rng.index(recent.max(1));
        known.get(known.len().checked_sub(1 + index)?).cloned()
    }

    fn some_failed_turn(&mut self) -> Option<(ThreadId, TurnId)> {
        let failed: Vec<(ThreadId, TurnId)> =
            self.store.tables.iter().flat_map(|tables| tables.failed_turns.keys().cloned()).collect();
        let index = self.rng.index(failed.len().max(1));
        failed.get(index).cloned()
    }

    fn some_task(&mut self, agent: &AgentId) -> Option<TaskId> {
        let tables = self.store.tables.iter();
        let tasks: Vec<TaskId> = tables
            .flat_map(|tables| &tables.tasks)
            .filter(|((of, _), _)| of == agent)
            .map(|(_, task)| task.id.clone())
            .collect();
        if tasks.is_empty() {
            return TaskId::parse("nothing").ok();
        }
        Some(tasks[self.rng.index(tasks.len())].clone())
    }

    /// Queries every session; the reply is not checked, but must arrive.
    fn ask_why(&mut self) {
        let target = match (self.rng.below(2), self.some_turn()) {
            (0, Some((_, turn))) => QueryTarget::Turn(turn),
            (_, Some((thread, _))) => QueryTarget::Agent(thread.agent()),
            (_, None) => return,
        };
        let sessions = self.workers.iter().filter(|worker| worker.is_up);
        let addresses: Vec<_> =
            sessions.flat_map(|worker| worker.sessions.values().map(|session| session.address)).collect();
        for address in addresses {
            let input = Input::Status(StatusQuery { token: 0, target: target.clone() });
            self.schedule(1, WorldEvent::Session(address, SessionEvent::Input(Box::new(input))));
        }
    }

    /// When the faults have stopped, paused agents are resumed.
    pub(super) fn take_care(&mut self) {
        self.schedule(300, WorldEvent::Caretaker);
        let paused: Vec<AgentId> = self
            .store
            .tables
            .iter()
            .flat_map(|tables| &tables.agents)
            .filter(|(_, row)| row.is_paused)
            .map(|(agent, _)| agent.clone())
            .collect();
        for agent in paused {
            let last = self.operators.resumed.get(&agent).copied().unwrap_or(i64::MIN / 2);
            if self.time - last >= 1_500 {
                self.operators.resumed.insert(agent.clone(), self.time);
                self.act_on(agent, ControlKind::Resume);
            }
        }
    }
}
