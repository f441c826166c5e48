//! Compares the events of turns that clients received with the stored rows.

use std::collections::BTreeMap;

use super::evidence::{Findings, RuleViolation, apart};
use testkit::{
    db_snapshot::turns::TurnMessage,
    sse::{StreamEvent, Transcript},
};

/// The events of one message that one client received, over all its connections.
#[derive(Default)]
struct View {
    text: String,
    completed: usize,
}

/// True if the clients of a thread have received the end of every message stored in it.
pub fn have_seen_all(thread: &str, transcripts: &[Transcript], messages: &[TurnMessage]) -> bool {
    let views = views(transcripts);
    answers(thread, messages).keys().all(|answer| views.get(answer).is_some_and(|view| view.completed > 0))
}

/// The stored row of one answer.
struct StoredAnswer {
    text: String,
    is_stopped: bool,
}

impl StoredAnswer {
    /// True if a client may have received this text. An owner that was killed may have sent text
    /// after the stop that the next owner does not store.
    fn fits(&self, seen: &str) -> bool {
        if self.is_stopped { seen.starts_with(&self.text) } else { seen == self.text }
    }
}

/// Checks that clients that were subscribed from the beginning of a thread received the end of each
/// answer once, with the stored text.
pub fn verify_views(clients: &[(String, Vec<Transcript>)], messages: &[TurnMessage]) -> Vec<RuleViolation> {
    let mut findings = Findings::default();
    for (thread, transcripts) in clients {
        let (views, answers) = (views(transcripts), answers(thread, messages));
        for (answer, stored) in &answers {
            let place = format!("{thread}/{answer}");
            match views.get(answer) {
                Some(view) if view.completed == 1 && stored.fits(&view.text) => {}
                Some(view) if view.completed == 1 => {
                    let found = apart(&stored.text, &view.text);
                    findings.add("clients see the text that is stored", place, found);
                }
                view => {
                    let found = format!("{} times", view.map_or(0, |view| view.completed));
                    findings.add("clients see each answer end once", place, found);
                }
            }
        }
        for (message, _) in views.iter().filter(|(id, view)| view.completed > 0 && !answers.contains_key(*id))
        {
            findings.add(
                "nothing is complete that is not stored",
                format!("{thread}/{message}"),
                "it is not",
            );
        }
    }
    findings.0
}

/// The text of each answer, including the text of its earlier steps.
fn answers<'a>(thread: &str, messages: &'a [TurnMessage]) -> BTreeMap<&'a str, StoredAnswer> {
    let of_thread: Vec<_> = messages.iter().filter(|row| row.thread_id == thread).collect();
    let batches = of_thread.chunk_by(|a, b| a.batch_id == b.batch_id);
    let answer = |rows: &[&'a TurnMessage]| {
        let text =
            rows.iter().filter(|row| row.role == "assistant").map(|row| row.content.as_str()).collect();
        let last = rows.last()?;
        let is_stopped = last.metadata["stopped"] == true;
        Some((last.message_id.as_str(), StoredAnswer { text, is_stopped }))
    };
    batches.filter_map(answer).collect()
}

fn views(transcripts: &[Transcript]) -> BTreeMap<&str, View> {
    let mut views: BTreeMap<&str, View> = BTreeMap::new();
    for received in transcripts.iter().flat_map(|transcript| &transcript.events) {
        match &received.event {
            StreamEvent::Chunk(chunk) if chunk.kind == "content" => {
                views.entry(&chunk.message).or_default().text.push_str(&chunk.text);
            }
            StreamEvent::Reset { message, .. } => views.entry(message).or_default().text.clear(),
            StreamEvent::Complete { message, .. } => views.entry(message).or_default().completed += 1,
            StreamEvent::Chunk(_)
            | StreamEvent::Failed { .. }
            | StreamEvent::Restart { .. }
            | StreamEvent::Other { .. } => {}
        }
    }
    views
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, time::Instant};

    use serde_json::json;

    use super::*;
    use testkit::sse::{Received, ReceivedChunk};

    fn stored(content: &str, metadata: serde_json::Value) -> Vec<TurnMessage> {
        let row = |id: &str, role: &str, content: &str| TurnMessage {
            thread_id: "t".into(),
            message_id: id.into(),
            position: 1,
            parent_id: None,
            batch_id: 1,
            sequence_num: 0,
            batch_type: "user_request".into(),
            role: role.into(),
            content: content.into(),
            tool_calls: None,
            tool_call_id: None,
            metadata: metadata.clone(),
            attempt: 0,
            transaction: 1,
        };
        let (head, tail) = content.split_at(1);
        vec![row("u-q", "user", "hello"), row("u-a-s0", "assistant", head), row("u-a", "assistant", tail)]
    }

    fn chunk(text: &str) -> StreamEvent {
        let (message, kind) = ("u-a".to_owned(), "content".to_owned());
        StreamEvent::Chunk(ReceivedChunk {
            message,
            attempt: 0,
            id: 0,
            kind,
            text: text.into(),
            is_final: false,
            is_compacted: false,
        })
    }

    fn complete(message: &str) -> StreamEvent {
        StreamEvent::Complete { message: message.into(), position: None, is_stopped: false }
    }

    fn broken(connections: Vec<Vec<StreamEvent>>, messages: &[TurnMessage]) -> Vec<&'static str> {
        let transcript = |events: Vec<StreamEvent>| Transcript {
            events: events
                .into_iter()
                .map(|event| Received { id: None, at: Instant::now(), event })
                .collect(),
            ..Transcript::new(SocketAddr::from(([127, 0, 0, 1], 1)), None)
        };
        let clients = [("t".to_owned(), connections.into_iter().map(transcript).collect())];
        verify_views(&clients, messages).into_iter().map(|violation| violation.rule).collect()
    }

    #[test]
    fn what_clients_see_is_what_is_stored() {
        let (whole, reset) =
            (stored("abc", json!({})), StreamEvent::Reset { message: "u-a".into(), attempt: 1 });
        assert_eq!(broken(vec![vec![chunk("ab")], vec![chunk("c"), complete("u-a")]], &whole), [""; 0]);
        assert_eq!(broken(vec![vec![chunk("x"), reset, chunk("abc"), complete("u-a")]], &whole), [""; 0]);
        let text = ["clients see the text that is stored"];
        assert_eq!(broken(vec![vec![chunk("ab"), complete("u-a")]], &whole), text);
        assert_eq!(broken(vec![vec![chunk("abcd"), complete("u-a")]], &whole), text);
        let stopped = stored("abc", json!({"stopped": true}));
        assert_eq!(broken(vec![vec![chunk("abcd"), complete("u-a")]], &stopped), [""; 0]);
        assert_eq!(broken(vec![vec![chunk("ab"), complete("u-a")]], &stopped), text);
        let once = ["clients see each answer end once"];
        assert_eq!(broken(vec![vec![chunk("abc")]], &whole), once);
        assert_eq!(broken(vec![vec![chunk("abc"), complete("u-a")], vec![complete("u-a")]], &whole), once);
        let more = vec![vec![chunk("abc"), complete("u-a"), complete("u-b")]];
        assert_eq!(broken(more, &whole), ["nothing is complete that is not stored"]);
    }
}
