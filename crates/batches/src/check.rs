//! Finds damage in a stored batch, and its repair.
//!
//! An interrupted batch is incomplete but not damaged. A damaged batch has contradictory numbers or
//! results without calls. No turn leaves such a batch, however the turn ended. [`examine`] changes
//! nothing; the caller applies the changes and records the old and new values in the audit log.

use std::fmt;

use model::{BatchType, Position};

use crate::{Batch, Pairing};

/// One defect of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub message: Position,
    pub what: Defect,
    /// The repair; `None`: the defect cannot be repaired.
    pub change: Option<Change>,
}

/// A defect of a message in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Defect {
    /// The first messages of the batch are lost, including its input.
    BeginningLost,
    /// The number does not match the message's place.
    Number {
        /// The stored number.
        found: i32,
    },
    /// No earlier call matches a result.
    Orphan {
        /// The call id of the result.
        id: String,
    },
    /// The type differs from the type of the batch.
    Type {
        /// The stored type.
        found: BatchType,
    },
}

/// New values for columns of a message. The content of a message never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The batch of the message.
    pub batch_id: Position,
    /// Its number in that batch.
    pub sequence_num: i32,
    /// The type of that batch.
    pub batch_type: BatchType,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}: ", self.message)?;
        match &self.what {
            Defect::BeginningLost => f.write_str("the messages before it are lost")?,
            Defect::Number { found } => write!(f, "its number is {found}")?,
            Defect::Orphan { id } => {
                write!(f, "it is a result for {id:?}, which no message before it calls")?
            }
            Defect::Type { found } => write!(f, "its type is {}", found.name())?,
        }
        match (&self.what, &self.change) {
            (_, None) => f.write_str("; the batch stays out of contexts"),
            (Defect::Orphan { .. }, Some(_)) => f.write_str("; it becomes a batch of its own"),
            (Defect::Type { .. }, Some(change)) => write!(f, "; it becomes {}", change.batch_type.name()),
            (_, Some(change)) => write!(f, "; it becomes {}", change.sequence_num),
        }
    }
}

/// The defects of a batch, by position; empty for a batch that is only incomplete.
pub fn examine(batch: &Batch) -> Vec<Finding> {
    let mut items = batch.items().to_vec();
    items.sort_by_key(|item| item.position);
    let Some(first) = items.first() else { return Vec::new() };
    let batch_type = first.batch_type;
    let is_headless = first.position != batch.id();
    let pairing = Pairing::of(&items);
    let mut findings = Vec::new();
    // Numbering continues after the estimated number of lost messages, whose numbers stay free.
    let mut next = if is_headless { first.sequence_num.max(1) } else { 0 };
    for (index, item) in items.iter().enumerate() {
        let mut find = |what, change| findings.push(Finding { message: item.position, what, change });
        if is_headless && index == 0 {
            find(Defect::BeginningLost, None);
        }
        // If the beginning is lost, a result without a call is not an orphan: it shows that the
        // call existed.
        if pairing.orphans().contains(&index) && !is_headless {
            let id = item.tool_call_id.clone().unwrap_or_default();
            let own =
                Change { batch_id: item.position, sequence_num: 0, batch_type: BatchType::SystemTrigger };
            find(Defect::Orphan { id }, Some(own));
            continue;
        }
        let right = Change { batch_id: batch.id(), sequence_num: next, batch_type };
        if item.sequence_num != next {
            find(Defect::Number { found: item.sequence_num }, Some(right));
        } else if item.batch_type != batch_type && item.batch_type != BatchType::Continuation {
            find(Defect::Type { found: item.batch_type }, Some(right));
        }
        next += 1;
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, item, position};
    use crate::{BatchState, IncompleteReason, Item, group};

    fn found(script: &str) -> Vec<String> {
        examine(&batch(script)).iter().map(Finding::to_string).collect()
    }

    /// The batches after all repairs.
    fn mended(script: &str) -> Vec<Batch> {
        let batch = batch(script);
        let findings = examine(&batch);
        let mut items: Vec<_> = batch.items().iter().map(|item| Item::clone(item)).collect();
        for item in &mut items {
            let finding = findings.iter().find(|finding| finding.message == item.position);
            if let Some(change) = finding.and_then(|finding| finding.change) {
                (item.batch_id, item.sequence_num) = (change.batch_id, change.sequence_num);
                item.batch_type = change.batch_type;
            }
        }
        group(items)
    }

    #[test]
    fn what_is_only_incomplete_is_not_damaged() {
        for script in ["1.0u", "1.0u 1.1A:c", "1.0u 1.1A:c 1.2t:c", "1.0u 1.1a", "1.0u 1.1a 1.2u 1.3a"] {
            assert_eq!(found(script), [] as [String; 0], "{script}");
        }
    }

    #[test]
    fn numbers_follow_places() {
        assert_eq!(found("1.0u 1.1a 1.1a@12"), ["message 12: its number is 1; it becomes 2"]);
        assert_eq!(
            found("1.0u 1.2A:c 1.4t:c 1.5a"),
            [
                "message 12: its number is 2; it becomes 1",
                "message 14: its number is 4; it becomes 2",
                "message 15: its number is 5; it becomes 3"
            ]
        );
        for script in ["1.0u 1.1a 1.1a@12", "1.0u 1.2A:c 1.4t:c 1.5a", "1.0u@10 1.2a@11 1.1u@12 1.3a@13"] {
            let mended = mended(script);
            assert_eq!((mended.len(), mended[0].state()), (1, BatchState::Complete), "{script}");
            assert_eq!(examine(&mended[0]), []);
        }
    }

    #[test]
    fn a_result_without_a_call_leaves_the_batch() {
        let script = "1.0u 1.1t:z 1.2a";
        assert_eq!(
            found(script),
            [
                "message 11: it is a result for \"z\", which no message before it calls; it becomes a batch of its own",
                "message 12: its number is 2; it becomes 1"
            ]
        );
        let mended = mended(script);
        assert_eq!((mended[0].id(), mended[0].state()), (position(10), BatchState::Complete));
        let orphan = BatchState::Incomplete(IncompleteReason::OrphanResult { id: "z".to_owned() });
        assert_eq!((mended[1].id(), mended[1].state()), (position(11), orphan));
    }

    #[test]
    fn what_is_lost_stays_lost() {
        assert_eq!(
            found("1.2t:c 1.3a"),
            ["message 12: the messages before it are lost; the batch stays out of contexts"]
        );
        assert_eq!(
            mended("1.2t:c 1.3a")[0].state(),
            BatchState::Incomplete(IncompleteReason::Hole { missing: 0 })
        );
    }

    #[test]
    fn the_first_message_says_the_type() {
        let mut answer = item("1.1a");
        answer.batch_type = BatchType::AgentToAgent;
        let findings = examine(&group([item("1.0u"), answer.clone()])[0]);
        assert_eq!(
            findings[0].to_string(),
            "message 11: its type is agent_to_agent; it becomes user_request"
        );
        answer.batch_type = BatchType::Continuation;
        assert_eq!(examine(&group([item("1.0u"), answer])[0]), []);
    }
}
