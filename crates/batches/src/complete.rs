//! Which messages of a thread a model sees: whole complete turns, never a part of one.

use model::{Position, Role};

/// What of a stored message decides whether it is in a context.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextRow {
    /// Its batch.
    pub batch_id: Position,
    /// Its number in the batch.
    pub sequence_num: i32,
    /// Who speaks.
    pub role: Role,
    /// Ids of the calls that it makes.
    pub calls: Vec<String>,
    /// The call that it answers.
    pub answers: Option<String>,
    /// Bytes that it takes.
    pub size: usize,
}

/// The rows of all complete turns among these rows of a thread, as indices: grouped by batch, batches in the order of their
/// first messages, each whole or not at all. A batch of which only the end was read (because the reader had a limit) is left
/// out, and so is what no input began. Of turns that take more than `most_bytes` together the newest are kept.
pub fn complete_turns(rows: &[ContextRow], most_bytes: usize) -> Vec<usize> {
    let mut batches: Vec<(Position, Vec<usize>)> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        match batches.iter_mut().rev().find(|(batch, _)| *batch == row.batch_id) {
            Some((_, members)) => members.push(index),
            None => batches.push((row.batch_id, vec![index])),
        }
    }
    batches.sort_by_key(|(batch, _)| *batch);
    let mut kept = Vec::new();
    let mut room = most_bytes;
    for (_, mut members) in batches.into_iter().rev() {
        members.sort_by_key(|index| rows[*index].sequence_num);
        let batch: Vec<&ContextRow> = members.iter().map(|index| &rows[*index]).collect();
        if !is_complete_turn(&batch) {
            continue;
        }
        // What is older than a turn that has no room is out as well: a context has no holes.
        match room.checked_sub(batch.iter().map(|row| row.size).sum()) {
            Some(rest) => room = rest,
            None => break,
        }
        kept.push(members);
    }
    kept.into_iter().rev().flatten().collect()
}

/// An input first, nothing missing, every call answered right after it, and an assistant message without calls at the end.
fn is_complete_turn(batch: &[&ContextRow]) -> bool {
    let is_whole = batch.iter().zip(0..).all(|(row, number)| row.sequence_num == number);
    let begins = batch.first().is_some_and(|row| row.role == Role::User);
    let ends = batch.last().is_some_and(|row| row.role == Role::Assistant && row.calls.is_empty());
    is_whole && begins && ends && is_balanced(batch)
}

fn is_balanced(batch: &[&ContextRow]) -> bool {
    let mut open: Vec<&String> = Vec::new();
    for row in batch {
        match &row.answers {
            Some(call) => match open.iter().position(|id| *id == call) {
                Some(index) => drop(open.remove(index)),
                None => return false,
            },
            None if !open.is_empty() => return false,
            None => open.extend(&row.calls),
        }
    }
    open.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `3.0u` is the first message of batch 3, of the user; `a` assistant, `A` assistant with call c, `t` tool for c.
    fn rows(script: &str) -> Vec<ContextRow> {
        let row = |word: &str| {
            let (place, kind) = word.split_at(word.len() - 1);
            let (batch, number) = place.split_once('.').unwrap();
            let role = match kind {
                "u" => Role::User,
                "t" => Role::Tool,
                _ => Role::Assistant,
            };
            ContextRow {
                batch_id: Position::from_stored(batch.parse().unwrap()),
                sequence_num: number.parse().unwrap(),
                role,
                calls: if kind == "A" { vec!["c".to_owned()] } else { Vec::new() },
                answers: (kind == "t").then(|| "c".to_owned()),
                size: 10,
            }
        };
        script.split_whitespace().map(row).collect()
    }

    fn kept(script: &str) -> Vec<usize> {
        complete_turns(&rows(script), usize::MAX)
    }

    #[test]
    fn without_room_the_oldest_turns_are_left_out_whole() {
        let rows = rows("1.0u 1.1a 3.0u 3.1A 3.2t 3.3a 5.0u 5.1a");
        let kept = |bytes| complete_turns(&rows, bytes);
        assert_eq!(kept(80).len(), 8);
        assert_eq!(kept(79), [2, 3, 4, 5, 6, 7]);
        assert_eq!(kept(59), [6, 7], "not the older, smaller turn either");
        assert_eq!(kept(19), [] as [usize; 0]);
    }

    #[test]
    fn whole_turns_in_order() {
        assert_eq!(kept("1.0u 1.1a 3.0u 3.1A 3.2t 3.3a"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(kept("1.0u 2.0u 1.1a 2.1a"), [0, 2, 1, 3], "grouped by batch, not by neighbourhood");
    }

    #[test]
    fn a_turn_of_which_a_part_is_missing_is_left_out() {
        assert_eq!(kept("1.1a 2.0u 2.1a"), [1, 2], "its input is beyond the limit");
        for incomplete in
            ["1.0u", "1.0u 1.1A", "1.0u 1.1A 1.2t", "1.0u 1.1A 1.2a", "1.0u 1.1t 1.2a", "1.0a", "1.0u 1.2a"]
        {
            assert_eq!(kept(incomplete), [] as [usize; 0], "{incomplete}");
        }
    }
}
