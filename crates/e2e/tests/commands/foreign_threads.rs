//! Threads of other systems: imported from their exports, and exported to LangChain.

use devservices::workspace;
use serde_json::{Value, json};

use super::CommandFixture;

#[tokio::test(flavor = "multi_thread")]
async fn messages_from_elsewhere_become_batches_once() {
    let mut fixture = CommandFixture::new().await;
    let openai = json!({"messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?", "created_at": 1_750_000_000},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "Thanks"},
        {"role": "assistant", "content": "Welcome."},
    ]});
    let langgraph = json!({"channel_values": {"messages": [
        {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"],
         "kwargs": {"id": "h1", "content": "Hi", "additional_kwargs": {"synthetic": true, "extra": 5}}},
        {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"],
         "kwargs": {"id": "a1", "content": "Hello", "tool_calls": []}},
    ]}});
    for (name, input) in [("openai", &openai), ("langgraph", &langgraph)] {
        std::fs::write(fixture.path(name), input.to_string()).unwrap();
        let words =
            format!("database import --from {name} --thread {name} --file {}", fixture.path(name).display());
        let first = fixture.json(&words).await;
        assert_eq!(first["messages"], first["new_messages"]);
        let before = fixture.stored().await;
        assert_eq!(fixture.json(&words).await["new_messages"], json!(0));
        assert_eq!(fixture.stored().await, before);
    }
    fixture.serve(&[]).await;
    let list = fixture.json("batches list openai").await;
    let shown =
        |batch: &Value| (batch["state"].clone(), batch["message_count"].clone(), batch["input"].clone());
    let shown: Vec<_> = list["batches"].as_array().unwrap().iter().map(shown).collect();
    assert_eq!(
        shown,
        [(json!("complete"), json!(2), json!("Thanks")), (json!("complete"), json!(5), json!("Be kind."))]
    );
    let id = list["batches"][1]["batch_id"].as_str().unwrap();
    let batch = fixture.json(&format!("batches show openai {id}")).await;
    assert_eq!(batch["calls"][0]["tool_call_id"], json!("c1"));
    assert_eq!(batch["calls"][0]["is_answered"], json!(true));
    assert_eq!(batch["messages"][4]["content"], json!("Sunny."));
    let kept =
        fixture.rows("SELECT metadata FROM messages WHERE thread_id = 'langgraph' ORDER BY position").await;
    assert_eq!(kept[0]["metadata"]["additional_kwargs"]["extra"], json!(5));
    assert_eq!(kept[0]["metadata"]["synthetic"], json!(true));
    std::fs::write(fixture.path("bad"), "[{\"role\": \"robot\"}]").unwrap();
    let words = format!("database import --from openai --thread x --file {}", fixture.path("bad").display());
    assert_eq!(
        fixture.refused(&words).await,
        "message 1: its role or type is \"robot\"; nothing was imported"
    );
    assert_eq!(fixture.number("SELECT count(*) FROM threads WHERE thread_id = 'x'").await, 0);
}

/// An input of the tests of `batches::foreign`.
fn input(name: &str) -> String {
    let folder = workspace::root().join("crates/batches/src/foreign/tests/inputs");
    folder.join(format!("{name}.json")).display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_named_and_a_strict_import_refuses_it() {
    let fixture = CommandFixture::new().await;
    let file = input("nul-in-one-of-three");
    let strict = format!("database import --from openai --thread t --file {file} --strict");
    let why = "message 2: content holds a NUL character; nothing was imported";
    assert_eq!(fixture.refused(&strict).await, why);
    assert_eq!(fixture.number("SELECT count(*) FROM threads").await, 0);
    let lenient =
        fixture.invoke(&format!("database import --from openai --thread t --file {file} -o json")).await;
    assert_eq!(lenient.code, Some(0), "{}", lenient.stderr);
    let (replaced, undated) = lenient.stderr.trim().split_once('\n').unwrap();
    assert_eq!(replaced, "antiphon: message 2: content holds a NUL character; it was replaced");
    assert!(undated.starts_with("antiphon: 3 messages have no time of their own"), "{undated}");
    let counts: Value = serde_json::from_str(&lenient.stdout).unwrap();
    assert_eq!((&counts["new_messages"], &counts["notes"]), (&json!(3), &json!(1)));
    let texts = fixture.rows("SELECT content FROM messages WHERE thread_id = 't' ORDER BY position").await;
    assert_eq!(texts[1]["content"], json!("Two\u{fffd} miles."));
    for empty in ["empty-list", "empty-messages"] {
        let words = format!("database import --from openai --thread e --file {}", input(empty));
        assert_eq!(fixture.refused(&words).await, "the input has no messages; no thread was made");
    }
    assert_eq!(fixture.number("SELECT count(*) FROM threads WHERE thread_id = 'e'").await, 0);
    let other = format!("database import --from openai --thread e --file {}", input("claude"));
    let refused = fixture.refused(&other).await;
    assert!(refused.ends_with("try `--from claude`; nothing was imported"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_of_chat_services_become_threads_once() {
    let mut fixture = CommandFixture::new().await;
    for (name, threads, messages) in [("chatgpt", 1, 4), ("claude", 2, 8), ("openwebui", 1, 10)] {
        let words = format!("database import --from {name} --file {}", input(name));
        let first = fixture.json(&words).await;
        assert_eq!(
            (&first["new_threads"], &first["new_messages"]),
            (&json!(threads), &json!(messages)),
            "{name}"
        );
        assert_eq!(first["left_out"]["other_branches"], json!(2), "{name}");
        let before = fixture.stored().await;
        let again = fixture.json(&words).await;
        assert_eq!((&again["new_threads"], &again["new_messages"]), (&json!(0), &json!(0)), "{name}");
        assert_eq!(fixture.stored().await, before, "{name}");
    }
    let id = "690cd704-d550-832d-99c2-5232ca861e4a";
    let thread = fixture.rows(&format!("SELECT metadata FROM threads WHERE thread_id = '{id}'")).await;
    assert_eq!(thread[0]["metadata"]["title"], json!("Boats \u{fffd} of Skagen"));
    assert_eq!(thread[0]["metadata"]["imported_from"]["format"], json!("chatgpt"));
    fixture.serve(&[]).await;
    let list = fixture.json(&format!("batches list {id}")).await;
    assert_eq!(list["batches"][0]["state"], json!("complete"));
    // One chat of several is imported under a given name.
    let claude = format!("database import --from claude --file {}", input("claude"));
    let which = fixture.refused(&format!("{claude} --thread one")).await;
    assert!(which.starts_with("the input has 2 chats, and --thread names one thread"), "{which}");
    let chat = "ad27edfd-0000-4000-8000-000000000002";
    let one = fixture.json(&format!("{claude} --thread one --chat {chat}")).await;
    assert_eq!((&one["new_threads"], &one["new_messages"]), (&json!(1), &json!(2)));
    // The chat id in a file cannot name a tenant.
    let text = std::fs::read_to_string(input("claude")).unwrap().replace(chat, "acme~support");
    let other = std::env::temp_dir().join(format!("antiphon-import-{}.json", std::process::id()));
    std::fs::write(&other, text).unwrap();
    let refused = fixture.refused(&format!("database import --from claude --file {}", other.display())).await;
    std::fs::remove_file(&other).unwrap();
    assert!(refused.contains("has the id \"acme~support\", which names a tenant"), "{refused}");
    let of_tenant = fixture.json(&format!("{claude} --chat {chat} --prefix acme~old-")).await;
    assert_eq!(of_tenant["new_messages"], json!(2));
    let made = format!("SELECT count(*) FROM threads WHERE thread_id = 'acme~old-{chat}'");
    assert_eq!(fixture.number(&made).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn langchain_gets_its_messages_back() {
    let fixture = CommandFixture::new().await;
    let list = json!([
        {"type": "human", "data": {"content": "Hi", "id": "h", "additional_kwargs": {"mood": {"calm": 1}}}},
        {"type": "ai", "data": {"content": "", "id": "a", "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"}]}},
        {"type": "tool", "data": {"content": "F", "id": "t", "tool_call_id": "c", "name": "f"}},
        {"type": "ai", "data": {"content": "So.", "id": "b", "response_metadata": {"model_name": "m"}}},
    ]);
    std::fs::write(fixture.path("list"), list.to_string()).unwrap();
    let import = |thread: &str, file: &str| {
        format!("database import --from langgraph --thread {thread} --file {}", fixture.path(file).display())
    };
    fixture.json(&import("one", "list")).await;
    let export = format!("database export one --to langchain --output {}", fixture.path("out").display());
    assert_eq!(fixture.json(&export).await, json!({"threads": 1, "messages": 4}));
    let out: Value = serde_json::from_slice(&std::fs::read(fixture.path("out")).unwrap()).unwrap();
    assert_eq!(out[0]["data"]["additional_kwargs"]["mood"], json!({"calm": 1}));
    assert_eq!(out[1]["data"]["tool_calls"], list[1]["data"]["tool_calls"]);
    assert_eq!(out[3]["data"]["response_metadata"], json!({"model_name": "m"}));
    fixture.json(&import("two", "out")).await;
    let of = |thread: &str| {
        format!(
            "SELECT message_id, role, content, tool_calls, tool_call_id, metadata FROM messages WHERE thread_id = '{thread}' ORDER BY position"
        )
    };
    assert_eq!(fixture.rows(&of("two")).await, fixture.rows(&of("one")).await);
    let lines = fixture.invoke("database export --all --to langchain").await;
    let lines: Vec<Value> = lines.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<&str> = lines.iter().map(|line| line["thread_id"].as_str().unwrap()).collect();
    assert_eq!(lines.len(), 2, "{ids:?}");
    assert!(lines.iter().all(|line| line["messages"].as_array().unwrap().len() == 4));
}
