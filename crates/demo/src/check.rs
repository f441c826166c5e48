//! Part 6 of the demo: the content of Postgres, whatever the earlier parts have shown.

use anyhow::Result;
use model::Bucket;
use sqlx::PgPool;
use testkit::from_row;

use crate::{
    dialog::{AnswerEnd, Dialog},
    environment::{DemoAgent, DemoEnvironment},
    queues::plan,
    screen::Screen,
};

from_row! {
    /// The counts of the demo's tasks, by the database.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    struct Tasks {
        sent: i64,
        stored_once: i64,
        completed_once: i64,
        failed_as_meant: i64,
        done_twice: i64,
        whole_turns: i64,
        torn_turns: i64,
        later_runs: i64,
        out_of_order: i64,
        agents_seen: i64,
        dead_letters: i64,
    }
}

from_row! {
    /// A stored turn of the thread.
    #[derive(Debug, Clone)]
    struct StoredTurn {
        input_id: String,
        input: String,
        is_whole: bool,
        answer: String,
        results: i64,
        is_stopped: bool,
    }
}

/// Runs the part; true if everything is as expected.
pub(super) async fn show(
    environment: &DemoEnvironment,
    dialog: &Dialog,
    screen: &mut Screen,
) -> Result<bool> {
    screen.heading(6, "The verdict, from Postgres");
    let mut wrong = dialog.missing.clone();
    let turns = read_dialog(&environment.pool, &dialog.thread).await?;
    show_dialog(dialog, &turns, screen);
    wrong.extend(judge_dialog(dialog, &turns));
    let tasks = Tasks::read(&environment.pool, &environment.agents).await?;
    tasks.show(screen);
    wrong.extend(tasks.judge(environment.agents.len(), plan::doomed(&environment.agents).len()));
    wrong.iter().for_each(|wrong| screen.text(&format!("WRONG  {wrong}")));
    Ok(wrong.is_empty())
}

impl Tasks {
    async fn read(pool: &PgPool, agents: &[DemoAgent]) -> Result<Self> {
        let buckets: Vec<i16> = agents.iter().map(DemoAgent::bucket).collect();
        let ids: Vec<&str> = agents.iter().map(|agent| agent.id.as_str()).collect();
        let (doomed_agents, doomed_tasks): (Vec<_>, Vec<_>) = plan::doomed(agents).into_iter().unzip();
        let row = sqlx::query_as(include_str!("check/tasks.sql"))
            .bind(buckets)
            .bind(ids)
            .bind(i32::try_from(plan::TASKS)?)
            .bind(doomed_agents)
            .bind(doomed_tasks);
        Ok(row.fetch_one(pool).await?)
    }

    fn show(&self, screen: &mut Screen) {
        screen.item("tasks sent / stored", format!("{} / {}, each once", self.sent, self.stored_once));
        screen.item("completed, with one turn each", self.completed_once);
        screen.item("failed for good, as they must", self.failed_as_meant);
        screen
            .item("turns with input and answer", format!("{} of {}", self.whole_turns, self.completed_once));
        screen.item("answers of a later run", format!("{}, after a backoff or a pause", self.later_runs));
        screen.item("turns done twice / torn", format!("{} / {}", self.done_twice, self.torn_turns));
        screen.item("turns out of order", format!("{}, of {} agents", self.out_of_order, self.agents_seen));
    }

    fn judge(&self, agents: usize, doomed: usize) -> Vec<String> {
        let (agents, doomed) = (agents as i64, doomed as i64);
        let total = agents * plan::TASKS as i64;
        let rules = [
            (self.stored_once == total, format!("{} of {total} tasks are stored once", self.stored_once)),
            (
                self.completed_once == total - doomed,
                format!("{} of {} tasks are completed with one turn", self.completed_once, total - doomed),
            ),
            (
                self.failed_as_meant == doomed,
                format!("{} of {doomed} tasks failed for good without a turn", self.failed_as_meant),
            ),
            (self.done_twice == 0, format!("{} tasks have more than one turn", self.done_twice)),
            (
                self.torn_turns == 0 && self.whole_turns == total - doomed,
                format!("{} turns are torn, {} are whole", self.torn_turns, self.whole_turns),
            ),
            (self.out_of_order == 0, format!("{} turns are out of order", self.out_of_order)),
            (self.agents_seen == agents, format!("{} of {agents} agents have a history", self.agents_seen)),
            (self.dead_letters == 0, format!("{} dead letters of the agents", self.dead_letters)),
        ];
        rules.into_iter().filter(|(holds, _)| !holds).map(|(_, wrong)| wrong).collect()
    }
}

async fn read_dialog(pool: &PgPool, thread: &str) -> Result<Vec<StoredTurn>> {
    let rows = sqlx::query_as(include_str!("check/dialog.sql")).bind(Bucket::of_key(thread).get() as i16);
    Ok(rows.bind(thread).fetch_all(pool).await?)
}

fn show_dialog(dialog: &Dialog, turns: &[StoredTurn], screen: &mut Screen) {
    let stopped = turns.iter().filter(|turn| turn.is_stopped).count();
    let results: i64 = turns.iter().map(|turn| turn.results).sum();
    let said = dialog.turns.len();
    screen.item("turns said / stored in the thread", format!("{said} / {}", turns.len()));
    screen.item("of them stopped; results of tools", format!("{stopped}; {results}"));
}

/// Checks that every answer that did not fail is stored once, together with its input, with the
/// text that the terminal showed.
fn judge_dialog(dialog: &Dialog, stored: &[StoredTurn]) -> Vec<String> {
    let mut wrong = Vec::new();
    let kept: Vec<_> = dialog.turns.iter().filter(|turn| turn.end != AnswerEnd::Failed).collect();
    if stored.len() != kept.len() {
        wrong.push(format!("{} turns ended well, {} are stored", kept.len(), stored.len()));
    }
    for (turn, stored) in kept.iter().zip(stored) {
        let id = &turn.id;
        if !stored.is_whole || stored.input_id != format!("{id}-q") || stored.input != turn.input {
            wrong.push(format!("turn {id} is not stored as one input and its answer"));
        }
        if stored.answer != turn.text {
            wrong.push(format!("turn {id}: shown was {:?}, stored is {:?}", turn.text, stored.answer));
        }
        // A stop may come after the end; then there is nothing to stop.
        if stored.is_stopped && turn.end != AnswerEnd::Stopped {
            wrong.push(format!("turn {id} is stored as stopped, without a stop"));
        }
    }
    if dialog.has_all_kinds && !stored.iter().any(|turn| turn.is_stopped) {
        wrong.push("no answer is stored as stopped".to_owned());
    }
    if dialog.has_all_kinds && stored.iter().all(|turn| turn.results == 0) {
        wrong.push("no result of a tool is stored".to_owned());
    }
    wrong
}

#[cfg(test)]
mod tests;
