//! The type of a prepared SQL statement with its bound values.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

/// A statement that owns its values, because sqlx encodes a value when it is bound.
pub(crate) type Statement = Query<'static, Postgres, PgArguments>;
