//! HTTP: API, server-sent events, history.
