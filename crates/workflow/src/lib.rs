//! The reference workflow service.
