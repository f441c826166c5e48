//! Scenarios of turns and tasks: inputs of the machine go in, and the rendered actions come out.
//!
//! The thread of a person is `t`, the agent is `a`. The store knows what has been committed, unless
//! a test sets another verdict.

mod answers;
mod corners;
mod crashes;
mod ends;
mod failures;
mod follow_ups;
mod following;
mod inputs;
mod postponed;
mod recalled;
mod refused;
mod status;
mod tasks;
mod token_keys;
mod usage;

use std::sync::Arc;

use model::*;
use serde_json::{Value, json};

use crate::*;

const T0: Timestamp = Timestamp(1_800_000_000_000);

struct TurnScript {
    machine: Partition,
    now: Timestamp,
    seq: u64,
    log: Vec<StreamEntry>,
    checks: Vec<CommandKey>,
    starts: Vec<Start>,
    commits: Vec<Commit>,
    saves: Vec<Save>,
    endings: Vec<MessageEnded>,
    /// Timers that the test has not decided yet.
    due: Vec<TimerId>,
    /// Text sent to gateways, by turn.
    shown: Vec<(String, String)>,
    /// Inputs sent to gateways.
    inputs: Vec<String>,
    /// Answers checks, starts and commits automatically.
    auto: bool,
    rules: TurnRules,
}

fn thread(id: &str) -> ThreadId {
    ThreadId::parse(id).unwrap()
}

fn agent() -> AgentId {
    AgentId::parse("a").unwrap()
}

fn turn(name: &str) -> TurnId {
    TurnId::foreground(&thread("t"), name).unwrap()
}

fn key() -> TokenKey {
    TokenKey::new(&[7; 32]).unwrap()
}

fn bare() -> Takeover {
    Takeover::bare(PartitionId(0), 1, Seq(0), Timestamp(0), T0, key())
}

fn quiet() -> PartitionLimits {
    PartitionLimits { checkpoint_ms: i64::MAX, ..PartitionLimits::default() }
}

fn opened(name: &str, run: u32, busy_policy: BusyPolicy) -> Command {
    Command::Turn(Box::new(TurnOpened {
        turn: turn(name),
        thread: thread("t"),
        agent: agent(),
        run,
        content: format!("ask {name}"),
        origin: TurnOrigin::PERSON,
        metadata: Metadata::EMPTY,
        actor: None,
        options: TurnOptions { busy_policy, ..TurnOptions::default() },
    }))
}

fn task_of(id: &str, content: &str) -> Task {
    Task {
        agent: agent(),
        id: TaskId::parse(id).unwrap(),
        kind: TaskKind::Task,
        content: content.to_owned(),
        origin: TaskOrigin::SENT,
        metadata: Metadata::EMPTY,
    }
}

/// A turn with a person that background work follows.
fn followed() -> FollowedTurn {
    let (thread, turn) = (thread("t"), turn("w"));
    FollowedTurn { thread, answer: turn.answer(0), turn, batch: Position::from_stored(7) }
}

fn started_task(start: &Start) -> &str {
    match &start.cause {
        TurnCause::Task { id, .. } => id.as_str(),
        TurnCause::Input(_) => panic!("{start:?}"),
    }
}

fn control(id: &str, kind: ControlKind) -> Command {
    let subject = match &kind {
        ControlKind::StopTurn(turn) if turn.as_str().starts_with('u') => thread("t").agent(),
        _ => agent(),
    };
    Command::Control(Control { id: CommandId::parse(id).unwrap(), actor: "op".into(), subject, kind })
}

/// A chunk from a word: `text`, `calls:{json}` (metadata), `used:model:input:output` (a finished
/// call), `sum:model:input:output` (of the whole answer), `more:text` (with a continuation),
/// `hint:seconds:text` (requests a follow-up), `call:id:args`, `result:id:text` or `error:{json}`.
fn chunk(id: u32, word: &str, is_final: bool) -> Arc<Chunk> {
    let parts: Vec<&str> = word.splitn(3, ':').collect();
    let tool = |id: &str| if id.starts_with("memory_") { id.to_owned() } else { "f".to_owned() };
    let call = |id: &str| json!({ "tool_call_id": id, "tool_name": tool(id) });
    let (kind, text, metadata) = match parts.as_slice() {
        ["call", call_id, text] => (ChunkKind::ToolCall, *text, call(call_id)),
        ["result", call_id, text] => (ChunkKind::ToolResult, *text, call(call_id)),
        ["error", ..] => {
            let hint: Value = serde_json::from_str(&word[6..]).unwrap();
            (ChunkKind::Error, "broken", hint)
        }
        ["hint", seconds, text] => {
            let seconds: u64 = seconds.parse().unwrap();
            let hint = json!({ "trigger_type": "check_in", "after_seconds": seconds, "reason": "quiet" });
            (ChunkKind::Content, *text, json!({ "follow_up": hint }))
        }
        ["calls", ..] => (ChunkKind::Metadata, "", word[6..].parse().unwrap()),
        ["used", model, counts] => (ChunkKind::Metadata, "", json!({ "model_calls": [used(model, counts)] })),
        ["sum", model, counts] => {
            (ChunkKind::Content, "", json!({ "model": model, "usage": used(model, counts) }))
        }
        ["more", text] => (ChunkKind::Content, *text, json!({ "continuation": true })),
        _ => (ChunkKind::Content, word, json!({})),
    };
    let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
    Arc::new(Chunk { kind, metadata, ..Chunk::content(id, text, is_final) })
}

fn used(model: &str, counts: &str) -> Value {
    let (input, output) = counts.split_once(':').unwrap();
    let count = |text: &str| text.parse::<u64>().unwrap();
    json!({ "model": model, "input_tokens": count(input), "output_tokens": count(output) })
}

impl TurnScript {
    fn new() -> Self {
        Self::with(quiet(), bare())
    }

    fn with(limits: PartitionLimits, takeover: Takeover) -> Self {
        let mut script = Self {
            machine: Partition::new(takeover.clone(), limits, 7, T0),
            now: T0,
            seq: takeover.checkpoint.0,
            log: Vec::new(),
            checks: Vec::new(),
            starts: Vec::new(),
            commits: Vec::new(),
            saves: Vec::new(),
            endings: Vec::new(),
            due: Vec::new(),
            shown: Vec::new(),
            inputs: Vec::new(),
            auto: true,
            rules: TurnRules::default(),
        };
        script.handle(Input::CaughtUp(true));
        script
    }

    fn handle(&mut self, input: Input) -> Vec<String> {
        let mut out = Vec::new();
        for action in self.machine.handle(input, self.now) {
            out.extend(render(&action));
            let next = match action {
                Action::Check(keys) if self.auto => {
                    let judged = keys.into_iter().map(|key| (self.verdict(&key), key));
                    Input::Checked(judged.map(|(verdict, key)| (key, verdict)).collect())
                }
                Action::Check(keys) => {
                    self.checks.extend(keys);
                    continue;
                }
                Action::Start(start) => {
                    self.starts.push((*start).clone());
                    if !self.auto {
                        continue;
                    }
                    Input::Started {
                        turn: start.turn,
                        run: start.run,
                        started: Started::Requested(self.rules),
                    }
                }
                Action::Commit(commit) => {
                    self.commits.push(commit);
                    if !self.auto {
                        continue;
                    }
                    Input::Committed(Vec::new())
                }
                Action::Save(save) => {
                    self.saves.push(save);
                    if !self.auto {
                        continue;
                    }
                    Input::Saved(Vec::new())
                }
                Action::DecideTimers(due) => {
                    self.due.extend(due);
                    continue;
                }
                Action::Publish(ReadyChunks { input: Some(input), .. }) => {
                    self.inputs.push(input.content.clone());
                    continue;
                }
                Action::Publish(ready) => {
                    if let Some((turn, _)) = TurnId::of_answer(&ready.key.message) {
                        let text = ready.chunks.iter().map(|chunk| &*chunk.text).collect();
                        self.shown.push((name(&turn).to_owned(), text));
                    }
                    continue;
                }
                Action::End(ending) => {
                    self.endings.push(ending);
                    continue;
                }
                _ => continue,
            };
            out.extend(self.handle(next));
        }
        out
    }

    /// Verdict of a store with these commits.
    fn verdict(&self, key: &CommandKey) -> CommandVerdict {
        let digest = self.commits.iter().find_map(|commit| match key {
            CommandKey::Turn(_, turn, run) => {
                let is_committed = commit.turns.iter().any(|write| write.turn == *turn);
                let has_failed =
                    |failed: &FailedTurn| failed.opened.turn == *turn && failed.opened.run >= *run;
                (is_committed || commit.failed_turns.iter().any(has_failed)).then_some(0)
            }
            CommandKey::Task(_, id, _) => {
                commit.tasks.iter().find(|write| write.queued.task.id == *id).map(|write| write.digest)
            }
            CommandKey::Control(_, id, _) => {
                commit.audit.iter().any(|audited| audited.id == *id).then_some(0)
            }
        });
        digest.map_or(CommandVerdict::New, |digest| CommandVerdict::Known { digest })
    }

    fn entry(&mut self, body: EntryBody) -> Vec<String> {
        self.seq += 1;
        let entry = StreamEntry { seq: Seq(self.seq), stored_at: self.now, bytes: 1, body };
        self.log.push(entry.clone());
        self.handle(Input::Entries { entries: vec![entry], room: 1_000 })
    }

    fn command(&mut self, command: Command) -> Vec<String> {
        self.entry(EntryBody::Command(command, RawPayload { subject: "s".into(), payload: "p".into() }))
    }

    fn open(&mut self, name: &str) -> Vec<String> {
        self.command(opened(name, 0, BusyPolicy::Enqueue))
    }

    fn task(&mut self, id: &str) -> Vec<String> {
        self.command(Command::Task(task_of(id, &format!("do {id}"))))
    }

    fn last_start(&self) -> Start {
        self.starts.last().cloned().expect("something has started")
    }

    /// Publishes chunks of the answer of the last started turn, from `first` on; the last word is
    /// final when it ends with `!`.
    fn say(&mut self, first: u32, words: &[&str]) -> Vec<String> {
        let start = self.last_start();
        self.say_as(&start, 0, first, words)
    }

    fn say_as(&mut self, start: &Start, attempt: u32, first: u32, words: &[&str]) -> Vec<String> {
        let arrival = |(id, word): (u32, &&str)| IncomingChunk {
            message: start.turn.answer(start.run),
            attempt,
            step: 0,
            role: Role::Assistant,
            chunk: chunk(id, word.trim_end_matches('!'), word.ends_with('!')),
        };
        let chunks = (first..).zip(words).map(arrival).collect();
        self.entry(EntryBody::Frame(Frame {
            thread: start.thread.clone(),
            chunks,
            token: Some(start.token.clone()),
        }))
    }

    fn later(&mut self, ms: i64) -> Vec<String> {
        let mut out = Vec::new();
        let until = self.now.plus_ms(ms);
        while self.now < until {
            self.now = self.now.plus_ms(1_000.min(until.since_ms(self.now)));
            out.extend(self.handle(Input::Tick));
        }
        out
    }

    fn last_commit(&self) -> &Commit {
        self.commits.last().expect("something was committed")
    }

    /// Text of the messages of all committed turns.
    fn history(&self) -> Vec<String> {
        let turns = self.commits.iter().flat_map(|commit| &commit.turns);
        let line = |message: &Message| format!("{} {:?}", message.role.name(), message.content);
        turns.map(|turn| turn.messages.iter().map(line).collect::<Vec<_>>().join(", ")).collect()
    }
}

fn next_takeover(script: &TurnScript) -> Takeover {
    let commit = script.commits.last();
    let ended: Vec<_> = script.commits.iter().flat_map(|commit| &commit.ended_turns).collect();
    let opened = script.commits.iter().flat_map(|commit| commit.opened.clone());
    let is_open = |open: &OpenTurn| !ended.iter().any(|(_, turn)| *turn == open.opened.turn);
    Takeover {
        open_turns: opened.filter(is_open).collect(),
        epoch: 2,
        checkpoint: commit.map_or(Seq(0), |commit| commit.checkpoint),
        position_high_water: commit.map_or(Timestamp(0), |commit| commit.position_high_water),
        ..bare()
    }
}

fn render(action: &Action) -> Option<String> {
    Some(match action {
        Action::Start(start) => {
            let suffix = if start.is_adopted { " adopted" } else { "" };
            format!("start {} run {}{suffix}", name(&start.turn), start.run)
        }
        Action::Abandon { turn, run } => format!("abandon {} run {run}", name(turn)),
        Action::End(ending) => {
            let (turn, run) = TurnId::of_answer(&ending.key.message).unwrap();
            let outcome = match &ending.outcome {
                MessageOutcome::Complete => "complete",
                MessageOutcome::Stopped => "stopped",
                MessageOutcome::Failed(failure) => failure.code(),
            };
            format!("end {} run {run} {outcome}", name(&turn))
        }
        Action::LoadTasks { after, .. } => format!("load after {after}"),
        Action::DelayTask { seq, delayed } => format!("delay {} of {seq}", delayed.task.id),
        Action::LoadTimers { .. } => "load timers".to_owned(),
        Action::Report(MachineReport::Unauthorized(_)) => "not asked".to_owned(),
        Action::Report(MachineReport::GivenUp { .. }) => "given up".to_owned(),
        _ => return None,
    })
}

/// The unique part of the id of a person's turn, such as `x`; `task` for a task's turn.
fn name(turn: &TurnId) -> &str {
    match turn.as_str().split_once('-') {
        Some((kind, unique)) if kind.starts_with('u') => unique,
        _ => "task",
    }
}

#[test]
fn input_and_answer_are_one_commit() {
    let mut script = TurnScript::new();
    assert_eq!(script.open("x"), ["start x run 0"]);
    assert!(script.commits.is_empty(), "nothing is written before there is an answer");
    assert!(script.say(0, &["Hel"]).is_empty());
    assert_eq!(script.say(1, &["lo!"]), ["end x run 0 complete"]);
    assert_eq!(script.history(), [r#"user "ask x", assistant "Hello""#]);
    let turn = &script.last_commit().turns[0];
    let places: Vec<_> = turn.messages.iter().map(|message| message.placement).collect();
    assert!(places[0].position < places[1].position);
    assert!(places.iter().all(|place| place.batch_id == places[0].position));
    assert!(places.iter().all(|place| place.batch_type == BatchType::UserRequest));
    assert_eq!(turn.messages[1].key.message, turn.turn.answer(0));
    assert_eq!(script.last_commit().checkpoint, Seq(3));
}

#[test]
fn a_redelivered_request_fences_the_first() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    script.say_as(&start, 0, 0, &["first "]);
    script.say_as(&start, 1, 0, &["second "]);
    script.say_as(&start, 0, 1, &["try!"]);
    assert_eq!(script.machine.take_counters().fenced, 1);
    script.say_as(&start, 1, 1, &["try!"]);
    assert_eq!(script.history(), [r#"user "ask x", assistant "second try""#]);
    assert_eq!(script.last_commit().turns[0].messages[1].attempt, 1);
}

#[test]
fn only_who_was_asked_can_answer() {
    let mut script = TurnScript::new();
    script.open("x");
    let right = script.last_start();
    for token in [key().token(&thread("u"), &right.turn, 0), key().token(&right.thread, &right.turn, 1)] {
        let wrong = Start { token, ..right.clone() };
        assert_eq!(script.say_as(&wrong, 0, 0, &["lie!"]), ["not asked"]);
    }
    script.say(0, &["tr"]);
    let wrong = Start { token: key().token(&right.thread, &turn("y"), 0), ..right };
    assert_eq!(script.say_as(&wrong, 9, 0, &["lie!"]), ["not asked"], "nor reset it");
    script.say(1, &["ue!"]);
    assert_eq!(script.history(), [r#"user "ask x", assistant "true""#]);
    assert!(script.last_commit().dead_letters.is_empty());
}

/// Two services may answer as the same attempt when a NATS server has forgotten a delivery.
#[test]
fn one_delivery_of_an_attempt_counts() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    let of = |id: &str| Start { token: start.token.clone().of_delivery(id), ..start.clone() };
    let (one, two) = (of("one"), of("two"));
    script.say_as(&one, 0, 0, &["one "]);
    script.say_as(&two, 0, 0, &["two ", "TWO ", "2!"]);
    assert_eq!(script.machine.take_counters().fenced, 3);
    script.say_as(&two, 1, 0, &["next "]);
    script.say_as(&one, 0, 1, &["ONE!"]);
    script.say_as(&one, 1, 1, &["ONE!"]);
    assert_eq!(script.machine.take_counters().fenced, 2);
    // A chunk that does not name its delivery still counts.
    script.say_as(&start, 1, 1, &["attempt "]);
    script.say_as(&two, 1, 2, &["of two!"]);
    assert_eq!(script.history(), [r#"user "ask x", assistant "next attempt of two""#]);
}

/// A bare message with such an id would be an incomplete turn, and the turn would count as already
/// written.
#[test]
fn ids_of_inputs_steps_and_results_are_nobodys() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    for message in [turn("x").input(), turn("x").step(0, 0), turn("x").result(0, 0, 1), turn("y").input()] {
        let (step, role) = (0, Role::Assistant);
        let arrival = IncomingChunk { message, attempt: 0, step, role, chunk: chunk(0, "lie", true) };
        let frame = Frame { thread: thread("t"), chunks: vec![arrival], token: Some(start.token.clone()) };
        assert_eq!(script.entry(EntryBody::Frame(frame)), ["not asked"]);
    }
    assert_eq!(script.machine.take_counters().unauthorized, 4);
    script.say(0, &["true!"]);
    assert_eq!(script.history(), [r#"user "ask x", assistant "true""#]);
}

#[test]
fn stopped_turn_keeps_partial_answer_and_next_starts() {
    let mut script = TurnScript::new();
    script.open("x");
    let first = script.last_start();
    script.say(0, &["I am", "call:c:{}"]);
    let said = script.command(control("s", ControlKind::StopTurn(turn("x"))));
    assert_eq!(said, ["abandon x run 0", "end x run 0 stopped"]);
    assert_eq!(script.history(), [r#"user "ask x", assistant "I am", tool "", assistant """#]);
    let messages = &script.last_commit().turns[0].messages;
    assert!(messages[2..].iter().all(|message| message.metadata.get("stopped") == Some(&json!(true))));
    assert_eq!(script.last_commit().audit[0].action, "stop_turn");
    assert_eq!(script.open("y"), ["start y run 0"]);
    assert!(script.say_as(&first, 0, 2, &["late!"]).is_empty());
    script.say(0, &["fine!"]);
    assert_eq!(script.history().len(), 2);
    script.command(control("s2", ControlKind::StopTurn(turn("x"))));
    assert!(script.last_commit().audit[0].error.is_some());
}

#[test]
fn the_four_policies_of_a_busy_thread() {
    let second = |policy| {
        let mut script = TurnScript::new();
        script.open("x");
        script.say(0, &["half"]);
        let said = script.command(opened("y", 0, policy));
        (script, said.join(", "))
    };
    let (mut script, said) = second(BusyPolicy::Enqueue);
    assert_eq!(said, "");
    assert_eq!(script.say(1, &["!"]), ["end x run 0 complete", "start y run 0"]);

    let (script, said) = second(BusyPolicy::Reject);
    assert_eq!(said, "end y run 0 busy");
    assert_eq!(script.last_commit().failed_turns[0].opened.content, "ask y");

    let (script, said) = second(BusyPolicy::Interrupt);
    assert_eq!(said, "abandon x run 0, end x run 0 stopped, start y run 0");
    assert_eq!(script.history(), [r#"user "ask x", assistant "half""#]);

    let (script, said) = second(BusyPolicy::Rollback);
    assert_eq!(said, "abandon x run 0, end x run 0 rolled_back, start y run 0");
    assert_eq!(script.last_commit().failed_turns[0].opened.content, "ask x");
    assert!(script.history().is_empty());
}

#[test]
fn a_workflow_in_this_process_answers_without_the_stream() {
    let mut script = TurnScript::new();
    script.task("t1");
    let start = script.last_start();
    let chunks = vec![chunk(0, "done", true)];
    let said = script.handle(Input::Answered { turn: start.turn, run: 0, chunks });
    assert_eq!(said, ["end task run 0 complete"]);
    assert_eq!(script.history(), [r#"user "do t1", assistant "done""#]);
}

#[test]
fn no_more_turns_than_allowed_are_under_way() {
    let mut script = TurnScript::with(PartitionLimits { active_turns: 1, ..quiet() }, bare());
    script.open("x");
    assert!(script.task("t1").is_empty());
    let asked = script
        .machine
        .handle(Input::Status(StatusQuery { token: 1, target: QueryTarget::Agent(agent()) }), script.now);
    let Action::Status(reply) = &asked[0] else { panic!("{asked:?}") };
    assert_eq!(reply.status.reason, Some(WaitReason::Capacity));
    script.auto = true;
    assert_eq!(script.say(0, &["ok!"]), ["end x run 0 complete", "start task run 0"]);
}
