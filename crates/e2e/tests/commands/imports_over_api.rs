//! Imports over the API: what the gateway of one database exports, that of another imports.

use sha2::{Digest, Sha256};
use testkit::http::{self, HttpRequest, TextResponse};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::*;
use crate::api_client::SOON;

impl CommandFixture {
    /// A database with a gateway.
    async fn served() -> Self {
        let mut fixture = Self::new().await;
        fixture.serve(&[]).await;
        fixture
    }

    fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        format!("import --file {}", self.path(name).display())
    }

    fn addr(&self) -> std::net::SocketAddr {
        let (_, url) = self.gateway.as_ref().unwrap().env();
        url.strip_prefix("http://").unwrap().parse().unwrap()
    }

    async fn post(&self, body: &str) -> TextResponse {
        let headers = [("content-type", "application/x-ndjson")];
        let request =
            HttpRequest { method: "POST", path: "/v1/import", headers: &headers, body: body.as_bytes() };
        http::exchange(self.addr(), request).await.unwrap()
    }

    async fn messages_of(&self, thread: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM messages WHERE thread_id = '{thread}'")).await
    }
}

/// The lines with a trailer that fits them; `counts` is that of the trailer before.
pub(crate) fn resealed(lines: &[String]) -> String {
    let (trailer, lines) = lines.split_last().unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut trailer: Value = serde_json::from_str(trailer).unwrap();
    let digest: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    trailer["trailer"]["sha256"] = json!(digest);
    format!("{text}{trailer}\n")
}

/// The lines but the trailer, whose digest covers the time at which a session was imported, and
/// without that time.
fn without_import_time(text: &str) -> Vec<Value> {
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut trailer = lines.pop().unwrap();
    trailer["trailer"]["sha256"].take();
    for session in lines.iter_mut().filter_map(|line| line.get_mut("reasoning_session")) {
        session["changed_at"].take();
    }
    lines.push(trailer);
    lines
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// The last line of an answer.
fn end_of(answer: &TextResponse) -> Value {
    let last: Value = serde_json::from_str(answer.text.lines().last().unwrap()).unwrap();
    last["end"].clone()
}

/// Three threads in the order in which exports have them, of eleven messages each.
async fn three_threads() -> (CommandFixture, [&'static str; 3], String) {
    let source = CommandFixture::new().await;
    let mut threads = ["a", "b", "c"];
    threads.sort_by_key(|thread| bucket(thread));
    for thread in threads {
        source.put(thread, TALK).await;
    }
    let text = source.export("all").await;
    (source, threads, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_over_the_api_is_imported_over_it_once() {
    let mut source = fixture_with_talk().await;
    source
        .execute(&format!(
            "INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at, state, ended_at, body)
             VALUES ({0}, 'f{0:04x}-5', 'follow_up', 't', 'ann', {1}, now(), 'fired', now(), '{{\"armed_position\": \"9000000000\"}}');
             INSERT INTO reasoning_sessions (bucket, session_id, agent_id, source_threads, created_by, last_number)
             VALUES ({2}, 's', 'bot', '{{bot,t}}', 'ada', 1);
             INSERT INTO reasoning_messages (bucket, session_id, number, in_temp, role, content, chars)
             VALUES ({2}, 's', 1, false, 'user', 'thought', 7)",
            bucket("t"),
            bucket("ann"),
            bucket("s")
        ))
        .await;
    source.serve(&[]).await;
    let (a, b) = (source.path("a"), source.path("b"));
    source.json(&format!("export --file {}", a.display())).await;
    let target = CommandFixture::served().await;
    let import = format!("import --file {} --actor ada", a.display());
    let first = target.json(&import).await;
    assert_eq!(first["messages"], json!(11));
    for (read, new) in [
        ("threads", "new_threads"),
        ("messages", "new_messages"),
        ("compactions", "new_compactions"),
        ("reasoning_sessions", "new_reasoning_sessions"),
    ] {
        assert_eq!(first[read], first[new], "{first}");
        assert_ne!(first[read], json!(0), "{first}");
    }
    assert_eq!(target.stored().await, source.stored().await);
    target.json(&format!("export --file {}", b.display())).await;
    let exported = |path: &Path| without_import_time(&std::fs::read_to_string(path).unwrap());
    assert_eq!(exported(&b), exported(&a));

    let versions =
        "SELECT string_agg(xmin::text, ',' ORDER BY bucket, thread_id, position) AS x FROM messages";
    let written = target.rows(versions).await;
    let again = target.json(&import).await;
    assert_eq!(again["messages"], first["messages"]);
    assert_eq!((&again["changed_threads"], &again["new_messages"]), (&json!(0), &json!(0)));
    assert_eq!(target.rows(versions).await, written, "no row was written again");
    let audit = target.json("threads audit t").await;
    let entries: Vec<_> = audit["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (&entry["action"], &entry["actor"]))
        .collect();
    assert_eq!(entries, [(&json!("import_thread"), &json!("ada"))], "only of what changed something");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_import_has_whole_threads_and_can_be_repeated() {
    let (_source, [first, second, third], text) = three_threads().await;
    let target = CommandFixture::served().await;
    let lines = lines_of(&text);
    let cut_at = lines.iter().rposition(|line| line.contains("\"message_id\":\"m20\"")).unwrap();
    let cut = lines[..cut_at].join("\n") + "\n";
    let done = target.invoke(&target.file("cut", &cut)).await;
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let why = format!(
        "line {cut_at}: the file ends before its trailer: it was cut (invalid_import); 22 new messages are stored"
    );
    assert!(done.stderr.contains(&why), "{}", done.stderr);
    let counts = [target.messages_of(first).await, target.messages_of(second).await];
    assert_eq!((counts, target.messages_of(third).await), ([11, 11], 0));
    assert_eq!(target.number("SELECT count(*) FROM threads").await, 2, "nothing of the third");

    // The connection ends in the middle of the second thread.
    let cut_at = lines.iter().enumerate().filter(|(_, line)| line.contains("\"m20\"")).nth(1).unwrap().0;
    let other = CommandFixture::served().await;
    let mut stream = TcpStream::connect(other.addr()).await.unwrap();
    let head = "POST /v1/import HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n";
    let sent = lines[..cut_at].join("\n");
    let request = format!("{head}content-length: {}\r\n\r\n{sent}", text.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let began = std::time::Instant::now();
    while other.messages_of(first).await == 0 {
        assert!(began.elapsed() < SOON, "the first thread is whole, and is not imported");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(stream);
    let whole = target.file("all", &text);
    for fixture in [&target, &other] {
        let counts = fixture.json(&whole).await;
        assert_eq!((&counts["threads"], &counts["messages"]), (&json!(3), &json!(33)));
        let each = "SELECT DISTINCT count(*) AS n FROM messages GROUP BY bucket, thread_id";
        assert_eq!(fixture.rows(each).await, [json!({"n": 11})]);
    }
    assert_eq!(target.stored().await, other.stored().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_line_names_its_place_and_what_came_before_stays() {
    let (_source, [first, second, _], text) = three_threads().await;
    let target = CommandFixture::served().await;
    // Nothing was done before: the request is refused.
    for (body, says) in [
        ("", "line 0: the file ends before its trailer"),
        ("{}\n", "line 1: the file does not begin with"),
        ("{\"antiphon_export\":2}\n{\"message\":", "line 2: not a line of an export, or cut in the middle"),
    ] {
        let answer = target.post(body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        let problem = answer.json().unwrap();
        assert_eq!(problem["code"], json!("invalid_import"));
        assert!(problem["detail"].as_str().unwrap().starts_with(says), "{}", answer.text);
    }
    let json = target.post("").await.header("content-type").map(str::to_owned);
    assert_eq!(json.as_deref(), Some("application/problem+json"));

    let mut lines = lines_of(&text);
    let at = lines.iter().enumerate().filter(|(_, line)| line.contains("\"m12\"")).nth(1).unwrap().0;
    lines[at] = lines[at].replace("\"role\":\"tool\"", "\"role\":\"robot\"");
    let answer = target.post(&resealed(&lines)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let end = end_of(&answer);
    assert_eq!((&end["complete"], &end["counts"]["new_messages"]), (&json!(false), &json!(11)));
    let why = format!("line {}, message \"m12\": it cannot be stored: there is no role \"robot\"", at + 1);
    assert_eq!(end["error"], json!({"code": "invalid_import", "retryable": false, "detail": why}));
    assert_eq!((target.messages_of(first).await, target.messages_of(second).await), (11, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_that_differs_is_refused_and_others_are_imported() {
    let (_source, [first, second, third], text) = three_threads().await;
    let target = CommandFixture::served().await;
    target.json(&target.file("all", &text)).await;
    target
        .execute(&format!(
            "UPDATE messages SET content = 'other' WHERE thread_id = '{first}' AND position = 12;
             INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ({}, '{second}', 'ada');
             DELETE FROM messages WHERE thread_id = '{third}';
             DELETE FROM threads WHERE thread_id = '{third}'",
            bucket(second)
        ))
        .await;
    let answer = target.post(&text).await;
    let end = end_of(&answer);
    assert_eq!((&end["complete"], answer.status), (&json!(true), 200), "{}", answer.text);
    let counts = &end["counts"];
    for (name, count) in [("refused", 1), ("left_out", 1), ("new_threads", 1), ("new_messages", 11)] {
        assert_eq!(counts[name], json!(count), "{name}: {counts}");
    }
    let reports: Vec<Value> = answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let reports: Vec<_> = reports.iter().filter_map(|line| line.get("report")).collect();
    assert_eq!((&reports[0]["outcome"], &reports[0]["thread_id"]), (&json!("refused"), &json!(first)));
    let detail = reports[0]["detail"].as_str().unwrap();
    let why = format!(
        "line 14, message \"m12\", batch 10 of thread {first}: it is there already in another form; nothing of the thread is written"
    );
    assert!(detail.ends_with(&why[8..]) && detail.starts_with("line "), "{detail}\nand not {why}");
    assert_eq!((&reports[1]["outcome"], &reports[1]["thread_id"]), (&json!("left_out"), &json!(second)));
    let done = target.invoke(&target.file("all", &text)).await;
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains(detail) && done.stderr.contains("1 threads or sessions were refused"));
}

/// A thread that is larger than what is held in memory comes in several parts of whole batches.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_thread_is_imported_in_parts_with_little_memory() {
    let source = CommandFixture::new().await;
    source
        .execute(&format!(
            "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content, parent_id, created_at)
             SELECT {0}, 'long', n, 'm' || n, n, n, 0, 'system_trigger', 'assistant', repeat('x', 20000), nullif(n - 1, 0), to_timestamp(n)
             FROM generate_series(1, 4000) AS n;
             INSERT INTO threads (bucket, thread_id, head_position, message_count, last_number) VALUES ({0}, 'long', 4000, 4000, 4000)",
            bucket("long")
        ))
        .await;
    source.export("long").await;
    let target = CommandFixture::served().await;
    let import = format!("import --file {}", source.path("long").display());
    let gateway = target.gateway.as_ref().unwrap();
    let before = gateway.resident_bytes().await;
    let counts = target.json(&import).await;
    let held = gateway.resident_bytes().await.saturating_sub(before);
    assert!(held < 120 << 20, "{held} bytes for an import of 80 MB");
    assert_eq!((&counts["messages"], &counts["new_messages"]), (&json!(4_000), &json!(4_000)));
    assert_eq!(target.stored().await.len(), source.stored().await.len());
    let audit = target.json("threads audit long").await;
    assert_eq!(audit["entries"].as_array().unwrap().len(), 1, "the parts of a request have one entry");
}
