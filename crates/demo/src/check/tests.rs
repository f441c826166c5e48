//! Shows that the verdict detects defects: each test spoils good tables in one place.

use sqlx::{AssertSqlSafe, raw_sql};

use super::*;
use crate::dialog::{AnswerEnd, Dialog, DialogTurn};
use testkit::services::TestDatabase;

const TABLES: [&str; 8] = [
    include_str!("../../../../migrations/0001_installation_and_partitions.sql"),
    include_str!("../../../../migrations/0002_threads_and_messages.sql"),
    include_str!("../../../../migrations/0003_agents_and_tasks.sql"),
    include_str!("../../../../migrations/0004_turns.sql"),
    include_str!("../../../../migrations/0005_spills_and_outbox.sql"),
    include_str!("../../../../migrations/0006_access.sql"),
    include_str!("../../../../migrations/0007_reasoning.sql"),
    include_str!("../../../../migrations/0008_timers.sql"),
];

/// Tables in which the two agents have done all tasks, except that the doomed one failed.
struct Tables {
    _database: TestDatabase,
    pool: PgPool,
    agents: Vec<DemoAgent>,
}

impl Tables {
    async fn good() -> Self {
        let database = TestDatabase::create().await.unwrap();
        let pool = database.pool().await.unwrap();
        let all = plan::agents("t").unwrap();
        let agents = all.into_iter().filter(|agent| ["ada", "fay"].contains(&agent.name)).collect();
        let tables = Self { _database: database, pool, agents };
        for sql in TABLES {
            tables.execute(sql).await;
        }
        for agent in &tables.agents {
            let doomed = if agent.name == "fay" { 8 } else { 0 };
            tables.execute(&work(agent.bucket(), agent.id.as_str(), doomed)).await;
        }
        tables
    }

    async fn execute(&self, sql: &str) {
        raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap();
    }

    async fn verdict(&self) -> Vec<String> {
        let tasks = Tasks::read(&self.pool, &self.agents).await.unwrap();
        tasks.judge(self.agents.len(), plan::doomed(&self.agents).len())
    }
}

/// Twenty tasks of an agent, and their turns at positions that are 10 apart: the third with a tool,
/// the fourth in run 1.
fn work(bucket: i16, agent: &str, doomed: i32) -> String {
    format!(
        "INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content)
         SELECT {bucket}, '{agent}', n, 'task-' || lpad(n::text, 2, '0'), 'task', 'x' FROM generate_series(1, 20) AS n;
         INSERT INTO agents (bucket, agent_id, head_position) VALUES ({bucket}, '{agent}', 20);
         INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
         SELECT {bucket}, '{agent}', {doomed}, 'bad_input', 'x' WHERE {doomed} > 0;
         INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content,
                               tool_calls, metadata)
         SELECT {bucket}, '{agent}', 1000 + 10 * n + m.at, 't{bucket:04x}-' || n || m.suffix, 1000 + 10 * n, m.at,
                'user_request', m.role, 'x', m.calls, CASE m.at WHEN 0 THEN jsonb_build_object('number', n) ELSE '{{}}' END
         FROM generate_series(1, 20) AS n
         CROSS JOIN LATERAL (
             SELECT 0 AS at, '-q' AS suffix, 'user' AS role, NULL::jsonb AS calls
             UNION ALL SELECT 1, '-a-s0', 'assistant', '[{{}}]'::jsonb WHERE n = 3
             UNION ALL SELECT 2, '-a-s0-r0', 'tool', NULL WHERE n = 3
             UNION ALL SELECT 3, CASE n WHEN 4 THEN '-a1' ELSE '-a' END, 'assistant', NULL
         ) AS m
         WHERE n <> {doomed};"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn good_tables_pass() {
    let tables = Tables::good().await;
    assert_eq!(tables.verdict().await, Vec::<String>::new());
    let seen = Tasks::read(&tables.pool, &tables.agents).await.unwrap();
    assert_eq!((seen.sent, seen.completed_once, seen.failed_as_meant, seen.later_runs), (40, 39, 1, 2));
}

/// Spoils the tables of ada with this SQL, and checks the first violations.
async fn spoilt(sql: &str, expected: &[&str]) {
    let tables = Tables::good().await;
    tables.execute(sql).await;
    assert_eq!(tables.verdict().await, expected, "{sql}");
}

const ADA: &str = "thread_id = 'ada-t'";

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_task_is_seen() {
    let sql = format!(
        "DELETE FROM tasks WHERE agent_id = 'ada-t' AND position = 7;
                       DELETE FROM messages WHERE {ADA} AND batch_id = 1070"
    );
    let expected = [
        "39 of 40 tasks are stored once",
        "38 of 39 tasks are completed with one turn",
        "0 turns are torn, 38 are whole",
    ];
    spoilt(&sql, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completed_task_without_its_turn_is_seen() {
    let expected = ["38 of 39 tasks are completed with one turn", "0 turns are torn, 38 are whole"];
    spoilt(&format!("DELETE FROM messages WHERE {ADA} AND batch_id = 1070"), &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_without_its_answer_is_seen() {
    let expected = ["1 turns are torn, 38 are whole"];
    spoilt(&format!("DELETE FROM messages WHERE {ADA} AND position = 1073"), &expected).await;
    spoilt(&format!("DELETE FROM messages WHERE {ADA} AND position = 1033"), &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_turn_is_seen() {
    let sql = format!(
        "UPDATE messages SET message_id = replace(message_id, '-7-a', '-99-a') WHERE {ADA} AND position = 1073"
    );
    spoilt(&sql, &["1 turns are torn, 38 are whole"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_done_twice_is_seen() {
    let sql = format!(
        "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content,
                               metadata)
         SELECT bucket, thread_id, position + 1000, message_id || suffix, batch_id + 1000, sequence_num, batch_type, role,
                content, metadata
         FROM messages, (VALUES ('-again')) AS v (suffix) WHERE {ADA} AND batch_id = 1070"
    );
    // The copied turn has other ids than the first, so it belongs to no task, and it comes after
    // later turns.
    spoilt(&sql, &["1 turns are torn, 39 are whole", "1 turns are out of order"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_order_than_that_of_the_queue_is_seen() {
    let swap = "CASE batch_id WHEN 1070 THEN 10 ELSE -10 END";
    let sql = format!(
        "UPDATE messages SET position = position + 500 + {swap}, batch_id = batch_id + 500 + {swap}
         WHERE {ADA} AND batch_id IN (1070, 1080);
         UPDATE messages SET position = position - 500, batch_id = batch_id - 500 WHERE {ADA} AND batch_id > 1500"
    );
    spoilt(&sql, &["1 turns are out of order"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_that_overlap_are_seen() {
    let sql = format!("UPDATE messages SET position = 1081 WHERE {ADA} AND position = 1073");
    spoilt(&sql, &["1 turns are out of order"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_was_not_meant_is_seen() {
    let sql = "INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
               SELECT bucket, agent_id, 20, 'x', 'x' FROM agents WHERE agent_id = 'ada-t'";
    spoilt(sql, &["38 of 39 tasks are completed with one turn"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_still_is_seen() {
    let sql = "UPDATE agents SET head_position = 19 WHERE agent_id = 'ada-t'";
    spoilt(sql, &["38 of 39 tasks are completed with one turn"]).await;
}

fn dialog(end: AnswerEnd) -> Dialog {
    let turn = DialogTurn { id: "u0001-x".into(), input: "hi".into(), text: "Hello.".into(), end };
    Dialog { thread: "t".into(), turns: vec![turn], missing: Vec::new(), has_all_kinds: false, goes_on: true }
}

fn stored() -> StoredTurn {
    StoredTurn {
        input_id: "u0001-x-q".into(),
        input: "hi".into(),
        is_whole: true,
        answer: "Hello.".into(),
        results: 0,
        is_stopped: false,
    }
}

#[test]
fn what_was_shown_must_be_what_is_stored() {
    let good = dialog(AnswerEnd::Complete);
    assert_eq!(judge_dialog(&good, &[stored()]), Vec::<String>::new());
    assert_eq!(judge_dialog(&good, &[]), ["1 turns ended well, 0 are stored"]);
    assert_eq!(judge_dialog(&good, &[stored(), stored()]), ["1 turns ended well, 2 are stored"]);
    let torn = "turn u0001-x is not stored as one input and its answer";
    assert_eq!(judge_dialog(&good, &[StoredTurn { is_whole: false, ..stored() }]), [torn]);
    assert_eq!(judge_dialog(&good, &[StoredTurn { input: "ho".into(), ..stored() }]), [torn]);
    assert_eq!(judge_dialog(&good, &[StoredTurn { input_id: "u0001-y-q".into(), ..stored() }]), [torn]);
    let other = [StoredTurn { answer: "Hello".into(), ..stored() }];
    assert_eq!(judge_dialog(&good, &other), [r#"turn u0001-x: shown was "Hello.", stored is "Hello""#]);
}

#[test]
fn stop_without_a_request_is_wrong() {
    let stopped = [StoredTurn { is_stopped: true, ..stored() }];
    assert_eq!(judge_dialog(&dialog(AnswerEnd::Stopped), &stopped), Vec::<String>::new());
    assert_eq!(
        judge_dialog(&dialog(AnswerEnd::Stopped), &[stored()]),
        Vec::<String>::new(),
        "it came too late"
    );
    let unasked = "turn u0001-x is stored as stopped, without a stop";
    assert_eq!(judge_dialog(&dialog(AnswerEnd::Complete), &stopped), [unasked]);
    let must = Dialog { has_all_kinds: true, ..dialog(AnswerEnd::Stopped) };
    let missing = ["no answer is stored as stopped", "no result of a tool is stored"];
    assert_eq!(judge_dialog(&must, &[stored()]), missing);
    let both = [StoredTurn { is_stopped: true, results: 1, ..stored() }];
    assert_eq!(judge_dialog(&must, &both), Vec::<String>::new());
}
