//! The tests of the fleet are in `tests/`: they run the shipped binary as processes, on a real NATS
//! and a real Postgres, only through its public contract.
