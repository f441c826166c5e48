//! Scenarios: a script of inputs goes in, and the rendered actions come out.
//!
//! `3d` is chunk 3 with text d, `5f!` is final, `2e?` is an error chunk, `1x^2` is of attempt 2,
//! `garbage` is an unusable entry. A text may begin with `>` and end with `<`, the halves of 🚤. A
//! word may name its message: `b:0x`; the default is `a`.
//!
//! `ok` is the commit applied, `+31s` is time passing with a tick. `found` answers the look-up with
//! absent, `ended` with ended, `nothread` with no thread, `refused` with a refusal; `saved` answers
//! the save.

mod capacity;
mod cuts;
mod failures;
mod halves;
mod roles;
mod saving;
mod turns;

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use model::*;

use crate::*;

struct ChunkScript {
    machine: Partition,
    /// Actions of a new machine for its first input.
    first: String,
    now: Timestamp,
    seq: u64,
    room: usize,
    to_find: Vec<MessageKey>,
    commits: Vec<Commit>,
    saves: Vec<Save>,
    reports: Vec<MachineReport>,
    auto_found: bool,
    log: Vec<StreamEntry>,
}

fn takeover() -> Takeover {
    let key = model::TokenKey::new(&[7; 32]).unwrap();
    Takeover::bare(PartitionId(0), 1, Seq(0), Timestamp(0), Timestamp(1_800_000_000_000), key)
}

fn key(message: &str) -> MessageKey {
    MessageKey { thread: ThreadId::parse("t").unwrap(), message: MessageId::parse(message).unwrap() }
}

impl ChunkScript {
    fn new() -> Self {
        let quiet = PartitionLimits { checkpoint_ms: i64::MAX, ..PartitionLimits::default() };
        Self::with(quiet, takeover())
    }

    fn with(limits: PartitionLimits, takeover: Takeover) -> Self {
        let now = Timestamp(1_800_000_000_000);
        let mut script = Self {
            machine: Partition::new(takeover.clone(), limits, 7, now),
            first: String::new(),
            now,
            seq: takeover.checkpoint.0,
            room: usize::MAX,
            to_find: Vec::new(),
            commits: Vec::new(),
            saves: Vec::new(),
            reports: Vec::new(),
            auto_found: true,
            log: Vec::new(),
        };
        script.first = script.handle(Input::CaughtUp(true));
        script
    }

    fn run(&mut self, script: &str) -> String {
        let words: Vec<String> = script.split_whitespace().map(|word| self.word(word)).collect();
        words.join(" | ")
    }

    fn word(&mut self, word: &str) -> String {
        match word {
            "ok" => self.handle(Input::Committed(Vec::new())),
            "found" | "ended" | "nothread" | "refused" => {
                let known = match word {
                    "found" => Lookup::Absent,
                    "ended" => Lookup::Ended,
                    "refused" => Lookup::Refused,
                    _ => Lookup::NoThread,
                };
                let found = std::mem::take(&mut self.to_find).into_iter().map(|key| (key, known)).collect();
                self.handle(Input::Found(found))
            }
            "saved" => self.handle(Input::Saved(Vec::new())),
            "behind" => self.handle(Input::CaughtUp(false)),
            "room" => self.handle(Input::Room),
            word if word.starts_with('+') => {
                let seconds: i64 = word[1..].trim_end_matches('s').parse().unwrap();
                // One tick per second, as the driver sends them: a longer gap between ticks counts
                // as one step.
                let ticks = (0..seconds).map(|_| {
                    self.now = self.now.plus_ms(1_000);
                    self.handle(Input::Tick)
                });
                let said: Vec<String> = ticks.filter(|said| said != "-").collect();
                if said.is_empty() { "-".to_owned() } else { said.join(" ") }
            }
            word => {
                self.seq += 1;
                let (stored_at, bytes) = (self.now, word.len() + 60);
                let entry = StreamEntry { seq: Seq(self.seq), stored_at, bytes, body: body(word) };
                self.log.push(entry.clone());
                self.entries(vec![entry])
            }
        }
    }

    fn entries(&mut self, entries: Vec<StreamEntry>) -> String {
        let room = self.room;
        self.handle(Input::Entries { entries, room })
    }

    fn handle(&mut self, input: Input) -> String {
        let actions = self.machine.handle(input, self.now);
        let mut out = Vec::new();
        for action in actions {
            match &action {
                Action::Lookup(keys) if self.auto_found => {
                    let found = keys.iter().map(|key| (key.clone(), Lookup::Absent)).collect();
                    let next = self.handle(Input::Found(found));
                    if next != "-" {
                        out.push(next);
                    }
                    continue;
                }
                Action::Lookup(keys) => self.to_find.extend(keys.iter().cloned()),
                Action::Commit(commit) => self.commits.push(commit.clone()),
                Action::Save(save) => self.saves.push(save.clone()),
                Action::Report(report) => self.reports.push(report.clone()),
                _ => {}
            }
            out.push(render(&action));
        }
        if out.is_empty() { "-".to_owned() } else { out.join(" ") }
    }

    fn last_commit(&self) -> &Commit {
        self.commits.last().expect("a commit")
    }
}

fn body(word: &str) -> EntryBody {
    if word == "garbage" {
        let refusal = RejectedEntry { code: "malformed", detail: "not a frame".into() };
        return EntryBody::Refused {
            subject: "chunks.0.t".into(),
            payload: Bytes::from_static(b"?"),
            refusal,
            answer: None,
        };
    }
    let (message, rest) = word.split_once(':').unwrap_or(("a", word));
    let (rest, attempt) = rest.split_once('^').unwrap_or((rest, "0"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let text = rest[digits.len()..].trim_end_matches(['!', '?']);
    let halves = Halves::new(text.starts_with('>').then_some(0xDEA4), text.ends_with('<').then_some(0xD83D));
    let text = text.trim_start_matches('>').trim_end_matches('<');
    let content = Chunk::content(digits.parse().unwrap(), text, rest.ends_with('!'));
    let mut chunk = Chunk { halves, ..content };
    if rest.ends_with('?') {
        chunk.kind = ChunkKind::Error;
    }
    let arrival = IncomingChunk {
        message: MessageId::parse(message).unwrap(),
        attempt: attempt.parse().unwrap(),
        step: 0,
        role: Role::Assistant,
        chunk: Arc::new(chunk),
    };
    EntryBody::Frame(Frame { thread: ThreadId::parse("t").unwrap(), chunks: vec![arrival], token: None })
}

fn render(action: &Action) -> String {
    let name = |key: &MessageKey| match key.message.as_str() {
        "a" => String::new(),
        other => format!("{other}:"),
    };
    match action {
        Action::Lookup(keys) => format!("look-up({})", keys.len()),
        Action::Publish(release) => {
            let mut out = name(&release.key);
            if release.attempt > 0 {
                write!(out, "^{} ", release.attempt).unwrap();
            }
            let texts: Vec<&str> = release.chunks.iter().map(|chunk| &*chunk.text).collect();
            out + &texts.join(",")
        }
        Action::Commit(commit) => {
            let mut out = String::from("commit(");
            for message in &commit.messages {
                write!(out, "{}{:?} ", name(&message.key), message.content).unwrap();
            }
            for letter in &commit.dead_letters {
                match &letter.source {
                    DeadLetterSource::Entry { refusal, .. } => write!(out, "dead:{} ", refusal.code).unwrap(),
                    DeadLetterSource::Message { key, failure, chunks, .. } => {
                        write!(out, "{}dead:{}/{} ", name(key), failure.code(), chunks.len()).unwrap();
                    }
                }
            }
            format!("{out}@{})", commit.checkpoint)
        }
        Action::Save(save) => {
            let part = |part: &SpilledMessage| {
                let ids: Vec<String> = part.chunks.iter().map(|chunk| chunk.id.to_string()).collect();
                format!("{}{}", name(&part.key), ids.join(","))
            };
            format!("save({})", save.messages.iter().map(part).collect::<Vec<_>>().join(" "))
        }
        Action::End(ending) => {
            let outcome = match &ending.outcome {
                MessageOutcome::Complete => "complete",
                MessageOutcome::Stopped => "stopped",
                MessageOutcome::Failed(failure) => failure.code(),
            };
            format!("{}{outcome}", name(&ending.key))
        }
        Action::Snapshot(answer) => format!("answer({})", answer.open.len()),
        Action::ChangedThreads(sent) => format!("sent({})", sent.threads.len()),
        Action::Reread(from) => format!("reread({from})"),
        Action::Check(_)
        | Action::Start(_)
        | Action::CheckLease(_)
        | Action::Abandon { .. }
        | Action::LoadTasks { .. }
        | Action::Send(_)
        | Action::DecideTimers(_)
        | Action::LoadTimers { .. }
        | Action::DelayTask { .. }
        | Action::Status(_)
        | Action::Report(
            MachineReport::TurnFailed { .. }
            | MachineReport::OutOfOrder { .. }
            | MachineReport::Finalized { .. }
            | MachineReport::Unauthorized(_)
            | MachineReport::OtherRole(_)
            | MachineReport::Timer { .. }
            | MachineReport::InvalidFacts { .. },
        ) => action.name().to_owned(),
        Action::Report(MachineReport::Conflict { .. }) => "conflict".into(),
        Action::Report(MachineReport::GivenUp { .. }) => "given-up".into(),
        Action::Report(MachineReport::Hole { first, last }) => format!("hole({first}-{last})"),
        Action::Report(MachineReport::Deferring(from)) => format!("deferring({from})"),
    }
}

fn run(script: &str) -> String {
    ChunkScript::new().run(script)
}

#[test]
fn the_arrival_of_the_requirements() {
    assert_eq!(
        run("3d 1b 4e 0a 5f! 2c ok"),
        r#"- | - | - | a,b | - | c,d,e,f commit("abcdef" @6) | complete"#
    );
}

#[test]
fn the_buffer_is_freed_only_after_the_commit() {
    let mut script = ChunkScript::new();
    script.run("0a 1b!");
    assert_eq!(script.machine.stats(script.now).open, 1);
    script.run("ok");
    assert_eq!(script.machine.stats(script.now).open, 0);
}

#[test]
fn one_commit_is_in_flight_and_the_next_gathers() {
    assert_eq!(
        run("a:0x! b:0y! c:0z! ok ok"),
        r#"x commit("x" @1) | b:y | c:z | complete commit(b:"y" c:"z" @3) | b:complete c:complete"#
    );
}

#[test]
fn the_checkpoint_stays_below_what_is_unfinished() {
    assert_eq!(
        run("a:0x b:0y! ok a:1z! ok"),
        r#"x | b:y commit(b:"y" @0) | b:complete | z commit("xz" @3) | complete"#
    );
}

#[test]
fn duplicates_are_dropped_before_and_after_the_end() {
    let mut script = ChunkScript::new();
    assert_eq!(script.run("0a 0a 1b! 1b! ok 0a 1b!"), r#"a | - | b commit("ab" @3) | - | complete | - | -"#);
    let counters = script.machine.take_counters();
    assert_eq!((counters.duplicates, counters.late, counters.chunks), (2, 2, 2));
    assert_eq!(script.machine.stats(script.now).open, 0, "no ghost");
}

#[test]
fn late_duplicate_not_remembered_is_looked_up_and_dropped() {
    let mut script = ChunkScript::new();
    script.auto_found = false;
    assert_eq!(script.run("3d ended"), "look-up(1) | -");
    assert_eq!(script.machine.stats(script.now).open, 0);
    assert_eq!(
        script.machine.poll_timeout(),
        Some(script.now.plus_ms(1_000)),
        "only the checkpoint is behind"
    );
}

#[test]
fn lookup_of_forgotten_message_does_not_count_when_reopened() {
    let again = || {
        let mut script = ChunkScript::new();
        script.auto_found = false;
        script.run("0a!");
        script.handle(Input::Shed(1));
        assert_eq!(script.run("room"), "reread(1)");
        let log = script.log.clone();
        assert_eq!(script.entries(log), "look-up(1)");
        script
    };
    let found = |known| Input::Found(vec![(key("a"), known)]);
    let mut script = again();
    assert_eq!(script.handle(found(Lookup::Absent)), "-", "it may have ended since");
    assert_eq!(script.handle(found(Lookup::Absent)), r#"a commit("a" @1)"#);
    let mut script = again();
    assert_eq!(script.handle(found(Lookup::Ended)), "-");
    assert_eq!(script.machine.stats(script.now).open, 0, "what has ended stays so");
    assert_eq!(script.handle(found(Lookup::Ended)), "-");
}

#[test]
fn chunks_are_held_until_lookup_says_message_is_new() {
    let mut script = ChunkScript::new();
    script.auto_found = false;
    assert_eq!(script.run("0a 1b! found ok"), r#"look-up(1) | - | a,b commit("ab" @2) | complete"#);
}

#[test]
fn what_waits_for_the_store_is_counted_until_its_commit() {
    let mut script = ChunkScript::new();
    script.auto_found = false;
    let mut waits_after = |word| {
        script.run(word);
        script.machine.stats(script.now).uncommitted
    };
    // The message is being looked up, then open, then in a commit, then done.
    assert_eq!(["0a", "found", "1b!", "ok"].map(&mut waits_after), [1, 0, 1, 0]);
}

#[test]
fn conflicting_chunk_is_reported_and_first_stays() {
    assert_eq!(run("0a 0x 1b! ok"), r#"a | conflict | b commit("ab" @3) | complete"#);
}

#[test]
fn a_higher_attempt_resets_and_a_lower_one_is_fenced() {
    let mut script = ChunkScript::new();
    assert_eq!(
        script.run("0a 1b 0x^1 2c 1y!^1 ok"),
        r#"a | b | ^1 x | - | - | -"#.replace("- | - | -", r#"- | ^1 y commit("xy" @5) | complete"#)
    );
    assert_eq!(script.machine.take_counters().fenced, 1);
}

#[test]
fn a_reset_without_a_ready_chunk_is_announced() {
    assert_eq!(run("0a 1b^2 0x^2"), "a | ^2  | ^2 x,b");
}

#[test]
fn positions_increase_over_owners_and_clock_steps() {
    let mut script = ChunkScript::new();
    script.run("0a! ok");
    let first = script.last_commit().clone();
    let mut second = ChunkScript::with(
        PartitionLimits::default(),
        Takeover { checkpoint: Seq(1), position_high_water: first.position_high_water, ..takeover() },
    );
    second.now = second.now.plus_ms(-3_600_000);
    second.run("b:0x!");
    let position = |commit: &Commit| commit.messages[0].placement.position;
    assert!(position(second.last_commit()) > position(&first));
}

#[test]
fn an_answer_starts_at_the_cursor_and_says_when_it_was_cut() {
    let mut script = ChunkScript::new();
    script.run("0a 1b 2c");
    let mut ask = |next: u32, attempt: u32, max_bytes: usize| {
        let message = MessageId::parse("a").unwrap();
        let known = vec![KnownMessage { message, attempt, next, has_input: false }];
        let ask = SnapshotRequest {
            token: 1,
            gateway: GatewayId::parse("g1").unwrap(),
            thread: ThreadId::parse("t").unwrap(),
            known,
            max_messages: 8,
            max_bytes,
        };
        let actions = script.machine.handle(Input::Snapshot(ask), script.now);
        let [Action::Snapshot(answer)] = actions.as_slice() else { panic!("{actions:?}") };
        let ids: Vec<u32> = answer.open[0].chunks.iter().map(|chunk| chunk.id).collect();
        (ids, answer.open[0].next, answer.more)
    };
    assert_eq!(ask(1, 0, 1_000), (vec![1, 2], 3, false));
    assert_eq!(ask(1, 9, 1_000), (vec![0, 1, 2], 3, false), "another attempt starts again");
    assert_eq!(ask(0, 0, 1), (vec![0], 3, true));
}

#[test]
fn missing_sequences_are_reported_and_repeats_skipped() {
    let mut script = ChunkScript::new();
    script.run("0a");
    script.seq = 4;
    assert_eq!(script.run("1b"), "hole(2-4) b");
    let again = script.log.clone();
    assert_eq!(script.entries(again), "-");
    assert_eq!(script.machine.take_counters().duplicates, 0);
}

#[test]
fn a_checkpoint_that_moved_is_written_even_when_nothing_ends() {
    let mut script = ChunkScript::with(PartitionLimits::default(), takeover());
    script.run("0a! ok");
    assert_eq!(script.run("0a! +1s ok +1s"), "- | commit(@2) | - | -");
    assert_eq!(script.machine.poll_timeout(), None, "an idle partition wants no time");
}
