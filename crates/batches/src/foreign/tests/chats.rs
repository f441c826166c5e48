//! Exports of chat services, in their current formats.

use super::inputs::rendered;
use super::*;
use crate::{BatchState, group};

fn chats(bytes: &[u8], format: ForeignFormat) -> Vec<ForeignThread> {
    read(&parse(bytes).unwrap(), format, Strictness::Lenient).unwrap()
}

/// Checks that every batch is complete, so that the next turn's context includes it.
fn is_complete(thread: &ForeignThread) -> bool {
    let id = ThreadId::parse("t").unwrap();
    let numbered = assign_positions(&id, thread.messages.clone(), Timestamp(1_900_000_000_000));
    assert_eq!(numbered.notes, []);
    group(numbered.items).iter().all(|batch| batch.state() == BatchState::Complete)
}

#[test]
fn chatgpt() {
    let chats = chats(include_bytes!("inputs/chatgpt.json"), ForeignFormat::ChatGpt);
    assert_eq!(
        rendered(&chats[0]),
        "user \"How far is it?\"\nassistant \"\" n5=web.run({\"q\": \"Skagen\"}) ~\"Distance\\nAsk the harbour.\"\n\
         tool \"12 miles\\n\\nChart\\nhttps://example.org\\n12 miles to Skagen\" @n5\nassistant \"Twelve miles.\"\n\
         - 2 of other branches, 1 hidden, 1 empty, 1 that only say how long the model thought"
    );
    let about = (chats[0].id.as_deref(), chats[0].title.as_deref(), chats[0].created_at, chats[0].is_guessed);
    let id = Some("690cd704-d550-832d-99c2-5232ca861e4a");
    assert_eq!(about, (id, Some("Boats \u{fffd} of Skagen"), Some(Timestamp(1_762_449_190_166)), false));
    let metadata = chats[0].messages[0].metadata.to_value();
    assert_eq!(metadata["content_parts"][0]["asset_pointer"], json!("sediment://file_1"));
    assert_eq!(metadata["chatgpt"]["attachments"][0]["name"], json!("chart.png"));
    let answer = &chats[0].messages[3];
    assert_eq!((answer.id.as_deref(), answer.created_at), (Some("n9"), Some(Timestamp(1_762_449_206_000))));
    assert_eq!(answer.metadata.get("model"), Some(&json!("gpt-5-thinking")));
    assert!(is_complete(&chats[0]));
    assert_eq!((chats.len(), chats[1].messages.len(), chats[1].title.as_deref()), (2, 0, None));
}

#[test]
fn the_current_branch_of_chatgpt_is_the_one_that_it_names() {
    let mut input = parse(include_bytes!("inputs/chatgpt.json")).unwrap();
    let mut with = |pointer: Value| {
        input[0]["current_node"] = pointer;
        let mut threads = read(&input, ForeignFormat::ChatGpt, Strictness::Lenient).unwrap();
        threads.swap_remove(0)
    };
    let old = "user \"How fra?\"\nassistant \"Pardon?\"\n- 7 of other branches, 1 hidden, 1 empty";
    let named = with(json!("n4-old"));
    assert_eq!((rendered(&named).as_str(), named.is_guessed), (old, false));
    for pointer in [Value::Null, json!("gone")] {
        let guessed = with(pointer);
        assert_eq!(
            (rendered(&guessed).as_str(), guessed.is_guessed),
            (old, true),
            "its message is the newest"
        );
    }
}

#[test]
fn claude() {
    let chats = chats(include_bytes!("inputs/claude.json"), ForeignFormat::Claude);
    assert_eq!(
        rendered(&chats[0]),
        "user \"How far is it?\\n[log.txt]\\nLeft at noon.\"\n\
         assistant \"I look.\" toolu_1=web_search({\"query\":\"Skagen\"}) ~\"Ask the harbour.\"\n\
         tool \"{\\\"title\\\":\\\"Chart\\\",\\\"type\\\":\\\"knowledge\\\",\\\"url\\\":\\\"https://example.org\\\"}\\n12 miles\" @toolu_1\n\
         assistant \"\" call-1=artifacts({\"command\":\"create\"})\ntool \"OK\" @call-1\nassistant \"Twelve miles.\"\n\
         ! message 2 (\"m4-5\"): its call of \"launch\" has no result; it is kept in the metadata only\n- 2 of other branches"
    );
    assert_eq!(chats[0].messages[4].metadata.to_value(), json!({"is_error": true, "name": "artifacts"}));
    let files = chats[0].messages[0].metadata.to_value();
    assert_eq!(files["attachments"], json!([{"file_name": "log.txt", "file_size": 12, "file_type": "txt"}]));
    assert_eq!(files["files"][0]["file_name"], json!("chart.png"));
    assert!(is_complete(&chats[0]) && chats[0].is_guessed);
    assert_eq!(rendered(&chats[1]), "user \"Hi\"\nassistant \"Hello\"");
    assert!(!chats[1].is_guessed);
}

#[test]
fn claude_with_a_pointer() {
    let mut input = parse(include_bytes!("inputs/claude.json")).unwrap();
    input[0]["current_leaf_message_uuid"] = json!("m2");
    let chat = &read(&input[0], ForeignFormat::Claude, Strictness::Strict).unwrap()[0];
    assert_eq!(rendered(chat), "user \"How fra?\"\nassistant \"Pardon?\"\n- 2 of other branches");
    assert!(!chat.is_guessed);
}

#[test]
fn open_webui() {
    let chats = chats(include_bytes!("inputs/openwebui.json"), ForeignFormat::OpenWebUi);
    assert_eq!(
        rendered(&chats[0]),
        "user \"How far is it?\"\nassistant \"\" call_1=find_boat({\"harbour\": \"Skagen\"}) ~\"Ask the harbour.\"\ntool \"berth 11\" @call_1\n\
         assistant \"At berth 11.\"\nuser \"And the tide?\"\nassistant \"\" call_2=tide({}) ~\"Look it up.\"\ntool \"high\" @call_2\n\
         assistant \"\" ci1=code_interpreter({\"code\":\"1+1\",\"language\":\"python\"})\ntool \"{\\\"stdout\\\":\\\"2\\\"}\" @ci1\n\
         assistant \"High.\"\n- 2 of other branches"
    );
    assert_eq!(
        (chats[0].title.as_deref(), chats[0].instructions.as_deref()),
        (Some("Boats of Skagen"), Some("Be brief."))
    );
    assert!(is_complete(&chats[0]));
    let mut input = parse(include_bytes!("inputs/openwebui.json")).unwrap();
    input[0]["chat"]["history"]["currentId"] = json!("a3");
    let failed = &read(&input, ForeignFormat::OpenWebUi, Strictness::Strict).unwrap()[0];
    assert!(
        rendered(failed).ends_with("user \"And the tide?\"\n- 2 of other branches, 1 failed"),
        "{}",
        rendered(failed)
    );
}

#[test]
fn a_chat_of_the_first_versions_of_open_webui_is_a_list() {
    let input = json!({"id": "x", "chat": {"title": "T", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}});
    let chat = &read(&input, ForeignFormat::OpenWebUi, Strictness::Strict).unwrap()[0];
    assert_eq!(rendered(chat), "user \"Hi\"\nassistant \"Hello\"");
}
