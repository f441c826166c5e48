//! A statement in flight to the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::TurnId;

use crate::store::fence::{AcknowledgedState, Decided};
use crate::world::event::Address;

#[derive(Debug, Clone)]
pub(crate) enum StatementKind {
    Acquire,
    Renew(AcknowledgedState),
    /// With the highest epoch that a gateway knows, if it is above the owner's epoch.
    Reclaim(AcknowledgedState, u64),
    Release {
        epoch: u64,
    },
    Commit(Arc<Decided>),
    /// A commit without a session, for the erasure with that number and run.
    Renounce(usize, u64),
    /// The commits of a group.
    Group(usize),
}

#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) kind: StatementKind,
    pub(crate) address: Address,
    /// Its worker has died.
    pub(crate) is_orphan: bool,
    pub(crate) is_applied: bool,
    /// The server was replaced while the statement was in progress.
    pub(crate) is_cut_off: bool,
    /// Set when its worker got an unknown outcome or gave up waiting: true if the statement had
    /// been applied by that time.
    pub(crate) unknown: Option<bool>,
    /// The turns that the store refuses in this statement, once that is decided.
    pub(crate) judged: Option<BTreeSet<TurnId>>,
    /// The group with which the statement was refused.
    pub(crate) group: Option<usize>,
}

impl Statement {
    pub(crate) fn new(kind: StatementKind, address: Address) -> Self {
        Self {
            kind,
            address,
            is_orphan: false,
            is_applied: false,
            is_cut_off: false,
            unknown: None,
            judged: None,
            group: None,
        }
    }
}
