//! Settings that no other test sets: each has another value than its default, and its effect is
//! seen on a fleet. `antiphon::settings_tests` holds that every setting has such a test.

mod gateways;
mod models;
mod nats;
mod workers;
