//! Postgres: every query and transaction of Antiphon; embeds migrations/.
