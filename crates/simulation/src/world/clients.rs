//! Frames, questions and answers between owners and the gateways of clients.

use partition::{Answer, Ask};

use super::{Address, ClientEvent, Event, SessionEvent, World};
use crate::client::OutFrame;

/// Ends that did not come by themselves for so long are looked for in the store, ms.
const GRACE_MS: i64 = 300;

impl World {
    pub(super) fn join(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.join(&self.store);
        let connection = client.connection;
        self.note(20, [index as u64, connection, 0], || format!("client {index} joins"));
        self.schedule(1, Event::Client(index, connection, ClientEvent::Ask));
        self.schedule(200, Event::Client(index, connection, ClientEvent::Audit));
    }

    /// Sends a frame to every client of the thread: some of them get it, late, in any order.
    pub(super) fn broadcast(&mut self, thread: &model::ThreadId, frame: &OutFrame) {
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            if client.thread != *thread || !client.is_connected || self.fault(|faults| faults.frame_lost) {
                continue;
            }
            let connection = self.clients[index].connection;
            let delay = self.rng.range(0, 15);
            self.schedule(delay, Event::Client(index, connection, ClientEvent::Frame(frame.clone())));
        }
    }

    pub(super) fn client_event(&mut self, index: usize, connection: u64, event: ClientEvent) {
        if self.clients[index].connection != connection {
            return;
        }
        match event {
            ClientEvent::Frame(frame) => {
                if self.clients[index].frame(&frame) {
                    self.ask_soon(index, 2);
                }
            }
            ClientEvent::Answer(answer) => {
                self.coverage.answers += 1;
                self.clients[index].is_asking = false;
                if self.clients[index].answer(&answer) {
                    self.ask_soon(index, 2);
                }
            }
            ClientEvent::Ask => self.ask(index),
            ClientEvent::Audit => self.audit(index),
        }
    }

    fn ask_soon(&mut self, index: usize, delay: i64) {
        let client = &mut self.clients[index];
        if !std::mem::replace(&mut client.is_asking, true) {
            let connection = client.connection;
            self.schedule(delay, Event::Client(index, connection, ClientEvent::Ask));
        }
    }

    /// Asks whoever listens for the partition: a worker that has lost its lease may answer, too.
    fn ask(&mut self, index: usize) {
        let partition = self.clients[index].partition;
        let sessions: Vec<Address> = self
            .workers
            .iter()
            .filter(|worker| worker.is_up)
            .filter_map(|worker| worker.sessions.get(&partition).map(|session| session.address))
            .collect();
        if sessions.is_empty() || self.fault(|faults| faults.ask_lost) {
            self.clients[index].is_asking = false;
            return;
        }
        let address = sessions[self.rng.index(sessions.len())];
        let client = &self.clients[index];
        let ask = Ask {
            token: (index as u64) << 32 | client.connection,
            thread: client.thread.clone(),
            have: client.have(),
            max_bytes: self.scenario.ask_bytes,
        };
        let delay = self.rng.range(0, 5);
        self.schedule(delay, Event::Session(address, SessionEvent::Ask(ask)));
    }

    pub(super) fn answered(&mut self, answer: Answer) {
        let (index, connection) = ((answer.token >> 32) as usize, answer.token & 0xffff_ffff);
        let delay = self.rng.range(0, 5);
        self.schedule(delay, Event::Client(index, connection, ClientEvent::Answer(answer)));
    }

    fn audit(&mut self, index: usize) {
        if self.fault(|faults| faults.client_cut) {
            return self.cut(index);
        }
        let before = self.time - GRACE_MS;
        self.clients[index].look(&self.store, before);
        if self.clients[index].has_open() {
            // A question that was lost is no reason never to ask again.
            self.clients[index].is_asking = false;
            self.ask_soon(index, 1);
        }
        let (connection, next) = (self.clients[index].connection, self.rng.range(200, 600));
        self.schedule(next, Event::Client(index, connection, ClientEvent::Audit));
    }

    fn cut(&mut self, index: usize) {
        self.coverage.client_cuts += 1;
        self.clients[index].cut();
        if self.rng.chance(0.5) {
            self.clients[index].connect();
            let connection = self.clients[index].connection;
            let delay = self.rng.range(1, 800);
            self.schedule(delay, Event::Client(index, connection, ClientEvent::Ask));
            self.schedule(delay + 100, Event::Client(index, connection, ClientEvent::Audit));
        } else {
            let transcript = self.clients[index].transcript(index);
            self.transcripts.push(transcript);
            let delay = self.rng.range(1, 800);
            self.schedule(delay, Event::Join(index));
        }
    }
}
