//! The agents of the demo, their tasks, and the planned failures.

use anyhow::Result;
use model::{AgentId, Bucket, PartitionCount};
use serde_json::{Value, json};

use crate::environment::DemoAgent;

/// Tasks of each agent.
pub(crate) const TASKS: usize = 20;
/// First backoff of these agents, ms; the default of a minute would be too long to watch.
const BACKOFF_BASE_MS: u32 = 600;
const BACKOFF_CAP_MS: u32 = 3_000;

const NAMES: [&str; 10] = ["ada", "ben", "cleo", "dora", "eli", "fay", "gus", "hana", "ivo", "june"];
const WORK: [&str; 5] =
    ["water the plants", "sort the mail", "feed the cat", "tune the piano", "copy the next verse"];

/// A planned failure of one task, played by the script of the workflow service.
struct Mishap {
    agent: &'static str,
    number: usize,
    /// The text in the task that triggers the script.
    marker: &'static str,
}

const MISHAPS: [Mishap; 5] = [
    Mishap { agent: "ben", number: 3, marker: "#overloaded-twice" },
    Mishap { agent: "dora", number: 5, marker: "#locked" },
    Mishap { agent: "eli", number: 6, marker: "#overloaded-once" },
    Mishap { agent: "fay", number: 8, marker: IMPOSSIBLE },
    Mishap { agent: "ivo", number: 9, marker: "#overloaded-twice" },
];
const IMPOSSIBLE: &str = "#impossible";
/// Attempts to find a tag that spreads the agents over the partitions.
const TRIES: usize = 500;

impl DemoAgent {
    /// A task with only the required fields.
    pub(super) fn example(&self) -> String {
        format!(r#"{{"task_id": "any-id", "content": "{}: {}"}}"#, self.name, WORK[0])
    }

    /// The payload of the agent's task with this number, from 1.
    pub(super) fn task(&self, number: usize) -> Value {
        let mishap = MISHAPS.iter().find(|mishap| (mishap.agent, mishap.number) == (self.name, number));
        let work = WORK[number % WORK.len()];
        let marker = mishap.map(|mishap| format!(" {}", mishap.marker)).unwrap_or_default();
        json!({
            "task_id": task_id(number),
            "content": format!("{} {number:02}: {work}{marker}", self.name),
            "metadata": {"number": number},
        })
    }
}

/// The agents of the demo with this tag.
pub(crate) fn agents(tag: &str) -> Result<Vec<DemoAgent>> {
    let agent = |name: &&'static str| Ok(DemoAgent { id: AgentId::parse(&format!("{name}-{tag}"))?, name });
    NAMES.iter().map(agent).collect()
}

/// The tag that distinguishes this demo's agents and threads from others in the same database. Of
/// some random tags it takes the one that spreads the agents over the most partitions, so that each
/// worker gets some.
pub(crate) fn tag(partitions: PartitionCount) -> Result<String> {
    let mut best = (0, String::new());
    for _ in 0..TRIES {
        let tag = format!("{:06x}", rand::random::<u32>() & 0xff_ffff);
        let agents = agents(&tag)?;
        let mut hit: Vec<_> = agents.iter().map(|agent| partition(agent, partitions)).collect();
        hit.sort_unstable();
        hit.dedup();
        if hit.len() > best.0 {
            best = (hit.len(), tag);
        }
    }
    Ok(best.1)
}

fn partition(agent: &DemoAgent, partitions: PartitionCount) -> u16 {
    Bucket::of_key(agent.id.as_str()).partition(partitions).0
}

pub(super) fn settings() -> Value {
    json!({"backoff_base_ms": BACKOFF_BASE_MS, "backoff_cap_ms": BACKOFF_CAP_MS})
}

/// The agent and the id of each task that must fail permanently.
pub(crate) fn doomed(agents: &[DemoAgent]) -> Vec<(String, String)> {
    let of = |mishap: &Mishap| {
        let agent = agents.iter().find(|agent| agent.name == mishap.agent)?;
        Some((agent.id.as_str().to_owned(), task_id(mishap.number)))
    };
    MISHAPS.iter().filter(|mishap| mishap.marker == IMPOSSIBLE).filter_map(of).collect()
}

fn task_id(number: usize) -> String {
    format!("task-{number:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_spread_over_the_partitions() {
        let count = PartitionCount::new(8).unwrap();
        let agents = agents(&tag(count).unwrap()).unwrap();
        let mut hit: Vec<_> = agents.iter().map(|agent| partition(agent, count)).collect();
        hit.sort_unstable();
        hit.dedup();
        assert!(hit.len() >= 6, "{hit:?}");
    }

    #[test]
    fn mishaps_are_where_the_script_finds_them() {
        let agents = agents("x").unwrap();
        let script: Value = serde_json::from_str(crate::workflows::SCRIPT).unwrap();
        let marks: Vec<_> = script["scenarios"].as_array().unwrap().iter().collect();
        for mishap in &MISHAPS {
            let agent = agents.iter().find(|agent| agent.name == mishap.agent).unwrap();
            let task = agent.task(mishap.number);
            assert!(task["content"].as_str().unwrap().ends_with(mishap.marker));
            assert!(marks.iter().any(|scenario| scenario["when"]["input_contains"] == mishap.marker));
        }
        assert_eq!(doomed(&agents), [("fay-x".to_owned(), "task-08".to_owned())]);
    }
}
