//! Gateways and clients: frames, queries and replies between owners and the real feeds of gateways,
//! and the events sent to clients.

use std::collections::BTreeSet;

use feed::{StoreRead, StreamPart, Subscription, WaitOutcome};
use model::LiveFrame;
use model::{PartitionId, Position, ThreadId, Timestamp};
use partition::{ChangedThreads, ChangedThreadsQuery, SnapshotReply, SnapshotRequest};
use protocols::Cursor;

use super::World;
use crate::bug::PlantedBug;
use crate::gateway::{Fetched, Follower, StoreReader, ViewerConnection};
use crate::log::START;
use crate::world::event::{Address, ClientEvent, GatewayEvent, SessionEvent, WorldEvent};

/// How often the owner of each partition is asked what it has sent, ms.
const WATCH_MS: i64 = 2_000;
/// Rows of one page of the store.
const PAGES: [usize; 3] = [1, 3, 50];
/// An owner that does not answer within this time counts as absent, ms.
const ASK_TIMEOUT_MS: i64 = 1_000;
/// Marks the token of a query about sent frames.
const SENT: u64 = 1 << 63;

impl World {
    pub(super) fn join(&mut self, index: usize) {
        self.clients[index].begin(self.time);
        self.note(20, [index as u64, 0, 0], || format!("client {index} begins"));
        self.connect(index);
    }

    fn connect(&mut self, index: usize) {
        let gateway = self.rng.index(self.gateways.len());
        self.clients[index].connect(gateway);
        let client = &self.clients[index];
        let (thread, connection, cursor) = (client.thread.clone(), client.connection, client.cursor());
        self.coverage.resumes += u64::from(cursor.is_some());
        self.note(21, [index as u64, gateway as u64, connection], || {
            format!(
                "client {index} connects to gateway {gateway} with {}",
                cursor.as_ref().map_or("nothing".to_owned(), ToString::to_string)
            )
        });
        self.follow(gateway, &thread);
        let subscriber = ViewerConnection { client: index, connection };
        let cursor = match self.bug {
            Some(PlantedBug::CursorForgotten) => cursor.map(|cursor| Cursor::at(cursor.base())),
            Some(PlantedBug::CursorLags) => self.clients[index].cursor_before(),
            _ => cursor,
        };
        if let Some(follower) = self.gateways[gateway].followers.get_mut(&thread) {
            follower.waiting.push(subscriber, cursor, Subscription::Thread, &follower.feed);
        }
        self.go_on(gateway, &thread);
        let next = self.rng.range(100, 800);
        self.schedule(next, WorldEvent::Client(index, connection, ClientEvent::Fault));
    }

    fn follow(&mut self, gateway: usize, thread: &ThreadId) {
        if self.gateways[gateway].followers.contains_key(thread) {
            return;
        }
        self.last_follower += 1;
        let budget = self.rng.pick([200, 1 << 20]);
        let mut follower = Follower::new(thread, self.last_follower, budget);
        follower.feed.on_owner(self.gateways[gateway].watch.epoch(self.partition_of(thread)));
        self.gateways[gateway].followers.insert(thread.clone(), follower);
    }

    /// Sends a frame to every gateway that the owner knows as a follower of the thread. Some
    /// receive it, late and in any order.
    pub(super) fn broadcast(&mut self, address: Address, frame: &LiveFrame) {
        self.check_held_back(&frame.thread, &frame.message);
        let machine = self.session(address).and_then(|session| session.machine.as_ref());
        let known = machine.map_or_else(Vec::new, |machine| machine.followers(&frame.thread).to_vec());
        for gateway in 0..self.gateways.len() {
            if !known.contains(&self.gateways[gateway].id(gateway)) || self.fault(|faults| faults.frame_lost)
            {
                continue;
            }
            let Some(follower) = self.gateways[gateway].followers.get(&frame.thread) else {
                self.gateways[gateway].unfollowed.insert(frame.thread.clone());
                continue;
            };
            let number = follower.number;
            let delay = self.on_the_way(gateway);
            let event = GatewayEvent::Frame(frame.thread.clone(), number, Box::new(frame.clone()));
            self.schedule(delay, WorldEvent::Gateway(gateway, event));
        }
    }

    /// A new owner, which knows no followers, announces itself.
    pub(super) fn announce_owner(&mut self, p: PartitionId, epoch: u64) {
        for gateway in 0..self.gateways.len() {
            if self.fault(|faults| faults.frame_lost) {
                continue;
            }
            let incarnation = self.gateways[gateway].incarnation;
            let delay = self.on_the_way(gateway);
            self.schedule(delay, WorldEvent::Gateway(gateway, GatewayEvent::Owner(p, incarnation, epoch)));
        }
    }

    fn on_owner(&mut self, gateway: usize, p: PartitionId, incarnation: u64, epoch: u64) {
        if self.gateways[gateway].incarnation != incarnation {
            return;
        }
        self.gateways[gateway].watch.on_owner(p, epoch);
        let threads: Vec<ThreadId> = self.gateways[gateway].followers.keys().cloned().collect();
        for thread in threads.into_iter().filter(|thread| self.partition_of(thread) == p).collect::<Vec<_>>()
        {
            if let Some(follower) = self.gateways[gateway].followers.get_mut(&thread) {
                follower.feed.on_owner(epoch);
            }
            self.go_on(gateway, &thread);
        }
    }

    fn on_the_way(&mut self, gateway: usize) -> i64 {
        let link = if self.is_quiet { 0 } else { self.gateways[gateway].link_ms };
        self.coverage.late_frames += u64::from(link > 0);
        link + self.rng.range(0, 15)
    }

    pub(super) fn gateway_event(&mut self, gateway: usize, event: GatewayEvent) {
        let now = self.gateway_time();
        let planted = self.bug;
        let (thread, number) = match &event {
            GatewayEvent::Frame(thread, number, _)
            | GatewayEvent::Reply(thread, number, ..)
            | GatewayEvent::Unanswered(thread, number, _)
            | GatewayEvent::Fetch(thread, number, ..)
            | GatewayEvent::Fetched(thread, number, ..)
            | GatewayEvent::Tick(thread, number) => (thread.clone(), *number),
            GatewayEvent::Watch(p) => return self.ask_sent(gateway, *p),
            GatewayEvent::Owner(p, incarnation, epoch) => {
                return self.on_owner(gateway, *p, *incarnation, *epoch);
            }
            GatewayEvent::ChangedThreads(p, incarnation, sent) => {
                return self.on_sent(gateway, *p, *incarnation, sent.clone());
            }
        };
        let Some(follower) = self.gateways[gateway].followers.get(&thread) else { return };
        if follower.number != number {
            return;
        }
        self.note(25, [gateway as u64, number, 0], || format!("gateway {gateway} {thread} {event:?}"));
        let Some(follower) = self.gateways[gateway].followers.get_mut(&thread) else { return };
        match event {
            GatewayEvent::Frame(_, _, mut frame) => {
                if planted == Some(PlantedBug::FrameNumbersIgnored) {
                    frame.number.after = 0;
                }
                follower.feed.on_frame(*frame, now);
            }
            GatewayEvent::Reply(_, _, asked, mut reply) => {
                // A reply after its timeout, or after another query, is ignored.
                if follower.asked != Some(asked) {
                    return;
                }
                follower.asked = None;
                if planted == Some(PlantedBug::CutFromStore) {
                    // Treats the ends in the store like ends that the owner has reported.
                    reply.cut.committed = self.store.last_end(&thread, Position::MAX);
                }
                let Some(follower) = self.gateways[gateway].followers.get_mut(&thread) else { return };
                follower.feed.on_reply(*reply, now);
                if let Some(epoch) = follower.feed.epoch() {
                    let (p, incarnation) = (self.partition_of(&thread), self.gateways[gateway].incarnation);
                    if epoch > self.gateways[gateway].watch.epoch(p) {
                        self.on_owner(gateway, p, incarnation, epoch);
                    }
                }
            }
            GatewayEvent::Unanswered(_, _, asked) => {
                if follower.asked == Some(asked) {
                    follower.asked = None;
                    follower.feed.on_snapshot_failed(now);
                }
            }
            GatewayEvent::Fetch(_, _, reader, read) => {
                return self.read_store(gateway, thread, number, reader, read);
            }
            GatewayEvent::Fetched(_, _, reader, fetched) => self.fetched(gateway, &thread, reader, fetched),
            GatewayEvent::Tick(..) if follower.tick_at == Some(now) => follower.tick_at = None,
            GatewayEvent::Tick(..) => return,
            GatewayEvent::Watch(_) | GatewayEvent::ChangedThreads(..) | GatewayEvent::Owner(..) => {}
        }
        self.go_on(gateway, &thread);
    }

    fn gateway_time(&self) -> Timestamp {
        Timestamp(START + self.time)
    }

    /// Shows what is ready, lets waiting clients in, and requests what is needed.
    fn go_on(&mut self, gateway: usize, thread: &ThreadId) {
        let now = self.gateway_time();
        let stepped_epoch = self.stepped_epoch(self.partition_of(thread));
        let Some(follower) = self.gateways[gateway].followers.get_mut(thread) else { return };
        let number = follower.number;
        let mut shown: Vec<(ViewerConnection, Vec<StreamPart>)> = Vec::new();
        let events: Vec<StreamPart> = std::iter::from_fn(|| follower.feed.next_event())
            .map(|event| StreamPart::Encoded(event.bytes))
            .collect();
        if !events.is_empty() {
            shown.extend(follower.subscribers.iter().map(|subscriber| (*subscriber, events.clone())));
        }
        let (mut admit_waiting, mut cut, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let is_before_step = stepped_epoch.is_some_and(|epoch| follower.feed.epoch().unwrap_or(0) <= epoch);
        for (subscriber, fate) in follower.waiting.admit_waiting(&mut follower.feed, now) {
            let fate = match fate {
                WaitOutcome::Refused(why) => {
                    self.coverage.restarts += 1;
                    refused.push((subscriber.client, why));
                    match follower.feed.restart(&Subscription::Thread) {
                        feed::JoinResult::Joined(first) => WaitOutcome::Joined(first),
                        _ => WaitOutcome::OverBudget,
                    }
                }
                other => other,
            };
            self.clients[subscriber.client].may_be_undone |= is_before_step;
            match fate {
                WaitOutcome::Joined(first) => {
                    follower.subscribers.push(subscriber);
                    admit_waiting.push((subscriber.client, follower.feed.cursor().base().get()));
                    shown.push((subscriber, first));
                }
                // The connection is cut, and the client comes back.
                WaitOutcome::OverBudget => cut.push(subscriber),
                WaitOutcome::Finished | WaitOutcome::Refused(_) => {}
            }
        }
        let counts = follower.feed.take_counts();
        self.coverage.holes_repaired += counts.gaps_filled;
        self.coverage.left_out += counts.left_out;
        if counts.left_out > 0 {
            self.rules.left_out.insert(thread.clone());
        }
        let ask = follower.feed.poll_snapshot_request(now);
        let read = follower.feed.poll_store_read(now).map(|read| (StoreReader::Feed, read));
        let missed =
            follower.waiting.poll_store_read(&follower.feed, now).map(|read| (StoreReader::Waiting, read));
        let timeouts = [follower.feed.poll_timeout(), follower.waiting.poll_timeout(&follower.feed)];
        let due = timeouts.into_iter().flatten().min();
        let tick_at = due.filter(|at| follower.tick_at.is_none_or(|tick_at| *at < tick_at));
        follower.tick_at = tick_at.or(follower.tick_at);
        for (client, why) in refused {
            self.note(27, [client as u64, 0, 0], || format!("client {client} has to begin anew: {why:?}"));
        }
        for (client, base) in admit_waiting {
            self.clients[client].joined(base);
        }
        self.send_events(shown);
        for subscriber in cut {
            if self.clients[subscriber.client].connection == subscriber.connection {
                self.cut(subscriber.client);
            }
        }
        if let Some(ask) = ask {
            self.ask(gateway, ask, number);
        }
        for (reader, read) in read.into_iter().chain(missed) {
            let delay = self.rng.range(0, 20);
            let event = GatewayEvent::Fetch(thread.clone(), number, reader, read);
            self.schedule(delay, WorldEvent::Gateway(gateway, event));
        }
        if let Some(at) = tick_at {
            self.schedule(
                at.since_ms(now),
                WorldEvent::Gateway(gateway, GatewayEvent::Tick(thread.clone(), number)),
            );
        }
    }

    fn send_events(&mut self, shown: Vec<(ViewerConnection, Vec<StreamPart>)>) {
        for (subscriber, events) in shown {
            let client = &mut self.clients[subscriber.client];
            if client.connection != subscriber.connection {
                continue;
            }
            client.send(events);
            if !std::mem::replace(&mut client.is_reading, true) {
                let delay = self.rng.range(0, 5);
                self.schedule(
                    delay,
                    WorldEvent::Client(subscriber.client, subscriber.connection, ClientEvent::Read),
                );
            }
        }
    }

    /// A session that answers for the partition. A worker that has lost its lease may answer, too.
    fn answering(&mut self, partition: PartitionId) -> Option<Address> {
        let sessions: Vec<Address> = self
            .workers
            .iter()
            .filter(|worker| worker.is_up)
            .filter_map(|worker| worker.sessions.get(&partition).map(|session| session.address))
            .collect();
        (!sessions.is_empty()).then(|| sessions[self.rng.index(sessions.len())])
    }

    fn ask(&mut self, gateway: usize, ask: wire::query::SnapshotRequest, number: u64) {
        let thread = ask.thread.clone();
        self.last_ask += 1;
        let asked = self.last_ask;
        self.note(24, [gateway as u64, asked, 0], || format!("gateway {gateway} asks for {thread}"));
        if let Some(follower) = self.gateways[gateway].followers.get_mut(&thread) {
            follower.asked = Some(asked);
        }
        let unanswered = GatewayEvent::Unanswered(thread.clone(), number, asked);
        let partition = self.partition_of(&thread);
        let Some(address) = self.answering(partition) else {
            return self.schedule(1, WorldEvent::Gateway(gateway, unanswered));
        };
        let timeout = ASK_TIMEOUT_MS + 2 * self.gateways[gateway].link_ms;
        self.schedule(timeout, WorldEvent::Gateway(gateway, unanswered));
        if self.fault(|faults| faults.ask_lost) {
            return;
        }
        self.asked.insert(asked, (gateway, thread.clone(), number));
        let ask = SnapshotRequest {
            token: asked,
            gateway: self.gateways[gateway].id(gateway),
            thread,
            known: ask.known,
            max_messages: (ask.max_messages as usize).min(self.scenario.most_shown),
            max_bytes: self.scenario.ask_bytes,
        };
        let delay = self.on_the_way(gateway);
        self.schedule(delay, WorldEvent::Session(address, SessionEvent::Snapshot(ask)));
    }

    pub(super) fn answered(&mut self, answer: SnapshotReply) {
        let Some((gateway, thread, number)) = self.asked.remove(&answer.token) else { return };
        self.coverage.answers += 1;
        let Some(follower) = self.gateways[gateway].followers.get_mut(&thread) else { return };
        if follower.number != number {
            return;
        }
        for shown in &answer.open {
            self.check_held_back(&thread, &shown.message);
        }
        let Some(follower) = self.gateways[gateway].followers.get_mut(&thread) else { return };
        let SnapshotReply { mut cut, mut open, left_out, more, token, .. } = answer;
        if left_out {
            self.rules.left_out.insert(thread.clone());
        }
        follower.epoch = follower.epoch.max(cut.epoch);
        match self.bug {
            Some(PlantedBug::CommittedTooEarly) => cut.committed = Position::MAX,
            Some(PlantedBug::OldOwnerHeard) => cut.epoch = follower.epoch,
            Some(PlantedBug::OpenTextForgotten) => open.clear(),
            _ => {}
        }
        let reply = Box::new(wire::query::SnapshotReply { cut, open, left_out, more });
        let delay = self.on_the_way(gateway);
        self.schedule(delay, WorldEvent::Gateway(gateway, GatewayEvent::Reply(thread, number, token, reply)));
    }

    /// Reads the store in the state that it has when the query arrives.
    fn read_store(
        &mut self,
        gateway: usize,
        thread: ThreadId,
        number: u64,
        reader: StoreReader,
        read: StoreRead,
    ) {
        let fetched = match read {
            _ if self.fault(|faults| faults.refused) => Fetched::Failed,
            StoreRead::Last(through) => Fetched::Last(self.store.last_end(&thread, through)),
            StoreRead::Ends { after, through, is_checked } => {
                let through = match self.bug {
                    Some(PlantedBug::PageBeyondCut) => Position::MAX,
                    _ => through,
                };
                let page = self.rng.pick(PAGES);
                let mut page = self.store.page(&thread, after, through, page);
                if !is_checked || self.bug == Some(PlantedBug::UndoneEndsKept) {
                    page.back_to = None;
                }
                if self.bug == Some(PlantedBug::PageCutShort) {
                    page.through = page.through.max(through);
                }
                Fetched::Page(page)
            }
        };
        self.coverage.pages += 1;
        let delay = self.rng.range(0, 20);
        let event = GatewayEvent::Fetched(thread, number, reader, fetched);
        self.schedule(delay, WorldEvent::Gateway(gateway, event));
    }

    fn fetched(&mut self, gateway: usize, thread: &ThreadId, reader: StoreReader, fetched: Fetched) {
        let now = self.gateway_time();
        let stepped_epoch = self.stepped_epoch(self.partition_of(thread));
        let Some(follower) = self.gateways[gateway].followers.get_mut(thread) else { return };
        let mut shown = Vec::new();
        match (reader, fetched) {
            (StoreReader::Feed, Fetched::Last(last)) => follower.feed.on_last(last, now),
            (StoreReader::Feed, Fetched::Page(page)) => follower.feed.on_page(&page, now),
            (StoreReader::Feed, Fetched::Failed) => follower.feed.on_read_failed(now),
            (StoreReader::Waiting, Fetched::Page(page)) => {
                let is_before_step =
                    stepped_epoch.is_some_and(|epoch| follower.feed.epoch().unwrap_or(0) <= epoch);
                let gone = follower
                    .waiting
                    .on_page(&page, &follower.feed, |subscriber, events| shown.push((*subscriber, events)));
                for (subscriber, fate) in gone {
                    self.clients[subscriber.client].may_be_undone |= is_before_step;
                    if let (WaitOutcome::Refused(_), feed::JoinResult::Joined(first)) =
                        (fate, follower.feed.restart(&Subscription::Thread))
                    {
                        self.coverage.restarts += 1;
                        follower.subscribers.push(subscriber);
                        shown.push((subscriber, first));
                    }
                }
            }
            (StoreReader::Waiting, Fetched::Last(last)) => {
                let clients = &mut self.clients;
                let begins = |subscriber: &mut ViewerConnection, first: Option<StreamPart>| {
                    clients[subscriber.client].joined(last.get());
                    shown.push((*subscriber, first.into_iter().collect()));
                };
                follower.waiting.on_last(last, &follower.feed, now, begins);
            }
            (StoreReader::Waiting, Fetched::Failed) => follower.waiting.on_read_failed(now),
        }
        self.send_events(shown);
    }

    /// Asks the owner what it has sent lately.
    fn ask_sent(&mut self, gateway: usize, p: PartitionId) {
        self.schedule(WATCH_MS, WorldEvent::Gateway(gateway, GatewayEvent::Watch(p)));
        let Some(address) = self.answering(p) else { return };
        if self.fault(|faults| faults.ask_lost) {
            return;
        }
        let after = self.gateways[gateway].watch.question(p);
        let token = SENT | (gateway as u64) << 32 | u64::from(p.0);
        let gone = std::mem::take(&mut self.gateways[gateway].unfollowed);
        let (gone, others): (BTreeSet<_>, BTreeSet<_>) =
            gone.into_iter().partition(|thread| self.partition_of(thread) == p);
        self.gateways[gateway].unfollowed = others;
        let is_followed = |thread: &ThreadId| self.gateways[gateway].followers.contains_key(thread);
        let ask = ChangedThreadsQuery {
            token,
            gateway: self.gateways[gateway].id(gateway),
            unfollowed: gone.into_iter().filter(|thread| !is_followed(thread)).collect(),
            epoch: after.epoch,
            number: after.number,
        };
        let delay = self.on_the_way(gateway);
        self.schedule(delay, WorldEvent::Session(address, SessionEvent::ChangedThreads(ask)));
    }

    pub(super) fn sent_lately(&mut self, sent: ChangedThreads) {
        let gateway = ((sent.token & !SENT) >> 32) as usize;
        let p = PartitionId((sent.token & 0xffff) as u16);
        let incarnation = self.gateways[gateway].incarnation;
        let ChangedThreads { epoch, number, threads, is_complete, .. } = sent;
        let sent = wire::query::ChangedThreads { epoch, number, threads, is_complete };
        let delay = self.on_the_way(gateway);
        self.schedule(
            delay,
            WorldEvent::Gateway(gateway, GatewayEvent::ChangedThreads(p, incarnation, sent)),
        );
    }

    fn on_sent(
        &mut self,
        gateway: usize,
        p: PartitionId,
        incarnation: u64,
        sent: wire::query::ChangedThreads,
    ) {
        let of = &mut self.gateways[gateway];
        if of.incarnation != incarnation {
            return;
        }
        let is_news = of.watch.on_reply(p, &sent);
        self.note(26, [gateway as u64, p.0.into(), 0], || format!("gateway {gateway} {p} {sent:?}"));
        if !is_news || self.bug == Some(PlantedBug::LastFrameUnnoticed) {
            return;
        }
        let threads: Vec<ThreadId> = self.gateways[gateway].followers.keys().cloned().collect();
        for thread in &threads {
            if self.partition_of(thread) != p {
                continue;
            }
            let Some(follower) = self.gateways[gateway].followers.get_mut(thread) else { continue };
            follower.feed.on_owner(sent.epoch);
            if let Some((_, number)) = sent.threads.iter().find(|(sent, _)| sent == thread) {
                follower.feed.on_sent(sent.epoch, *number);
            }
            if !sent.is_complete {
                follower.feed.on_resync();
            }
        }
        threads.iter().for_each(|thread| self.go_on(gateway, thread));
    }

    pub(super) fn client_event(&mut self, index: usize, connection: u64, event: ClientEvent) {
        if self.clients[index].connection != connection {
            return;
        }
        match event {
            ClientEvent::Read => {
                let parts = self.rng.range(1, 6) as usize;
                if self.clients[index].read(parts) {
                    let delay = self.rng.range(0, 4);
                    self.schedule(delay, WorldEvent::Client(index, connection, ClientEvent::Read));
                } else {
                    self.clients[index].is_reading = false;
                }
            }
            ClientEvent::Fault => self.trouble(index, connection),
            ClientEvent::Connect => self.connect(index),
        }
    }

    fn trouble(&mut self, index: usize, connection: u64) {
        if self.fault(|faults| faults.client_cut) {
            return self.cut(index);
        }
        if self.fault(|faults| faults.client_cut / 8.0) {
            return self.restart_gateway(self.clients[index].gateway);
        }
        let next = self.rng.range(100, 600);
        self.schedule(next, WorldEvent::Client(index, connection, ClientEvent::Fault));
    }

    fn restart_gateway(&mut self, gateway: usize) {
        self.coverage.gateway_restarts += 1;
        self.note(22, [gateway as u64, 0, 0], || format!("gateway {gateway} restarts"));
        let of = &mut self.gateways[gateway];
        of.followers.clear();
        of.unfollowed.clear();
        of.watch = feed::OwnerWatch::default();
        of.incarnation += 1;
        let cut: Vec<usize> = (0..self.clients.len())
            .filter(|index| self.clients[*index].is_connected && self.clients[*index].gateway == gateway)
            .collect();
        cut.into_iter().for_each(|index| self.cut(index));
    }

    fn cut(&mut self, index: usize) {
        self.coverage.client_cuts += 1;
        let client = &mut self.clients[index];
        let (gateway, thread) = (client.gateway, client.thread.clone());
        client.cut();
        let connection = client.connection;
        self.note(23, [index as u64, 0, 0], || format!("client {index} is cut"));
        let stays = self.rng.chance(0.5);
        if let Some(follower) = self.gateways[gateway].followers.get_mut(&thread) {
            follower.subscribers.retain(|subscriber| subscriber.client != index);
            follower.waiting.retain(|subscriber| subscriber.client != index);
            if !stays && follower.subscribers.is_empty() && follower.waiting.is_empty() {
                self.gateways[gateway].followers.remove(&thread);
                self.gateways[gateway].unfollowed.insert(thread);
            }
        }
        let delay = self.rng.range(1, 800);
        if self.rng.chance(0.7) {
            self.schedule(delay, WorldEvent::Client(index, connection, ClientEvent::Connect));
        } else {
            self.keep_transcript(index);
            self.schedule(delay, WorldEvent::Join(index));
        }
    }

    /// Keeps the transcript of a client to be checked at the end, unless some of it may have been
    /// undone.
    pub(super) fn keep_transcript(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let (partition, begun_at, may_be_undone) = (client.partition, client.begun_at, client.may_be_undone);
        let transcript = client.transcript(index);
        if may_be_undone && !transcript.is_connected {
            self.coverage.undone_transcripts += 1;
            return;
        }
        self.transcripts.push((partition, begun_at, transcript));
    }

    fn partition_of(&self, thread: &ThreadId) -> PartitionId {
        let of = |client: &&crate::client::Client| client.thread == *thread;
        self.clients.iter().find(of).map_or(PartitionId(0), |client| client.partition)
    }
}
