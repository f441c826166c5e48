//! One partition as one state machine: handle(input, now) -> actions.
