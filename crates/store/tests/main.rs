//! The store on a real Postgres. Each test has a database of its own on the server of `DATABASE_URL`.

mod cancellation;
mod commits;
mod fencing;
mod fixture;
mod leases;
mod migrations;
mod random;
mod reads;
mod refusals;
mod stragglers;
