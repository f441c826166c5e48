//! Seeded simulation of partitions against a hostile log and store, and the invariant checker.
