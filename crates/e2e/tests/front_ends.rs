//! Apps that keep their own history, and chat front ends that name the chat and the user in
//! headers.

use serde_json::{Value, json};
use testkit::{fleet::FleetOptions, http, manual_workflow::ManualWorkflow};

use crate::{
    api_client::{SOON, alone},
    fixture::Fixture,
};

const CHAT: &str = "6f9b9f0e-3c1d-4a52-9a7e-0f2f6a1c9d11";

/// A body of chat completions with these messages: roles and texts.
fn body(said: &[(&str, &str)]) -> Value {
    let messages: Vec<_> = said.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
    json!({"model": "ann", "messages": messages})
}

/// The roles and texts of the context that the workflow got.
fn context(request: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let context = request["context"].as_array().unwrap();
    context.iter().map(|message| (text(&message["role"]), text(&message["content"]))).collect()
}

fn owned(said: &[(&str, &str)]) -> Vec<(String, String)> {
    said.iter().map(|(role, text)| ((*role).to_owned(), (*text).to_owned())).collect()
}

/// A fleet whose requests the test answers.
struct FrontEnd {
    fixture: Fixture,
    workflow: ManualWorkflow,
}

impl FrontEnd {
    async fn new() -> Self {
        Self::with(alone).await
    }

    async fn with(change: fn(FleetOptions) -> FleetOptions) -> Self {
        let fixture = Fixture::with(change).await;
        let workflow = fixture.manual_workflow().await;
        Self { fixture, workflow }
    }

    /// Sends a request, answers it with `answer`, and returns what the workflow got and the
    /// response.
    async fn ask(
        &self,
        path: &'static str,
        body: Value,
        headers: &[(&'static str, &'static str)],
        answer: &str,
    ) -> (Value, Value) {
        let (api, headers) = (self.fixture.api(), headers.to_vec());
        let response =
            tokio::spawn(async move { api.send("POST", path, Some(&body), &headers).await.unwrap() });
        let asked = self.workflow.next(SOON).await.unwrap();
        let raw = asked.raw.clone();
        asked.answer(answer).await.unwrap();
        (raw, response.await.unwrap().json().unwrap())
    }

    async fn listed(&self) -> Vec<String> {
        let page = http::get_json(self.fixture.api().0, "/v1/threads").await.unwrap();
        let name = |thread: &Value| thread["thread_id"].as_str().unwrap().to_owned();
        page["threads"].as_array().unwrap().iter().map(name).collect()
    }

    async fn user_of(&self, thread: &str) -> Value {
        self.fixture.api().thread(thread).await.unwrap()["user_id"].clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_of_a_front_end_is_one_thread() {
    let front = FrontEnd::new().await;
    let headers = [("X-OpenWebUI-Chat-Id", CHAT), ("X-OpenWebUI-User-Id", "kim")];
    let completions = "/v1/chat/completions";
    // The chat was begun elsewhere, so the thread begins with what was said there.
    let moved = [("user", "one"), ("assistant", "1"), ("user", "two")];
    let (asked, _) = front.ask(completions, body(&moved), &headers, "2").await;
    assert_eq!((asked["thread_id"].as_str(), context(&asked)), (Some(CHAT), owned(&moved)));
    front.fixture.until_messages(CHAT, 4).await;

    // The next question brings the whole history, which the thread has.
    let system = [("system", "Be brief.")];
    let all: Vec<_> = [&moved[..], &[("assistant", "2"), ("user", "three")]].concat();
    let (asked, _) = front.ask(completions, body(&[&system[..], &all].concat()), &headers, "3").await;
    assert_eq!(context(&asked), owned(&all));
    assert_eq!(asked["parameters"]["instructions"], "Be brief.", "by default");
    let stored = front.fixture.until_messages(CHAT, 6).await;
    assert_eq!(stored.iter().filter(|message| message.content == "two").count(), 1);

    // A title is no part of the chat, nor is a chat that the front end does not keep.
    let task = "### Task:\nGenerate a title.\n### Chat History:\n<chat_history>\nUSER: one\n</chat_history>";
    let (asked, title) = front.ask(completions, body(&[("user", task)]), &headers, "Numbers").await;
    assert_eq!(title["choices"][0]["message"]["content"], "Numbers");
    assert_eq!(context(&asked), owned(&[("user", task)]));
    for unkept in [
        [("X-OpenWebUI-Chat-Id", "temporary:abc")].as_slice(),
        &[("X-OpenWebUI-Chat-Id", CHAT), ("X-Antiphon-Temporary", "tags_generation")],
    ] {
        front.ask(completions, body(&[("user", "psst")]), unkept, "ok").await;
    }
    // A header without a value is none.
    let ordinary = [("X-OpenWebUI-Chat-Id", CHAT), ("X-Antiphon-Temporary", "")];
    let (asked, _) = front.ask(completions, body(&[("user", "four")]), &ordinary, "4").await;
    assert_eq!(asked["thread_id"].as_str(), Some(CHAT));
    front.fixture.until_settled().await;
    assert_eq!(front.fixture.messages_of(CHAT).await.len(), 8);
    assert_eq!(front.listed().await, [CHAT]);
    assert_eq!(front.user_of(CHAT).await, "kim");

    // An id that no thread can have is one all the same, and the thread of the header of Antiphon
    // takes precedence.
    let foreign = [("X-Antiphon-Chat", "chat/7 ä"), ("X-Antiphon-User", "{{USER_ID}}")];
    let (first, _) = front.ask(completions, body(&[("user", "a")]), &foreign, "b").await;
    let (second, _) = front.ask(completions, body(&[("user", "c")]), &foreign, "d").await;
    assert_eq!(first["thread_id"], second["thread_id"]);
    assert_eq!(front.user_of(first["thread_id"].as_str().unwrap()).await, Value::Null);
    let both = [("X-OpenWebUI-Chat-Id", CHAT), ("X-Antiphon-Thread", "mine")];
    let (asked, _) = front.ask(completions, body(&[("user", "e")]), &both, "f").await;
    assert_eq!(asked["thread_id"], "mine");
    // Responses read the same headers.
    let input = json!({"model": "ann", "input": "five"});
    let (asked, _) = front.ask("/v1/responses", input, &headers, "5").await;
    assert_eq!((asked["thread_id"].as_str(), context(&asked).len()), (Some(CHAT), 9));
}

/// Requests of Open WebUI 0.12.4 and of LibreChat 0.8.8 with `@librechat/agents` 3.9.2, as their
/// published code sends them. The names of LibreChat's headers are an operator's choice.
const REQUESTS: &str = include_str!("front_ends/requests.json");

#[tokio::test(flavor = "multi_thread")]
async fn recorded_front_ends_have_one_thread_for_a_chat() {
    let front = FrontEnd::with(|options| {
        let options = alone(options).with_role_env(
            "gateway",
            "ANTIPHON_THREAD_HEADERS",
            "X-OpenWebUI-Chat-Id, X-Conversation-Id",
        );
        options.with_role_env("gateway", "ANTIPHON_USER_HEADERS", "X-User-Id,X-OpenWebUI-User-Id")
    })
    .await;
    let recorded: Value = serde_json::from_str(REQUESTS).unwrap();
    let send = async |name: &str| {
        let request = &recorded[name];
        let headers: Vec<(&'static str, &'static str)> = request["headers"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| {
                let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
                (leak(name), leak(value.as_str().unwrap()))
            })
            .collect();
        let mut body = request["body"].clone();
        body["stream"] = json!(false);
        front.ask("/v1/chat/completions", body, &headers, "A tree of hashes.").await.0
    };
    for (front_end, about) in [
        ("openwebui", ["openwebui_title", "openwebui_tags", "openwebui_follow_ups"].as_slice()),
        ("librechat", &["librechat_title"]),
    ] {
        let second = format!("{front_end}_second_question");
        let chat = ["X-OpenWebUI-Chat-Id", "x-conversation-id"]
            .map(|name| recorded[&second]["headers"][name].clone());
        let chat = chat.iter().find_map(Value::as_str).unwrap();
        let user =
            ["X-OpenWebUI-User-Id", "x-user-id"].map(|name| recorded[&second]["headers"][name].clone());
        for task in about {
            assert_ne!(send(task).await["thread_id"], *chat, "{task}");
        }
        let asked = send(&second).await;
        assert_eq!(asked["thread_id"], *chat, "{front_end}");
        assert_eq!(asked["parameters"]["instructions"], "Be brief.");
        front.fixture.until_messages(chat, 4).await;
        for task in about {
            assert_ne!(send(task).await["thread_id"], *chat, "{task}");
        }
        send(&second).await;
        front.fixture.until_messages(chat, 6).await;
        assert!(user.contains(&front.user_of(chat).await));
    }
    // `user` of a body takes precedence over a header, and other headers name nothing.
    let headers = [("X-User-Id", "header"), ("X-Conversation-Id", "both"), ("X-Antiphon-Chat", "other")];
    let mut both = body(&[("user", "x")]);
    both["user"] = json!("body");
    let (asked, _) = front.ask("/v1/chat/completions", both, &headers, "y").await;
    assert_eq!((&asked["thread_id"], front.user_of("both").await), (&json!("both"), json!("body")));
    front.fixture.until_settled().await;
    assert_eq!(front.listed().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_a_history_leave_no_thread() {
    let front = FrontEnd::new().await;
    let follows =
        json!({"memory": true, "work_request": true, "follow_ups": {"enabled": true}, "context_tokens": 20});
    front.fixture.settle("ann", follows).await;
    let said = [("user", "one"), ("assistant", "1"), ("user", "two")];
    // What is said at last in several messages is one input.
    let long = [&said[..2], &[("user", "Here is a text.")], &said[2..]].concat();
    let (joined, _) = front.ask("/v1/chat/completions", body(&long), &[], "2").await;
    let last = context(&joined).pop();
    assert_eq!(last, Some(("user".to_owned(), "Here is a text.\n\ntwo".to_owned())));
    front
        .fixture
        .settle("ann", json!({"memory": true, "work_request": true, "follow_ups": {"enabled": true}}))
        .await;
    let (completed, _) = front.ask("/v1/chat/completions", body(&said), &[], "2").await;
    let items = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "mcp_call", "id": "c1", "name": "weather", "arguments": "{}", "output": "sun", "server_label": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "1", "annotations": []}]},
        {"role": "user", "content": "two"},
    ]);
    let (responded, response) =
        front.ask("/v1/responses", json!({"model": "ann", "input": items}), &[], "2").await;
    assert_eq!(context(&completed), owned(&said));
    let with_call =
        [("user", "one"), ("assistant", ""), ("tool", "sun"), ("assistant", "1"), ("user", "two")];
    assert_eq!(context(&responded), owned(&with_call));
    assert_eq!(responded["context"][1]["tool_calls"][0]["name"], "weather");
    assert_eq!(responded["parameters"]["instructions"], "Be brief.");
    assert_eq!(response["store"], true);
    // `store: false` asks for the same.
    let (unstored, _) = front
        .ask(
            "/v1/chat/completions",
            json!({"model": "ann", "store": false, "messages": [{"role": "user", "content": "x"}]}),
            &[],
            "y",
        )
        .await;
    let named = json!({"model": "ann", "store": false, "conversation": "mine", "input": "x"});
    let refused = front.fixture.api().send("POST", "/v1/responses", Some(&named), &[]).await.unwrap();
    assert_eq!((refused.status, &refused.json().unwrap()["error"]["param"]), (400, &json!("store")));

    // Nothing follows the turns, no list has the threads, and their answers can be read by id.
    front.fixture.until_settled().await;
    front.fixture.no_request_comes(&front.workflow).await;
    assert_eq!(front.listed().await, Vec::<String>::new());
    let id = response["id"].as_str().unwrap();
    let again = http::get_json(front.fixture.api().0, &format!("/v1/responses/{id}")).await.unwrap();
    assert_eq!(again["output"], response["output"]);
    let pool = crate::fixture::pool(&front.fixture.database_url()).await;
    let threads: Vec<(String, bool)> = sqlx::query_as(
        "SELECT thread_id, is_temporary FROM threads WHERE strpos(thread_id, '+') = 0 ORDER BY 1",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let mut expected: Vec<_> = [&joined, &completed, &responded, &unstored]
        .map(|asked| (asked["thread_id"].as_str().unwrap().to_owned(), true))
        .into();
    expected.sort();
    assert_eq!(threads, expected);
    let (compactions, audited): (i64, i64) =
        sqlx::query_as("SELECT (SELECT count(*) FROM compactions), (SELECT count(*) FROM audit_log WHERE action = 'import_thread')")
            .fetch_one(&pool)
            .await
            .unwrap();
    assert_eq!((compactions, audited), (0, 0));
    // With `import` the thread is kept.
    front.fixture.settle("ann", json!({"client_history": "import"})).await;
    let (kept, _) = front.ask("/v1/chat/completions", body(&said), &[], "2").await;
    let kept = kept["thread_id"].as_str().unwrap().to_owned();
    front.fixture.until_messages(&kept, 4).await;
    assert_eq!(front.listed().await, [kept]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_names_the_user_of_a_thread() {
    let front = FrontEnd::new().await;
    let api = front.fixture.api();
    let budget = json!({"user_id": "spent", "tokens": 0, "period": "day"});
    let put = api.send("PUT", "/v1/budgets/none", Some(&budget), &[]).await.unwrap();
    assert_eq!(put.status, 201, "{}", put.text);
    let ui = json!({"id": "ui", "userId": "kim", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]}]});
    let agui = json!({"threadId": "agui", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "x"}],
        "tools": [], "context": [], "state": {}, "forwardedProps": {}});
    let completion = |field: &str| json!({"model": "ann", field: "kim", "metadata": {"thread_id": field}, "messages": [{"role": "user", "content": "x"}]});
    let header: &[_] = &[("X-OpenWebUI-User-Id", "kim")];
    let ways: [(&str, &str, Value, &[_]); 6] = [
        ("native", "/v1/threads/native/messages", json!({"content": "x", "user_id": "kim"}), &[]),
        ("user", "/v1/chat/completions", completion("user"), &[]),
        ("safety_identifier", "/v1/chat/completions", completion("safety_identifier"), &[]),
        (
            "response",
            "/v1/responses",
            json!({"model": "ann", "input": "x", "user": "kim", "conversation": "response"}),
            &[],
        ),
        ("ui", "/api/chat", ui, &[]),
        ("agui", "/agui", agui, header),
    ];
    for (thread, path, body, headers) in &ways {
        let (body, headers) = (body.clone(), headers.to_vec());
        let path = (*path).to_owned();
        let request = tokio::spawn(async move { api.send("POST", &path, Some(&body), &headers).await });
        let asked = front.workflow.next(SOON).await.unwrap();
        assert_eq!(front.user_of(thread).await, "kim", "{thread}: before the turn begins");
        asked.answer("y").await.unwrap();
        drop(request.await);
        front.fixture.until_messages(thread, 2).await;
    }
    let listed = http::get_json(api.0, "/v1/threads?user_id=kim").await.unwrap();
    assert_eq!(listed["threads"].as_array().unwrap().len(), ways.len());
    // A thread keeps its user, and the user's budget counts for the first message.
    front.ask("/v1/threads/native/messages", json!({"content": "x", "user_id": "lee"}), &[], "y").await;
    assert_eq!(front.user_of("native").await, "kim");
    for (path, body) in [
        ("/v1/threads/new/messages", json!({"content": "x", "user_id": "spent"})),
        (
            "/v1/chat/completions",
            json!({"model": "ann", "user": "spent", "messages": [{"role": "user", "content": "x"}]}),
        ),
    ] {
        let refused = api.send("POST", path, Some(&body), &[]).await.unwrap();
        assert_eq!(refused.status, 429, "{}", refused.text);
    }
    assert_eq!(
        http::get(api.0, "/v1/threads/new").await.unwrap().status,
        404,
        "a refused message leaves no thread"
    );
    for (path, body) in [
        ("/v1/threads/new/messages", json!({"content": "x", "user_id": ""})),
        ("/v1/threads/new/messages", json!({"content": "x", "user_id": "x".repeat(257)})),
        (
            "/v1/chat/completions",
            json!({"model": "ann", "user": "x".repeat(257), "messages": [{"role": "user", "content": "x"}]}),
        ),
    ] {
        let refused = api.send("POST", path, Some(&body), &[]).await.unwrap();
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_read_who_wrote_what() {
    let front = FrontEnd::new().await;
    let api = front.fixture.api();
    let native = json!({"content": "one", "author": {"id": "u1", "name": "Kim"}});
    let (asked, _) = front.ask("/v1/threads/team/messages", native, &[], "1").await;
    assert_eq!(context(&asked), owned(&[("user", "Kim: one")]));
    front.fixture.until_messages("team", 2).await;
    let team = json!({"thread_id": "team"});
    let completion = json!({"model": "ann", "metadata": team, "messages": [{"role": "user", "name": "Lee\nKim", "content": "two"}]});
    front.ask("/v1/chat/completions", completion, &[], "2").await;
    let agui = json!({"threadId": "team", "runId": "r", "messages": [{"id": "m", "role": "user", "name": "Max", "content": "three"}],
        "tools": [], "context": [], "state": {}, "forwardedProps": {}});
    let (api_of, body) = (api, agui.clone());
    let request = tokio::spawn(async move { api_of.send("POST", "/agui", Some(&body), &[]).await });
    front.workflow.next(SOON).await.unwrap().answer("3").await.unwrap();
    drop(request.await);
    let parts = json!([{"type": "text", "text": "four"}]);
    let ui = json!({"id": "team", "messages": [{"id": "m4", "role": "user", "metadata": {"author": {"name": "Ada"}}, "parts": parts}]});
    let request = tokio::spawn(async move { api.send("POST", "/api/chat", Some(&ui), &[]).await });
    let asked = front.workflow.next(SOON).await.unwrap();
    // An author is no line of its own.
    let said = [
        ("user", "Kim: one"),
        ("assistant", "1"),
        ("user", "Lee Kim: two"),
        ("assistant", "2"),
        ("user", "Max: three"),
        ("assistant", "3"),
        ("user", "Ada: four"),
    ];
    assert_eq!(context(&asked.raw), owned(&said));
    asked.answer("4").await.unwrap();
    drop(request.await);
    front.fixture.until_messages("team", 8).await;
    // People see the text as it was written, and who wrote it.
    let history = api.history("team").await.unwrap();
    assert_eq!(
        (&history[0]["content"], &history[0]["metadata"]["author"]),
        (&json!("one"), &json!({"id": "u1", "name": "Kim"}))
    );
    let model = http::get_json(api.0, "/v1/threads/team/context?format=openai").await.unwrap();
    assert_eq!(model["messages"][0]["content"], "Kim: one");
    // Also earlier messages of a request.
    let history = json!([{"role": "user", "name": "Kim", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]);
    let (asked, _) =
        front.ask("/v1/chat/completions", json!({"model": "ann", "messages": history}), &[], "d").await;
    assert_eq!(context(&asked), owned(&[("user", "Kim: a"), ("assistant", "b"), ("user", "c")]));
    // Several people between two answers.
    let said = json!([{"role": "user", "name": "Kim", "content": "I hate tea."}, {"role": "user", "name": "Bob", "content": "I love it."}]);
    let (asked, _) =
        front.ask("/v1/chat/completions", json!({"model": "ann", "messages": said}), &[], "d").await;
    assert_eq!(context(&asked), owned(&[("user", "Kim: I hate tea.\n\nBob: I love it.")]));
    for author in [
        json!({"id": "u1"}),
        json!({"name": ""}),
        json!({"name": "x".repeat(257)}),
        json!({"name": "Kim", "role": "boss"}),
    ] {
        let refused = api
            .send("POST", "/v1/threads/team/messages", Some(&json!({"content": "x", "author": author})), &[])
            .await
            .unwrap();
        assert_eq!(refused.status, 400, "{author}: {}", refused.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_that_moves_in_is_imported_once() {
    let front = FrontEnd::new().await;
    let api = front.fixture.api();
    let said = [("user", "one"), ("assistant", "1"), ("user", "two")];
    // Two models at once are asked in one chat that began elsewhere.
    let asking = || {
        let body = body(&said);
        let chat = [("X-Antiphon-Chat", "moved")];
        tokio::spawn(
            async move { api.send("POST", "/v1/chat/completions", Some(&body), &chat).await.unwrap() },
        )
    };
    let responses = [asking(), asking()];
    for _ in 0..2 {
        front.workflow.next(SOON).await.unwrap().answer("2").await.unwrap();
    }
    for response in responses {
        assert_eq!(response.await.unwrap().status, 200);
    }
    let stored = front.fixture.until_messages("moved", 6).await;
    assert_eq!(stored.iter().filter(|message| message.content == "one").count(), 1, "{stored:?}");
    // One key is one request: the same history again, and not another one.
    let keyed = |first: &'static str| async move {
        let body = body(&[("user", first), ("assistant", "1"), ("user", "two")]);
        api.send("POST", "/v1/chat/completions", Some(&body), &[("idempotency-key", "k")]).await.unwrap()
    };
    let request = tokio::spawn(keyed("one"));
    front.workflow.next(SOON).await.unwrap().answer("2").await.unwrap();
    let answer = request.await.unwrap().json().unwrap();
    assert_eq!(keyed("one").await.json().unwrap()["id"], answer["id"]);
    let other = keyed("other").await;
    assert_eq!(
        (other.status, &other.json().unwrap()["error"]["code"]),
        (422, &json!("idempotency_key_reused"))
    );
    // A request is in one thread, and what cannot be kept is refused with its place.
    let image =
        json!([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]);
    let shown = json!({"model": "ann", "messages": [{"role": "user", "content": image}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]});
    let named = json!({"model": "ann", "input": "x", "conversation": "mine"});
    let temporary = ("X-Antiphon-Temporary", "yes");
    for (path, body, headers, param) in [
        (
            "/v1/chat/completions",
            body(&said),
            vec![("X-Antiphon-Thread", "mine"), temporary],
            "X-Antiphon-Temporary",
        ),
        ("/v1/responses", named, vec![temporary], "X-Antiphon-Temporary"),
        ("/v1/chat/completions", shown, Vec::new(), "messages[0].content[1].type"),
    ] {
        let refused = api.send("POST", path, Some(&body), &headers).await.unwrap();
        let error = &refused.json().unwrap()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{}", refused.text);
    }
    // The settings of the agent that answers decide, also if the request names none.
    front.fixture.settle("strict", json!({"client_history": "ignore"})).await;
    api.create_thread(&json!({"thread_id": "empty", "agent_id": "strict"})).await.unwrap();
    let items = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]);
    let (asked, _) =
        front.ask("/v1/responses", json!({"conversation": "empty", "input": items}), &[], "d").await;
    assert_eq!(context(&asked), owned(&[("user", "c")]));
    // A history that is cut after a result is no whole one.
    let call = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let cut = json!({"model": "ann", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": call},
        {"role": "tool", "tool_call_id": "c", "content": "r"}, {"role": "user", "content": "b"}]});
    let refused = api.send("POST", "/v1/chat/completions", Some(&cut), &[]).await.unwrap();
    assert_eq!(
        (refused.status, &refused.json().unwrap()["error"]["param"]),
        (400, &json!("messages")),
        "{}",
        refused.text
    );
    // A message without an answer belongs to the input, also when the request comes again.
    let again = || async move {
        let body = body(&[("user", "q"), ("assistant", "a"), ("user", "A"), ("user", "B")]);
        let headers = [("idempotency-key", "k"), ("X-Antiphon-Chat", "two")];
        api.send("POST", "/v1/chat/completions", Some(&body), &headers).await.unwrap().json().unwrap()
    };
    let request = tokio::spawn(again());
    let asked = front.workflow.next(SOON).await.unwrap();
    let said = [("user", "q"), ("assistant", "a"), ("user", "A\n\nB")];
    assert_eq!(context(&asked.raw), owned(&said));
    asked.answer("C").await.unwrap();
    assert_eq!(request.await.unwrap()["id"], again().await["id"]);
    // Nor is it lost when the thread has its history already, as after an attempt that failed.
    let headers = [("X-Antiphon-Chat", "two")];
    let later = body(&[("user", "q"), ("assistant", "a"), ("user", "D"), ("user", "E")]);
    let (asked, _) = front.ask("/v1/chat/completions", later, &headers, "F").await;
    assert_eq!(context(&asked).pop(), Some(("user".to_owned(), "D\n\nE".to_owned())));
    // Several messages that begin a chat are no history, so the thread is kept.
    let (asked, _) = front.ask("/v1/chat/completions", body(&[("user", "x"), ("user", "y")]), &[], "z").await;
    assert_eq!(context(&asked), owned(&[("user", "x\n\ny")]));
    let begun = asked["thread_id"].as_str().unwrap().to_owned();
    assert!(front.listed().await.contains(&begun));
    // What an agent refuses is refused in a new thread as well.
    front.fixture.settle("strict", json!({"client_history": "refuse"})).await;
    let mut refused = body(&said);
    refused["model"] = json!("strict");
    let refused = api
        .send("POST", "/v1/chat/completions", Some(&refused), &[("X-Antiphon-Chat", "fresh")])
        .await
        .unwrap();
    assert_eq!(
        (refused.status, &refused.json().unwrap()["error"]["param"]),
        (400, &json!("messages")),
        "{}",
        refused.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn items_of_an_answer_name_its_thread() {
    let front = FrontEnd::new().await;
    let (first, answer) = front.ask("/v1/responses", json!({"model": "ann", "input": "one"}), &[], "1").await;
    // As the AI SDK sends the second question of a chat.
    let question = |text: &str| json!([{"type": "input_text", "text": text}]);
    let items = json!([
        {"role": "user", "content": question("one")},
        {"type": "item_reference", "id": answer["output"][0]["id"]},
        {"role": "user", "content": question("two")},
    ]);
    let body = json!({"model": "ann", "input": items, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}});
    let (second, response) = front.ask("/v1/responses", body, &[], "2").await;
    assert_eq!(second["thread_id"], first["thread_id"]);
    assert_eq!(context(&second), owned(&[("user", "one"), ("assistant", "1"), ("user", "two")]));
    assert_eq!(response["previous_response_id"], answer["id"]);
    // A question whose turn has failed is in no thread, and an answer of another provider neither.
    let reference = json!({"type": "item_reference", "id": response["output"][0]["id"]});
    let mut items = json!([reference, {"role": "user", "content": question("three")}, {"role": "user", "content": question("four")}]);
    let (third, _) =
        front.ask("/v1/responses", json!({"model": "ann", "input": items.clone()}), &[], "3").await;
    assert_eq!(context(&third).pop(), Some(("user".to_owned(), "three\n\nfour".to_owned())));
    items[1]["role"] = json!("assistant");
    let body = json!({"model": "ann", "input": items});
    let refused = front.fixture.api().send("POST", "/v1/responses", Some(&body), &[]).await.unwrap();
    assert_eq!(
        (refused.status, &refused.json().unwrap()["error"]["param"]),
        (400, &json!("input[1].role")),
        "{}",
        refused.text
    );
}
