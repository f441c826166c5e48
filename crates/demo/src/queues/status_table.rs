//! The queues as stored in Postgres, one line per agent.

use std::time::Duration;

use anyhow::Result;
use sqlx::PgPool;
use testkit::from_row;

use super::plan::TASKS;
use crate::environment::DemoAgent;

from_row! {
    /// The status of one agent.
    #[derive(Debug, Clone)]
    pub(super) struct AgentStatus {
        pub(super) agent_id: String,
        pub(super) pending: i64,
        pub(super) completed: i64,
        pub(super) failed: i64,
        head: Option<String>,
        pub(super) paused: bool,
        backoff_ms: Option<i64>,
        error_text: Option<String>,
        /// Numbers of the tasks in the history, in the order of the history.
        numbers: Vec<i32>,
        pub(super) owner: Option<String>,
        lease_ms: Option<i64>,
    }
}

/// All agents, in the order of the plan.
#[derive(Debug, Clone)]
pub(super) struct StatusTable(pub(super) Vec<AgentStatus>);

impl StatusTable {
    pub(super) async fn read(pool: &PgPool, agents: &[DemoAgent], partitions: u16) -> Result<Self> {
        let buckets: Vec<i16> = agents.iter().map(DemoAgent::bucket).collect();
        let ids: Vec<&str> = agents.iter().map(|agent| agent.id.as_str()).collect();
        let rows = sqlx::query_as(include_str!("status_table.sql")).bind(buckets).bind(ids);
        Ok(Self(rows.bind(i32::from(partitions)).fetch_all(pool).await?))
    }

    /// Tasks that are completed or marked failed.
    pub(super) fn done(&self) -> i64 {
        self.0.iter().map(|agent| agent.completed + agent.failed).sum()
    }

    /// The table, with the last known row of a worker that is dead.
    pub(super) fn lines(&self, agents: &[DemoAgent], dead: Option<&str>, since: Duration) -> Vec<String> {
        let head =
            format!("{:<7}{:>5}  {:<9}{:<13}{:<10}{}", "agent", "queue", "head", "order", "owner", "state");
        let total = agents.len() * TASKS;
        let agents = self.0.iter().zip(agents).map(|(standing, agent)| standing.line(agent.name, dead));
        let sum = format!("{:5.1} s   {} of {} tasks done", since.as_secs_f64(), self.done(), total);
        [head].into_iter().chain(agents).chain([sum]).collect()
    }
}

impl AgentStatus {
    fn line(&self, name: &str, dead: Option<&str>) -> String {
        let head = self.head.as_deref().unwrap_or("-");
        let owner = self.owner.as_deref().unwrap_or("-");
        let (queue, order, state) = (self.pending, self.order(), self.state(dead));
        format!("{name:<7}{queue:>5}  {head:<9}{order:<13}{owner:<10}{state}")
    }

    /// True if the history has the tasks in the order in which they were sent, each once.
    pub(super) fn is_in_order(&self) -> bool {
        self.numbers.windows(2).all(|pair| pair[0] < pair[1])
    }

    fn order(&self) -> String {
        match (self.is_in_order(), self.numbers.last()) {
            (false, _) => "WRONG".to_owned(),
            (true, None) => "-".to_owned(),
            (true, Some(last)) => format!("ok to {last}"),
        }
    }

    fn state(&self, dead: Option<&str>) -> String {
        let why = self.error_text.as_deref().unwrap_or("unknown");
        let seconds = |ms: i64| format!("{:.1} s", ms as f64 / 1000.0);
        let is_done = self.completed + self.failed >= TASKS as i64;
        match (self.backoff_ms, self.failed) {
            (_, 0) if is_done => "done".to_owned(),
            (_, failed) if is_done => format!("done, {failed} failed for good"),
            _ if self.pending == 0 => "idle".to_owned(),
            _ if self.paused => format!("paused ({why})"),
            _ if self.owner.is_some() && self.owner.as_deref() == dead => {
                format!("its worker is dead, lease ends in {}", seconds(self.lease_ms.unwrap_or_default()))
            }
            (Some(left @ 1..), _) => format!("backs off for {} ({why})", seconds(left)),
            _ => "running".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> AgentStatus {
        AgentStatus {
            agent_id: "ada-1".into(),
            pending: 3,
            completed: 2,
            failed: 0,
            head: Some("task-03".into()),
            paused: false,
            backoff_ms: None,
            error_text: None,
            numbers: vec![1, 2],
            owner: Some("worker-0".into()),
            lease_ms: Some(7_250),
        }
    }

    #[test]
    fn a_line_says_how_an_agent_stands() {
        let line = |standing: AgentStatus, dead| standing.line("ada", dead);
        assert_eq!(line(standing(), None), "ada        3  task-03  ok to 2      worker-0  running");
        let waits = standing().state(Some("worker-0"));
        assert_eq!(waits, "its worker is dead, lease ends in 7.2 s");
        let overloaded = Some("the model is overloaded".to_owned());
        let backs_off = AgentStatus { backoff_ms: Some(1_340), error_text: overloaded.clone(), ..standing() };
        assert_eq!(backs_off.state(None), "backs off for 1.3 s (the model is overloaded)");
        assert_eq!(
            AgentStatus { paused: true, error_text: overloaded, ..standing() }.state(None),
            "paused (the model is overloaded)"
        );
        assert_eq!(AgentStatus { pending: 0, ..standing() }.state(None), "idle");
        let done = AgentStatus { pending: 0, completed: 19, failed: 1, ..standing() };
        assert_eq!(done.state(None), "done, 1 failed for good");
    }

    #[test]
    fn disorder_and_repeats_are_seen() {
        for wrong in [vec![2, 1], vec![1, 1], vec![1, 3, 2]] {
            let standing = AgentStatus { numbers: wrong, ..standing() };
            assert_eq!((standing.is_in_order(), standing.order()), (false, "WRONG".to_owned()));
        }
        assert_eq!(AgentStatus { numbers: vec![1, 3], ..standing() }.order(), "ok to 3");
    }
}
