//! The current branch of a chat whose messages form a tree.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// A node of the message tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) id: &'a str,
    pub(super) parent: Option<&'a str>,
    /// The message; `None` for a root without one.
    pub(super) message: Option<&'a Value>,
    /// Time of writing, in any unit.
    pub(super) at: f64,
}

/// The branch that people see.
#[derive(Debug)]
pub(super) struct Branch<'a> {
    pub(super) messages: Vec<&'a Value>,
    /// Number of messages in other branches.
    pub(super) others: u64,
    /// True if the chat does not name its current message, so that the branch of the newest one was
    /// used.
    pub(super) is_guessed: bool,
}

/// Follows the parents from the current message to the root. If the chat does not name an existing
/// message, it starts at the newest one.
pub(super) fn current<'a>(nodes: &[Node<'a>], pointer: Option<&str>) -> Branch<'a> {
    let by_id: HashMap<&str, &Node<'a>> = nodes.iter().map(|node| (node.id, node)).collect();
    let named = pointer.and_then(|id| by_id.get(id).copied());
    let parents: HashSet<&str> = nodes.iter().filter_map(|node| node.parent).collect();
    let leaves = nodes.iter().filter(|node| node.message.is_some() && !parents.contains(node.id));
    let newest = leaves.max_by(|a, b| a.at.total_cmp(&b.at));
    let mut seen = HashSet::new();
    let mut messages = Vec::new();
    let mut next = named.or(newest);
    while let Some(node) = next.filter(|node| seen.insert(node.id)) {
        messages.extend(node.message);
        next = node.parent.and_then(|id| by_id.get(id).copied());
    }
    messages.reverse();
    let all = nodes.iter().filter(|node| node.message.is_some()).count();
    let others = (all - messages.len()) as u64;
    Branch { messages, others, is_guessed: named.is_none() && others > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(script: &str, pointer: Option<&str>) -> String {
        let message = Value::Null;
        let node = |word: &'static str, at: usize| {
            let (id, parent) = word.split_once('<').unwrap_or((word, ""));
            Node {
                id,
                parent: Some(parent).filter(|parent| !parent.is_empty()),
                message: Some(&message),
                at: at as f64,
            }
        };
        let words: Vec<&'static str> = script.to_owned().leak().split(' ').collect();
        let nodes: Vec<Node<'_>> = words.iter().enumerate().map(|(at, word)| node(word, at)).collect();
        let branch = current(&nodes, pointer);
        format!(
            "{} of {}{}",
            branch.messages.len(),
            nodes.len(),
            if branch.is_guessed { ", guessed" } else { "" }
        )
    }

    #[test]
    fn the_pointer_decides_and_without_it_the_newest_message() {
        for (script, pointer, found) in [
            ("a b<a c<b d<a", Some("c"), "3 of 4"),
            ("a b<a c<b d<a", Some("d"), "2 of 4"),
            ("a b<a c<b d<a", None, "2 of 4, guessed"),
            ("a b<a c<b d<a", Some("gone"), "2 of 4, guessed"),
            ("a<gone b<a", None, "2 of 2"),
            // A cycle is followed only until it reaches its start.
            ("a<c b<a c<b", Some("c"), "3 of 3"),
            ("a<c b<a c<b", None, "0 of 3, guessed"),
        ] {
            assert_eq!(branch(script, pointer), found, "{script}");
        }
    }
}
