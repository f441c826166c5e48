//! Follow-ups, schedules and delayed tasks.

use std::net::SocketAddr;

use model::{
    AgentId, Control, ControlKind, Position, ScheduleName, TaskId, ThreadId, TimerId, TriggerType, TurnId,
};
use serde_json::{Value, json};
use testkit::http;

use crate::command_log::CommandLog;
use crate::fixture::Fixture;
use crate::sending::{Reply, bare, send};

const FOLLOW_UPS: &str = "/v1/threads/t1/follow-ups";
const KNOWN_AGENT: &str =
    "INSERT INTO agent_settings (bucket, agent_id, workflow) VALUES ($bucket(a1), 'a1', 'default')";
const SCHEDULES: &str = "/v1/agents/a1/schedules";
const DELAYED: &str = "/v1/agents/a1/delayed-tasks";

async fn one_gateway() -> (Fixture, SocketAddr) {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    (fixture, gateway)
}

fn done(_: &Control) -> Option<&'static str> {
    None
}

fn problem(reply: &Reply) -> (u16, String) {
    let (status, code, _) = reply.problem();
    (status, code)
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

fn timer(position: i64) -> TimerId {
    TimerId::follow_up(&ThreadId::parse("t1").unwrap(), Position::from_stored(position))
}

/// A thread with a turn, and follow-ups at these positions in these states.
async fn follow_ups(fixture: &Fixture, all: &[(i64, &str, &str)]) {
    let turn = TurnId::foreground(&ThreadId::parse("t1").unwrap(), "x").unwrap();
    fixture.write_turn(&turn, 0, 10, &["answer"]).await;
    for (position, state, by) in all {
        let id = timer(*position);
        let ended = if *state == "pending" { "NULL" } else { "now()" };
        let by = if by.is_empty() { "NULL".to_owned() } else { format!("'{by}'") };
        let fired = match *state {
            "fired" | "withdrawn" => format!("'{}'", id.turn().unwrap()),
            _ => "NULL".to_owned(),
        };
        fixture
            .write(&format!(
                "INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at, state, body, created_at,
                                     ended_at, ended_by, fired_turn)
                 VALUES ($bucket(t1), '{id}', 'follow_up', 't1', 'a1', $bucket(a1), now() + interval '1 hour', '{state}',
                         '{{\"trigger_type\": \"check_in\", \"reason\": \"quiet\", \"source\": \"hint\", \"armed_by\": \"{turn}\",
                            \"armed_position\": \"{position}\"}}',
                         now() + {position} * interval '1 s', {ended}, {by}, {fired})"
            ))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_ups_are_listed_with_what_became_of_them() {
    let (fixture, gateway) = one_gateway().await;
    let _owner = fixture.owner(1, vec![]).await;
    assert_eq!(problem(&bare(gateway, "GET", FOLLOW_UPS).await), refused(404, "unknown_thread"));
    follow_ups(
        &fixture,
        &[
            (11, "pending", "snooze"),
            (12, "fired", ""),
            (13, "refused", "max_per_day"),
            (14, "withdrawn", "message"),
            (10, "withdrawn", "quiet_hours"),
            (9, "fired", "quiet_hours"),
        ],
    )
    .await;
    let list = async |query: &str| http::get_json(gateway, &format!("{FOLLOW_UPS}?{query}")).await.unwrap();
    let short = |page: &Value| -> Vec<String> {
        let of = |one: &Value| format!("{} {}", one["status"].as_str().unwrap(), one["decided_by"]);
        page["follow_ups"].as_array().unwrap().iter().map(of).collect()
    };
    let first = list("limit=3").await;
    assert_eq!(short(&first), ["withdrawn \"message\"", "refused \"max_per_day\"", "fired null"]);
    let second = list(&format!("next={}", first["next"].as_str().unwrap())).await;
    assert_eq!(
        (short(&second), &second["next"]),
        (
            ["pending \"snooze\"", "withdrawn \"quiet_hours\"", "fired \"quiet_hours\""]
                .map(str::to_owned)
                .to_vec(),
            &Value::Null
        )
    );
    let fired = &first["follow_ups"][2];
    assert_eq!(fired["turn_id"], timer(12).turn().unwrap().as_str());
    assert_eq!((&fired["trigger_type"], &fired["reason"]), (&json!("check_in"), &json!("quiet")));
    assert!(fired["armed_by"].as_str().unwrap().ends_with("-x") && fired["due_at"].is_string());

    // Each follow-up shows why the agent wrote first.
    let show = async |position: i64| {
        let shown = http::get_json(gateway, &format!("{FOLLOW_UPS}/{}", timer(position))).await.unwrap();
        let rule =
            |one: &Value| format!("{} {}", one["rule"].as_str().unwrap(), one["outcome"].as_str().unwrap());
        let rules: Vec<String> = shown["rules"].as_array().unwrap().iter().map(rule).collect();
        (shown["verdict"].clone(), rules.join(", "))
    };
    let all = "disabled passes, too_late passes, max_in_a_row passes, max_per_day passes, budget passes, paused passes, backoff passes, cooldown passes, quiet_hours passes";
    assert_eq!(show(12).await, (Value::Null, all.to_owned()));
    assert_eq!(show(14).await, (Value::Null, all.to_owned()));
    assert_eq!(show(9).await, (Value::Null, all.to_owned()), "it delayed it");
    let withdrawn_by = all.replace("quiet_hours passes", "quiet_hours refuses");
    assert_eq!(show(10).await, (Value::Null, withdrawn_by));
    let refused_by = "disabled passes, too_late passes, max_in_a_row passes, max_per_day refuses";
    assert_eq!(show(13).await, (Value::Null, refused_by.to_owned()));
    let unknown = bare(gateway, "GET", &format!("{FOLLOW_UPS}/{}", timer(99))).await;
    assert_eq!(problem(&unknown), refused(404, "unknown_follow_up"));
    // A follow-up is not found through another thread of the same bucket either.
    let elsewhere = format!("/v1/threads/t2/follow-ups/{}", timer(12));
    assert_eq!(problem(&bare(gateway, "GET", &elsewhere).await), refused(404, "unknown_follow_up"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_which_rule_is_against_a_follow_up_now() {
    let (fixture, gateway) = one_gateway().await;
    follow_ups(&fixture, &[(12, "pending", "")]).await;
    let show = async || http::get_json(gateway, &format!("{FOLLOW_UPS}/{}", timer(12))).await.unwrap();
    let against = |shown: &Value| -> Vec<String> {
        let rules = shown["rules"].as_array().unwrap().iter().filter(|rule| rule["outcome"] != "passes");
        rules
            .map(|rule| format!("{} {}", rule["rule"].as_str().unwrap(), rule["outcome"].as_str().unwrap()))
            .collect()
    };
    let shown = show().await;
    assert_eq!(
        (&shown["verdict"], against(&shown)),
        (&json!("refused"), vec!["disabled refuses".to_owned()])
    );
    let rules = json!({"enabled": true, "max_in_a_row": 1});
    let put =
        send(gateway, "PUT", "/v1/agents/a1", &json!({"workflow": "w", "settings": {"follow_ups": rules}}))
            .await;
    assert_eq!(put.status, 201);
    let shown = show().await;
    assert_eq!((&shown["verdict"], against(&shown)), (&json!("fire"), vec![]));
    // Another follow-up has fired since, and it was the last one allowed.
    follow_ups_fired(&fixture, 11).await;
    let shown = show().await;
    assert_eq!(shown["verdict"], "refused");
    assert_eq!(against(&shown), ["max_in_a_row refuses", "cooldown delays"]);
    fixture.write("UPDATE timers SET ended_at = now() - interval '1 hour', body = body || '{\"armed_position\": \"9\"}' WHERE state = 'fired'").await;
    fixture.write("INSERT INTO agents (bucket, agent_id, backoff_next_run_at) VALUES ($bucket(a1), 'a1', '2100-01-01T00:00:00Z')").await;
    let shown = show().await;
    assert_eq!((&shown["verdict"], against(&shown)), (&json!("later"), vec!["backoff delays".to_owned()]));
    let backoff = shown["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == "backoff").unwrap();
    assert_eq!(backoff["until"], "2100-01-01T00:00:00Z");
    let turn = TurnId::foreground(&ThreadId::parse("t1").unwrap(), "y").unwrap();
    fixture.write_turn(&turn, 0, 20, &["another answer"]).await;
    let shown = show().await;
    assert_eq!((&shown["status"], &shown["decided_by"]), (&json!("cancelled"), &json!("message")));
    assert_eq!((&shown["verdict"], shown["ended_at"].is_string()), (&Value::Null, true));
    let pending = fixture.texts("SELECT timer_id FROM timers WHERE state = 'pending'").await;
    assert_eq!(pending, [timer(12).as_str()], "asking changes nothing");
}

async fn follow_ups_fired(fixture: &Fixture, position: i64) {
    let id = timer(position);
    fixture
        .write(&format!(
            "INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at, state, body, ended_at)
             VALUES ($bucket(t1), '{id}', 'follow_up', 't1', 'a1', $bucket(a1), now(), 'fired',
                     '{{\"armed_position\": \"{position}\"}}', now())"
        ))
        .await;
}

/// Sets a timer's state when its cancellation is audited: the scripted owner writes only the audit.
fn ends_as(state: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             UPDATE timers SET state = '{state}', ended_at = now(), ended_by = 'client' WHERE timer_id = NEW.target AND state = 'pending';
             RETURN NEW;
         END $$;
         CREATE OR REPLACE TRIGGER ends BEFORE INSERT ON audit_log FOR EACH ROW WHEN (NEW.action = 'cancel_timer') EXECUTE FUNCTION ends()"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_ups_are_snoozed_and_cancelled_through_the_stream() {
    let (fixture, gateway) = one_gateway().await;
    follow_ups(&fixture, &[(11, "fired", ""), (12, "pending", ""), (13, "pending", "")]).await;
    let orders = CommandLog::read(&fixture, done).await;
    let snooze = async |position: i64, body: Value| {
        send(gateway, "POST", &format!("{FOLLOW_UPS}/{}/snooze", timer(position)), &body).await
    };
    let before = fixture.store.database_time().await.unwrap();
    assert_eq!(snooze(12, json!({"seconds": 600})).await.json()["status"], "done");
    let act = orders.act(0).await;
    let ControlKind::SnoozeTimer { timer: snoozed, until } = &act.kind else { panic!("{act:?}") };
    assert_eq!((snoozed, act.subject.as_str()), (&timer(12), "t1"));
    assert!((600_000..620_000).contains(&until.since_ms(before)), "{until:?}");
    let in_a_day = wire::rfc3339(before.plus_ms(86_400_000)).unwrap();
    assert_eq!(snooze(12, json!({"until": in_a_day})).await.status, 200);
    let act = orders.act(1).await;
    assert!(
        matches!(act.kind, ControlKind::SnoozeTimer { until, .. } if until == before.plus_ms(86_400_000)),
        "{act:?}"
    );
    for bad in
        [json!({}), json!({"seconds": 0}), json!({"until": "1999-01-01T00:00:00Z"}), json!({"until": "soon"})]
    {
        assert_eq!(problem(&snooze(12, bad.clone()).await), refused(400, "invalid_snooze"), "{bad}");
    }
    assert_eq!(problem(&snooze(11, json!({"seconds": 60})).await), refused(409, "follow_up_ended"));
    assert_eq!(problem(&snooze(99, json!({"seconds": 60})).await), refused(404, "unknown_follow_up"));

    let cancel =
        async |position: i64| bare(gateway, "DELETE", &format!("{FOLLOW_UPS}/{}", timer(position))).await;
    // The owner has let the follow-up fire in the meantime, so it is not cancelled, whatever the
    // audit log contains.
    fixture.write(&ends_as("fired")).await;
    assert_eq!(problem(&cancel(12).await), refused(409, "follow_up_ended"));
    fixture.write(&ends_as("cancelled")).await;
    assert_eq!(cancel(13).await.json()["status"], "done");
    assert_eq!(orders.act(3).await.kind, ControlKind::CancelTimer(timer(13)));
    assert_eq!(problem(&cancel(13).await), refused(409, "follow_up_ended"));
    assert_eq!(orders.count().await, 4, "what is refused is not sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_says_which_follow_up_it_is() {
    let (fixture, gateway) = one_gateway().await;
    let _owner = fixture.owner(1, vec![]).await;
    follow_ups(&fixture, &[(12, "fired", "")]).await;
    let fired = timer(12).turn().unwrap();
    fixture.write_turn(&fired, 0, 20, &["are you there?"]).await;
    let shown = http::get_json(gateway, &format!("/v1/turns/{fired}")).await.unwrap();
    let armed_by = TurnId::foreground(&ThreadId::parse("t1").unwrap(), "x").unwrap();
    assert_eq!(
        shown["follow_up"],
        json!({"follow_up_id": timer(12).as_str(), "trigger_type": TriggerType::CheckIn.name(), "reason": "quiet",
               "armed_by": armed_by.as_str()})
    );
    let ordinary = http::get_json(gateway, &format!("/v1/turns/{armed_by}")).await.unwrap();
    assert_eq!((&ordinary["state"], &ordinary["follow_up"]), (&json!("completed"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_put_shown_and_deleted() {
    let (fixture, gateway) = one_gateway().await;
    let orders = CommandLog::read(&fixture, done).await;
    let put =
        async |name: &str, body: Value| send(gateway, "PUT", &format!("{SCHEDULES}/{name}"), &body).await;
    let daily =
        json!({"cron": "0 9 * * *", "time_zone": "Europe/Berlin", "content": "report", "metadata": {"k": 1}});
    // A schedule creates no agent.
    assert_eq!(problem(&put("daily", daily.clone()).await), refused(404, "unknown_agent"));
    assert_eq!(fixture.texts("SELECT name FROM schedules").await, [""; 0]);
    fixture.write(KNOWN_AGENT).await;
    let created = put("daily", daily.clone()).await;
    assert_eq!(created.status, 201, "{}", created.text);
    let shown = created.json();
    assert_eq!(
        (&shown["version"], &shown["overlap"], &shown["missed"]),
        (&json!(1), &json!("skip"), &json!("skip"))
    );
    assert_eq!((&shown["created_by"], &shown["metadata"]), (&json!("api"), &json!({"k": 1})));
    let occurrences = shown["next_occurrences"].as_array().unwrap();
    assert_eq!((occurrences.len(), &occurrences[0]), (5, &shown["next_at"]));
    assert_eq!(orders.act(0).await.kind, ControlKind::PutSchedule(ScheduleName::parse("daily").unwrap()));
    // The due time as the owner of the schedule reads it.
    let pending = "SELECT timer_id FROM timers WHERE state = 'pending' AND kind = 'schedule' AND body ->> 'schedule' = 'daily'";
    let first = fixture.texts(pending).await;
    let due = fixture
        .store
        .due_timers(None, &[TimerId::parse(&first[0]).unwrap()])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    let schedule = due.schedule.unwrap();
    assert_eq!(
        (schedule.cron.as_deref(), schedule.content.as_str(), due.is_due),
        (Some("0 9 * * *"), "report", false)
    );

    let changed = put("daily", json!({"cron": "*/5 * * * *", "content": "report", "overlap": "queue"})).await;
    assert_eq!((changed.status, &changed.json()["version"]), (200, &json!(2)));
    let second = fixture.texts(pending).await;
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    let stale = fixture
        .store
        .due_timers(None, &[TimerId::parse(&first[0]).unwrap()])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    assert_eq!(stale.schedule, None, "what an earlier version has set does nothing");
    let in_an_hour = fixture.store.database_time().await.unwrap().plus_ms(3_600_000);
    let at = wire::rfc3339(in_an_hour).unwrap();
    let once = put("once", json!({"at": at, "content": "call", "enabled": false})).await.json();
    assert_eq!(
        (&once["next_at"], &once["next_occurrences"], &once["at"]),
        (&Value::Null, &json!([]), &json!(at))
    );
    let once = put("once", json!({"at": at, "content": "call"})).await.json();
    assert_eq!((&once["next_at"], &once["next_occurrences"]), (&json!(at), &json!([at])));

    let listed = http::get_json(gateway, SCHEDULES).await.unwrap();
    for list in ["/v1/agents/missing/schedules", "/v1/agents/missing/delayed-tasks"] {
        assert_eq!(problem(&bare(gateway, "GET", list).await), refused(404, "unknown_agent"), "{list}");
    }
    let names: Vec<_> =
        listed["schedules"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["daily", "once"]);
    assert_eq!(http::get_json(gateway, &format!("{SCHEDULES}/once")).await.unwrap(), once);
    assert_eq!(bare(gateway, "DELETE", &format!("{SCHEDULES}/daily")).await.json()["status"], "done");
    assert_eq!(fixture.texts(pending).await, [""; 0]);
    for method in ["GET", "DELETE"] {
        let gone = bare(gateway, method, &format!("{SCHEDULES}/daily")).await;
        assert_eq!(problem(&gone), refused(404, "unknown_schedule"));
    }
    let audit = http::get_json(gateway, "/v1/agents/a1/audit").await.unwrap();
    let acts: Vec<_> = audit["entries"].as_array().unwrap().iter().map(|act| act["action"].clone()).collect();
    assert_eq!(acts, ["delete_schedule", "put_schedule", "put_schedule", "put_schedule", "put_schedule"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_checked_and_a_dry_run_stores_nothing() {
    let (fixture, gateway) = one_gateway().await;
    fixture.write(KNOWN_AGENT).await;
    let put = async |body: Value| send(gateway, "PUT", &format!("{SCHEDULES}/s"), &body).await;
    for (body, why) in [
        (json!({"content": "x"}), "either cron or at"),
        (json!({"content": "x", "cron": "* * * * *", "at": "2100-01-01T00:00:00Z"}), "either cron or at"),
        (json!({"content": "x", "cron": "* * * *"}), "cron: five fields are expected"),
        (json!({"content": "x", "cron": "0 0 30 2 *"}), "never occurs"),
        (json!({"content": "x", "cron": "0 0 * * *", "time_zone": "Mars/Base"}), "time_zone: `Mars/Base`"),
        (json!({"content": "x", "at": "1999-01-01T00:00:00Z"}), "at: it is past"),
        (json!({"content": "x", "at": "soon"}), "at: `soon` is no time"),
        (json!({"content": "x", "cron": "0 0 * * *", "overlap": "merge"}), "overlap must be"),
        (json!({"content": "x", "cron": "0 0 * * *", "missed": "all"}), "missed must be"),
    ] {
        let reply = put(body.clone()).await;
        assert_eq!(problem(&reply), refused(400, "invalid_schedule"), "{body}");
        assert!(reply.json()["detail"].as_str().unwrap().contains(why), "{body}: {}", reply.text);
    }
    let cron = json!({"cron": "0 0 * * *", "content": ""});
    assert_eq!(problem(&put(cron).await), refused(400, "empty_input"));
    let reserved = json!({"cron": "0 0 * * *", "content": "x", "metadata": {"synthetic": true}});
    assert_eq!(problem(&put(reserved).await), refused(400, "invalid_metadata"));
    let dry = send(
        gateway,
        "POST",
        &format!("{SCHEDULES}/s/dry-run"),
        &json!({"cron": "30 2 29 2 *", "content": "x"}),
    )
    .await;
    let occurrences = dry.json()["next_occurrences"].clone();
    assert!(occurrences[0].as_str().unwrap().contains("-02-29T02:30:00Z"), "{occurrences}");
    assert_eq!(
        fixture.texts("SELECT name FROM schedules UNION ALL SELECT timer_id FROM timers").await,
        [""; 0]
    );
    // The maximum number of schedules, and an agent that was erased.
    fixture
        .write(
            "INSERT INTO schedules (bucket, agent_id, name, cron, content, created_by, timer_id)
             SELECT $bucket(a1), 'a1', 'n' || n, '0 0 * * *', 'x', 'anna', 's' || n FROM generate_series(1, 64) AS n",
        )
        .await;
    assert_eq!(
        problem(&put(json!({"cron": "0 0 * * *", "content": "x"})).await),
        refused(409, "too_many_schedules")
    );
    let known =
        send(gateway, "PUT", &format!("{SCHEDULES}/n1"), &json!({"cron": "0 0 * * *", "content": "x"})).await;
    assert_eq!(known.status, 200, "one that is there can be changed");
    fixture.write("DELETE FROM schedules; INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ($bucket(a1), 'a1', 'anna')").await;
    assert_eq!(
        problem(&put(json!({"cron": "0 0 * * *", "content": "x"})).await),
        refused(410, "thread_erased")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_wait_for_their_time() {
    let (fixture, gateway) = one_gateway().await;
    let orders = CommandLog::read(&fixture, done).await;
    let post = async |body: Value| send(gateway, "POST", "/v1/agents/a1/tasks", &body).await;
    let now = fixture.store.database_time().await.unwrap();
    let at = |seconds: i64| wire::rfc3339(now.plus_ms(1_000 * seconds)).unwrap();
    let task = |id: &str, seconds: i64| json!({"task_id": id, "content": "work", "metadata": {"k": 1.0}, "not_before": at(seconds)});
    let accepted = post(task("k1", 600)).await;
    assert_eq!((accepted.status, accepted.header("location")), (202, Some("/v1/agents/a1/delayed-tasks/k1")));
    let agent = AgentId::parse("a1").unwrap();
    let id = |text: &str| TaskId::parse(text).unwrap();
    assert_eq!(orders.act(0).await.kind, ControlKind::DelayTask(id("k1")));
    assert_eq!(post(task("k2", 300)).await.status, 202);
    assert_eq!(post(task("k1", 600)).await.status, 202, "the same again");
    assert_eq!(problem(&post(task("k1", 601)).await), refused(409, "task_conflict"));
    let other = json!({"task_id": "k1", "content": "other", "not_before": at(600)});
    assert_eq!(problem(&post(other).await), refused(409, "task_conflict"));
    for bad in ["tomorrow".to_owned(), at(367 * 86_400), "0001-01-01T00:00:00Z".to_owned()] {
        let body = json!({"content": "x", "not_before": bad});
        assert_eq!(problem(&post(body).await), refused(400, "invalid_not_before"));
    }
    // The due time as the owner of the task reads it.
    let due = fixture
        .store
        .due_timers(None, &[TimerId::of_task(&agent, &id("k1"))])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    assert_eq!((due.is_due, due.due.since_ms(now)), (false, 600_000));
    assert_eq!(due.body.get("task").unwrap()["metadata"], r#"{"k":1}"#);

    let page = http::get_json(gateway, &format!("{DELAYED}?limit=1")).await.unwrap();
    let expected = json!([{"task_id": "k2", "not_before": at(300), "content": "work", "metadata": {"k": 1}}]);
    assert_eq!((&page["delayed_tasks"], &page["next"]), (&expected, &json!("k2")));
    let page = http::get_json(gateway, &format!("{DELAYED}?next=k2")).await.unwrap();
    assert_eq!((&page["delayed_tasks"][0]["task_id"], &page["next"]), (&json!("k1"), &Value::Null));
    assert_eq!(http::get_json(gateway, &format!("{DELAYED}/k1")).await.unwrap()["not_before"], at(600));
    fixture.write(&ends_as("cancelled")).await;
    assert_eq!(bare(gateway, "DELETE", &format!("{DELAYED}/k1")).await.json()["status"], "done");
    assert_eq!(orders.act(3).await.kind, ControlKind::CancelTimer(TimerId::of_task(&agent, &id("k1"))));
    for method in ["GET", "DELETE"] {
        assert_eq!(
            problem(&bare(gateway, method, &format!("{DELAYED}/k1")).await),
            refused(404, "unknown_task")
        );
    }
    fixture
        .write(
            "INSERT INTO timers (bucket, timer_id, kind, agent_id, agent_bucket, due_at)
             SELECT $bucket(a1), 'd-' || n, 'task', 'a1', $bucket(a1), now() FROM generate_series(1, 9999) AS n",
        )
        .await;
    assert_eq!(problem(&post(task("k3", 5)).await), refused(409, "too_many_delayed_tasks"));
    assert_eq!(post(task("k2", 300)).await.status, 202, "one that is there is the same task");
}
