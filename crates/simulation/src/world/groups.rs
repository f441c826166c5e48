//! Group commit: while a worker's statement is in progress, commits that become ready wait and go
//! into the next statement, all or none. If the store refuses something in a group, each commit is
//! tried alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::World;
use crate::bug::PlantedBug;
use crate::store::fence::Decided;
use crate::world::event::{Address, SessionEvent, StatementEvent, StoreReply, WorldEvent};
use crate::world::state::groups::Group;
use crate::world::state::statement::{Statement, StatementKind};

impl World {
    /// Adds a commit of an owner to the next group of its worker.
    pub(super) fn submit(&mut self, address: Address, decided: Arc<Decided>) -> usize {
        if !self.groups.is_on || self.scenario.partitions < 2 {
            return self.send(address, StatementKind::Commit(decided));
        }
        let number = self.statements.len();
        self.statements.push(Statement::new(StatementKind::Commit(decided), address));
        self.groups.committers.entry(address.incarnation).or_default().waiting.push(number);
        let delay = self.groups.rng.range(0, self.groups.gathers_ms);
        self.schedule(delay, WorldEvent::Gather(address));
        number
    }

    /// True if the session that waits for the statement still exists.
    fn is_waited_for(&mut self, number: usize) -> bool {
        let address = self.statements[number].address;
        self.session(address).is_some_and(|session| session.waits_for(number))
    }

    pub(super) fn gather(&mut self, address: Address) {
        let (index, incarnation) = (address.worker, address.incarnation);
        if self.is_away(index, incarnation, || WorldEvent::Gather(address)) {
            return;
        }
        let committer = self.groups.committers.entry(incarnation).or_default();
        if committer.under_way.is_some() {
            return;
        }
        let waiting = std::mem::take(&mut committer.waiting);
        let (limits, mut turns, mut bytes) = (self.scenario.limits, 0, 0);
        let (mut members, mut later) = (Vec::new(), Vec::new());
        for number in waiting {
            if !self.is_waited_for(number) {
                continue;
            }
            let StatementKind::Commit(decided) = &self.statements[number].kind else { continue };
            if !members.is_empty() && (turns >= limits.commit_turns || bytes >= limits.commit_bytes) {
                later.push(number);
                continue;
            }
            (turns, bytes) = (turns + decided.commit.weight(), bytes + decided.commit.size());
            members.push(number);
        }
        members.sort_by_key(|number| self.statements[*number].address.partition);
        let group = self.groups.groups.len();
        let committer = self.groups.committers.entry(incarnation).or_default();
        committer.waiting = later;
        if members.is_empty() {
            return;
        }
        committer.under_way = Some(group);
        self.coverage.groups += u64::from(members.len() > 1);
        let (leader, address) = (self.statements.len(), self.statements[members[0]].address);
        self.statements.push(Statement::new(StatementKind::Group(group), address));
        let (held, alone) = (Vec::new(), Vec::new());
        self.groups.groups.push(Group { address, leader, members, looked_at: 0, held, alone });
        self.send_group(group);
    }

    fn send_group(&mut self, group: usize) {
        let (members, leader) = (self.groups.groups[group].members.clone(), self.groups.groups[group].leader);
        let timeout = self.scenario.answer_timeout_ms;
        for member in &members {
            let address = self.statements[*member].address;
            self.schedule(timeout, WorldEvent::Session(address, SessionEvent::Timeout(*member)));
        }
        self.schedule(timeout * (members.len() as i64 + 1), WorldEvent::GroupOver(group));
        let mut delay = self.rng.range(0, 4);
        if self.fault(|faults| faults.refused) {
            // The whole group is tried again, as long as a session waits for it.
            self.coverage.refused += 1;
            let back = self.rng.range(1, 50);
            return self.schedule(back, WorldEvent::GroupAgain(group));
        } else if self.fault(|faults| faults.request_lost) {
            self.answer_unknown(&members);
            return self.schedule(1, WorldEvent::GroupOver(group));
        } else if self.fault(|faults| faults.request_late) {
            delay = self.rng.range(20, 2_000);
            self.answer_unknown(&members);
            self.schedule(1, WorldEvent::GroupOver(group));
        }
        self.schedule(delay, WorldEvent::Statement(StatementEvent::Arrive(leader)));
    }

    /// Reports an unknown outcome to all members.
    fn answer_unknown(&mut self, members: &[usize]) {
        self.coverage.groups_unknown += u64::from(members.len() > 1);
        for member in members {
            let address = self.statements[*member].address;
            let reply = match self.bug {
                Some(PlantedBug::GroupUnknownIsApplied) => StoreReply::Applied(Vec::new()),
                _ => StoreReply::Unknown,
            };
            self.reply_to(address, *member, reply, 5);
        }
    }

    pub(super) fn send_group_again(&mut self, group: usize) {
        let members = self.groups.groups[group].members.clone();
        let waited_for: Vec<usize> =
            members.into_iter().filter(|member| self.is_waited_for(*member)).collect();
        self.groups.groups[group].members = waited_for;
        match self.groups.groups[group].members.is_empty() {
            true => self.group_over(group),
            false => self.send_group(group),
        }
    }

    /// Locks the rows of the group's partitions one after the other. Commits that were decided on
    /// another state are left out.
    pub(super) fn start_group(&mut self, group: usize) {
        let leader = self.groups.groups[group].leader;
        while let Some(member) =
            self.groups.groups[group].members.get(self.groups.groups[group].looked_at).copied()
        {
            let address = self.statements[member].address;
            let StatementKind::Commit(decided) = self.statements[member].kind.clone() else { return };
            let row = self.store.row(address.partition);
            if row.locked_by.is_some() {
                row.queue.push_back(leader);
                self.coverage.lock_waits += 1;
                return;
            }
            let is_held = self.is_fenced_together(group) || self.store.expects(address.incarnation, &decided);
            self.groups.groups[group].looked_at += 1;
            if is_held || matches!(self.bug, Some(PlantedBug::NoFence | PlantedBug::NoGuard)) {
                self.store.row(address.partition).locked_by = Some(leader);
                self.groups.groups[group].held.push(member);
            } else {
                self.coverage.fenced += 1;
                self.note(15, [member as u64, group as u64, 0], || {
                    format!("store: fences s{member} of a group")
                });
                self.reply_to(address, member, StoreReply::Fenced, 4);
            }
        }
        if self.going_back.is_armed && !self.groups.groups[group].held.is_empty() {
            return self.step_back();
        }
        let mut duration = self.rng.range(0, 6);
        if self.fault(|faults| faults.slow_statement) {
            duration = self.rng.range(50, 1_500);
            if self.rng.chance(0.5) {
                let held = self.groups.groups[group].held.clone();
                self.answer_unknown(&held);
            }
        }
        self.schedule(duration, WorldEvent::Statement(StatementEvent::Done(leader)));
    }

    /// A planted bug: if the fence lets one commit of a group pass, all commits of the group pass.
    fn is_fenced_together(&self, group: usize) -> bool {
        let is_expected = |member: &usize| match &self.statements[*member].kind {
            StatementKind::Commit(decided) => {
                self.store.expects(self.statements[*member].address.incarnation, decided)
            }
            _ => false,
        };
        self.bug == Some(PlantedBug::GroupFencedTogether)
            && self.groups.groups[group].members.iter().any(is_expected)
    }

    /// Cuts off a group whose server is gone.
    pub(super) fn group_cut_off(&mut self, group: usize) {
        let members = self.groups.groups[group].members.clone();
        self.answer_unknown(&members);
    }

    pub(super) fn group_done(&mut self, group: usize) {
        let held = std::mem::take(&mut self.groups.groups[group].held);
        if self.fault(|faults| faults.aborted) {
            self.note(16, [group as u64, 0, 0], || format!("store: group {group} aborts"));
            self.answer_unknown(&held);
        } else if let Some(bad) = self.group_refused(&held) {
            self.refuse_group(group, &held, &bad);
        } else {
            let is_lost = self.fault(|faults| faults.reply_lost);
            for member in &held {
                let StatementKind::Commit(decided) = self.statements[*member].kind.clone() else { continue };
                let refused = self.apply(*member, &decided);
                if !is_lost {
                    let address = self.statements[*member].address;
                    self.reply_to(
                        address,
                        *member,
                        refused.map_or(StoreReply::Unknown, StoreReply::Applied),
                        4,
                    );
                }
            }
            if is_lost {
                self.answer_unknown(&held);
            }
        }
        for member in held {
            self.unlock(self.statements[member].address.partition);
        }
        match self.groups.groups[group].alone.is_empty() {
            true => self.group_over(group),
            false => self.next_alone(group),
        }
    }

    /// Members with an item that the store refuses, because of which nothing of the group is
    /// written.
    fn group_refused(&mut self, held: &[usize]) -> Option<BTreeSet<usize>> {
        let mut bad = BTreeSet::new();
        for member in held {
            let StatementKind::Commit(decided) = self.statements[*member].kind.clone() else { continue };
            let refused = self.refuses(&decided.commit, held.len() > 1).unwrap_or_default();
            if !refused.is_empty() {
                bad.insert(*member);
            }
            self.statements[*member].judged = Some(refused);
        }
        (!bad.is_empty()).then_some(bad)
    }

    fn refuse_group(&mut self, group: usize, held: &[usize], bad: &BTreeSet<usize>) {
        self.coverage.groups_refused += u64::from(held.len() > 1);
        let mut alone: Vec<usize> = held.iter().rev().copied().collect();
        if self.bug == Some(PlantedBug::GroupDragged) {
            alone.retain(|member| bad.contains(member));
            for member in held.iter().filter(|member| !bad.contains(member)) {
                let address = self.statements[*member].address;
                self.reply_to(address, *member, StoreReply::Applied(Vec::new()), 4);
            }
        }
        for member in &alone {
            self.statements[*member].group = Some(group);
        }
        self.groups.groups[group].alone = alone;
    }

    /// Tries the next member of a refused group alone.
    pub(super) fn next_alone(&mut self, group: usize) {
        while let Some(member) = self.groups.groups[group].alone.pop() {
            if self.is_waited_for(member) {
                let delay = self.rng.range(0, 4);
                return self.schedule(delay, WorldEvent::Statement(StatementEvent::Arrive(member)));
            }
        }
        self.group_over(group);
    }

    /// Sends the next group: the worker knows the outcome of this one, or knows that it will never
    /// learn it.
    pub(super) fn group_over(&mut self, group: usize) {
        let address = self.groups.groups[group].address;
        let Some(committer) = self.groups.committers.get_mut(&address.incarnation) else { return };
        if committer.under_way == Some(group) {
            committer.under_way = None;
            let delay = self.groups.rng.range(0, self.groups.gathers_ms / 4);
            self.schedule(delay, WorldEvent::Gather(address));
        }
    }
}
