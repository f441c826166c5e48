//! Erases a user whose clients continue, and while an import runs.

use super::*;

/// Creates threads for ann and sends a message in each, until the task is stopped.
async fn talk(api: testkit::api::Api, name: &'static str, stop: Arc<AtomicBool>) {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let thread = format!("{name}-{number}");
        let made = json!({"thread_id": thread, "metadata": {"user_id": "ann", "note": marked("named")}});
        api.create_thread(&made).await.unwrap();
        api.say(&thread, &marked("said")).await.unwrap();
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn user_erased_under_load_is_gone_or_pending() {
    let fixture = Fixture::with(crate::api_client::scripted).await;
    let api = fixture.api();
    api.create_thread(&json!({"thread_id": "of-bob", "metadata": {"user_id": "bob"}})).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let start = |name| tokio::spawn(talk(fixture.api(), name, Arc::clone(&stop)));
    let writers = [start("a"), start("b")];
    fixture
        .until("they write", SOON, async || fixture.tables_with(MARKER).await.contains_key("messages"))
        .await;

    // The clients do not stop before the command ends.
    let env = [
        ("DATABASE_URL".to_owned(), fixture.database_url()),
        ("NATS_URL".to_owned(), fixture.nats.url().to_owned()),
    ];
    let words = ["erase", "--user", "ann", "--yes", "--wait-seconds", "2", "-o", "json"];
    let done = fleet::invoke(&words, &env).await.unwrap();
    let receipt: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(done.code, Some(1), "{receipt} {}", done.stderr);
    assert!(!receipt["pending"].as_object().unwrap().is_empty(), "{receipt}");

    // The clients stop while the command runs.
    let stopping = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            sleep(Duration::from_secs(3)).await;
            stop.store(true, Ordering::Relaxed);
        }
    });
    let receipt = fixture.command("erase --user ann --yes --wait-seconds 60").await;
    assert!(stop.load(Ordering::Relaxed), "it ends when no new thread comes: {receipt}");
    stopping.await.unwrap();
    for writer in writers {
        writer.await.unwrap();
    }
    // The command did not cover threads that were created after its last listing.
    let receipt = fixture.command("erase --user ann --yes --wait-seconds 60").await;
    assert_eq!(fixture.tables_with(MARKER).await, BTreeMap::new(), "{receipt}");
    assert_eq!(fixture.streams_with(MARKER).await, BTreeMap::new(), "{receipt}");
    let count = "SELECT count(*) FROM threads WHERE thread_id = 'of-bob'";
    let kept: i64 = sqlx::query_scalar(count).fetch_one(&fixture.pool).await.unwrap();
    assert_eq!(kept, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn import_under_way_brings_nothing_erased_back() {
    let fixture = Fixture::with(hasty).await;
    let folder = devservices::services::ScratchDir::new("import").unwrap();
    let file = folder.path().join("messages.json");
    let message = |number: usize| {
        let role = if number.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": marked(&format!("{number} {}", "x".repeat(400)))})
    };
    let messages: Vec<Value> = (0..60_000).map(message).collect();
    std::fs::write(&file, json!(messages).to_string()).unwrap();
    for (thread, erase) in [
        ("acme~imported", "erase --tenant acme --yes --wait-seconds 60"),
        ("imported", "erase --thread imported --yes --wait-seconds 60"),
    ] {
        let env = [("DATABASE_URL".to_owned(), fixture.database_url())];
        let path = file.display().to_string();
        let importing = tokio::spawn({
            let thread = thread.to_owned();
            async move {
                let words = ["database", "import", "--from", "openai", "--thread", &thread, "--file", &path];
                fleet::invoke(&words, &env).await.unwrap()
            }
        });
        fixture
            .until("it has begun", SOON, async || fixture.tables_with(MARKER).await.contains_key("messages"))
            .await;
        let receipt = fixture.command(erase).await;
        let done = importing.await.unwrap();
        assert_eq!(done.code, Some(1), "{thread}: it should have been refused: {}", done.stderr);
        assert!(done.stderr.contains("erased"), "{}", done.stderr);
        assert_eq!(fixture.tables_with(MARKER).await, BTreeMap::new(), "{receipt}");
    }
}
