//! Real NATS and Postgres for tests; load, chaos, demo and bench programs.
