//! The statements that apply a group of commits.
//!
//! There are nine fixed texts, so each is prepared once on a connection. A group runs the first
//! text that has all of its tables. Not always the complete one, because opening a table costs
//! something even if no row is written: with empty lists, Postgres 15 needed 0.2 ms for messages,
//! 0.5 ms for turns and 2.8 ms for all tables, on a busy machine.

use std::sync::OnceLock;

use super::rows::{Checks, CommitGroup, Rows, TableParts};
use super::{
    agents, audit, dead_letters, facts, failed_messages, failed_tasks, failed_turns, incidents, messages,
    outbox, partitions, spills, task_changes, tasks, timers, turns, usage,
};
use crate::statement::Statement;

/// Tables of turns. Messages come after them.
const QUEUES: &[TableParts] = &[agents::TABLE, turns::TABLE];
/// Tables that most turns and tasks write.
const FREQUENT: &[TableParts] = &[tasks::TABLE, tasks::NEW_AGENTS, outbox::SENT, outbox::TABLE, usage::TABLE];
/// The same, without new tasks.
const TURNS_ALONE: &[TableParts] = &[outbox::SENT, outbox::TABLE, usage::TABLE];
/// Ends of messages, with or without turns.
const ENDS: &[TableParts] = &[dead_letters::TABLE, failed_messages::TABLE, spills::MESSAGES];
/// Ends of turns.
const TURN_ENDS: &[TableParts] = &[failed_tasks::TABLE, failed_turns::TABLE, spills::TURNS];
/// Work that follows turns.
const SEQUELS: &[TableParts] = &[timers::TABLE, facts::TABLE, spills::OPENED];
/// Ends of turns that followed others.
const SEQUEL_ENDS: &[TableParts] = &[failed_turns::TABLE, spills::TURNS];
/// Acts of operators, and losses.
const RARE: &[TableParts] = &[task_changes::TABLE, failed_turns::DROPPED, audit::TABLE, incidents::TABLE];

/// The texts, the shortest first. Some tables read lists of tables before them.
static TEXTS: [Text; 8] = [
    Text::of(&[&[messages::WITHOUT_TURNS]]),
    Text::of(&[&[tasks::TABLE, tasks::NEW_AGENTS]]),
    Text::of(&[&[messages::WITHOUT_TURNS], ENDS]),
    Text::of(&[QUEUES, &[messages::TABLE], TURNS_ALONE]),
    Text::of(&[QUEUES, &[messages::TABLE], FREQUENT]),
    Text::of(&[QUEUES, &[messages::TABLE], FREQUENT, ENDS, TURN_ENDS]),
    Text::of(&[QUEUES, &[messages::TABLE], FREQUENT, SEQUEL_ENDS, SEQUELS]),
    Text::of(&[QUEUES, &[messages::TABLE], FREQUENT, ENDS, TURN_ENDS, SEQUELS, RARE]),
];
/// All tables, for [`Checks::Stored`].
static CHECKED: Text = Text::of(&[QUEUES, &[messages::CHECKED], FREQUENT, ENDS, TURN_ENDS, SEQUELS, RARE]);

/// A text of the statement.
struct Text {
    tables: &'static [&'static [TableParts]],
    sql: OnceLock<String>,
}

impl Text {
    const fn of(tables: &'static [&'static [TableParts]]) -> Self {
        Self { tables, sql: OnceLock::new() }
    }

    fn rows(&self) -> impl Iterator<Item = &'static Rows> {
        self.tables.iter().copied().flatten().flat_map(|table| table.rows)
    }

    fn has(&self, rows: &Rows) -> bool {
        self.rows().any(|other| other.name == rows.name)
    }

    fn sql(&self) -> &str {
        self.sql.get_or_init(|| self.compose())
    }

    fn compose(&self) -> String {
        let mut parameters = 0;
        let commits = partitions::COMMITS.unnest(&mut parameters);
        let name = partitions::COMMITS.name;
        let mut text = format!(
            "-- Applies commits of several partitions, each whole or not at all.\n\
             WITH {name} AS (\n    SELECT i.* FROM {commits}\n)\n"
        );
        text.push_str(partitions::FENCE);
        for table in self.tables.iter().copied().flatten() {
            for rows in table.rows {
                text.push_str(&rows.list(&mut parameters));
            }
            text.push_str(table.sql);
        }
        text.push_str(match self.has(&agents::QUEUES) {
            true => partitions::CHECKPOINT_OF_QUEUES,
            false => partitions::CHECKPOINT,
        });
        text
    }
}

fn text_of(group: CommitGroup<'_>) -> &'static Text {
    if group.checks == Checks::Stored {
        return &CHECKED;
    }
    let needed: Vec<&Rows> = CHECKED.rows().filter(|rows| group.has(rows)).collect();
    TEXTS.iter().find(|text| needed.iter().all(|rows| text.has(rows))).unwrap_or(&CHECKED)
}

/// The statement that applies this group.
pub(super) fn statement(group: CommitGroup<'_>) -> Statement {
    let text = text_of(group);
    let statement = (partitions::COMMITS.bind)(group, sqlx::query(text.sql()));
    text.rows().fold(statement, |statement, rows| (rows.bind)(group, statement))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_parts_of_a_statement_have_names_of_their_own() {
        let name = |line: &'static str| {
            let rest = line.strip_prefix(", ").or_else(|| line.strip_prefix("WITH "))?;
            rest.split_once(" AS ").map(|(name, _)| name)
        };
        for text in TEXTS.iter().chain([&CHECKED]) {
            let names: Vec<&str> = text.sql().lines().filter_map(name).collect();
            assert!(names.len() > 4, "{names:?}");
            // Tests that cut connections, and benches that count statements, know commits by this.
            assert!(text.sql().contains("\nWITH commit_rows AS ("), "{}", text.sql());
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        }
    }

    #[test]
    fn the_last_text_has_all_tables() {
        let names = |text: &Text| text.rows().map(|rows| rows.name).collect::<Vec<_>>();
        assert_eq!(names(&TEXTS[TEXTS.len() - 1]), names(&CHECKED));
    }
}
