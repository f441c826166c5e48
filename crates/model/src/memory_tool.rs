//! Tools with which an agent remembers, searches, corrects and forgets facts within a turn.

use crate::reasoning_tool::{is_one_of, is_reasoning_tool};

/// Tool names on a server of the Model Context Protocol.
pub const MEMORY_TOOLS: [&str; 4] = ["memory_remember", MEMORY_SEARCH, "memory_correct", "memory_forget"];

/// Tool that shows an agent its memory. Its results are hidden from people, because some facts are
/// an operator's.
pub const MEMORY_SEARCH: &str = "memory_search";

/// True for a memory tool, also if a client prefixes the server's name:
/// `mcp__antiphon__memory_search`.
pub fn is_memory_tool(name: &str) -> bool {
    is_one_of(&MEMORY_TOOLS, name)
}

/// True if the tool shows an agent its memory.
pub fn is_memory_search(name: &str) -> bool {
    is_one_of(&[MEMORY_SEARCH], name)
}

/// True if arguments and results of the tool are for the agent's model only.
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
        // Users may see what the agent remembers.
        assert!(!is_withheld_tool("memory_remember"));
    }
}
