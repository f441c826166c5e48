//! Stores and streams that go back in time. A copy of the store is restored. Streams lose their
//! end, are created again, are purged beyond the state of such a copy, or lose an entry. Owners
//! react by the rule that workers use.

use model::{MessageKey, PartitionId, Seq};
use partition::{Compared, EntryBody, Incident, Kept, StreamEntry, place};

use super::World;
use crate::bug::PlantedBug;
use crate::checker::{Invariant, Violation};
use crate::log::START;
use crate::store::Grant;
use crate::store::fence::AcknowledgedState;
use crate::world::event::{Address, StoreReply, WorldEvent};
use crate::world::state::going_back::Back;
use crate::world::state::statement::StatementKind;

/// Maximum delay of an owner's report, ms.
const TOLD_LATE_MS: i64 = 5_000;

impl World {
    /// Plans which stores and streams go back in time in this history, and when. Streams go back
    /// only if there are no turns: no rule covers a command that is lost on both sides, except that
    /// it is recorded.
    pub(super) fn plan_going_back(&mut self) {
        let until = self.scenario.faults_until;
        let has_turns = self.scenario.turn_profile.inputs + self.scenario.turn_profile.tasks > 0;
        let rng = &mut self.going_back.rng;
        let mut plan = Vec::new();
        if rng.chance(0.12) {
            for _ in 0..rng.pick([1, 1, 2]) {
                let copied_at = rng.range(200, until - 200);
                let put_back_at = (copied_at + rng.range(20, 3_000)).min(until - 50);
                let purges = !has_turns && rng.chance(0.4);
                plan.push((copied_at, Back::Copy));
                plan.push((put_back_at, Back::Restore { in_commit: rng.chance(0.5), purges }));
            }
        }
        if !has_turns && rng.chance(0.2) {
            for _ in 0..rng.pick([1, 1, 2]) {
                let what = rng.pick([Back::Cut, Back::Cut, Back::Cut, Back::Renew, Back::Lose, Back::Lose]);
                plan.push((rng.range(300, until - 50), what));
            }
        }
        // Store and stream go back at once: the store forgets what the owner has found out about
        // its stream.
        if !has_turns && rng.chance(0.04) {
            let copied_at = rng.range(200, until - 200);
            let cut_at = copied_at + rng.range(1, 1_000);
            let put_back_at = cut_at + rng.range(1, 3_000);
            let purges = rng.chance(0.2);
            plan.push((copied_at, Back::Copy));
            plan.push((cut_at.min(until - 60), Back::Cut));
            plan.push((put_back_at.min(until - 50), Back::Restore { in_commit: rng.chance(0.3), purges }));
        }
        let restores = plan.iter().filter(|(_, back)| matches!(back, Back::Restore { .. }));
        self.going_back.put_back_at = restores.map(|(at, _)| *at).min();
        // A slow clock is not combined with a store that goes back in time: only the right time
        // makes that store's new epochs higher than the forgotten ones.
        let rng = &mut self.going_back.rng;
        if self.going_back.put_back_at.is_none() && rng.chance(0.05) {
            self.going_back.slow_clock = Some((rng.range(300, until), rng.range(1, 3_000)));
        }
        for (at, back) in plan {
            self.schedule(at, WorldEvent::GoBack(back));
        }
    }

    pub(super) fn go_back(&mut self, back: Back) {
        match back {
            Back::Copy => self.going_back.copy = Some(Box::new(self.store.clone())),
            Back::Restore { in_commit, purges } => {
                self.going_back.purges = purges;
                match in_commit {
                    true => self.going_back.is_armed = self.going_back.copy.is_some(),
                    false => self.step_back(),
                }
            }
            Back::Cut => self.cut_stream(),
            Back::Renew => self.renew_stream(),
            Back::Lose => self.lose_entry(),
        }
    }

    /// The database's clock in microseconds.
    pub(super) fn database_us(&mut self) -> i64 {
        let slow = self.going_back.slow_clock.filter(|(at, _)| self.time >= *at);
        let now = START + self.time + self.store.timers.ahead_ms - slow.map_or(0, |(_, by)| by);
        now * 1_000 + self.going_back.rng.range(0, 999)
    }

    /// Restores the copy of the store.
    pub(super) fn step_back(&mut self) {
        self.going_back.is_armed = false;
        let Some(copy) = self.going_back.copy.take() else { return };
        self.coverage.steps_back += 1;
        let mut under_way = Vec::new();
        for row in &mut self.store.rows {
            self.coverage.steps_in_commit += u64::from(row.locked_by.is_some());
            under_way.extend(row.locked_by.take());
            under_way.append(&mut row.queue.drain(..).collect());
        }
        let used: Vec<u64> = self.store.rows.iter().map(|row| row.checkpoint).collect();
        for (number, row) in self.store.rows.iter().enumerate() {
            let epoch = self.going_back.stepped_epochs.entry(PartitionId(number as u16)).or_default();
            *epoch = row.epoch.max(*epoch);
        }
        self.store.step_back(&copy);
        self.going_back.stepped_at = Some(self.time);
        self.note(70, [copy.rows[0].commits, used[0], 0], || {
            let row = |row: &crate::store::Row| (row.epoch, row.commits, row.checkpoint);
            format!("the store steps back to {:?}", copy.rows.iter().map(row).collect::<Vec<_>>())
        });
        under_way.into_iter().for_each(|number| self.cut_off(number));
        self.erasing_steps_back();
        for (partition, entry) in std::mem::take(&mut self.going_back.vanished) {
            self.lose_messages(partition, &entry);
            self.going_back.vanished.push((partition, entry));
        }
        for (number, used) in used.into_iter().enumerate() {
            let partition = PartitionId(number as u16);
            self.rules.stepped_back.insert(partition);
            self.going_back.last.insert(partition, self.time);
            self.store.is_undone = true;
            self.doomed[number].clear();
            // The copy cannot notice the loss of entries that only the later state of the store
            // knew.
            let mark = self.store.rows[number].read.map_or(Seq(0), |read| read.seq);
            let checkpoint = self.store.rows[number].checkpoint;
            self.going_back.gone.retain(|(of, entry, from)| {
                let is_noticed = from.is_none_or(|from| mark >= from) && entry.seq.0 > checkpoint;
                *of != partition || is_noticed
            });
            if std::mem::take(&mut self.going_back.purges) && used > self.store.rows[number].checkpoint {
                self.coverage.purges_behind += 1;
                let purged = self.logs[number].purge(used);
                self.note(71, [number as u64, used, 0], || {
                    format!("stream {number} was purged up to {used}")
                });
                // An owner that was paused since before the stream lost its end may continue. It
                // then assumes that entries of the old end, which it has read but not committed,
                // were purged.
                let is_known = !self.rules.parted.contains(&partition);
                let before = self.going_back.gone.len();
                self.lose(partition, purged, None);
                if !is_known {
                    self.going_back.gone.truncate(before);
                }
                // A mark that was purged cannot show that the stream has another end.
                if mark.0 <= used {
                    self.going_back.gone.retain(|(of, _, from)| *of != partition || from.is_none());
                }
            }
        }
    }

    /// Cuts off a statement whose server is gone.
    pub(super) fn cut_off(&mut self, number: usize) {
        let statement = &mut self.statements[number];
        statement.is_cut_off = true;
        match (statement.address, statement.kind.clone()) {
            (address, StatementKind::Commit(_)) => self.reply_to(address, number, StoreReply::Unknown, 5),
            (_, StatementKind::Group(group)) => self.group_cut_off(group),
            _ => {}
        }
    }

    fn some_partition(&mut self) -> PartitionId {
        PartitionId(self.going_back.rng.below(u64::from(self.scenario.partitions)) as u16)
    }

    fn cut_stream(&mut self) {
        let partition = self.some_partition();
        let number = usize::from(partition.0);
        let (len, row) = (self.logs[number].len(), &self.store.rows[number]);
        // The cut is near the store's mark; above the mark only a reader knows the entries.
        let (checkpoint, mark) = (row.checkpoint, row.read.map_or(0, |read| read.seq.0));
        let low = checkpoint.saturating_sub(4).max(self.logs[number].purged());
        if len <= low + 1 {
            return;
        }
        let last = low + self.going_back.rng.below(len - low);
        self.coverage.stream_cuts += 1;
        *self.going_back.partings.entry(partition).or_default() += 1;
        self.note(72, [u64::from(partition.0), last, len], || {
            format!("stream {partition} loses {} to {len}, its store is at {checkpoint}, {mark}", last + 1)
        });
        let lost = self.logs[number].cut(last);
        let end = self.logs[number].len();
        let noticed_from = (mark > end).then_some(Seq(end + 1));
        self.restart_readers(partition);
        self.forget_gone_above(partition, end, noticed_from);
        self.lose_if(partition, lost, noticed_from);
    }

    fn renew_stream(&mut self) {
        let partition = self.some_partition();
        let number = usize::from(partition.0);
        self.coverage.stream_renewals += 1;
        *self.going_back.partings.entry(partition).or_default() += 1;
        self.note(73, [u64::from(partition.0), 0, 0], || format!("stream {partition} is made anew"));
        let lost = self.logs[number].renew();
        let is_noticed = self.store.rows[number].incarnation.is_some();
        self.restart_readers(partition);
        let noticed_from = is_noticed.then_some(Seq(1));
        self.forget_gone_above(partition, 0, noticed_from);
        self.lose_if(partition, lost, noticed_from);
    }

    /// A single lost entry above the new end is no longer a hole, because another entry takes its
    /// sequence. The store records it if it notices the new end.
    fn forget_gone_above(&mut self, partition: PartitionId, end: u64, noticed_from: Option<Seq>) {
        let is_above = |(of, entry, _): &mut (PartitionId, StreamEntry, Option<Seq>)| {
            *of == partition && entry.seq.0 > end
        };
        let above: Vec<_> = self.going_back.gone.extract_if(.., is_above).collect();
        if noticed_from.is_some() {
            let gone = above.into_iter().map(|(of, entry, _)| (of, entry, noticed_from));
            self.going_back.gone.extend(gone);
        }
    }

    fn lose_entry(&mut self) {
        let partition = self.some_partition();
        let number = usize::from(partition.0);
        let (len, checkpoint) = (self.logs[number].len(), self.store.rows[number].checkpoint);
        // The last entry is never lost alone: a hole at the end cannot be noticed.
        if len <= checkpoint + 1 {
            return;
        }
        let seq = checkpoint + 1 + self.going_back.rng.below(len - checkpoint - 1);
        self.coverage.entries_lost += 1;
        self.note(74, [u64::from(partition.0), seq, 0], || format!("stream {partition} loses entry {seq}"));
        let lost = self.logs[number].lose(seq);
        self.logs[number].restorations += 1;
        self.restart_readers(partition);
        self.lose(partition, lost.into_iter().collect(), None);
    }

    fn lose_if(&mut self, partition: PartitionId, lost: Vec<StreamEntry>, noticed_from: Option<Seq>) {
        let before = self.going_back.gone.len();
        self.lose(partition, lost, noticed_from);
        if noticed_from.is_none() {
            self.going_back.gone.truncate(before);
        }
    }

    /// Loses these entries. `noticed_from`: the store must know of the loss once its mark has
    /// reached this sequence; `None`: in any case.
    fn lose(&mut self, partition: PartitionId, lost: Vec<StreamEntry>, noticed_from: Option<Seq>) {
        self.rules.parted.insert(partition);
        self.going_back.last.insert(partition, self.time);
        self.doomed[usize::from(partition.0)].clear();
        // The store has everything up to the checkpoint. Otherwise the stream was cut and continued
        // earlier without being noticed, and those entries cannot be recorded.
        let checkpoint = self.store.rows[usize::from(partition.0)].checkpoint;
        for entry in lost {
            self.going_back.vanished.push((partition, entry.clone()));
            if self.lose_messages(partition, &entry) && entry.seq.0 > checkpoint {
                self.going_back.gone.push((partition, entry, noticed_from));
            }
        }
    }

    /// False if the store has everything that was in the entry.
    fn lose_messages(&mut self, partition: PartitionId, entry: &StreamEntry) -> bool {
        if self.store.lacks(partition, entry).is_none() {
            return false;
        }
        if let EntryBody::Frame(frame) = &entry.body {
            let keys = frame
                .chunks
                .iter()
                .map(|it| MessageKey { thread: frame.thread.clone(), message: it.message.clone() });
            self.going_back.lost.extend(keys);
        }
        true
    }

    /// The server of a stream was restored: all its consumers are gone.
    fn restart_readers(&mut self, partition: PartitionId) {
        let sessions = self.workers.iter().filter_map(|worker| worker.sessions.get(&partition));
        let addresses: Vec<Address> = sessions.map(|session| session.address).collect();
        for address in addresses {
            let delay = self.going_back.rng.range(1, 300);
            self.restart_reader(address, delay);
        }
    }

    /// Finds where to continue in the stream by the workers' rule, and stores the place if it
    /// differs. `None`: start over.
    pub(super) fn find_place(&mut self, address: Address, grant: Grant) -> Option<Grant> {
        let bug = self.bug;
        let (incarnation, seen) = {
            let session = self.session(address)?;
            (session.incarnation.clone(), session.read)
        };
        let known = grant.incarnation.as_deref();
        let ours = seen.filter(|_| known == Some(incarnation.as_str()));
        let read = grant.read.into_iter().chain(ours);
        let log = &self.logs[usize::from(address.partition.0)];
        let (incarnation, restorations) = (log.incarnation.clone(), log.restorations);
        let kept = Kept { checkpoint: Seq(grant.checkpoint), incarnation: known };
        let marks: Vec<Compared> = match bug {
            Some(PlantedBug::MarkIgnored) => Vec::new(),
            // A store that went back in time may know a stream that its owner has never read.
            Some(PlantedBug::HighestMarkAlone) => {
                read.max_by_key(|mark| mark.seq).map(|mark| log.compare(mark)).into_iter().collect()
            }
            _ => read.map(|mark| log.compare(mark)).collect(),
        };
        let place = place(&kept, &log.found(), &marks);
        let is_as_kept = place.incidents.is_empty() && known == Some(incarnation.as_str());
        let grant = match is_as_kept {
            true => grant,
            false => {
                self.coverage.rebases += 1;
                self.coverage.incidents += place.incidents.len() as u64;
                self.note(75, [address.session, place.checkpoint.0, 0], || format!("{address:?} {place:?}"));
                let rebased =
                    self.store.rebase(address.partition, address.incarnation, &grant, &place, &incarnation);
                let Some(rebased) = rebased else {
                    self.rebuild(address);
                    return None;
                };
                rebased
            }
        };
        let session = self.session(address)?;
        session.known = AcknowledgedState::from(&grant);
        (session.incarnation, session.read) = (incarnation, place.read);
        session.looked_at_stream(restorations);
        Some(grant)
    }

    /// The check that a reader does when it creates a new consumer.
    pub(super) fn is_same_stream(&mut self, address: Address) -> bool {
        let log = &self.logs[usize::from(address.partition.0)];
        let (restorations, incarnation) = (log.restorations, log.incarnation.clone());
        let ignores_mark = self.bug == Some(PlantedBug::MarkIgnored);
        let Some(session) = self.session(address) else { return true };
        if session.has_looked_at_stream(restorations) {
            return true;
        }
        let (read, of) = (session.read, session.incarnation.clone());
        let log = &self.logs[usize::from(address.partition.0)];
        let is_same = match ignores_mark {
            true => of == incarnation && read.is_none_or(|read| log.len() >= read.seq.0),
            false => log.is_as_read(&of, read),
        };
        if let Some(session) = self.session(address)
            && is_same
        {
            session.looked_at_stream(restorations);
        }
        is_same
    }

    /// True for clients that began before the store or stream went back in time, or soon after:
    /// frames in flight may have shown them events that were undone.
    pub(super) fn may_be_undone(&self, partition: PartitionId, begun_at: i64) -> bool {
        self.going_back.last.get(&partition).is_some_and(|at| begun_at < at + TOLD_LATE_MS)
    }

    /// Reports of owners up to this epoch may be undone; `None`: the store has never gone back.
    pub(super) fn stepped_epoch(&self, partition: PartitionId) -> Option<u64> {
        self.going_back.stepped_epochs.get(&partition).copied()
    }

    /// True if all published messages have ended, except for lost ones.
    pub(super) fn have_messages_ended(&self) -> bool {
        let lost = &self.going_back.lost;
        self.store.ended_messages() >= self.messages
            || (!lost.is_empty()
                && self.bare.iter().all(|key| lost.contains(key) || self.store.has_ended(key)))
    }

    /// Checks that entries lost on both sides are recorded with their partition and range.
    pub(super) fn check_gone(&mut self) {
        for (partition, entry, _) in std::mem::take(&mut self.going_back.gone) {
            let names = |(of, incident): &(PartitionId, Incident)| {
                *of == partition
                    && incident.first <= entry.seq
                    && incident.last.is_none_or(|last| entry.seq <= last)
            };
            let Some(missing) = self.store.lacks(partition, &entry) else { continue };
            // Entries between two cuts that no present owner had read leave no trace.
            if self.going_back.partings.get(&partition).is_some_and(|times| *times > 1) {
                continue;
            }
            self.coverage.gone += 1;
            if !self.store.incidents.iter().any(names) {
                let subject = format!("entry {} of partition {partition}", entry.seq);
                let seen = format!("{missing} is nowhere, {:?}", self.store.incidents);
                self.violate(Violation::new(Invariant::Named, subject, "an incident that names it", seen));
            }
        }
    }
}
