//! What all requests share, and who sends one.

use std::sync::{Arc, OnceLock};

use auth::Principal;
use model::Timestamp;
use runtime::Clock;

use crate::auth::authenticator::Credentials;
use crate::auth::quota::Usage;
use crate::config::Limits;
use crate::streaming::registry::Hub;
use crate::streaming::revocation::Vigil;

/// What all requests share; the hub is there once the number of partitions is known.
#[derive(Clone)]
pub(crate) struct Counter {
    pub(crate) hub: Arc<OnceLock<Hub>>,
    pub(crate) limits: Limits,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) usage: Usage,
    pub(crate) vigil: Vigil,
    pub(crate) clock: Clock,
}

impl Counter {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.clock.now_ms())
    }
}

/// Who asks; the guard of a route puts it into the request.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) Arc<Principal>);
