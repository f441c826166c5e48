//! The tests of the fleet are in `tests/`: the shipped binary as processes, on a real NATS and a real Postgres, through its outside
//! contract only.
