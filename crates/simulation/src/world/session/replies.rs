//! Handles the store's replies, and missing replies.

use std::sync::Arc;

use partition::Input;

use crate::bug::PlantedBug;
use crate::store::fence::AcknowledgedState;
use crate::world::World;
use crate::world::event::StoreReply;
use crate::world::event::{Address, SessionEvent, WorldEvent};
use crate::world::state::session::WorkerSession;
use crate::world::state::statement::StatementKind;

impl World {
    pub(super) fn reply(&mut self, address: Address, number: usize, reply: StoreReply) {
        let Some(session) = self.session(address) else { return };
        let is_in_flight = session.in_flight.as_ref().is_some_and(|(sent, _)| *sent == number);
        match reply {
            StoreReply::Renewed(true) => {}
            StoreReply::Renewed(false) | StoreReply::Fenced => self.rebuild(address),
            StoreReply::Granted(Some(grant)) if session.reclaiming == Some(number) => {
                session.reclaiming = None;
                session.known = AcknowledgedState::from(&grant);
                self.request_load(address, grant);
            }
            StoreReply::Granted(None) if session.reclaiming == Some(number) => self.drop_session(address),
            StoreReply::Granted(_) => {}
            StoreReply::Applied(refused) if is_in_flight => {
                if let Some((_, decided)) = session.in_flight.take() {
                    session.promises.applied(&decided.commit);
                    session.known = session.known.after(&decided.commit, decided.commits + 1);
                }
                self.drive(address, Input::Committed(refused));
                self.offer_room(address);
            }
            StoreReply::Refused if is_in_flight => self.send_again(address),
            StoreReply::Unknown if is_in_flight => self.unknown(address, number),
            StoreReply::Applied(_) | StoreReply::Refused | StoreReply::Unknown => {}
        }
    }

    pub(super) fn timeout(&mut self, address: Address, number: usize) {
        let Some(session) = self.session(address) else { return };
        if session.in_flight.as_ref().is_some_and(|(sent, _)| *sent == number) {
            self.unknown(address, number);
        } else if session.reclaiming == Some(number) {
            // A worker that finds its lease expired acquires it again.
            self.drop_session(address);
        }
    }

    /// Sends the commit again, because the store has certainly applied nothing.
    fn send_again(&mut self, address: Address) {
        let Some((_, commit)) = self.session(address).and_then(|session| session.in_flight.take()) else {
            return;
        };
        let number = self.send(address, StatementKind::Commit(Arc::clone(&commit)));
        if let Some(session) = self.session(address) {
            session.in_flight = Some((number, commit));
        }
    }

    /// Handles an unknown outcome: raising the owner's epoch waits for the statement in doubt.
    fn unknown(&mut self, address: Address, number: usize) {
        self.forget_commit(number);
        self.note(40, [number as u64, address.session, 0], || {
            format!("{address:?} does not know of s{number}")
        });
        if self.bug == Some(PlantedBug::UnknownIsApplied) {
            if let Some(session) = self.session(address) {
                session.in_flight = None;
            }
            return self.drive(address, Input::Committed(Vec::new()));
        }
        self.rebuild(address);
    }

    /// Rebuilds the session, because the store or the stream is not what the owner expected.
    /// Raising the owner's epoch shows whether it still holds the lease.
    pub(in crate::world) fn rebuild(&mut self, address: Address) {
        self.rebuild_above(address, 0);
    }

    /// Like [`World::rebuild`], under an epoch above the one that a gateway knows.
    pub(in crate::world) fn rebuild_above(&mut self, address: Address, seen_epoch: u64) {
        let Some(session) = self.session(address).filter(|session| session.reclaiming.is_none()) else {
            return;
        };
        let (known, seen) = (session.known, (session.incarnation.clone(), session.read));
        let is_looking = session.in_flight.is_some() && self.bug == Some(PlantedBug::LookWithoutLock);
        self.drop_session(address);
        self.last_session += 1;
        let address = Address { session: self.last_session, ..address };
        let mut session = WorkerSession::new(address, known, self.time);
        (session.incarnation, session.read) = seen;
        if is_looking {
            let grant = self.store.row(address.partition).grant();
            self.workers[address.worker].sessions.insert(address.partition, session);
            return self.request_load(address, crate::store::Grant { epoch: known.epoch, ..grant });
        }
        let number = self.send(address, StatementKind::Reclaim(known, seen_epoch));
        session.reclaiming = Some(number);
        self.workers[address.worker].sessions.insert(address.partition, session);
        let timeout_ms = self.scenario.answer_timeout_ms * 4;
        self.schedule(timeout_ms, WorldEvent::Session(address, SessionEvent::Timeout(number)));
    }
}
