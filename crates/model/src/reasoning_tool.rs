//! Tools with which an agent works on its own reasoning thread. Their arguments and results are for
//! the agent's model only.

/// Tool names on a server of the Model Context Protocol.
pub const REASONING_TOOLS: [&str; 11] = [
    "frs_create_session",
    "frs_view_thread",
    "frs_append",
    "frs_compress_last",
    "frs_compress_range",
    "frs_undo",
    "frs_plan",
    "frs_checkpoint",
    "frs_restore",
    "frs_discarded",
    "frs_read_message",
];

/// True for a reasoning tool, also if a client prefixes the server's name:
/// `mcp__antiphon__frs_undo`.
pub fn is_reasoning_tool(name: &str) -> bool {
    is_one_of(&REASONING_TOOLS, name)
}

/// True if the name is one of these tools, with or without a server's name before it.
pub(crate) fn is_one_of(tools: &[&str], name: &str) -> bool {
    tools.iter().any(|tool| {
        let before = name.strip_suffix(tool);
        before.is_some_and(|before| before.chars().next_back().is_none_or(|last| !last.is_alphanumeric()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_put_the_server_before_the_name() {
        for name in ["frs_undo", "mcp__antiphon__frs_undo", "antiphon.frs_view_thread", "a-frs_read_message"]
        {
            assert!(is_reasoning_tool(name), "{name}");
        }
        for name in ["", "frs_report", "xfrs_undo", "frs_undo_all", "search", "FRS_UNDO"] {
            assert!(!is_reasoning_tool(name), "{name}");
        }
    }
}
