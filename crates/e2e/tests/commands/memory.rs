//! An agent's memory moves from one database into another.

use serde_json::{Value, json};

use super::CommandFixture;

/// A database with the agent `hello`, and no remembered facts.
async fn with_agent() -> CommandFixture {
    let (fixture, bucket) = (CommandFixture::new().await, super::bucket("hello"));
    let sql = format!(
        "INSERT INTO agent_settings (bucket, agent_id, workflow, settings)
         VALUES ({bucket}, 'hello', 'default', '{{\"memory_language\": \"english\"}}')"
    );
    fixture.execute(&sql).await;
    fixture
}

/// A fact as a line of an export.
fn line(id: &str, text: &str, of: Value) -> String {
    let mut fact = json!({
        "fact_id": id, "text": text, "kind": "note", "confidence": 0.5, "user_id": null, "only_in_thread": null,
        "thread_id": null, "message_id": null, "superseded_by": null, "created_at": "2026-05-01T10:00:00Z"
    });
    for (name, value) in of.as_object().unwrap() {
        fact[name] = value.clone();
    }
    fact.to_string()
}

fn file(fixture: &CommandFixture, lines: &[String]) -> String {
    let header = r#"{"antiphon_facts":1,"agent_id":"elsewhere"}"#.to_owned();
    let path = fixture.path("facts.jsonl");
    let lines: Vec<String> = std::iter::once(header).chain(lines.iter().cloned()).collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_facts_come_back_as_they_were() {
    let (from, to) = (with_agent().await, with_agent().await);
    let lines = [
        line(
            "f1",
            "The user sails",
            json!({"user_id": "ann", "thread_id": "t1", "message_id": "m1", "superseded_by": "f2"}),
        ),
        line("f2", "The user rows", json!({"user_id": "ann", "created_at": "2026-05-02T10:00:00.25Z"})),
        line(
            "f3",
            "This is about \"boats\"\n",
            json!({"only_in_thread": "t2", "thread_id": "t2", "kind": "topic", "confidence": 1.0}),
        ),
        line("f4", "All users like boats", json!({})),
        line("f5", "Forgotten", json!({"user_id": "ann", "thread_id": "erased"})),
    ];
    let bucket = super::bucket("erased");
    from.execute(&format!(
        "INSERT INTO erased_threads (bucket, thread_id, actor, receipt) VALUES ({bucket}, 'erased', 'ann', '{{}}')"
    ))
    .await;
    let given = file(&from, &lines);
    let import = format!("memory import hello --actor ann --file {given}");
    assert_eq!(
        from.json(&import).await,
        json!({"facts": 5, "new_facts": 4, "beyond_bound": 0}),
        "one was erased"
    );
    assert_eq!(from.json(&import).await, json!({"facts": 5, "new_facts": 0, "beyond_bound": 0}));
    let audited = from.rows("SELECT subject_id, actor, action, target FROM audit_log").await;
    assert_eq!(
        audited,
        [json!({"subject_id": "hello", "actor": "ann", "action": "import_facts", "target": "4"})]
    );

    let exported = from.path("exported.jsonl").display().to_string();
    let done = from.invoke(&format!("memory export hello --output {exported}")).await;
    assert_eq!((done.code, done.stderr.trim_end()), (Some(0), "antiphon: 4 facts"));
    let text = std::fs::read_to_string(&exported).unwrap();
    let values: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(values[0], json!({"antiphon_facts": 1, "agent_id": "hello"}));
    let mut expected: Vec<Value> =
        lines[..4].iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    expected[2]["text"] = json!("This is about \"boats\"");
    assert_eq!(values[1..], expected);

    to.json(&format!("memory import hello --file {exported}")).await;
    const FACTS: &str = "SELECT * FROM facts ORDER BY fact_id";
    let facts = to.rows(FACTS).await;
    assert_eq!(facts, from.rows(FACTS).await);
    assert_eq!(facts[1]["short_text"], facts[1]["text"], "in the index that searches read");
    let shown = to.invoke("memory export hello").await.stdout;
    assert_eq!(shown, text, "the same bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn import_of_facts_keeps_the_newest_of_a_scope() {
    let fixture = with_agent().await;
    let fact = |number: usize| {
        let at = format!("2026-05-01T10:{:02}:{:02}Z", number / 60, number % 60);
        line(&format!("f{number:04}"), &format!("boat {number}"), json!({"user_id": "ann", "created_at": at}))
    };
    let lines: Vec<String> = (0..1_203).map(fact).chain([line("other", "a boat", json!({}))]).collect();
    let given = file(&fixture, &lines);
    let outcome = fixture.json(&format!("memory import hello --file {given}")).await;
    assert_eq!(outcome, json!({"facts": 1_204, "new_facts": 1_204, "beyond_bound": 203}));
    let left =
        fixture.rows("SELECT count(*) AS n, min(fact_id) AS first FROM facts WHERE scope LIKE 'user%'").await;
    assert_eq!(left, [json!({"n": 1_000, "first": "f0203"})]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_lines_of_facts_are_named() {
    let fixture = with_agent().await;
    let good = line("f1", "The user sails", json!({}));
    for (bad, says) in [
        (line("f2", " ", json!({})), "line 3: the text is empty"),
        (line("", "x", json!({})), "line 3: fact_id must have 1 to 256 bytes"),
        (line("f2", "x", json!({"confidence": 2.0})), "line 3: "),
        (line("f2", "x", json!({"thread_id": "a b"})), "line 3: a b: "),
        (
            line("f2", "x", json!({"user_id": "u", "only_in_thread": "t"})),
            "line 3: user_id and only_in_thread: one of them",
        ),
        (line("f2", "x", json!({"created_at": "today"})), "line 3: created_at \"today\" is not RFC 3339"),
        (line("f2", "x", json!({"colour": "red"})), "line 3: unknown field `colour`"),
        ("{".to_owned(), "line 3: EOF while parsing"),
    ] {
        let given = file(&fixture, &[good.clone(), bad]);
        let said = fixture.refused(&format!("memory import hello --file {given}")).await;
        assert!(said.starts_with(says), "{said}");
        assert_eq!(
            fixture.number("SELECT count(*) FROM facts").await,
            0,
            "nothing of the page is stored: {says}"
        );
    }
    std::fs::write(fixture.path("other"), r#"{"antiphon_facts":2,"agent_id":"x"}"#).unwrap();
    let other = fixture.path("other").display().to_string();
    let said = fixture.refused(&format!("memory import hello --file {other}")).await;
    assert_eq!(said, "line 1: version 2 is not known, 1 is");
    let given = file(&fixture, &[good]);
    let said = fixture.refused(&format!("memory import unknown --file {given}")).await;
    assert_eq!(said, "there is no agent unknown");
    assert_eq!(fixture.invoke("memory import a~b~c").await.code, Some(2));
}
