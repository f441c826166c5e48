//! What the server counts. Every metric is declared here, once.

use metrics::{counter, describe_counter};

const CALLS: &str = "antiphon_mcp_tool_calls_total";

/// Help texts for the metrics endpoint.
pub(crate) fn describe() {
    describe_counter!(
        CALLS,
        "Calls of reasoning tools, by tool and by what became of them: done, or the code of the error"
    );
}

/// A call of a tool has ended; `outcome` is `done` or the code of an error.
pub(crate) fn called(tool: &'static str, outcome: &'static str) {
    counter!(CALLS, "tool" => tool, "outcome" => outcome).increment(1);
}
