//! Joins the parts of the statement that a group needs.
//!
//! Parts that a group does not need are left out of the text, so that streams of chunks have no
//! cost for turns. There are few combinations; each is a separate text that stays prepared.
//!
//! The lean texts assume that no message is stored yet, as the owner expects. If one is stored, the
//! unique key rejects the statement. The group is then applied with the careful text, which has all
//! parts and checks each message.

use std::sync::OnceLock;

use super::submission::Submission;
use super::{columns, dead_letters_spills, facts, rare_changes, tasks, timers, turns, usage};
use crate::statement::Statement;

/// Binds the values of one part.
type Bind = for<'a, 'b> fn(Statement, &'a [Submission<'b>]) -> Statement;

const FENCE: &str = include_str!("1_fence.sql");
/// Markers where the lean and careful texts differ: `/*lean*/ one text /*careful*/ another
/// /*end*/`.
const LEAN: &str = "/*lean*/";
const CAREFUL: &str = "/*careful*/";
const END: &str = "/*end*/";
const FENCE_PARAMETERS: usize = 9;

/// A set of parts, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StatementParts(usize);

impl StatementParts {
    /// Messages, with or without a turn.
    const MESSAGES: usize = 1;
    /// Queues of agents and finished turns. With this part, later parts depend on which rows of
    /// agents passed their guards.
    const TURNS: usize = 1 << 1;
    const TASKS: usize = 1 << 2;
    const OUTBOX: usize = 1 << 3;
    /// Failed and changed tasks, failed and dropped turns, ends of saved turns, the audit log. Used
    /// only together with `TURNS`.
    const RARE_CHANGES: usize = 1 << 4;
    /// Dead letters, failed messages and ends of saved messages.
    const DEAD_LETTERS_SPILLS: usize = 1 << 5;
    /// Entries that the stream has lost.
    const GONE: usize = 1 << 6;
    /// Timers that are armed, fired or ended.
    const TIMERS: usize = 1 << 7;
    /// The usage of turns.
    const USAGE: usize = 1 << 8;
    /// Facts found by memory tasks. Used only together with `TURNS`.
    const FACTS: usize = 1 << 9;
    const COMBINATIONS: usize = 1 << 10;
    const ALL: Self = Self(Self::COMBINATIONS - 1);

    fn of(group: &[Submission<'_>]) -> Self {
        Self(group.iter().fold(0, |parts, submission| parts | needed(submission)))
    }

    fn has(self, part: usize) -> bool {
        self.0 & part != 0
    }

    /// The text of each part, the number of its parameters, and the function that binds them.
    fn list(self) -> Vec<(&'static str, usize, Option<Bind>)> {
        let turns = self.has(Self::TURNS);
        let all: [(bool, &'static str, usize, Option<Bind>); 13] = [
            (turns, include_str!("2_turns.sql"), 20, Some(turns::turns)),
            (
                turns && self.has(Self::MESSAGES),
                include_str!("3_new_messages_of_turns.sql"),
                18,
                Some(columns::messages_of_turns),
            ),
            (
                !turns && self.has(Self::MESSAGES),
                include_str!("3_new_messages.sql"),
                17,
                Some(columns::messages),
            ),
            (self.has(Self::MESSAGES), include_str!("4_messages.sql"), 0, None),
            (self.has(Self::TASKS), include_str!("5_tasks.sql"), 15, Some(tasks::tasks)),
            (self.has(Self::OUTBOX), include_str!("6_outbox.sql"), 7, Some(tasks::outbox)),
            (
                self.has(Self::RARE_CHANGES),
                include_str!("7_rare_changes.sql"),
                44,
                Some(rare_changes::rare_changes),
            ),
            (self.has(Self::TIMERS), include_str!("8_timers.sql"), 19, Some(timers::timers)),
            (self.has(Self::USAGE), include_str!("8_usage.sql"), 15, Some(usage::usage)),
            (self.has(Self::FACTS), include_str!("8_facts.sql"), 14, Some(facts::facts)),
            (self.has(Self::GONE), include_str!("8_gone.sql"), 5, Some(dead_letters_spills::gone)),
            (
                self.has(Self::DEAD_LETTERS_SPILLS),
                include_str!("8_dead_letters_spills.sql"),
                30,
                Some(dead_letters_spills::dead_letters_spills),
            ),
            (true, self.checkpoint(), 0, None),
        ];
        all.into_iter()
            .filter(|part| part.0)
            .map(|(_, sql, parameters, bind)| (sql, parameters, bind))
            .collect()
    }

    fn checkpoint(self) -> &'static str {
        match self.has(Self::TURNS) {
            true => include_str!("9_checkpoint_of_turns.sql"),
            false => include_str!("9_checkpoint.sql"),
        }
    }

    fn lean(self) -> &'static str {
        static TEXTS: [OnceLock<String>; StatementParts::COMBINATIONS] =
            [const { OnceLock::new() }; StatementParts::COMBINATIONS];
        TEXTS[self.0 % Self::COMBINATIONS].get_or_init(|| self.join(Checks::Lean))
    }

    fn careful() -> &'static str {
        static TEXT: OnceLock<String> = OnceLock::new();
        TEXT.get_or_init(|| Self::ALL.join(Checks::Careful))
    }

    fn join(self, checks: Checks) -> String {
        let mut text = FENCE.to_owned();
        let mut parameters = FENCE_PARAMETERS;
        for (sql, count, _) in self.list() {
            append(&mut text, &checked(sql, checks), parameters);
            parameters += count;
        }
        text
    }
}

/// Decides whether a statement checks for each message whether it is stored already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checks {
    Lean,
    Careful,
}

/// The text of a part in the variant for `checks`.
fn checked(part: &str, checks: Checks) -> String {
    let mut pieces = part.split(LEAN);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (lean, rest) = piece.split_once(CAREFUL).unwrap_or((piece, ""));
        let (careful, rest) = rest.split_once(END).unwrap_or((rest, ""));
        text.push_str(if checks == Checks::Lean { lean } else { careful });
        text.push_str(rest);
    }
    text
}

fn needed(submission: &Submission<'_>) -> usize {
    let commit = submission.commit;
    let rare_changes = !(commit.failed_tasks.is_empty()
        && commit.task_changes.is_empty()
        && commit.failed_turns.is_empty()
        && commit.dropped_turns.is_empty()
        && commit.ended_turns.is_empty()
        && commit.audit.is_empty());
    let turns = rare_changes || !(commit.turns.is_empty() && commit.agents.is_empty());
    let messages = !commit.messages.is_empty() || commit.turns.iter().any(|turn| !turn.messages.is_empty());
    let rest = !(commit.dead_letters.is_empty()
        && commit.failed_messages.is_empty()
        && commit.ended_spills.is_empty());
    [
        (messages, StatementParts::MESSAGES),
        (turns, StatementParts::TURNS),
        (!commit.tasks.is_empty(), StatementParts::TASKS),
        (commit.outbox.is_some() || !commit.sent.is_empty(), StatementParts::OUTBOX),
        (rare_changes, StatementParts::RARE_CHANGES),
        (rest, StatementParts::DEAD_LETTERS_SPILLS),
        (!submission.gone.is_empty(), StatementParts::GONE),
        (!commit.timers.is_empty(), StatementParts::TIMERS),
        (!commit.usage.is_empty(), StatementParts::USAGE),
        (commit.turns.iter().any(facts::has_facts), StatementParts::FACTS),
    ]
    .into_iter()
    .filter_map(|(is_needed, part)| is_needed.then_some(part))
    .sum()
}

/// Appends a part and shifts its parameters by `offset`.
fn append(text: &mut String, part: &str, offset: usize) {
    let mut pieces = part.split('$');
    text.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = piece.split_at(digits);
        text.push('$');
        match number.parse::<usize>() {
            Ok(number) => text.push_str(&(number + offset).to_string()),
            Err(_) => text.push_str(number),
        }
        text.push_str(rest);
    }
}

/// The statement that applies this group.
pub(super) fn statement(owner: &str, group: &[Submission<'_>], checks: Checks) -> Statement {
    let (parts, sql) = match checks {
        Checks::Lean => (StatementParts::of(group), StatementParts::of(group).lean()),
        Checks::Careful => (StatementParts::ALL, StatementParts::careful()),
    };
    let statement = columns::fence(sqlx::query(sql), owner, group);
    let binds = parts.list().into_iter().filter_map(|(_, _, bind)| bind);
    binds.fold(statement, |statement, bind| bind(statement, group))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parameters(sql: &str) -> BTreeSet<usize> {
        let code = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
        let pieces: Vec<String> =
            code.flat_map(|line| line.split('$').skip(1).map(str::to_owned).collect::<Vec<_>>()).collect();
        let number =
            |piece: &String| piece.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
        pieces.iter().filter_map(number).collect()
    }

    #[test]
    fn every_combination_numbers_its_parameters_without_a_hole() {
        for parts in (0..StatementParts::COMBINATIONS).map(StatementParts) {
            let count = FENCE_PARAMETERS + parts.list().iter().map(|(_, count, _)| count).sum::<usize>();
            for checks in [Checks::Lean, Checks::Careful] {
                let text = parts.join(checks);
                assert_eq!(parameters(&text), (1..=count).collect(), "{parts:?}");
                assert!(!text.contains("/*"), "{text}");
            }
        }
    }

    #[test]
    fn the_parts_of_a_statement_have_names_of_their_own() {
        let text = StatementParts::careful();
        let name = |line: &'static str| {
            let rest = line.strip_prefix(", ").or_else(|| line.strip_prefix("WITH "))?;
            rest.split_once(" AS ").map(|(name, _)| name)
        };
        let names: Vec<&str> = text.lines().filter_map(name).collect();
        assert!(names.len() > 30, "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }
}
