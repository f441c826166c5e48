//! Imports threads of other systems.

use std::collections::BTreeMap;
use std::io::Read;

use batches::Item;
use batches::export_import::{Cursor, ExportedThread};
use batches::foreign::{self, ForeignFormat, ForeignThread, Strictness};
use model::{TENANT_MARK, ThreadId, ThreadTitle, Timestamp, TitleSource};
use serde_json::{Map, Value, json};
use store::Store;
use transfer::{ImportOptions, Importer, erasure};

use super::ImportRun;
use crate::commands::lookup::not_erased;
use crate::exit::ExitError;
use crate::options::Import;
use crate::output::eprint_line;

/// Maximum size in bytes of an input of another system, which is read as a whole.
const MAX_BYTES: u64 = 1 << 30;
/// Maximum number of notes that are printed for one thread; further ones are only counted.
const MAX_NOTES: usize = 50;
/// Chats that an error lists.
const MAX_LISTED: usize = 10;

/// Results of an import beside its counts.
#[derive(Debug, Default)]
pub(super) struct ForeignReport {
    /// Number of notes about messages, printed or not.
    pub(super) notes: usize,
    left_out: BTreeMap<&'static str, u64>,
}

impl ForeignReport {
    /// Number of messages that were left out, by reason.
    pub(super) fn left_out(&self) -> Value {
        json!(self.left_out)
    }
}

impl ImportRun {
    /// Imports threads of another system. All of them are read before the first is written.
    pub(super) async fn foreign(
        &mut self,
        store: &Store,
        format: ForeignFormat,
        options: &Import,
    ) -> Result<ForeignReport, ExitError> {
        if options.thread.is_none() && !format.has_chats() {
            let why = format!("--from {format} needs --thread: its input does not name the thread");
            return Err(ExitError::Configuration(why));
        }
        let value = parsed(&mut self.input)?;
        let strictness = if options.strict { Strictness::Strict } else { Strictness::Lenient };
        let threads = foreign::read(&value, format, strictness)
            .map_err(|error| ExitError::Failed(format!("{error}; nothing was imported")))?;
        drop(value);
        let named = named(threads, options)?;
        let mut report = ForeignReport::default();
        let (mut importer, mut messages) = (Importer::new(store, ImportOptions::default()), 0);
        for (id, thread) in named {
            messages += thread.messages.len();
            if options.thread.is_none()
                && let Some(erasure) = erasure(store, &id).await?
            {
                eprint_line(&format!("{erasure}, and is left out"));
                continue;
            }
            self.foreign_thread((store, &mut importer), &id, format, thread, &mut report).await?;
        }
        if messages == 0 {
            return Err(ExitError::Failed("the input has no messages; no thread was made".to_owned()));
        }
        Ok(report)
    }

    async fn foreign_thread(
        &mut self,
        (store, importer): (&Store, &mut Importer),
        id: &ThreadId,
        format: ForeignFormat,
        thread: ForeignThread,
        report: &mut ForeignReport,
    ) -> Result<(), ExitError> {
        let metadata = metadata(format, &thread);
        let ForeignThread { messages, mut notes, left_out, is_guessed, .. } = thread;
        let now = Timestamp(runtime::Clock::start().now_ms());
        let mut numbered = foreign::assign_positions(id, messages, now);
        foreign::keep_last_input_open(&mut numbered.items);
        let undated = numbered.undated;
        notes.extend(numbered.notes);
        self.progress.clear();
        let prefix = if format.has_chats() { format!("thread {id}: ") } else { String::new() };
        let say = |what: &str| eprint_line(&format!("{prefix}{what}"));
        notes.iter().take(MAX_NOTES).for_each(|note| say(&note.to_string()));
        if let Some(more) = notes.len().checked_sub(MAX_NOTES).filter(|more| *more > 0) {
            say(&format!("{more} more notes"));
        }
        if is_guessed {
            say("it does not name its current branch; the branch of its newest message was taken");
        }
        if !left_out.is_empty() {
            say(&format!("left out: {left_out}"));
        }
        if undated > 0 {
            say(&format!(
                "{undated} messages have no time of their own: each has that of the message before it, or the first moment of 2024. Retention counts \
                 their age from now"
            ));
        }
        report.notes += notes.len();
        for (kind, count) in left_out.counts() {
            *report.left_out.entry(kind.name()).or_default() += count;
        }
        if numbered.items.is_empty() {
            if format.has_chats() {
                say("it has no messages; no thread was made");
            }
            return Ok(());
        }
        not_erased(store, id).await?;
        let title =
            metadata.get("title").and_then(Value::as_str).filter(|title| ThreadTitle::is_valid(title));
        let title = title.map(|title| ThreadTitle { text: title.to_owned(), by: TitleSource::Client });
        let thread = ExportedThread {
            thread_id: id.clone(),
            agent_id: None,
            busy_policy: None,
            metadata,
            title,
            archived: false,
        };
        importer.begin_thread(self, thread).await?;
        for batch in batches::group(numbered.items) {
            let cursor = Cursor { thread: id.clone(), batch: batch.id(), line: 0 };
            let items = batch.items().iter().map(|item| Item::clone(item)).collect();
            importer.batch(self, items, cursor).await?;
        }
        importer.flush(self).await?;
        Ok(())
    }
}

fn parsed(source: &mut dyn Read) -> Result<Value, ExitError> {
    let mut text = Vec::new();
    source
        .take(MAX_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| ExitError::Failed(format!("the input cannot be read: {error}")))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ExitError::Failed(format!("the input has more than {MAX_BYTES} bytes")));
    }
    if text.starts_with(b"PK\x03\x04") {
        let why = "the input is a zip archive: unpack it, and import the conversations.json in it";
        return Err(ExitError::Failed(why.to_owned()));
    }
    foreign::parse(&text)
        .map_err(|error| ExitError::Failed(format!("the input is no JSON, or cut in the middle: {error}")))
}

/// The threads with their ids in Antiphon.
fn named(threads: Vec<ForeignThread>, options: &Import) -> Result<Vec<(ThreadId, ForeignThread)>, ExitError> {
    let mut threads = threads;
    if let Some(chat) = &options.chat {
        threads.retain(|thread| thread.id.as_deref() == Some(chat));
        if threads.is_empty() {
            return Err(ExitError::Failed(format!("the input has no chat with the id {chat:?}")));
        }
    }
    if let Some(id) = &options.thread {
        // Chats without messages cannot be chosen.
        threads.retain(|thread| !thread.messages.is_empty());
        return match threads.len() {
            0 => Ok(Vec::new()),
            1 => Ok(threads.into_iter().map(|thread| (id.clone(), thread)).collect()),
            _ => Err(several(&threads)),
        };
    }
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let name = |(index, thread): (usize, ForeignThread)| {
        let Some(own) = &thread.id else {
            return Err(ExitError::Failed(format!(
                "chat {} has no id: import it alone, with --thread",
                index + 1
            )));
        };
        if own.contains(TENANT_MARK) {
            return Err(ExitError::Failed(format!(
                "chat {} has the id {own:?}, which names a tenant: only --prefix may do that; import it alone, with --thread",
                index + 1
            )));
        }
        let id = ThreadId::parse(&format!("{prefix}{own}")).map_err(|error| {
            ExitError::Failed(format!("chat {} ({own:?}) cannot be a thread: {error}", index + 1))
        })?;
        Ok((id, thread))
    };
    threads.into_iter().enumerate().map(name).collect()
}

/// The error for several chats where one is wanted; it lists the first of them.
fn several(threads: &[ForeignThread]) -> ExitError {
    let listed = threads.iter().take(MAX_LISTED).map(|thread| {
        let title = thread.title.as_deref().unwrap_or_default();
        format!("{} {title:?}", thread.id.as_deref().unwrap_or("without an id"))
    });
    let listed = listed.collect::<Vec<_>>().join(", ");
    let more = if threads.len() > MAX_LISTED { ", …" } else { "" };
    ExitError::Failed(format!(
        "the input has {} chats, and --thread names one thread: choose a chat with --chat, or import all without --thread \
         ({listed}{more})",
        threads.len()
    ))
}

/// Metadata of the thread itself.
fn metadata(format: ForeignFormat, thread: &ForeignThread) -> Map<String, Value> {
    let mut metadata = Map::new();
    if !format.has_chats() {
        return metadata;
    }
    let mut source = json!({"format": format.name()});
    if let Some(id) = &thread.id {
        source["id"] = json!(id);
    }
    if let Some(at) = thread.created_at {
        source["created_at"] = json!(at.0);
    }
    if let Some(instructions) = &thread.instructions {
        source["instructions"] = json!(instructions);
    }
    metadata.insert("imported_from".to_owned(), source);
    metadata.extend(thread.title.as_ref().map(|title| ("title".to_owned(), json!(title))));
    metadata
}
