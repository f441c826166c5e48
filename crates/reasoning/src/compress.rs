//! Decides which messages a compression replaces and which are visible after it.

use std::collections::HashSet;

use crate::message::chars;
use crate::text::{check_text, is_blank};
use crate::thread::Pairs;
use crate::{
    MAX_NUMBERS_PER_REQUEST, MAX_SUMMARY_BYTES, MAX_SUMMARY_NUMBER, Number, Reason, ReasoningRole, Refusal,
    Runs, ShownThread,
};

/// The messages to compress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The last messages of the temp layer.
    Last(i64),
    /// From a position to a position, both included.
    Range(i64, i64),
    /// The messages with these numbers.
    Numbers(Vec<i64>),
}

/// An agent's request for a compression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompressionRequest {
    pub selection: Selection,
    /// The text that replaces the selected messages.
    pub summary: String,
    /// The snapshot that the agent saw. In another snapshot, positions may refer to other messages.
    pub token: Option<String>,
}

/// A valid compression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// The replaced messages, in the order in which they are shown.
    pub replaced: Vec<Number>,
    /// The first and last replaced position.
    pub positions: (u64, u64),
    /// The requested positions, before they were widened to keep calls with their results.
    pub asked: (u64, u64),
    /// The number of the summary.
    pub summary: Number,
    /// True if the summary belongs to the temp layer.
    pub in_temp: bool,
    /// The messages shown afterwards.
    pub shown: Runs,
    /// Number of messages shown afterwards.
    pub messages: u64,
    /// Characters of the replaced messages, and of the summary.
    pub chars: (u64, u64),
}

impl Compression {
    /// True if more than requested is replaced, to keep calls with their results.
    pub fn is_widened(&self) -> bool {
        self.positions != self.asked
    }

    /// True if the compression makes the thread longer.
    pub fn is_longer(&self) -> bool {
        self.chars.1 > self.chars.0
    }
}

/// Validates a compression of the shown messages.
///
/// # Errors
/// The request is invalid; then nothing must change.
pub fn compress(thread: &ShownThread, request: &CompressionRequest) -> Result<Compression, Refusal> {
    let pairs = thread.pairs();
    let refused = |reason| {
        // The length of the summary matters only if a single message is replaced. In other cases a
        // shorter summary is possible.
        let summary_chars = if reason == Reason::Single { chars(&request.summary) } else { 0 };
        Refusal { reason, valid: thread.valid(&request.selection, summary_chars.into()) }
    };
    check_summary(&request.summary).map_err(refused)?;
    if request.token.as_ref().is_some_and(|token| *token != thread.token().to_string()) {
        return Err(refused(Reason::Stale { messages: thread.len() }));
    }
    let asked = select(thread, &pairs, &request.selection).map_err(refused)?;
    let (first, last) = widen(&pairs, asked);
    if let Some(open) = (first..=last).find(|index| pairs.is_open(*index)) {
        return Err(refused(Reason::OpenCall { position: open as u64 + 1 }));
    }
    let chosen = &thread.entries[first..=last];
    let source_chars = chosen.iter().map(|entry| u64::from(entry.chars)).sum();
    let summary_chars = u64::from(chars(&request.summary));
    if chosen.len() == 1 && source_chars <= summary_chars {
        return Err(refused(Reason::Single));
    }
    let has_summary = chosen.iter().any(|entry| entry.role == ReasoningRole::Summary);
    if !has_summary && thread.is_full_of_summaries() {
        return Err(refused(Reason::TooManySummaries));
    }
    let summary = thread.last_number + 1;
    if summary > MAX_SUMMARY_NUMBER {
        return Err(refused(Reason::NoNumberLeft));
    }
    let numbers = |range: &[crate::ShownMessage]| range.iter().map(|entry| entry.number).collect::<Vec<_>>();
    let shown = numbers(&thread.entries[..first])
        .into_iter()
        .chain([summary])
        .chain(numbers(&thread.entries[last + 1..]));
    Ok(Compression {
        replaced: numbers(chosen),
        positions: (first as u64 + 1, last as u64 + 1),
        asked: (asked.0 as u64 + 1, asked.1 as u64 + 1),
        summary,
        in_temp: chosen.iter().all(|entry| entry.in_temp),
        shown: Runs::of(shown),
        messages: thread.len() - (last - first) as u64,
        chars: (source_chars, summary_chars),
    })
}

fn check_summary(summary: &str) -> Result<(), Reason> {
    check_text("the summary", summary, MAX_SUMMARY_BYTES)?;
    match is_blank(summary) {
        true => Err(Reason::BlankSummary),
        false => Ok(()),
    }
}

/// The first and last index of the selected messages.
fn select(thread: &ShownThread, pairs: &Pairs, selection: &Selection) -> Result<(usize, usize), Reason> {
    let settled = thread.settled(pairs);
    match selection {
        Selection::Last(count) => {
            let (first, end) = thread.temp(pairs);
            let wanted = usize::try_from(*count).ok().filter(|wanted| (1..=end - first).contains(wanted));
            wanted.map(|wanted| (end - wanted, end - 1)).ok_or(Reason::Count { count: *count })
        }
        Selection::Range(from, to) => {
            let index = |position: i64| usize::try_from(position).ok()?.checked_sub(1);
            let range = index(*from).zip(index(*to)).filter(|(first, last)| first <= last && *last < settled);
            range.ok_or(Reason::Range { from: *from, to: *to, messages: thread.len() })
        }
        Selection::Numbers(numbers) => of_numbers(thread, numbers),
    }
}

fn of_numbers(thread: &ShownThread, numbers: &[i64]) -> Result<(usize, usize), Reason> {
    if numbers.len() > MAX_NUMBERS_PER_REQUEST {
        let (count, max) = (numbers.len() as u64, MAX_NUMBERS_PER_REQUEST as u64);
        return Err(Reason::TooMany { what: "numbers", count, max });
    }
    let mut named = HashSet::with_capacity(numbers.len());
    for number in numbers {
        if !named.insert(*number) {
            return Err(Reason::RepeatedNumber(*number));
        }
    }
    let is_named = |number: Number| i64::try_from(number).is_ok_and(|number| named.contains(&number));
    let mut indices =
        thread.entries.iter().enumerate().filter(|(_, entry)| is_named(entry.number)).map(|(i, _)| i);
    let (Some(first), count) = (indices.next(), indices.clone().count() + 1) else {
        return Err(missing(thread, numbers));
    };
    if count < numbers.len() {
        return Err(missing(thread, numbers));
    }
    let last = indices.next_back().unwrap_or(first);
    match thread.entries[first..=last].iter().find(|entry| !is_named(entry.number)) {
        Some(between) => Err(Reason::NotAdjacent { between: between.number }),
        None => Ok((first, last)),
    }
}

/// The reason why some of these numbers are not shown.
fn missing(thread: &ShownThread, numbers: &[i64]) -> Reason {
    let shown: HashSet<Number> = thread.entries.iter().map(|entry| entry.number).collect();
    for number in numbers {
        match Number::try_from(*number) {
            Ok(given) if shown.contains(&given) => {}
            Ok(given) if (1..=thread.last_number).contains(&given) => return Reason::HiddenNumber(*number),
            _ => return Reason::UnknownNumber(*number),
        }
    }
    Reason::Blank { what: "the list of numbers" }
}

/// The smallest range that contains this one and does not separate a call from its result.
fn widen(pairs: &Pairs, (mut first, mut last): (usize, usize)) -> (usize, usize) {
    let mut seen = first..first;
    loop {
        let (low, high) = (first, last + 1);
        for index in (low..high).filter(|index| !seen.contains(index)) {
            for partner in pairs.partners(index) {
                (first, last) = (first.min(*partner), last.max(*partner));
            }
        }
        seen = low..high;
        if (first, last + 1) == (low, high) {
            return (first, last);
        }
    }
}
