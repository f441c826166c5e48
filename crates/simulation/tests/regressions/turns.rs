//! Regressions of turns, tasks and control commands.

use super::*;

fn agent() -> AgentId {
    AgentId::parse("t").unwrap()
}

fn command(seq: u64, command: Command) -> StreamEntry {
    let raw = RawPayload { subject: "s".to_owned(), payload: "p".into() };
    StreamEntry { seq: Seq(seq), stored_at: START, bytes: 1, body: EntryBody::Command(command, raw) }
}

fn control(name: &str, kind: ControlKind) -> Command {
    Command::Control(Control {
        id: CommandId::parse(name).unwrap(),
        actor: "x".into(),
        subject: agent(),
        kind,
    })
}

impl Script {
    /// Reads a command, and answers the queries about it.
    fn ordered(&mut self, entry: StreamEntry, verdict: CommandVerdict) -> Vec<Action> {
        let mut all = self.read(vec![entry], 9);
        let asked: Vec<CommandKey> = all
            .iter()
            .filter_map(|action| match action {
                Action::Check(keys) => Some(keys.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        all.extend(self.take(Input::Checked(asked.into_iter().map(|key| (key, verdict)).collect())));
        all
    }

    fn committed(&mut self) -> Vec<Action> {
        self.take(Input::Committed(Vec::new()))
    }
}

#[test]
fn retried_task_of_idle_agent_does_not_restart_queue() {
    let mut script = Script::new(PartitionLimits::default(), Vec::new());
    script.take(Input::CaughtUp(true));
    let retry = control("retry", ControlKind::RetryTask(TaskId::parse("k").unwrap()));
    let failed = CommandVerdict::Task { position: Position::from_stored(5), is_failed: true };
    let actions = script.ordered(command(1, retry), failed);
    let to = actions.iter().find_map(|action| match action {
        Action::Commit(Commit { task_changes, .. }) => match task_changes.as_slice() {
            [partition::TaskChange { position, .. }] => *position,
            _ => None,
        },
        _ => None,
    });
    let after = Position::from_stored(to.unwrap().get() - 1);
    let load = Action::LoadTasks { agent: agent(), after, limit: PartitionLimits::default().queue_window };
    assert!(!actions.contains(&load), "it is not stored yet");
    assert!(script.committed().contains(&load), "nothing before it is read again");
}

fn queued(position: i64) -> QueuedTask {
    let task = Task {
        agent: agent(),
        id: TaskId::parse(&format!("k{position}")).unwrap(),
        kind: TaskKind::Task,
        content: "x".to_owned(),
        origin: TaskOrigin::SENT,
        metadata: Metadata::EMPTY,
    };
    QueuedTask { position: Position::from_stored(position), task }
}

/// An agent with these tasks in memory, and with more in the store if `more`.
fn with_tasks(positions: &[i64], more: bool) -> Takeover {
    let saved = SavedAgent {
        agent: agent(),
        head: Position::from_stored(0),
        run: 0,
        failures: 0,
        wait_ms: None,
        paused: false,
        tasks: positions.iter().map(|position| queued(*position)).collect(),
        more,
    };
    Takeover { agents: vec![saved], ..bare() }
}

fn input(name: &str, busy_policy: BusyPolicy) -> Command {
    Command::Turn(Box::new(TurnOpened {
        turn: input_turn(name),
        thread: agent().thread(),
        agent: agent(),
        run: 0,
        content: "hello".to_owned(),
        origin: TurnOrigin::PERSON,
        metadata: Metadata::EMPTY,
        actor: None,
        options: TurnOptions { busy_policy, ..TurnOptions::default() },
    }))
}

fn input_turn(name: &str) -> TurnId {
    TurnId::foreground(&agent().thread(), name).unwrap()
}

/// A chunk of the turn's first run, with its token.
fn answer(seq: u64, turn: &TurnId, chunk: Arc<Chunk>) -> StreamEntry {
    let arrival =
        IncomingChunk { message: turn.answer(0), attempt: 0, step: 0, role: Role::Assistant, chunk };
    let token = Some(token_key().token(&agent().thread(), turn, 0));
    let body = EntryBody::Frame(Frame { thread: agent().thread(), chunks: vec![arrival], token });
    StreamEntry { seq: Seq(seq), stored_at: START, bytes: 1, body }
}

/// The turns that begin.
fn starts(actions: &[Action]) -> Vec<(TurnId, bool)> {
    let starts = actions.iter().filter_map(|action| match action {
        Action::Start(start) => Some((start.turn.clone(), start.is_adopted)),
        _ => None,
    });
    starts.collect()
}

/// The turns whose messages are written.
fn written(actions: &[Action]) -> Vec<TurnId> {
    let commits = actions.iter().filter_map(|action| match action {
        Action::Commit(commit) => Some(commit.turns.iter().map(|write| write.turn.clone())),
        _ => None,
    });
    commits.flatten().collect()
}

impl Script {
    fn started(&mut self, turn: &TurnId) -> Vec<Action> {
        let started = Started::Requested(TurnRules::default());
        self.take(Input::Started { turn: turn.clone(), run: 0, started })
    }
}

#[test]
fn answer_requested_by_earlier_owner_waits_for_its_thread() {
    let mut script = Script::taken_over(PartitionLimits::default(), with_tasks(&[5], false));
    let (task, input_turn) = (TurnId::of_task(&agent(), Position::from_stored(5)), input_turn("x"));
    script.ordered(command(1, input("x", BusyPolicy::Enqueue)), CommandVerdict::New);
    // The last owner had begun the task; this one cannot know that, and begins the input.
    assert_eq!(starts(&script.take(Input::CaughtUp(true))), [(input_turn.clone(), false)]);
    script.started(&input_turn);
    let early = script.read(vec![answer(2, &task, chunk(0, true))], 9);
    assert_eq!(written(&early), [], "one turn at a time");
    let actions = script.read(vec![answer(3, &input_turn, chunk(0, true))], 9);
    assert_eq!(written(&actions), [input_turn]);
    let actions = script.committed();
    assert_eq!(starts(&actions), [(task.clone(), true)], "no other answer would come");
    assert_eq!(written(&actions), [task]);
}

#[test]
fn nothing_starts_before_takeover_commands_are_checked() {
    let mut script = Script::taken_over(PartitionLimits::default(), with_tasks(&[5], false));
    let turn = input_turn("x");
    let asked =
        script.read(vec![command(1, input("x", BusyPolicy::Enqueue)), answer(2, &turn, chunk(0, false))], 9);
    assert!(asked.iter().any(|action| matches!(action, Action::Check(_))));
    assert_eq!(starts(&script.take(Input::CaughtUp(true))), []);
    let key = CommandKey::Turn(agent().thread(), turn.clone(), 0);
    let actions = script.take(Input::Checked(vec![(key, CommandVerdict::New)]));
    assert_eq!(starts(&actions), [(turn, true)], "not the task: the input was under way");
}

#[test]
fn workflow_is_stopped_only_after_the_end_is_stored() {
    let mut script = Script::taken_over(PartitionLimits::default(), bare());
    script.take(Input::CaughtUp(true));
    script.ordered(command(1, input("x", BusyPolicy::Enqueue)), CommandVerdict::New);
    script.started(&input_turn("x"));
    let abandon = Action::Abandon { turn: input_turn("x"), run: 0 };
    let actions = script
        .ordered(command(2, control("stop", ControlKind::StopTurn(input_turn("x")))), CommandVerdict::New);
    assert_eq!(written(&actions), [input_turn("x")]);
    assert!(!actions.contains(&abandon), "another owner may have to wait for the answer");
    assert!(script.committed().contains(&abandon));
}

#[test]
fn a_dropped_task_is_not_read_again_before_its_mark_is_stored() {
    let mut script = Script::taken_over(PartitionLimits::default(), with_tasks(&[5], true));
    script.take(Input::CaughtUp(false));
    let dropped = control("drop", ControlKind::DropTask(TaskId::parse("k5").unwrap()));
    let pending = CommandVerdict::Task { position: Position::from_stored(5), is_failed: false };
    script.ordered(command(1, dropped), pending);
    let is_load = |action: &Action| matches!(action, Action::LoadTasks { .. });
    assert!(!script.take(Input::CaughtUp(true)).iter().any(is_load));
    assert!(script.committed().iter().any(is_load));
}

#[test]
fn inputs_filling_the_room_do_not_stop_the_reader() {
    let opened = match input("x", BusyPolicy::Enqueue) {
        Command::Turn(opened) => *opened,
        Command::Task(_) | Command::DelayedTask(_) | Command::Control(_) => unreachable!(),
    };
    let open_turns = vec![partition::OpenTurn { opened, seq: Seq(0), age_ms: 0 }];
    let mut script = Script::taken_over(PartitionLimits::default(), Takeover { open_turns, ..bare() });
    script.read(vec![command(1, input("y", BusyPolicy::Enqueue))], 0);
    assert!(script.machine.is_deferring() && script.machine.wants_entries());
    assert_eq!(starts(&script.take(Input::CaughtUp(true))), [(input_turn("x"), false)]);
}

#[test]
fn the_task_behind_a_dropped_one_begins_when_the_drop_is_stored() {
    let mut script = Script::taken_over(PartitionLimits::default(), with_tasks(&[5, 6], false));
    script.take(Input::CaughtUp(false));
    let dropped = control("drop", ControlKind::DropTask(TaskId::parse("k5").unwrap()));
    let pending = CommandVerdict::Task { position: Position::from_stored(5), is_failed: false };
    script.ordered(command(1, dropped), pending);
    assert_eq!(
        starts(&script.take(Input::CaughtUp(true))),
        [],
        "an owner after this one would not know of it"
    );
    assert_eq!(starts(&script.committed()), [(TurnId::of_task(&agent(), Position::from_stored(6)), false)]);
}

#[test]
fn late_request_is_withdrawn_when_end_is_stored() {
    let mut script = Script::taken_over(PartitionLimits::default(), bare());
    script.take(Input::CaughtUp(true));
    script.ordered(command(1, input("x", BusyPolicy::Enqueue)), CommandVerdict::New);
    script.ordered(command(2, control("stop", ControlKind::StopTurn(input_turn("x")))), CommandVerdict::New);
    let abandon = Action::Abandon { turn: input_turn("x"), run: 0 };
    assert!(!script.started(&input_turn("x")).contains(&abandon));
    assert!(script.committed().contains(&abandon));
    assert!(script.started(&input_turn("x")).contains(&abandon), "its turn is forgotten");
}

#[test]
fn chunks_do_not_overtake_those_that_wait_for_an_order() {
    let mut script = Script::taken_over(PartitionLimits::default(), bare());
    let turn = input_turn("x");
    let opened = command(1, input("x", BusyPolicy::Enqueue));
    let pause = command(2, control("pause", ControlKind::Pause));
    script.read(vec![opened, pause, answer(3, &turn, chunk(0, true))], 9);
    // The input is decided; the command before the chunk is not.
    script.take(Input::Checked(vec![(
        CommandKey::Turn(agent().thread(), turn.clone(), 0),
        CommandVerdict::New,
    )]));
    let mut again = answer(4, &turn, chunk(0, true));
    if let EntryBody::Frame(frame) = &mut again.body {
        frame.chunks[0].attempt = 1;
    }
    let published = |actions: &[Action]| -> Vec<u32> {
        let released = actions.iter().filter_map(|action| match action {
            Action::Publish(release) => Some(release.attempt),
            _ => None,
        });
        released.collect()
    };
    assert_eq!(published(&script.read(vec![again], 9)), [0_u32; 0]);
    let judged =
        (CommandKey::Control(agent(), CommandId::parse("pause").unwrap(), None), CommandVerdict::New);
    assert_eq!(published(&script.take(Input::Checked(vec![judged]))), [0], "the first that was whole");
}

#[test]
fn backlog_before_request_is_no_silence_of_workflow() {
    let mut script = Script::taken_over(PartitionLimits::default(), bare());
    script.take(Input::CaughtUp(true));
    script.take(Input::CaughtUp(false));
    script.ordered(command(1, input("x", BusyPolicy::Enqueue)), CommandVerdict::New);
    script.started(&input_turn("x"));
    let later = |seq: u64| StreamEntry {
        stored_at: START.plus_ms(seq as i64 * 1_900),
        ..entry(seq, "b", 0, chunk(seq as u32, false))
    };
    script.read((2..=100).map(later).collect(), 9);
    let failed = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::Report(MachineReport::TurnFailed { .. })))
    };
    assert!(!failed(&script.pass(2)), "189 s have passed in the stream, and none since the request");
    script.take(Input::CaughtUp(true));
    assert!(!failed(&script.pass(118)));
    assert!(failed(&script.pass(3)), "the deadline is 120 s");
}

#[test]
fn an_act_that_stops_a_turn_is_audited_with_the_end_of_the_turn() {
    let limits = PartitionLimits { commit_turns: 1, ..PartitionLimits::default() };
    let mut script = Script::taken_over(limits, bare());
    script.take(Input::CaughtUp(true));
    script.ordered(command(1, input("x", BusyPolicy::Enqueue)), CommandVerdict::New);
    script.started(&input_turn("x"));
    // One commit is in flight, and another one waits before the turn.
    script.read(vec![entry(2, "a", 0, chunk(0, true)), entry(3, "b", 0, chunk(0, true))], 9);
    script.found("a", Lookup::Absent);
    script.found("b", Lookup::Absent);
    script.ordered(command(4, control("stop", ControlKind::StopTurn(input_turn("x")))), CommandVerdict::New);
    let audits = |actions: &[Action]| -> Vec<(usize, usize, u64)> {
        let commits = actions.iter().filter_map(|action| match action {
            Action::Commit(commit) => Some((commit.turns.len(), commit.audit.len(), commit.checkpoint.0)),
            _ => None,
        });
        commits.collect()
    };
    assert_eq!(audits(&script.committed()), [(0, 0, 0)]);
    assert_eq!(audits(&script.committed()), [(1, 1, 4)]);
}

#[test]
fn a_task_is_not_retried_twice() {
    let mut script = Script::taken_over(PartitionLimits::default(), bare());
    script.take(Input::CaughtUp(true));
    let retry = |seq, name| command(seq, control(name, ControlKind::RetryTask(TaskId::parse("k").unwrap())));
    // Both commands were looked up before the first one was stored.
    let failed = CommandVerdict::Task { position: Position::from_stored(5), is_failed: true };
    script.ordered(retry(1, "one"), failed);
    script.ordered(retry(2, "two"), failed);
    let refused = |actions: &[Action]| -> Vec<bool> {
        let commits = actions.iter().filter_map(|action| match action {
            Action::Commit(commit) => Some(commit.audit.iter().map(|audit| audit.error.is_some())),
            _ => None,
        });
        commits.flatten().collect()
    };
    assert_eq!(refused(&script.committed()), [true]);
}

#[test]
fn restored_answer_is_silent_since_its_last_chunk() {
    let turn = TurnId::of_task(&agent(), Position::from_stored(5));
    let saved = SpilledMessage {
        key: MessageKey { thread: agent().thread(), message: turn.answer(0) },
        chunks: vec![chunk(0, false)],
        gap_ms: None,
        ..spilled(10_000, &[])
    };
    let mut script = Script::taken_over(
        PartitionLimits::default(),
        Takeover { spilled_messages: vec![saved], ..with_tasks(&[5], false) },
    );
    // The backlog covers 110 s. Its last entry is the saved chunk, which already counts as part of
    // the saved message.
    let later =
        |seq: u64, entry: StreamEntry| StreamEntry { stored_at: START.plus_ms(seq as i64 * 1_000), ..entry };
    let others = (1..=110).map(|seq| later(seq, entry(seq, "b", 0, chunk(seq as u32, false))));
    script.read(others.chain([later(111, answer(111, &turn, chunk(0, false)))]).collect(), 9);
    assert_eq!(starts(&script.take(Input::CaughtUp(true))), [(turn.clone(), true)]);
    script.started(&turn);
    let failed = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::Report(MachineReport::TurnFailed { .. })))
    };
    assert!(!failed(&script.pass(105)));
    assert!(failed(&script.pass(10)));
}

#[test]
fn chunks_that_wait_behind_an_order_are_no_silence() {
    let mut script = Script::taken_over(PartitionLimits::default(), bare());
    let turn = input_turn("x");
    script.take(Input::CaughtUp(true));
    script.ordered(command(1, input("x", BusyPolicy::Enqueue)), CommandVerdict::New);
    script.started(&turn);
    // The same input again; the store does not answer.
    script.read(vec![command(2, input("x", BusyPolicy::Enqueue)), answer(3, &turn, chunk(0, true))], 9);
    let actions = script.pass(200);
    assert!(!actions.iter().any(|action| matches!(action, Action::Report(MachineReport::TurnFailed { .. }))));
    let judged = (CommandKey::Turn(agent().thread(), turn.clone(), 0), CommandVerdict::Known { digest: 0 });
    assert_eq!(written(&script.take(Input::Checked(vec![judged]))), [turn]);
}

#[test]
fn standstill_before_reading_is_no_silence_of_workflow() {
    let mut script = Script::taken_over(PartitionLimits::default(), bare());
    script.take(Input::CaughtUp(true));
    script.ordered(command(1, input("x", BusyPolicy::Enqueue)), CommandVerdict::New);
    // The process was paused before the reply to its request arrived, and does not know yet what it
    // has missed.
    script.now = script.now.plus_ms(300_000);
    script.started(&input_turn("x"));
    // The input was open for a long time and has been saved.
    script.committed();
    script.take(Input::CaughtUp(false));
    let later = |seq: u64| StreamEntry {
        stored_at: START.plus_ms(seq as i64 * 1_900),
        ..entry(seq, "b", 0, chunk(seq as u32, false))
    };
    script.read((2..=100).map(later).collect(), 9);
    script.take(Input::CaughtUp(true));
    let failed = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::Report(MachineReport::TurnFailed { .. })))
    };
    assert!(!failed(&script.pass(119)));
    assert!(failed(&script.pass(2)));
}

fn garbage(seq: u64) -> StreamEntry {
    let refusal = RejectedEntry { code: "malformed", detail: String::new() };
    let body = EntryBody::Refused { subject: "s".to_owned(), payload: "?".into(), refusal, answer: None };
    StreamEntry { seq: Seq(seq), stored_at: START, bytes: 1, body }
}

#[test]
fn first_chunk_of_run_awaiting_commit_is_kept() {
    let Command::Turn(opened) = input("x", BusyPolicy::Enqueue) else { return };
    let saved = partition::OpenTurn { opened: *opened, seq: Seq(0), age_ms: 0 };
    let limits = PartitionLimits { commit_turns: 1, ..PartitionLimits::default() };
    let mut script = Script::taken_over(limits, Takeover { open_turns: vec![saved], ..bare() });
    let turn = input_turn("x");
    script.take(Input::CaughtUp(true));
    script.started(&turn);
    // One dead letter is in flight to the store, and the other goes before the turn.
    script.read(vec![garbage(1), garbage(2)], 9);
    script.pass(125);
    script.read(vec![answer(3, &turn, chunk(0, false)), answer(4, &turn, chunk(1, false))], 9);
    let checkpoint = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Commit(commit) => Some((commit.checkpoint.0, commit.failed_turns.len())),
            _ => None,
        })
    };
    assert_eq!(
        checkpoint(&script.committed()),
        Some((2, 0)),
        "chunks for the owner that goes on with the turn"
    );
    assert_eq!(checkpoint(&script.committed()), Some((4, 1)), "no owner does");
    // A chunk that arrives while the end is in flight blocks nothing afterwards.
    script.read(vec![answer(5, &turn, chunk(2, false))], 9);
    script.committed();
    assert_eq!(checkpoint(&script.pass(5)), Some((5, 0)));
}
