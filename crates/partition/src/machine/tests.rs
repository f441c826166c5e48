//! Scenarios: a script of inputs in, the rendered actions out.
//!
//! `3d` is chunk 3 with text d, `5f!` is final, `2e?` is an error chunk, `1x^2` is of attempt 2, `garbage` is an entry that cannot
//! be used. A word may name its message: `b:0x`; the default is `a`. `ok` is the commit applied, `+31s` is time passing
//! with a tick, `found` answers the look-up with absent, `ended` with ended, `nothread` with no thread.

mod cuts;
mod turns;

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use model::*;

use crate::*;

struct Script {
    machine: Partition,
    /// What a new machine does with its first input.
    first: String,
    now: Timestamp,
    seq: u64,
    room: usize,
    to_find: Vec<MessageKey>,
    commits: Vec<Commit>,
    reports: Vec<Report>,
    auto_found: bool,
    log: Vec<Entry>,
}

fn takeover() -> Takeover {
    let key = model::TokenKey::new(&[7; 32]).unwrap();
    Takeover::bare(PartitionId(0), 1, Seq(0), Timestamp(0), key)
}

fn key(message: &str) -> MessageKey {
    MessageKey { thread: ThreadId::parse("t").unwrap(), message: MessageId::parse(message).unwrap() }
}

impl Script {
    fn new() -> Self {
        let quiet = Limits { checkpoint_ms: i64::MAX, spill_after_ms: i64::MAX, ..Limits::default() };
        Self::with(quiet, takeover())
    }

    fn with(limits: Limits, takeover: Takeover) -> Self {
        let now = Timestamp(1_800_000_000_000);
        let mut script = Self {
            machine: Partition::new(takeover.clone(), limits, 7, now),
            first: String::new(),
            now,
            seq: takeover.checkpoint.0,
            room: usize::MAX,
            to_find: Vec::new(),
            commits: Vec::new(),
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
            "found" | "ended" | "nothread" => {
                let known = match word {
                    "found" => Lookup::Absent,
                    "ended" => Lookup::Ended,
                    _ => Lookup::NoThread,
                };
                let found = std::mem::take(&mut self.to_find).into_iter().map(|key| (key, known)).collect();
                self.handle(Input::Found(found))
            }
            "behind" => self.handle(Input::CaughtUp(false)),
            "room" => self.handle(Input::Room),
            word if word.starts_with('+') => {
                let seconds: i64 = word[1..].trim_end_matches('s').parse().unwrap();
                // A tick each second, as the driver does it: a longer silence of the driver counts as one step.
                let ticks = (0..seconds).map(|_| {
                    self.now = self.now.plus_ms(1_000);
                    self.handle(Input::Tick)
                });
                let said: Vec<String> = ticks.filter(|said| said != "-").collect();
                if said.is_empty() { "-".to_owned() } else { said.join(" ") }
            }
            word => {
                self.seq += 1;
                let entry = Entry { seq: Seq(self.seq), stored_at: self.now, body: body(word) };
                self.log.push(entry.clone());
                self.entries(vec![entry])
            }
        }
    }

    fn entries(&mut self, entries: Vec<Entry>) -> String {
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

fn body(word: &str) -> Body {
    if word == "garbage" {
        let refusal = RejectedEntry { code: "malformed", detail: "not a frame".into() };
        return Body::Refused { subject: "chunks.0.t".into(), payload: Bytes::from_static(b"?"), refusal };
    }
    let (message, rest) = word.split_once(':').unwrap_or(("a", word));
    let (rest, attempt) = rest.split_once('^').unwrap_or((rest, "0"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let text = rest[digits.len()..].trim_end_matches(['!', '?']);
    let mut chunk = Chunk::content(digits.parse().unwrap(), text, rest.ends_with('!'));
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
    Body::Frame(Frame { thread: ThreadId::parse("t").unwrap(), chunks: vec![arrival], token: None })
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
            for save in &commit.spilled_messages {
                write!(out, "{}save:{} ", name(&save.key), save.chunks.len()).unwrap();
            }
            format!("{out}@{})", commit.checkpoint)
        }
        Action::End(ending) => {
            let outcome = match &ending.outcome {
                Outcome::Complete => "complete",
                Outcome::Stopped => "stopped",
                Outcome::Failed(failure) => failure.code(),
            };
            format!("{}{outcome}", name(&ending.key))
        }
        Action::Snapshot(answer) => format!("answer({})", answer.open.len()),
        Action::ChangedThreads(sent) => format!("sent({})", sent.threads.len()),
        Action::Reread(from) => format!("reread({from})"),
        Action::Check(_)
        | Action::Start(_)
        | Action::Abandon { .. }
        | Action::LoadTasks { .. }
        | Action::Send(_)
        | Action::Status(_)
        | Action::Report(Report::TurnFailed { .. } | Report::Unauthorized(_)) => action.name().to_owned(),
        Action::Report(Report::Conflict { .. }) => "conflict".into(),
        Action::Report(Report::GivenUp { .. }) => "given-up".into(),
        Action::Report(Report::Hole { first, last }) => format!("hole({first}-{last})"),
        Action::Report(Report::Deferring(from)) => format!("deferring({from})"),
    }
}

fn run(script: &str) -> String {
    Script::new().run(script)
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
    let mut script = Script::new();
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
    let mut script = Script::new();
    assert_eq!(script.run("0a 0a 1b! 1b! ok 0a 1b!"), r#"a | - | b commit("ab" @3) | - | complete | - | -"#);
    let counters = script.machine.take_counters();
    assert_eq!((counters.duplicates, counters.late, counters.chunks), (2, 2, 2));
    assert_eq!(script.machine.stats(script.now).open, 0, "no ghost");
}

#[test]
fn late_duplicate_not_remembered_is_looked_up_and_dropped() {
    let mut script = Script::new();
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
fn frame_of_many_messages_opens_as_many_as_fit() {
    let limits = Limits { remembered_bytes: 0, ..Limits::default() };
    let mut script = Script::with(limits, takeover());
    let frames = ["m0:0a!", "m1:0b!", "m2:0c!", "m3:0d!"].map(body).map(|body| match body {
        Body::Frame(frame) => frame,
        other => panic!("{other:?}"),
    });
    let chunks = frames.iter().flat_map(|frame| frame.chunks.clone()).collect();
    let frame = Frame { chunks, ..frames[0].clone() };
    let entry = Entry { seq: Seq(1), stored_at: script.now, body: Body::Frame(frame) };
    script.room = 1;
    for message in ["m0", "m1", "m2", "m3"] {
        script.entries(vec![entry.clone()]);
        script.run("ok room");
        let written = script.last_commit().messages.iter().map(|message| message.key.message.to_string());
        assert_eq!(written.collect::<Vec<_>>(), [message]);
    }
    assert_eq!(script.last_commit().checkpoint, Seq(1));
}

#[test]
fn shed_message_is_read_again_from_inside_its_frame() {
    let mut script = Script::new();
    let (Body::Frame(one), Body::Frame(two)) = (body("m0:0a"), body("m1:0b!")) else { panic!() };
    let chunks = [one.chunks.clone(), two.chunks].concat();
    let frame = Frame { chunks, ..one };
    let entry = Entry { seq: Seq(1), stored_at: script.now, body: Body::Frame(frame) };
    script.room = 1;
    assert_eq!(script.entries(vec![entry.clone()]), "deferring(1) m0:a");
    // The reader is set back for the second message, and the first one is forgotten before it comes to it.
    script.room = 2;
    assert_eq!(script.run("room"), "reread(1)");
    script.handle(Input::Shed(1));
    assert_eq!(script.machine.load().0, 0);
    assert_eq!(script.entries(vec![entry]), r#"m0:a m1:b commit(m1:"b" @0)"#);
}

#[test]
fn lookup_of_forgotten_message_does_not_count_when_reopened() {
    let again = || {
        let mut script = Script::new();
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
    let mut script = Script::new();
    script.auto_found = false;
    assert_eq!(script.run("0a 1b! found ok"), r#"look-up(1) | - | a,b commit("ab" @2) | complete"#);
}

#[test]
fn conflicting_chunk_is_reported_and_first_stays() {
    assert_eq!(run("0a 0x 1b! ok"), r#"a | conflict | b commit("ab" @3) | complete"#);
}

#[test]
fn contradicting_finals_fail_the_message() {
    assert_eq!(run("0a 5f! 6g ok"), "a | - | given-up commit(dead:final_conflict/2 @3) | final_conflict");
    assert_eq!(run("7h 5f! ok"), "- | given-up commit(dead:final_conflict/1 @2) | final_conflict");
    assert_eq!(run("0a 5f! 3d! ok"), "a | - | given-up commit(dead:final_conflict/2 @3) | final_conflict");
}

#[test]
fn an_error_chunk_ends_the_message_as_failed_in_its_turn() {
    assert_eq!(
        run("0a 2no-model? 1b ok 3d"),
        "a | - | given-up b commit(dead:producer_error/3 @3) | producer_error | -"
    );
}

#[test]
fn a_gap_fails_after_its_time_whatever_comes_later() {
    assert_eq!(
        run("0a 2c +10s 3d +10s 4e +9s +1s ok"),
        "a | - | - | - | - | - | - | given-up commit(dead:gap_timeout/4 @4) | gap_timeout"
    );
}

#[test]
fn a_gap_fails_whether_or_not_the_final_is_known() {
    let mut script = Script::new();
    assert_eq!(script.run("1b! +31s"), "- | given-up commit(dead:gap_timeout/1 @1)");
    let DeadLetterSource::Message { failure, .. } = &script.last_commit().dead_letters[0].source else {
        panic!()
    };
    assert_eq!(failure, &MessageFailure::GapTimeout { missing: vec![IdRange { first: 0, last: 0 }] });
}

#[test]
fn no_gap_fails_while_the_missing_chunk_may_stand_unread() {
    assert_eq!(
        run("0a 2c behind +100s +100s 1b!"),
        "a | - | - | - | - | given-up commit(dead:final_conflict/2 @3)",
        "1 as final contradicts 2, which shows that it was still open"
    );
}

#[test]
fn silence_fails_as_stalled_at_a_sweep() {
    assert_eq!(run("0a +290s +9s +30s ok"), "a | - | - | given-up commit(dead:stalled/1 @1) | stalled");
}

#[test]
fn repeated_chunks_keep_no_message_open() {
    let mut script = Script::new();
    assert_eq!(
        script.run("0a +200s 0a +50s 0a 0x +49s 0a +1s"),
        "a | - | - | - | - | conflict | - | - | given-up commit(dead:stalled/1 @5)"
    );
}

#[test]
fn what_is_missing_is_reported_with_a_message_that_is_given_up() {
    let state = |words: &str| {
        let mut script = Script::new();
        script.run(words);
        script.reports.pop().map(|report| match report {
            Report::GivenUp { buffer, .. } => buffer,
            other => panic!("{other:?}"),
        })
    };
    let stalled = state("0a 1b +330s").unwrap();
    assert_eq!((stalled.expected, stalled.received, stalled.released), (2, 2, 2));
    assert_eq!(stalled.missing, []);
    let gap = state("0a 2c 5f 6g +31s").unwrap();
    assert_eq!((gap.expected, gap.received, gap.released), (1, 4, 1));
    assert_eq!(gap.missing, [IdRange { first: 1, last: 1 }, IdRange { first: 3, last: 4 }]);
}

#[test]
fn accepted_chunk_repeated_as_final_fails_message() {
    assert_eq!(
        run("0a 1b 2c 3d 2c! ok"),
        "a | b | c | d | given-up commit(dead:final_conflict/4 @5) | final_conflict"
    );
    assert_eq!(run("0a 0a! ok"), "a | given-up commit(dead:final_conflict/1 @2) | final_conflict");
}

#[test]
fn a_higher_attempt_resets_and_a_lower_one_is_fenced() {
    let mut script = Script::new();
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
fn rejected_entries_become_dead_letters_and_reading_goes_on() {
    assert_eq!(run("garbage 0a! ok ok"), r#"commit(dead:malformed @1) | a | commit("a" @2) | complete"#);
}

#[test]
fn more_refused_entries_than_the_store_takes_are_not_read() {
    let limits = Limits { refused_bytes: 600, ..Limits::default() };
    let mut script = Script::with(limits, takeover());
    script.run("garbage");
    assert!(script.machine.wants_entries(), "its commit is under way");
    script.run("garbage garbage");
    assert!(script.machine.wants_entries());
    script.run("garbage");
    assert!(!script.machine.wants_entries(), "three wait");
    script.run("ok");
    assert!(script.machine.wants_entries(), "they are in the next commit");
}

#[test]
fn message_of_unknown_thread_fails_without_auto_create() {
    let mut script = Script::new();
    script.auto_found = false;
    assert_eq!(
        script.run("0a nothread ok"),
        "look-up(1) | given-up commit(dead:unknown_thread/1 @1) | unknown_thread"
    );
}

#[test]
fn at_capacity_new_messages_wait_in_stream() {
    let mut script = Script::new();
    script.run("a:0x");
    script.room = 0;
    assert_eq!(
        script.run("b:0y a:1z c:0w a:2v! ok"),
        r#"deferring(2) | z | - | v commit("xzv" @1) | complete"#
    );
    assert!(!script.machine.wants_entries(), "nothing that could get on");
    script.room = 10;
    assert_eq!(script.run("room"), "reread(2)");
    let log = script.log[1..].to_vec();
    assert_eq!(script.entries(log), "b:y c:w", "chunks of the message that has ended meanwhile are late");
    assert_eq!(script.machine.take_counters().deferred, 2);
}

#[test]
fn memory_pressure_sheds_largest_message_and_rereads_it() {
    let mut script = Script::new();
    script.run("a:0x b:0yyyy a:1z!");
    assert_eq!(script.machine.load().1, 6);
    assert_eq!(script.handle(Input::Shed(1)), "-");
    assert_eq!(script.run("ok"), "complete");
    assert_eq!(script.run("room"), "reread(2)");
    let log = script.log[1..].to_vec();
    assert_eq!(script.entries(log), "b:yyyy");
}

#[test]
fn old_message_is_spilled_and_checkpoint_passes_it() {
    let mut script = Script::with(Limits::default(), takeover());
    assert_eq!(script.run("0a 2c +20s"), "a | - | commit(save:2 @2)");
    let saved = script.last_commit().spilled_messages.clone();
    assert_eq!((saved[0].gap_ms, saved[0].open_ms), (Some(20_000), 20_000));
    assert_eq!(script.run("ok 3d"), "- | -");
    let mut second = Script::with(
        Limits::default(),
        Takeover { epoch: 2, checkpoint: Seq(2), spilled_messages: saved, ..takeover() },
    );
    assert_eq!(second.first, "a", "what had been released is sent again");
    assert_eq!(second.run("3d 1b"), "- | b,c,d");
    assert_eq!(second.run("4e! ok"), r#"e commit("abcde" @5) | complete"#);
    assert_eq!(second.last_commit().ended_spills, [key("a")]);
}

#[test]
fn a_restored_gap_keeps_its_age() {
    let mut script = Script::with(Limits::default(), takeover());
    script.run("0a 2c +20s");
    let spilled_messages = script.last_commit().spilled_messages.clone();
    let mut second =
        Script::with(Limits::default(), Takeover { checkpoint: Seq(2), spilled_messages, ..takeover() });
    assert_eq!(second.run("+9s +1s"), "- | given-up commit(dead:gap_timeout/2 @2)");
}

#[test]
fn spill_by_distance_saves_only_new_chunks() {
    let mut script = Script::with(Limits { spill_after_entries: 3, ..Limits::default() }, takeover());
    assert_eq!(script.run("a:0x b:0y! c:0z!").replace("commit", "C"), r#"x | b:y C(b:"y" @0) | c:z"#);
    assert_eq!(
        script.run("ok d:0w! ok ok"),
        "b:complete commit(c:\"z\" @0) | d:w | c:complete commit(d:\"w\" save:1 @4) | d:complete"
    );
    assert_eq!(script.run("a:1v e:0u! f:0s! g:0r!").split(" | ").next(), Some("v"));
    script.run("ok ok ok");
    let saved =
        script.commits.iter().flat_map(|commit| &commit.spilled_messages).map(|save| save.chunks.len());
    assert_eq!(saved.collect::<Vec<_>>(), [1, 1], "the second save has only the second chunk");
}

#[test]
fn positions_increase_over_owners_and_clock_steps() {
    let mut script = Script::new();
    script.run("0a! ok");
    let first = script.last_commit().clone();
    let mut second = Script::with(
        Limits::default(),
        Takeover { checkpoint: Seq(1), position_high_water: first.position_high_water, ..takeover() },
    );
    second.now = second.now.plus_ms(-3_600_000);
    second.run("b:0x!");
    let position = |commit: &Commit| commit.messages[0].placement.position;
    assert!(position(second.last_commit()) > position(&first));
}

#[test]
fn an_answer_starts_at_the_cursor_and_says_when_it_was_cut() {
    let mut script = Script::new();
    script.run("0a 1b 2c");
    let mut ask = |next: u32, attempt: u32, max_bytes: usize| {
        let known = vec![(MessageId::parse("a").unwrap(), attempt, next)];
        let ask = SnapshotRequest {
            token: 1,
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
    let mut script = Script::new();
    script.run("0a");
    script.seq = 4;
    assert_eq!(script.run("1b"), "hole(2-4) b");
    let again = script.log.clone();
    assert_eq!(script.entries(again), "-");
    assert_eq!(script.machine.take_counters().duplicates, 0);
}

#[test]
fn a_checkpoint_that_moved_is_written_even_when_nothing_ends() {
    let mut script = Script::with(Limits::default(), takeover());
    script.run("0a! ok");
    assert_eq!(script.run("0a! +1s ok +1s"), "- | commit(@2) | - | -");
    assert_eq!(script.machine.poll_timeout(), None, "an idle partition wants no time");
}

#[test]
fn too_many_chunks_or_bytes_fail_the_message() {
    let limits = Limits { chunks_per_message: 2, message_bytes: 3, ..Limits::default() };
    let run = |script: &str| Script::with(limits, takeover()).run(script);
    assert_eq!(run("0a 1b 1b 2c"), "a | b | - | given-up commit(dead:too_many_chunks/2 @4)");
    assert_eq!(run("0aa 1bb"), "aa | given-up commit(dead:message_too_large/1 @2)");
}
