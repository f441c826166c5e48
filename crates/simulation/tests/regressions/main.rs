//! Faults that the simulation found in the machine, each as the shortest history that shows it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod turns;

use std::sync::Arc;

use model::{
    AgentId, BusyPolicy, Chunk, Command, CommandId, Control, ControlKind, Frame, IncomingChunk, MessageId,
    MessageKey, MessageOutcome, Metadata, PartitionId, Position, QueuedTask, RejectedEntry, Role, Seq, Task,
    TaskId, TaskKind, TaskOrigin, ThreadId, Timestamp, TokenKey, TurnId, TurnOpened, TurnOptions, TurnOrigin,
};
use partition::{
    Action, CommandKey, CommandVerdict, Commit, EntryBody, Input, Lookup, MachineReport, Partition,
    PartitionLimits, RawPayload, SavedAgent, SpilledMessage, Started, StreamEntry, Takeover, TurnRules,
};

const START: Timestamp = Timestamp(1_800_000_000_000);

struct Script {
    machine: Partition,
    now: Timestamp,
}

fn key(message: &str) -> MessageKey {
    MessageKey { thread: ThreadId::parse("t").unwrap(), message: MessageId::parse(message).unwrap() }
}

fn chunk(id: u32, is_final: bool) -> Arc<Chunk> {
    Arc::new(Chunk::content(id, &format!("{id} "), is_final))
}

fn entry(seq: u64, message: &str, attempt: u32, chunk: Arc<Chunk>) -> StreamEntry {
    let arrival =
        IncomingChunk { message: key(message).message, attempt, step: 0, role: Role::Assistant, chunk };
    let body = EntryBody::Frame(Frame { thread: key(message).thread, chunks: vec![arrival], token: None });
    StreamEntry { seq: Seq(seq), stored_at: START, bytes: 1, body }
}

fn spilled(gap_ms: i64, ids: &[u32]) -> SpilledMessage {
    SpilledMessage {
        key: key("a"),
        attempt: 0,
        first_chunk: 0,
        role: Role::Assistant,
        first_seq: Seq(1),
        open_ms: gap_ms,
        gap_ms: Some(gap_ms),
        idle_ms: gap_ms,
        chunks: ids.iter().map(|id| chunk(*id, false)).collect(),
        earlier_calls: Vec::new(),
    }
}

fn token_key() -> TokenKey {
    TokenKey::new(&[7; 32]).unwrap()
}

fn bare() -> Takeover {
    Takeover::bare(PartitionId(0), 1, Seq(0), Timestamp(0), START, token_key())
}

impl Script {
    fn new(limits: PartitionLimits, spilled_messages: Vec<SpilledMessage>) -> Self {
        Self::taken_over(limits, Takeover { spilled_messages, ..bare() })
    }

    fn taken_over(limits: PartitionLimits, takeover: Takeover) -> Self {
        Self { machine: Partition::new(takeover, limits, 7, START), now: START }
    }

    fn take(&mut self, input: Input) -> Vec<Action> {
        self.machine.handle(input, self.now)
    }

    fn read(&mut self, entries: Vec<StreamEntry>, room: usize) -> Vec<Action> {
        self.take(Input::Entries { entries, room })
    }

    fn found(&mut self, message: &str, known: Lookup) -> Vec<Action> {
        self.take(Input::Found(vec![(key(message), known)]))
    }

    /// Lets time pass with a tick each second; commits made meanwhile are applied.
    fn pass(&mut self, seconds: i64) -> Vec<Action> {
        let mut all = Vec::new();
        for _ in 0..seconds {
            self.now = self.now.plus_ms(1_000);
            let mut actions = self.take(Input::Tick);
            while actions.iter().any(|action| matches!(action, Action::Commit(_))) {
                all.append(&mut actions);
                actions = self.take(Input::Committed(Vec::new()));
            }
            all.append(&mut actions);
        }
        all
    }
}

fn failures(actions: &[Action]) -> usize {
    let commits = actions.iter().filter_map(|action| match action {
        Action::Commit(commit) => Some(commit),
        _ => None,
    });
    commits.map(|commit: &Commit| commit.dead_letters.len()).sum()
}

#[test]
fn spilled_message_is_kept_until_stream_is_read() {
    let mut script = Script::new(PartitionLimits::default(), vec![spilled(60_000, &[1])]);
    assert_eq!(failures(&script.pass(40)), 0);
    script.read(vec![entry(1, "a", 0, chunk(0, false)), entry(2, "a", 0, chunk(2, true))], 9);
    script.take(Input::CaughtUp(true));
    assert_eq!(failures(&script.pass(5)), 0, "the missing chunk was in the stream");

    let mut script = Script::new(PartitionLimits::default(), vec![spilled(60_000, &[1])]);
    script.take(Input::CaughtUp(true));
    assert_eq!(failures(&script.pass(2)), 1, "the missing chunk is nowhere");
}

#[test]
fn reading_backlog_does_not_age_spilled_message_again() {
    let mut script = Script::new(PartitionLimits::default(), vec![spilled(20_000, &[1])]);
    let later = |seq: u64| StreamEntry {
        stored_at: START.plus_ms(seq as i64 * 1_000),
        ..entry(seq, "b", 0, chunk(seq as u32, false))
    };
    script.read((1..=15).map(later).collect(), 9);
    script.take(Input::CaughtUp(true));
    assert_eq!(failures(&script.pass(8)), 0);
    assert_eq!(failures(&script.pass(4)), 1);
}

#[test]
fn only_oldest_gap_of_spilled_message_keeps_its_age() {
    let mut script = Script::new(PartitionLimits::default(), vec![spilled(29_000, &[1, 3])]);
    script.take(Input::CaughtUp(true));
    script.read(vec![entry(1, "a", 0, chunk(0, false))], 9);
    assert_eq!(failures(&script.pass(10)), 0);
    assert_eq!(failures(&script.pass(21)), 1);
}

#[test]
fn a_standstill_of_the_process_is_no_silence_of_the_publisher() {
    let mut script = Script::new(PartitionLimits::default(), Vec::new());
    script.take(Input::CaughtUp(true));
    script.read(vec![entry(1, "a", 0, chunk(1, false))], 9);
    script.found("a", Lookup::Absent);
    script.now = script.now.plus_ms(60_000);
    assert_eq!(failures(&script.take(Input::Tick)), 0);
    script.take(Input::Committed(Vec::new()));
    assert_eq!(failures(&script.pass(30)), 1);
}

#[test]
fn what_is_complete_ends_so_whenever_the_store_answers() {
    for early in [true, false] {
        let mut script = Script::new(PartitionLimits::default(), Vec::new());
        let mut actions = script.read(vec![entry(1, "a", 0, chunk(0, true))], 9);
        if early {
            actions.extend(script.found("a", Lookup::Absent));
        }
        actions.extend(script.read(vec![entry(2, "a", 1, chunk(0, false))], 9));
        if !early {
            actions.extend(script.found("a", Lookup::Absent));
        }
        let attempts: Vec<u32> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Commit(commit) => commit.messages.first().map(|message| message.attempt),
                _ => None,
            })
            .collect();
        assert_eq!(attempts, [0], "answered early: {early}");
    }
}

/// Two open messages, the larger at entry 1, the other at 2; the memory of the first is shed.
fn shed_the_first(limits: PartitionLimits) -> Script {
    let mut script = Script::new(limits, Vec::new());
    let large = Arc::new(Chunk::content(0, "larger than the other one", false));
    script.read(vec![entry(1, "a", 0, large), entry(2, "b", 0, chunk(0, false))], 9);
    script.found("a", Lookup::Absent);
    script.found("b", Lookup::Absent);
    script.take(Input::Shed(1));
    script
}

#[test]
fn a_reader_that_was_set_back_is_no_negative_lag() {
    let mut script = shed_the_first(PartitionLimits { replay_entries: 100, ..PartitionLimits::default() });
    assert_eq!(script.take(Input::Room), [Action::Reread(Seq(1))], "nothing is saved");
}

#[test]
fn memory_shed_from_beyond_the_read_position_skips_nothing() {
    let mut script = shed_the_first(PartitionLimits::default());
    assert_eq!(script.take(Input::Room), [Action::Reread(Seq(1))]);
    // When the second message is shed too, the reader is back before both entries.
    script.take(Input::Shed(1));
    assert_eq!(script.machine.load().0, 0);
    assert_eq!(script.take(Input::Room), []);
    assert_eq!(script.machine.last_seq(), Seq(0));
}

#[test]
fn lookup_of_forgotten_message_does_not_count_when_reopened() {
    let limits = PartitionLimits { remembered_bytes: 0, ..PartitionLimits::default() };
    let mut script = Script::new(limits, Vec::new());
    let whole = || vec![entry(1, "a", 0, chunk(0, true))];
    script.read(whole(), 9);
    script.take(Input::Shed(1));
    script.take(Input::Room);
    script.read(whole(), 9);
    // Two look-ups are in flight: the first answer decides nothing.
    assert_eq!(script.found("a", Lookup::Absent), []);
    let actions = script.found("a", Lookup::Absent);
    assert!(actions.iter().any(|action| matches!(action, Action::Commit(_))), "{actions:?}");
    let ended = script.take(Input::Committed(Vec::new()));
    assert!(
        ended
            .iter()
            .any(|action| matches!(action, Action::End(end) if end.outcome == MessageOutcome::Complete))
    );
}

#[test]
fn failed_spilled_message_holds_chunks_until_end_commits() {
    let limits = PartitionLimits { commit_turns: 1, ..PartitionLimits::default() };
    let mut script = Script::new(limits, vec![spilled(0, &[1])]);
    script.take(Input::CaughtUp(true));
    // One commit is in flight and another one waits, so the end of the spilled message must wait
    // for both.
    script.read(vec![entry(1, "b", 0, chunk(0, true)), entry(2, "c", 0, chunk(0, true))], 9);
    script.found("b", Lookup::Absent);
    script.found("c", Lookup::Absent);
    let given_up = |action: &Action| matches!(action, Action::Report(MachineReport::GivenUp { .. }));
    assert!(script.pass(31).iter().any(given_up));
    script.read(vec![entry(3, "a", 0, chunk(5, false))], 9);
    let commits = |actions: &[Action]| -> Vec<(u64, usize)> {
        let commits = actions.iter().filter_map(|action| match action {
            Action::Commit(commit) => Some((commit.checkpoint.0, commit.dead_letters.len())),
            _ => None,
        });
        commits.collect()
    };
    assert_eq!(commits(&script.take(Input::Committed(Vec::new()))), [(2, 0)]);
    assert_eq!(commits(&script.take(Input::Committed(Vec::new()))), [(3, 1)]);
}
