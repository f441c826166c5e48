//! What the store replies, or does not.

use std::sync::Arc;

use partition::Input;

use super::{Kind, Reply, Session, World};
use crate::bug::Bug;
use crate::world::{Address, Event, SessionEvent};

impl World {
    pub(super) fn reply(&mut self, address: Address, number: usize, reply: Reply) {
        let Some(session) = self.session(address) else { return };
        let is_in_flight = session.in_flight.as_ref().is_some_and(|(sent, _)| *sent == number);
        match reply {
            Reply::Renewed(true) => {}
            Reply::Renewed(false) | Reply::Fenced => self.drop_session(address),
            Reply::Granted(Some(grant)) if session.reclaiming == Some(number) => {
                session.reclaiming = None;
                session.epoch = grant.epoch;
                self.request_load(address, grant);
            }
            Reply::Granted(None) if session.reclaiming == Some(number) => self.drop_session(address),
            Reply::Granted(_) => {}
            Reply::Applied(refused) if is_in_flight => {
                if let Some((_, commit)) = session.in_flight.take() {
                    session.promises.applied(&commit);
                }
                self.drive(address, Input::Committed(refused));
                self.offer_room(address);
            }
            Reply::Refused if is_in_flight => self.send_again(address),
            Reply::Unknown if is_in_flight => self.unknown(address, number),
            Reply::Applied(_) | Reply::Refused | Reply::Unknown => {}
        }
    }

    pub(super) fn timeout(&mut self, address: Address, number: usize) {
        let Some(session) = self.session(address) else { return };
        if session.in_flight.as_ref().is_some_and(|(sent, _)| *sent == number) {
            self.unknown(address, number);
        } else if session.reclaiming == Some(number) {
            // Whoever finds the lease run out takes it.
            self.drop_session(address);
        }
    }

    /// The store said for certain that nothing was applied.
    fn send_again(&mut self, address: Address) {
        let Some((_, commit)) = self.session(address).and_then(|session| session.in_flight.take()) else {
            return;
        };
        let number = self.send(address, Kind::Commit(Arc::clone(&commit)));
        if let Some(session) = self.session(address) {
            session.in_flight = Some((number, commit));
        }
    }

    /// Nobody knows: raise the own epoch, which waits for the doubtful statement, and build anew from the store.
    fn unknown(&mut self, address: Address, number: usize) {
        self.forget_commit(number);
        self.note(40, [number as u64, address.session, 0], || {
            format!("{address:?} does not know of s{number}")
        });
        if self.bug == Some(Bug::UnknownIsApplied) {
            if let Some(session) = self.session(address) {
                session.in_flight = None;
            }
            return self.drive(address, Input::Committed(Vec::new()));
        }
        let Some(epoch) = self.session(address).map(|session| session.epoch) else { return };
        self.drop_session(address);
        self.last_session += 1;
        let address = Address { session: self.last_session, ..address };
        let mut session = Session::new(address, epoch, self.time);
        if self.bug == Some(Bug::LookWithoutLock) {
            let grant = self.store.row(address.partition).grant();
            self.workers[address.worker].sessions.insert(address.partition, session);
            return self.request_load(address, crate::store::Grant { epoch, ..grant });
        }
        let number = self.send(address, Kind::Reclaim { epoch });
        session.reclaiming = Some(number);
        self.workers[address.worker].sessions.insert(address.partition, session);
        let patience = self.scenario.answer_timeout_ms * 4;
        self.schedule(patience, Event::Session(address, SessionEvent::Timeout(number)));
    }
}
