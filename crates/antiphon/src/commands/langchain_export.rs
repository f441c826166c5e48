//! Writes threads as LangChain's messages.

use batches::foreign;
use model::ThreadId;
use serde_json::json;
use store::Store;
use transfer::{ExportOptions, ExportScope, ThreadPages};

use super::export;
use crate::exit::ExitError;
use crate::options::Export;
use crate::output::{self, OutputFormat};
use crate::output_file::OutputFile;

pub(super) async fn run(store: &Store, options: &Export) -> Result<(), ExitError> {
    let scope = export::scope(store, options).await?;
    let mut pages = ThreadPages::new(store, &scope);
    let mut sink = OutputFile::open(options.output.as_deref())?;
    let mut messages = 0;
    let mut threads = 0;
    if let ExportScope::Threads(named) = &scope
        && let [one] = named.as_slice()
    {
        messages += list(store, one, "\n", &mut sink).await?;
        sink.write("\n")?;
        threads = 1;
    } else {
        loop {
            let page = pages.next().await?;
            if page.is_empty() {
                break;
            }
            for id in &page {
                messages += line(store, id, &mut sink).await?;
            }
            threads += page.len();
        }
    }
    sink.close()?;
    if options.output.is_some() {
        let json = json!({"threads": threads, "messages": messages});
        output::print(options.database.output.format(), &json, || output::key_value_table(&json))?;
    } else if options.database.output.format() == OutputFormat::Table {
        output::eprint_line(&format!("{threads} threads, {messages} messages"));
    }
    Ok(())
}

async fn line(store: &Store, id: &ThreadId, sink: &mut OutputFile) -> Result<u64, ExitError> {
    sink.write(format!("{{\"thread_id\":{},\"messages\":", json!(id.as_str())))?;
    let messages = list(store, id, "", sink).await?;
    sink.write("}\n")?;
    Ok(messages)
}

/// The current messages of a thread as a JSON array, in the order of their positions.
async fn list(store: &Store, id: &ThreadId, gap: &str, sink: &mut OutputFile) -> Result<u64, ExitError> {
    let head = store.thread(id).await?.and_then(|row| row.head);
    let ExportOptions { page_messages, page_bytes, .. } = ExportOptions::default();
    let (mut after, mut count) = (None, 0);
    sink.write("[")?;
    while let Some(head) = head {
        let page = store.messages_range(id, after, head, page_messages, page_bytes).await?;
        let Some(last) = page.last().map(|message| message.position) else { break };
        after = Some(last);
        for message in page {
            for message in foreign::langchain(&message) {
                let comma = if count == 0 { "" } else { "," };
                sink.write(format!("{comma}{gap}{message}"))?;
                count += 1;
            }
        }
    }
    sink.write(format!("{gap}]"))?;
    Ok(count)
}
