//! The metrics of the server. Every metric is declared here, once.

use metrics::counter;
use runtime::metrics::MetricDescription;

const CALLS: &str = "antiphon_mcp_tool_calls_total";

/// Metrics of the MCP server, besides those of its HTTP server.
pub const METRICS: &[MetricDescription] = &[MetricDescription::counter(
    CALLS,
    "Calls of reasoning and memory tools, by `tool` and `outcome`: `done`, or the code of the error",
)
.by(&["tool", "outcome"])];

/// Help texts for the metrics endpoint.
pub(crate) fn describe() {
    runtime::metrics::describe(METRICS);
}

/// Counts a finished tool call; `outcome` is `done` or the code of an error.
pub(crate) fn called(tool: &'static str, outcome: &'static str) {
    counter!(CALLS, "tool" => tool, "outcome" => outcome).increment(1);
}
