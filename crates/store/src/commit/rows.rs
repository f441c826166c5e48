//! Rows that a commit gives to its statement: one struct per kind of row, and an array per column.
//!
//! [`row!`] defines a struct and derives from its fields the names and types of the columns, the
//! numbers of the parameters and their values. Neither is typed by hand.

use super::submission::Submission;
use crate::statement::Statement;

/// Whether messages that are stored already are expected. [`Checks::None`] assumes that there are
/// none, as the owner does. If there is one, the unique key rejects the statement, and the group is
/// applied with [`Checks::Stored`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checks {
    None,
    Stored,
}

/// The commits that one statement applies.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommitGroup<'a> {
    pub(super) owner: &'a str,
    pub(super) submissions: &'a [Submission<'a>],
    pub(super) checks: Checks,
}

/// A commit of a group, as the tables read it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    /// Number of the commit in its group, from 1.
    number: i64,
    pub(super) owner: &'a str,
    pub(super) submission: Submission<'a>,
    pub(super) checks: Checks,
}

impl<'a> CommitGroup<'a> {
    pub(super) fn commits(self) -> impl Iterator<Item = Given<'a>> {
        let CommitGroup { owner, submissions, checks } = self;
        let given = move |(submission, number): (&Submission<'a>, _)| Given {
            number,
            owner,
            submission: *submission,
            checks,
        };
        submissions.iter().zip(1..).map(given)
    }

    /// True if a commit of the group has such rows.
    pub(super) fn has(self, rows: &Rows) -> bool {
        self.commits().any(rows.is_any)
    }

    /// The rows of all commits, each with the number of its commit.
    pub(super) fn rows<R, I: Iterator<Item = R>>(
        self,
        of: impl Fn(Given<'a>) -> I,
    ) -> impl Iterator<Item = (i64, R)> {
        self.commits().flat_map(move |given| of(given).map(move |row| (given.number, row)))
    }
}

impl Given<'_> {
    /// Number of an item of this commit, which no item of another commit of the group has.
    pub(super) fn item(&self, index: usize) -> i64 {
        (self.number << 32) + index as i64 + 1
    }
}

/// One kind of rows, as the SQL of its table reads them: a list with a name and named columns.
pub(super) struct Rows {
    /// Name of the list in the SQL.
    pub(super) name: &'static str,
    /// Names and types of the columns after the first one, which is the number of the commit.
    pub(super) columns: &'static [(&'static str, &'static str)],
    /// True if the commit has such a row.
    pub(super) is_any: for<'a> fn(Given<'a>) -> bool,
    /// Binds an array for each column.
    pub(super) bind: for<'a> fn(CommitGroup<'a>, Statement) -> Statement,
}

impl Rows {
    /// `unnest($1::bigint[], …) AS i (number, …)`, with parameters after the first `parameters`.
    pub(super) fn unnest(&self, parameters: &mut usize) -> String {
        let (mut arrays, mut names) = (Vec::new(), Vec::new());
        for (name, column_type) in [("number", "bigint")].iter().chain(self.columns) {
            *parameters += 1;
            arrays.push(format!("${parameters}::{column_type}[]"));
            names.push(*name);
        }
        format!("unnest({}) AS i ({})", arrays.join(", "), names.join(", "))
    }

    /// The list as a part of the statement. It has only rows of commits that passed the fence.
    pub(super) fn list(&self, parameters: &mut usize) -> String {
        let unnest = self.unnest(parameters);
        format!(", {} AS (\n    SELECT i.* FROM {unnest} JOIN fence USING (number)\n)\n", self.name)
    }
}

/// A table that commits write, or one way to write it.
#[derive(Clone, Copy)]
pub(super) struct TableParts {
    /// The rows that the SQL reads.
    pub(super) rows: &'static [Rows],
    /// Parts of the statement.
    pub(super) sql: &'static str,
}

impl TableParts {
    pub(super) const fn new(rows: &'static [Rows], sql: &'static str) -> Self {
        Self { rows, sql }
    }
}

/// The type of a column that has values of this type.
pub(super) trait ColumnType {
    const NAME: &'static str;
}

macro_rules! column_types {
    ($($value:ty: $name:literal),+ $(,)?) => {
        $(impl ColumnType for $value {
            const NAME: &'static str = $name;
        })+
    };
}

column_types! {
    bool: "boolean",
    i16: "smallint",
    i32: "integer",
    i64: "bigint",
    f32: "real",
    &str: "text",
    String: "text",
    &[u8]: "bytea",
    Vec<u8>: "bytea",
}

impl<T: ColumnType> ColumnType for Option<T> {
    const NAME: &'static str = T::NAME;
}

/// Defines the struct of one kind of rows, and its [`Rows`] under the given name. `of` is a
/// function from [`Given`] to the rows of one commit.
macro_rules! row {
    (
        $(#[$doc:meta])*
        struct $Row:ident $(<$lifetime:lifetime>)? as $name:ident of $of:path {
            $($(#[$field_doc:meta])* $column:ident: $column_type:ty,)+
        }
    ) => {
        $(#[$doc])*
        struct $Row $(<$lifetime>)? {
            $($(#[$field_doc])* $column: $column_type,)+
        }

        impl $(<$lifetime>)? $Row $(<$lifetime>)? {
            const ROWS: crate::commit::rows::Rows = crate::commit::rows::Rows {
                name: stringify!($name),
                columns: &[$((
                    stringify!($column),
                    <$column_type as crate::commit::rows::ColumnType>::NAME,
                )),+],
                is_any: |given| $of(given).next().is_some(),
                bind: |group, statement| {
                    // A column may have the name of the function.
                    let rows = group.rows($of);
                    let mut numbers = Vec::new();
                    $(let mut $column = Vec::new();)+
                    for (number, row) in rows {
                        numbers.push(number);
                        $($column.push(row.$column);)+
                    }
                    statement.bind(numbers)$(.bind($column))+
                },
            };
        }
    };
}

pub(super) use row;
