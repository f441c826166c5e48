use model::ThreadTitle;
use serde_json::json;

use super::*;
use crate::compaction::{Provenance, Strategy};
use crate::testing::{batch, item, items, position, with_metadata};
use crate::{Batch, group};

fn thread(id: &str) -> ExportedThread {
    let metadata = json!({"title": "T"}).as_object().cloned().unwrap();
    let busy_policy = (id == "t1").then_some(BusyPolicy::Reject);
    let title = (id == "t1").then(|| ThreadTitle { text: "T".to_owned(), by: model::TitleSource::Client });
    let thread_id = ThreadId::parse(id).unwrap();
    let archived = title.is_some();
    ExportedThread { thread_id, agent_id: None, busy_policy, metadata, title, archived }
}

fn feedback() -> Map<String, Value> {
    serde_json::json!({"message_id": "m1", "score": 1.0}).as_object().unwrap().clone()
}

fn follow_up() -> Map<String, Value> {
    serde_json::json!({"follow_up_id": "f0001-7", "status": "fired"}).as_object().unwrap().clone()
}

fn compaction() -> Compaction {
    Compaction {
        id: position(25),
        through: position(10),
        kept: vec![position(5)],
        summary: Some("what was".to_owned()),
        strategy: Strategy::Summarise,
        provenance: Provenance {
            batches: vec![position(10)],
            messages: 2,
            tokens_before: 9,
            tokens_after: 3,
        },
        previous: None,
        counts_from: position(25),
        undone_at: None,
    }
}

/// One thread with a synthetic input, calls, an unanswered input and a compaction. A second thread
/// is empty.
fn batches() -> Vec<Batch> {
    let hint = json!({"synthetic": true, "trigger_type": "check_in", "trigger_reason": "quiet", "n": 1.5});
    let mut all = items("1.1a 2.0u@20 3.0u@21 2.1A@22:c,d 3.1a@23 2.2t@24:d 2.3t@25:c 2.4a@26 4.0u@40");
    all.push(with_metadata(item("1.0u"), hint));
    all[0].token_count = Some(7);
    for item in &mut all {
        item.batch_id = if item.batch_id == position(30) { position(21) } else { item.batch_id };
    }
    group(all)
}

fn exported() -> Vec<String> {
    let mut writer = ExportWriter::new();
    let mut text = writer.header();
    text += &writer.thread(thread("t1"));
    for batch in batches() {
        text += &writer.batch(&batch);
    }
    text += &writer.compaction(compaction());
    text += &writer.follow_up(follow_up());
    text += &writer.feedback(feedback());
    text += &writer.thread(thread("t2"));
    assert_eq!(
        writer.counts(),
        ExportCounts { threads: 2, batches: 4, messages: 10, compactions: 1, reasoning_sessions: 0 }
    );
    text += &writer.trailer();
    text.lines().map(str::to_owned).collect()
}

fn import(mut reader: ExportReader, lines: &[String]) -> (Vec<Record>, Result<ExportCounts, FileError>) {
    let mut records = Vec::new();
    for line in lines {
        match reader.line(line) {
            Ok(more) => records.extend(more),
            Err(fault) => return (records, Err(fault)),
        }
    }
    (records, reader.finish())
}

fn read(lines: &[String]) -> (Vec<Record>, Result<ExportCounts, FileError>) {
    import(ExportReader::new(ImportLimits::default()), lines)
}

/// Ids of the returned batches.
fn given(records: &[Record]) -> Vec<i64> {
    let batch = |record: &Record| match record {
        Record::Batch { items, .. } => Some(items[0].batch_id.get()),
        _ => None,
    };
    records.iter().filter_map(batch).collect()
}

#[test]
fn numbers_and_summaries_that_cannot_be_stored_are_refused() {
    let thread = "{\"thread\":{\"thread_id\":\"t\"}}";
    for number in [0, 1_u64 << 31, u64::MAX] {
        let numbers = format!("{{\"numbers\":{{\"last_number\":{number}}}}}");
        let lines = ["{\"antiphon_export\":2}", thread, &numbers].map(str::to_owned);
        let why = "line 3: it cannot be stored: its last_number is not from 1 to 2147483647";
        assert_eq!(refused(&lines), why);
    }
    let mut writer = ExportWriter::new();
    writer.header();
    let one = Compaction { summary: Some("a\0b".to_owned()), ..compaction() };
    let lines = ["{\"antiphon_export\":2}".to_owned(), thread.to_owned(), writer.compaction(one)];
    assert_eq!(refused(&lines), "line 3: it cannot be stored: its summary holds a NUL character");
}

fn refused(lines: &[String]) -> String {
    read(lines).1.unwrap_err().to_string()
}

#[test]
fn what_was_written_is_read() {
    let lines = exported();
    assert_eq!(lines[0], "{\"antiphon_export\":2}");
    assert_eq!(
        lines[2],
        "{\"message\":{\"position\":\"10\",\"message_id\":\"m10\",\"batch_id\":\"10\",\"sequence_num\":0,\
         \"batch_type\":\"user_request\",\"role\":\"user\",\"content\":\"text 1.0\",\"metadata\":{\"n\":1.5,\
         \"synthetic\":true,\"trigger_reason\":\"quiet\",\"trigger_type\":\"check_in\"},\"created_ms\":10000}}"
    );
    let (records, end) = read(&lines);
    let counts = ExportCounts { threads: 2, batches: 4, messages: 10, compactions: 1, reasoning_sessions: 0 };
    assert_eq!(end, Ok(counts));
    let t1 = ThreadId::parse("t1").unwrap();
    let mut expected = vec![Record::Thread(thread("t1"))];
    for (batch, line) in batches().into_iter().zip([4, 9, 11, 12]) {
        let cursor = Cursor { thread: t1.clone(), batch: batch.id(), line };
        let items = batch.items().iter().map(|item| crate::Item::clone(item)).collect();
        expected.push(Record::Batch { thread: t1.clone(), items, cursor });
    }
    expected.push(Record::Compaction { thread: t1.clone(), compaction: compaction() });
    expected.push(Record::FollowUp { thread: t1.clone(), row: follow_up() });
    expected.push(Record::Feedback { thread: t1, row: feedback() });
    expected.push(Record::Thread(thread("t2")));
    expected.push(Record::End(counts));
    assert_eq!(records, expected);
}

#[test]
fn when_a_message_was_begun_is_kept_and_may_be_absent() {
    let lines = exported();
    let begun: Vec<String> = lines
        .iter()
        .map(|line| line.replace("\"created_ms\":10000}", "\"created_ms\":10000,\"started_ms\":9000}"))
        .collect();
    // The trailer has counts of the whole file, so only the records before it are compared.
    let of_first = |lines: &[String]| {
        let (records, _) = read(lines);
        records.into_iter().find_map(|record| match record {
            Record::Batch { items, .. } => Some(items[0].started_at),
            _ => None,
        })
    };
    assert_eq!(of_first(&lines), Some(None), "as in older files");
    assert_eq!(of_first(&begun), Some(Some(model::Timestamp(9_000))));
}

#[test]
fn a_file_that_was_cut_leaves_whole_batches_only() {
    let lines = exported();
    for end in 0..lines.len() {
        let (records, outcome) = read(&lines[..end]);
        assert_eq!(outcome.unwrap_err().why, LineError::Cut, "after {end} lines");
        let whole = [4, 9, 11, 12].iter().filter(|last| **last < end).count();
        assert_eq!(given(&records).len(), whole, "after {end} lines");
    }
    // The file is cut in the middle of a line.
    let mut cut = lines[..7].to_vec();
    cut[6].truncate(40);
    let (records, outcome) = read(&cut);
    let fault = outcome.unwrap_err();
    assert!(
        fault.to_string().starts_with("line 7: not a line of an export, or cut in the middle: "),
        "{fault}"
    );
    assert_eq!(given(&records), [10]);
}

#[test]
fn an_import_goes_on_where_it_was() {
    let lines = exported();
    let (whole, _) = read(&lines);
    for record in &whole {
        let Record::Batch { cursor, .. } = record else { continue };
        let stored = serde_json::from_value(serde_json::to_value(cursor).unwrap()).unwrap();
        let (rest, end) = import(ExportReader::resume(ImportLimits::default(), stored), &lines);
        assert!(end.is_ok());
        let at = whole.iter().position(|other| other == record).unwrap();
        assert_eq!(rest, whole[at + 1..]);
    }
    let other = |batch: i64, line| {
        let cursor = Cursor { thread: ThreadId::parse("t1").unwrap(), batch: position(batch), line };
        let (records, outcome) = import(ExportReader::resume(ImportLimits::default(), cursor), &lines);
        assert_eq!(given(&records), [] as [i64; 0]);
        outcome.unwrap_err().to_string()
    };
    let sentence = |batch, line| {
        format!(
            "this is not the file whose import began: batch {batch} of thread t1 does not end in line {line}"
        )
    };
    for (batch, line, at) in [(11, 4, 5), (20, 8, 10), (20, 500, 17)] {
        assert_eq!(other(batch, line), format!("line {at}: {}", sentence(batch, line)));
    }
}

#[test]
fn numbers_come_back_as_they_were_written() {
    let mut numbered = batches();
    let first = numbered.remove(0);
    let items = first.items().iter().zip(41..);
    let items: Vec<_> = items
        .map(|(item, number)| crate::Item { number: Some(number), ..crate::Item::clone(item) })
        .collect();
    let mut writer = ExportWriter::new();
    let mut text =
        writer.header() + &writer.thread(thread("t1")) + &writer.batch(&group(items.clone()).remove(0));
    text += &writer.last_number(77);
    text += &writer.trailer();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let (records, outcome) = read(&lines);
    outcome.unwrap();
    let Record::Batch { items: found, cursor, .. } = &records[1] else { panic!("{records:?}") };
    assert_eq!(found, &items);
    let last = Record::LastNumber { thread: ThreadId::parse("t1").unwrap(), last_number: 77 };
    assert_eq!(records[2], last);
    // An import that resumes after the batch also reads the same last number.
    let (rest, _) = import(ExportReader::resume(ImportLimits::default(), cursor.clone()), &lines);
    assert_eq!(rest[0], last);
    let wrong = lines[2].replace("\"number\":41", "\"number\":0");
    let why = "its number is not from 1 to 2147483647";
    assert_eq!(
        refused(&[lines[0].clone(), lines[1].clone(), wrong]),
        format!("line 3, message \"m10\": it cannot be stored: {why}")
    );
}

#[test]
fn a_file_of_the_first_version_is_read_without_numbers() {
    let lines =
        ["{\"antiphon_export\":1}".to_owned()].into_iter().chain(exported().into_iter().skip(1).take(2));
    let (records, outcome) = read(&lines.collect::<Vec<_>>());
    assert_eq!(outcome.unwrap_err().why, LineError::Cut);
    assert!(matches!(records[0], Record::Thread(_)));
}

#[test]
fn what_is_no_export_or_another_one_is_refused() {
    let lines = exported();
    let header = "line 1: the file does not begin with {\"antiphon_export\":2}";
    assert_eq!(refused(&lines[1..]), header);
    assert_eq!(refused(&["hello".to_owned()]), header);
    assert_eq!(refused(&[]), "line 0: the file ends before its trailer: it was cut");
    let version = ["{\"antiphon_export\":3}".to_owned()];
    assert_eq!(refused(&version), "line 1: the file has version 3; this program reads versions 1 to 2");
    let without_thread = [lines[0].clone(), lines[2].clone()];
    assert_eq!(refused(&without_thread), "line 2, message \"m10\": there is no thread line before it");
    let mut twice = lines.clone();
    twice[13] = lines[1].clone();
    assert_eq!(refused(&twice), "line 14: the thread t1 has been before");
    let mut more = lines.clone();
    more.push(String::new());
    assert!(read(&more).1.is_ok());
    more.push(lines[1].clone());
    assert_eq!(refused(&more), "line 19: there is more after the trailer");
}

#[test]
fn a_changed_file_is_noticed() {
    let mut lines = exported();
    lines[3] = lines[3].replace("text 1.1", "text 7.7");
    let (records, outcome) = read(&lines);
    assert_eq!(outcome.unwrap_err().to_string(), "line 17: the digest does not match: the file was changed");
    assert!(!records.iter().any(|record| matches!(record, Record::End(_))));
    let mut lines = exported();
    lines.remove(11);
    assert!(
        matches!(read(&lines).1.unwrap_err().why, LineError::Counts { found, .. } if found.messages == 9)
    );
}

/// The lines of an export of these messages, in the given order.
fn raw(script: &str) -> Vec<String> {
    let mut writer = ExportWriter::new();
    let mut text = writer.header();
    text += &writer.thread(thread("t"));
    for word in script.split_whitespace() {
        text += &writer.batch(&batch(word));
    }
    text.lines().map(str::to_owned).collect()
}

#[test]
fn what_is_out_of_order_or_twice_is_refused_with_its_line() {
    for (script, fault) in [
        ("1.0u 1.1a 2.0u 1.2a@30", "line 6, message \"m30\": batch 10 does not come after batch 20"),
        ("2.0u 1.0u", "line 4, message \"m10\": batch 10 does not come after batch 20"),
        ("1.0u 1.1a@12 1.2a@11", "line 5, message \"m11\": position 11 does not come after 12"),
        ("1.0u@9", "line 3, message \"m9\": position 9 does not come after 10"),
        ("1.0u 1.2a 1.1a@13", "line 5, message \"m13\": number 1 does not come after 2"),
        ("1.0u 2.0u@10", "line 4, message \"m10\": its id has been before in this thread"),
    ] {
        let (records, outcome) = read(&raw(script));
        assert_eq!(outcome.unwrap_err().to_string(), fault);
        assert!(given(&records).len() <= 1);
    }
}

#[test]
fn a_batch_stands_in_one_place_and_threads_have_their_own_ids() {
    let mut writer = ExportWriter::new();
    let mut text = writer.header() + &writer.thread(thread("t1")) + &writer.batch(&batch("1.0u"));
    text += &writer.compaction(compaction());
    text += &writer.batch(&batch("1.1a"));
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(refused(&lines), "line 5, message \"m11\": batch 10 does not come after batch 10");
    let mut writer = ExportWriter::new();
    let mut text = writer.header();
    for id in ["t1", "t2"] {
        text += &writer.thread(thread(id));
        text += &writer.batch(&batch("1.0u 1.1a"));
    }
    text += &writer.trailer();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let (records, end) = read(&lines);
    assert_eq!((given(&records), end.map(|counts| counts.messages)), (vec![10, 10], Ok(4)));
}

#[test]
fn damage_is_refused_or_noted() {
    for (script, at, why) in [
        (
            "1.0u 1.1a 2.0u 2.1t:c 2.2a 3.0u",
            "line 6, message \"m21\"",
            "the result for \"c\" answers no call before it",
        ),
        ("1.0u 1.1a 2.0u 2.2a 3.0u", "line 6, message \"m22\"", "its message number 1 is missing"),
        (
            "1.0u 1.1a 2.0u 2.1a 2.1a@23 3.0u",
            "line 7, message \"m23\"",
            "two of its messages have the number 1",
        ),
    ] {
        let lines = raw(script);
        let (records, outcome) = read(&lines);
        assert_eq!(outcome.unwrap_err().to_string(), format!("{at}: the batch is damaged: {why}"));
        assert_eq!(given(&records), [10], "{script}");
        let kept = import(
            ExportReader::new(ImportLimits {
                invalid_batches: InvalidBatches::Keep,
                ..ImportLimits::default()
            }),
            &lines,
        )
        .0;
        assert_eq!(given(&kept), [10, 20]);
        assert!(
            kept.iter().any(|record| matches!(record, Record::Note { batch, .. } if *batch == position(20)))
        );
    }
    let interrupted = "1.0u 1.1A:c 2.0u 3.0u 3.1a";
    assert_eq!(given(&read(&raw(interrupted)).0), [10, 20], "a turn that was interrupted is no damage");
}

#[test]
fn too_much_is_refused_before_it_is_kept() {
    let calls: Vec<_> = (0..5_000).map(|number| json!({"id": number.to_string()})).collect();
    let many = crate::Item { tool_calls: Some(json!(calls)), ..item("1.1A:c") };
    let mut writer = ExportWriter::new();
    let text =
        writer.header() + &writer.thread(thread("t")) + &writer.batch(&group([item("1.0u"), many]).remove(0));
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(refused(&lines), "line 4, message \"m11\": it has 5000 tool calls; at most 4096 are allowed");
    let with = |limits| import(ExportReader::new(limits), &lines).1.unwrap_err().to_string();
    let bytes = lines[3].len();
    let few = ImportLimits { line_bytes: 1_000, ..ImportLimits::default() };
    assert_eq!(with(few), format!("line 4: it has {bytes} bytes; at most 1000 are allowed"));
    let few = ImportLimits { calls: 9_999, batch_messages: 1, ..ImportLimits::default() };
    assert_eq!(with(few), "line 4, message \"m11\": the batch has more than 1 messages");
    let few = ImportLimits { calls: 9_999, batch_bytes: 1_000, ..ImportLimits::default() };
    assert_eq!(with(few), "line 4, message \"m11\": the batch has more than 1000 bytes");
}

#[test]
fn what_cannot_be_stored_is_refused() {
    let good = &raw("1.0u")[2];
    for (from, to, detail) in [
        ("text 1.0", "a\\u0000", "it holds a NUL character"),
        ("\"user\"", "\"ghost\"", "there is no role \"ghost\""),
        ("user_request", "wish", "there is no batch_type \"wish\""),
        ("\"position\":\"10\"", "\"position\":\"0\"", "its position or batch is not above 0"),
        ("\"created_ms\"", "\"tool_calls\":{},\"created_ms\"", "its tool_calls are no array"),
        (
            "\"created_ms\"",
            "\"metadata\":{\"a\":\"\\u0000\"},\"created_ms\"",
            "metadata holds a NUL character",
        ),
    ] {
        let mut lines = raw("");
        lines.push(good.replacen(from, to, 1));
        assert_eq!(refused(&lines), format!("line 3, message \"m10\": it cannot be stored: {detail}"));
    }
}

#[test]
fn after_a_fault_nothing_is_taken() {
    let lines = exported();
    let mut reader = ExportReader::new(ImportLimits::default());
    reader.line(&lines[0]).unwrap();
    let fault = reader.line("{").unwrap_err();
    assert_eq!(reader.line(&lines[1]), Err(fault));
    assert_eq!(reader.finish().unwrap_err().why, LineError::Cut);
}
