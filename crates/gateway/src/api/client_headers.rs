//! What chat front ends say in headers: the chat, which is a thread here, and the user.

use axum::http::{HeaderMap, HeaderName};
use http_server::error::{ErrorCode, Problem};
use model::ThreadId;
use sha2::{Digest, Sha256};

use crate::app::request_context::RequestContext;
use crate::commands::{digest_name, validate};

/// Header that asks for a temporary thread with any value, such as the front end's name of a task.
const TEMPORARY: &str = "x-antiphon-temporary";
/// The beginnings of Open WebUI's ids of chats that it does not keep, of this and earlier versions.
const UNKEPT: [&str; 2] = ["temporary:", "local:"];
/// What front ends send that have no id, as `{{` of a template that was not filled in.
const NO_ID: [&str; 3] = ["new", "null", "undefined"];
/// How front ends ask for titles, tags and suggestions: the beginning of the prompt, and what it
/// contains. Open WebUI's questions about documents begin in the same way, without a history.
const AUXILIARY: [(&str, &str); 4] = [
    // Open WebUI 0.12.
    ("### Task:\n", "<chat_history>"),
    ("Your task is to reflect the speaker's likely facial expression", ""),
    ("You have been provided with a set of responses from various models", ""),
    // LibreChat 0.8.
    ("Provide a concise, 5-word-or-less title for the conversation", "Conversation:"),
];

/// What the headers of a request say about its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedByHeaders {
    pub(crate) thread: Option<ThreadId>,
    /// The answer belongs to no chat that is kept.
    pub(crate) is_temporary: bool,
    pub(crate) user: Option<String>,
}

/// Reads the chat and the user of a request.
///
/// # Errors
/// A header is not text, or too long for a name.
pub(crate) fn chat(ctx: &RequestContext, headers: &HeaderMap) -> Result<NamedByHeaders, Problem> {
    let user = user(ctx, headers)?;
    let is_temporary = headers.get(TEMPORARY).is_some_and(|value| !value.is_empty());
    let Some((_, chat)) = first(headers, &ctx.backend()?.requests.thread_headers)? else {
        return Ok(NamedByHeaders { thread: None, is_temporary, user });
    };
    if is_temporary || UNKEPT.iter().any(|beginning| chat.starts_with(beginning)) {
        return Ok(NamedByHeaders { thread: None, is_temporary: true, user });
    }
    // Front ends have other ids than threads.
    let thread = match ctx.thread(chat) {
        Ok(thread) => thread,
        Err(_) => ctx.thread(&format!("h{}", digest_name(&Sha256::digest(chat.as_bytes()))))?,
    };
    Ok(NamedByHeaders { thread: Some(thread), is_temporary: false, user })
}

/// Reads the user of a request.
///
/// # Errors
/// The header is not text, or too long for a name.
pub(crate) fn user(ctx: &RequestContext, headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let named = first(headers, &ctx.backend()?.requests.user_headers)?;
    named.map(|(name, user)| validate::user(name.as_str(), user)).transpose()
}

/// Whether a text, which is the only message of its request, asks for something about a chat, such
/// as its title.
pub(crate) fn is_auxiliary(text: &str) -> bool {
    AUXILIARY.iter().any(|(beginning, inside)| text.starts_with(beginning) && text.contains(inside))
}

/// The first of these headers that has an id.
fn first<'a>(
    headers: &'a HeaderMap,
    names: &'a [HeaderName],
) -> Result<Option<(&'a HeaderName, &'a str)>, Problem> {
    for name in names {
        let Some(value) = headers.get(name) else { continue };
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| Problem::new(ErrorCode::InvalidId, format!("the header {name} is not UTF-8")))?;
        if !text.is_empty() && !NO_ID.contains(&text) && !text.starts_with("{{") {
            return Ok(Some((name, text)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_prompts_about_a_chat_are_auxiliary() {
        for text in [
            "### Task:\nGenerate a concise, 3-5 word title.\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>",
            "Provide a concise, 5-word-or-less title for the conversation, using title case.\n\nConversation:\nhi",
        ] {
            assert!(is_auxiliary(text), "{text}");
        }
        for text in [
            "### Task:\nFix the build",
            "### Task:\nRespond to the user query using the provided context",
            "What does <chat_history> mean? ### Task:\n",
            "hi",
        ] {
            assert!(!is_auxiliary(text), "{text}");
        }
    }
}
