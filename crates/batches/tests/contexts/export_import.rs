use batches::export_import::{
    Cursor, ExportReader, ExportWriter, ExportedThread, FileError, ImportLimits, InvalidBatches, Record,
};
use batches::foreign::{ForeignMessage, assign_positions};
use batches::{Batch, BatchState, Item, group};
use model::{Metadata, Role, ThreadId, Timestamp};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::history::{self, happens};

fn thread() -> ThreadId {
    ThreadId::parse("t").unwrap()
}

fn exported(batches: &[Batch]) -> String {
    let mut writer = ExportWriter::new();
    let mut text = writer.header();
    text += &writer.thread(ExportedThread {
        thread_id: thread(),
        agent_id: None,
        busy_policy: None,
        metadata: Map::new(),
        title: None,
        archived: false,
    });
    batches.iter().for_each(|batch| text += &writer.batch(batch));
    text + &writer.trailer()
}

/// The batches returned before the end or the error, and the last cursor.
fn import(mut reader: ExportReader, text: &str) -> (Vec<Vec<Item>>, Option<Cursor>, Result<(), FileError>) {
    let (mut batches, mut last) = (Vec::new(), None);
    for line in text.lines() {
        match reader.line(line) {
            Ok(records) => {
                for record in records {
                    if let Record::Batch { items, cursor, .. } = record {
                        batches.push(items);
                        last = Some(cursor);
                    }
                }
            }
            Err(fault) => return (batches, last, Err(fault)),
        }
    }
    (batches, last, reader.finish().map(|_| ()))
}

/// A thread in a form that another system may have stored.
fn foreign_messages() -> impl Strategy<Value = Vec<ForeignMessage>> {
    let message =
        (0..12_u8, proptest::collection::vec(0..3_u8, 1..3), proptest::option::of(0..9_u8), 0..9_i64);
    let message = message.prop_map(|(kind, ids, id, at)| {
        let role = match kind {
            0..=3 => Role::User,
            4..=8 => Role::Assistant,
            9 | 10 => Role::Tool,
            _ => Role::System,
        };
        let call = |id: &u8| json!({"id": format!("c{id}"), "name": "f", "arguments": "{}"});
        ForeignMessage {
            index: 0,
            id: id.map(|id| format!("m{id}")),
            role,
            content: format!("{kind} {ids:?}"),
            tool_calls: (kind > 6 && role == Role::Assistant)
                .then(|| ids.iter().map(call).collect::<Value>()),
            tool_call_id: (role == Role::Tool).then(|| format!("c{}", ids[0])),
            created_at: (at > 3).then_some(Timestamp(1_750_000_000_000 + at)),
            metadata: Metadata::EMPTY,
            token_count: None,
        }
    });
    proptest::collection::vec(message, 0..40)
}

proptest! {
    #[test]
    fn every_thread_travels_whole(script in proptest::collection::vec(happens(), 1..40), cut in any::<u16>()) {
        let mut happened = history::Thread::default();
        script.iter().for_each(|what| happened.happen(what));
        // A message that duplicates another one has the same id, but a store has each id only once.
        let mut items = happened.items;
        items.iter_mut().for_each(|item| item.message_id = format!("m{}", item.position).try_into().unwrap());
        let batches: Vec<Batch> = group(items)
            .into_iter()
            .filter(|batch| batch.items().is_sorted_by(|a, b| a.position < b.position))
            .collect();
        let text = exported(&batches);
        let limits = ImportLimits { invalid_batches: InvalidBatches::Keep, ..ImportLimits::default() };
        let whole: Vec<Vec<Item>> = batches.iter().map(|batch| batch.items().iter().map(|item| Item::clone(item)).collect()).collect();
        let (read, _, end) = import(ExportReader::new(limits), &text);
        prop_assert_eq!(end, Ok(()));
        prop_assert_eq!(&read, &whole);
        // The file is cut anywhere before the last line is complete. Then only whole batches are
        // returned, and the rest can be imported by resuming.
        let at = (0..=usize::from(cut) % (text.len() - 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap();
        let (first, cursor, end) = import(ExportReader::new(limits), &text[..at]);
        prop_assert!(end.is_err());
        prop_assert_eq!(&first[..], &whole[..first.len()]);
        let reader = cursor.map_or_else(|| ExportReader::new(limits), |cursor| ExportReader::resume(limits, cursor));
        let (rest, _, end) = import(reader, &text);
        prop_assert_eq!(end, Ok(()));
        prop_assert_eq!(rest, &whole[first.len()..]);
    }

    #[test]
    fn every_foreign_thread_gets_whole_batches(messages in foreign_messages()) {
        let now = Timestamp(1_800_000_000_000);
        let numbered = assign_positions(&thread(), messages.clone(), now);
        prop_assert_eq!(&assign_positions(&thread(), messages.clone(), now), &numbered);
        let left_out = messages.len() - numbered.items.len();
        prop_assert!(left_out <= numbered.notes.len());
        prop_assert!(numbered.items.is_sorted_by(|a, b| a.position < b.position));
        let batches = group(numbered.items);
        for batch in &batches {
            let items = batch.items();
            prop_assert_eq!(items[0].position, batch.id());
            prop_assert!(items.iter().zip(0..).all(|(item, number)| item.sequence_num == number));
            prop_assert!(items.iter().all(|item| Some(item.batch_type) == batch.batch_type()));
        }
        // An import of an export must accept everything that an import has stored.
        let orphans = |batch: &&Batch| matches!(batch.state(), BatchState::Incomplete(batches::IncompleteReason::OrphanResult { .. }));
        let whole: Vec<Batch> = batches.iter().filter(|batch| !orphans(batch)).cloned().collect();
        let (read, _, end) = import(ExportReader::new(ImportLimits::default()), &exported(&whole));
        prop_assert_eq!((read.len(), end), (whole.len(), Ok(())));
    }
}
