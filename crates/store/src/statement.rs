//! The type of a prepared SQL statement with its bound values.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

/// A statement with its values. It owns them: sqlx encodes a value when it is bound.
pub(crate) type Statement = Query<'static, Postgres, PgArguments>;
