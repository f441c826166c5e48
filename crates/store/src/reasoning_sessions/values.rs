//! The stored forms of ids, numbers and roles.

use model::{Bucket, ReasoningSessionId};
use reasoning::{Number, ReasoningRole};

use crate::error::StoreError;
use crate::row::column_error;

pub(super) fn bucket(id: &ReasoningSessionId) -> i16 {
    Bucket::of_key(id.as_str()).get() as i16
}

pub(super) fn number(value: i64) -> Number {
    value.unsigned_abs()
}

pub(super) fn stored(number: Number) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn role_of(name: &str) -> Result<ReasoningRole, StoreError> {
    ReasoningRole::from_name(name).ok_or_else(|| column_error("role", &name))
}
