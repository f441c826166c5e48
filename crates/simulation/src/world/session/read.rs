//! The reader of a session: batches in flight, and every fault of readers.

use model::{Command, ControlKind, MessageKey, Seq, TurnId};
use partition::{EntryBody, Input, StreamEntry};

use crate::bug::PlantedBug;
use crate::checker::{Invariant, Violation};
use crate::store::token_key;
use crate::world::World;
use crate::world::event::{Address, SessionEvent, WorldEvent};
use crate::world::state::session::WorkerSession;

impl World {
    /// Continues after the last entry that the machine has read.
    pub(in crate::world) fn restart_reader(&mut self, address: Address, delay: i64) {
        let bug = self.bug;
        let Some(session) = self.session(address) else { return };
        let Some(machine) = &session.machine else { return };
        let skipped = if bug == Some(PlantedBug::SkipAfterCut) { session.reader.next } else { 0 };
        session.reader.generation += 1;
        session.reader.next = machine.last_seq().next().0.max(skipped);
        session.reader.told_tail = false;
        session.reader.is_waiting = false;
        session.reader.must_report_behind |= std::mem::take(&mut session.is_caught_up);
        session.watch.clear();
        let generation = session.reader.generation;
        self.schedule(delay, WorldEvent::Session(address, SessionEvent::Fetch { generation }));
    }

    pub(super) fn fetch(&mut self, address: Address, generation: u64) {
        let (tail, batch) = (self.log(address.partition).len(), self.scenario.batch as u64);
        let again = |delay| (delay, WorldEvent::Session(address, SessionEvent::Fetch { generation }));
        let Some(session) = self.session(address) else { return };
        let Some(machine) = session.machine.as_ref().filter(|_| session.reader.generation == generation)
        else {
            return;
        };
        if !machine.wants_entries() {
            let (delay, event) = again(20);
            return self.schedule(delay, event);
        }
        if std::mem::take(&mut session.reader.must_report_behind) {
            // The reader reports this before anything else, like the real reader.
            let (delay, event) = again(1);
            self.schedule(delay, event);
            return self.drive(address, Input::CaughtUp(false));
        }
        let first = session.reader.next.max(1);
        session.reader.next = first;
        if !self.is_same_stream(address) {
            return self.rebuild(address);
        }
        let Some(session) = self.session(address) else { return };
        if first > tail {
            if !std::mem::replace(&mut session.reader.told_tail, true) {
                self.hand_over(address, generation, (first, first - 1), true);
            }
            if let Some(session) = self.session(address) {
                session.reader.is_waiting = true;
            }
            return;
        }
        let is_replay = !session.is_caught_up;
        let last = tail.min(first + batch - 1);
        if is_replay
            && last < tail
            && !self.is_quiet
            && let Some(delay) = self.long_answers.read_delay()
        {
            self.coverage.slow_reads += 1;
            let (delay, event) = again(delay);
            return self.schedule(delay, event);
        }
        if self.fault(|faults| faults.outage) {
            let (heartbeat, outage) = (self.scenario.heartbeat_ms, self.rng.range(100, 3_000));
            return self.lose_reader(address, generation, heartbeat, outage);
        }
        if self.fault(|faults| faults.cut) {
            let (cut, noticed) =
                (self.rng.range(first as i64 - 1, last as i64) as u64, self.rng.range(0, 15));
            self.advance(address, last + 1, false);
            self.hand_over(address, generation, (first, cut), false);
            return self.lose_reader(address, generation, noticed, 5);
        }
        let repeated = if self.fault(|faults| faults.repeat) { self.rng.below(20) } else { 0 };
        let from = first.saturating_sub(repeated).max(1);
        self.advance(address, last + 1, last == tail);
        self.hand_over(address, generation, (from, last), last == tail);
        let (delay, event) = again(self.rng.range(1, 4));
        self.schedule(delay, event);
    }

    fn advance(&mut self, address: Address, next: u64, is_tail: bool) {
        if let Some(session) = self.session(address) {
            session.reader.next = next;
            session.reader.told_tail = is_tail;
        }
    }

    /// Sends a batch; batches of one generation arrive in order.
    fn hand_over(&mut self, address: Address, generation: u64, (first, last): (u64, u64), is_tail: bool) {
        let arrive_at = self.time + self.rng.range(1, 8);
        let time = self.time;
        let Some(session) = self.session(address) else { return };
        session.reader.arrive_at = session.reader.arrive_at.max(arrive_at);
        let delay = session.reader.arrive_at - time;
        let event = SessionEvent::Arrive { generation, first, last, is_tail };
        self.schedule(delay, WorldEvent::Session(address, event));
    }

    fn lose_reader(&mut self, address: Address, generation: u64, noticed_after: i64, resume_after: i64) {
        self.coverage.reader_faults += 1;
        let event = SessionEvent::ReaderLost { generation, resume_after };
        self.schedule(noticed_after, WorldEvent::Session(address, event));
    }

    pub(super) fn reader_lost(&mut self, address: Address, generation: u64, resume_after: i64) {
        let Some(session) = self.session(address) else { return };
        if session.reader.generation != generation {
            return;
        }
        self.restart_reader(address, resume_after);
        if let Some(session) = self.session(address) {
            session.reader.must_report_behind = false;
        }
        self.drive(address, Input::CaughtUp(false));
    }

    pub(super) fn arrive(
        &mut self,
        address: Address,
        generation: u64,
        (first, last): (u64, u64),
        is_tail: bool,
    ) {
        let (bug, max_open) = (self.bug, self.scenario.max_open);
        let log = self.log(address.partition);
        let mut entries = log.read(first, last);
        let marked = entries.last().and_then(|entry| log.mark(entry.seq.0));
        let restorations = log.restorations;
        let now = self.now(address);
        let Some(session) = self.session(address) else { return };
        let Some(machine) = &mut session.machine else { return };
        if session.reader.generation != generation && bug != Some(PlantedBug::StaleEntries) {
            return;
        }
        if session.reader.restorations != restorations {
            // The reader's consumer is gone with the server, and so are the batches in flight.
            return self.restart_reader(address, 5);
        }
        session.read = session.read.filter(|read| marked.is_none_or(|last| last.seq < read.seq)).or(marked);
        let before = machine.load().0;
        let answers: usize = entries.iter().map(answers_in).sum();
        if bug == Some(PlantedBug::HeldBackShown) {
            entries.iter().for_each(|entry| self.show_follow_up(entry));
        }
        let Some(session) = self.session(address) else { return };
        let Some(machine) = &mut session.machine else { return };
        let room = match bug {
            Some(PlantedBug::RoomIgnored) => usize::MAX,
            _ => max_open.saturating_sub(before),
        };
        let begun = machine.stats(now).active_turns;
        session.planted.has_entries |= !entries.is_empty();
        session.plant(bug, &mut entries, machine_last(session));
        if !is_tail && std::mem::take(&mut session.is_caught_up) {
            self.drive(address, Input::CaughtUp(false));
        }
        if !entries.is_empty() {
            self.drive(address, Input::Entries { entries, room });
            self.check_room(address, before, (answers, begun));
        }
        let Some(session) = self.session(address) else { return };
        if is_tail && session.reader.generation == generation && !session.is_caught_up {
            session.is_caught_up = true;
            self.drive(address, Input::CaughtUp(true));
        }
    }

    /// Checks the limit on open messages. Answers of turns with their tasks, and tasks that begin,
    /// do not count.
    fn check_room(&mut self, address: Address, before: usize, (answers, begun): (usize, usize)) {
        let (now, max_open) = (self.now(address), self.scenario.max_open);
        let Some(WorkerSession { machine: Some(machine), .. }) = self.session(address) else { return };
        let open = machine.load().0;
        let most = max_open.max(before) + answers * 2 + machine.stats(now).active_turns.saturating_sub(begun);
        if open > most {
            let subject = format!("partition {}", address.partition);
            let expected = format!("at most {most} open messages");
            self.violate(Violation::new(Invariant::Room, subject, expected, open.to_string()));
        }
    }
}

fn answers_in(entry: &StreamEntry) -> usize {
    match &entry.body {
        EntryBody::Frame(frame) => usize::from(frame.token.is_some()),
        EntryBody::Command(..) | EntryBody::Refused { .. } => 0,
    }
}

fn machine_last(session: &WorkerSession) -> Seq {
    session.machine.as_ref().map_or(Seq(0), |machine| machine.last_seq())
}

impl WorkerSession {
    /// Planted bugs that look at entries or rewrite them.
    fn plant(&mut self, bug: Option<PlantedBug>, entries: &mut [StreamEntry], last_seq: Seq) {
        for entry in entries {
            if let EntryBody::Command(Command::Control(control), _) = &mut entry.body
                && let (ControlKind::StopTurn(_), Some(PlantedBug::StopIgnored)) = (&control.kind, bug)
            {
                control.kind = ControlKind::Resume;
            }
            if let EntryBody::Command(Command::Turn(opened), _) = &mut entry.body {
                super::super::timers::judge_by_content(opened, bug);
            }
            let EntryBody::Frame(frame) = &mut entry.body else { continue };
            let answer = frame.chunks.first().and_then(|arrival| TurnId::of_answer(&arrival.message));
            if let (Some((turn, run)), Some(PlantedBug::TokenIgnored)) = (answer, bug) {
                frame.token = Some(token_key().token(&frame.thread, &turn, run));
            }
            if bug == Some(PlantedBug::AttemptsMixed) {
                frame.chunks.iter_mut().for_each(|arrival| arrival.attempt = 0);
            }
            if bug != Some(PlantedBug::AppendOnArrival) || entry.seq <= last_seq {
                continue;
            }
            for arrival in &frame.chunks {
                let key = MessageKey { thread: frame.thread.clone(), message: arrival.message.clone() };
                let (attempt, chunks) = self.planted.arrivals.entry(key).or_default();
                if arrival.attempt > *attempt {
                    *attempt = arrival.attempt;
                    chunks.clear();
                }
                if chunks.iter().all(|chunk| chunk.id != arrival.chunk.id) && arrival.attempt == *attempt {
                    chunks.push(arrival.chunk.clone());
                }
            }
        }
    }
}
