//! The tools by which an agent remembers, searches, corrects and forgets facts within a turn.

use crate::reasoning_tool::{is_one_of, is_reasoning_tool};

/// Their names, as a server of the Model Context Protocol has them.
pub const MEMORY_TOOLS: [&str; 4] = ["memory_remember", MEMORY_SEARCH, "memory_correct", "memory_forget"];

/// The one that shows an agent what it remembers. People are not shown what it finds: some facts are an operator's.
pub const MEMORY_SEARCH: &str = "memory_search";

/// Whether a tool is one of them, also where a client has put the name of the server before it: `mcp__antiphon__memory_search`.
pub fn is_memory_tool(name: &str) -> bool {
    is_one_of(&MEMORY_TOOLS, name)
}

/// Whether a tool shows an agent what it remembers.
pub fn is_memory_search(name: &str) -> bool {
    is_one_of(&[MEMORY_SEARCH], name)
}

/// Whether what a tool is given and answers is for the agent's model alone, and not for people.
pub fn is_withheld_tool(name: &str) -> bool {
    is_reasoning_tool(name) || is_memory_search(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_put_the_server_before_the_name() {
        for name in ["memory_forget", "mcp__antiphon__memory_search", "antiphon.memory_remember"] {
            assert!(is_memory_tool(name), "{name}");
        }
        for name in ["", "memory", "search", "xmemory_search", "memory_search_all", "frs_undo"] {
            assert!(!is_memory_tool(name), "{name}");
        }
        assert!(is_memory_search("a.memory_search") && !is_memory_search("memory_forget"));
        assert!(is_withheld_tool("memory_search") && is_withheld_tool("frs_undo"));
        // What an agent remembers is the user's to see.
        assert!(!is_withheld_tool("memory_remember"));
    }
}
