//! Shared parts of all handlers: the state, the context of a request, and authorization.

pub(crate) mod authorize;
pub(crate) mod request_context;
pub(crate) mod state;
