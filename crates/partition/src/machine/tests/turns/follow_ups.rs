//! Follow-ups: armed by a turn, fired by a timer, held back, and withdrawn when a person writes.

use scheduling::follow_up::FollowUpRules;

use super::*;

/// A script of an agent that may send follow-ups.
fn with_follow_ups() -> TurnScript {
    let mut script = TurnScript::new();
    script.rules.follow_ups = FollowUpRules::parse(&json!({ "enabled": true })).unwrap().arming();
    script
}

/// The input of this timer's follow-up, as the driver builds it.
fn follow_up(timer: &TimerId) -> TurnOpened {
    let origin = TurnOrigin::FollowUp {
        timer: timer.clone(),
        trigger: model::TriggerType::CheckIn,
        reason: "quiet".into(),
    };
    let Command::Turn(opened) = opened("ignored", 0, BusyPolicy::Enqueue) else { unreachable!() };
    TurnOpened {
        turn: timer.turn().unwrap(),
        content: "Continue our conversation naturally.".to_owned(),
        origin,
        ..*opened
    }
}

fn fire(timer: &TimerId) -> TimerDecision {
    let verdict = TimerVerdict::Fire { work: NewWork::Turn(Box::new(follow_up(timer))), next: None };
    TimerDecision { id: timer.clone(), thread: Some(thread("t")), verdict }
}

/// A thread in which a follow-up was armed and is due.
fn due() -> (TurnScript, TimerId) {
    let mut script = with_follow_ups();
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    script.say(0, &["hint:30:hello!"]);
    let [TimerWrite::Arm(armed)] = &script.last_commit().timers[..] else {
        panic!("{:?}", script.last_commit())
    };
    let id = armed.id.clone();
    script.later(29_999);
    assert_eq!(script.due, []);
    script.later(1);
    assert_eq!(script.due, std::slice::from_ref(&id));
    (script, id)
}

/// Like [`due`], with the follow-up fired and started.
fn begun() -> (TurnScript, TimerId) {
    let (mut script, id) = due();
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    assert_eq!(script.last_start().turn, id.turn().unwrap());
    (script, id)
}

fn withdrawn(script: &TurnScript, timer: &TimerId, by: &str) {
    let end = TimerWrite::End { id: timer.clone(), state: TimerEnd::Withdrawn, by: by.to_owned() };
    let all: Vec<&TimerWrite> = script.commits.iter().flat_map(|commit| &commit.timers).collect();
    assert!(all.contains(&&end), "{all:?}");
    let turn = timer.turn().unwrap();
    assert!(script.commits.iter().all(|commit| {
        commit.turns.iter().all(|write| write.turn != turn)
            && commit.failed_turns.iter().all(|failed| failed.opened.turn != turn)
            && commit.failed_messages.iter().all(|failed| failed.key.message != turn.answer(0))
    }));
    let ended = |outgoing: &Outgoing| matches!(outgoing, Outgoing::TurnEnded(ended) if ended.turn == turn);
    assert!(script.commits.iter().flat_map(|commit| &commit.outbox).all(|b| !b.outgoing.iter().any(ended)));
    assert!(script.endings.iter().all(|end| end.key.message != turn.answer(0)), "nothing ends for anybody");
    assert!(script.shown.iter().all(|(of, _)| of != name(&turn)), "{:?}", script.shown);
}

#[test]
fn completed_turn_arms_a_follow_up_with_its_commit() {
    let mut script = with_follow_ups();
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    script.say(0, &["hint:30:hello!"]);
    let commit = script.last_commit();
    let answer = commit.turns[0].messages.last().unwrap().placement.position;
    let [TimerWrite::Arm(armed)] = &commit.timers[..] else { panic!("{commit:?}") };
    assert_eq!(armed.id, TimerId::follow_up(&thread("t"), answer));
    assert_eq!((armed.wait_ms, &armed.thread, &armed.agent), (30_000, &Some(thread("t")), &agent()));
    let body = json!({
        "trigger_type": "check_in", "reason": "quiet", "source": "hint",
        "armed_by": turn("x").as_str(), "armed_position": answer.to_string(),
    });
    assert_eq!(armed.body.to_value(), body);
}

#[test]
fn nothing_is_armed_after_what_is_no_answer() {
    let armed_by = |mut script: TurnScript, command: Command, words: &[&str]| {
        script.command(command);
        script.say(0, words);
        script.commits.iter().map(|commit| commit.timers.len()).sum::<usize>()
    };
    let armed = |command: Command, words: &[&str]| armed_by(with_follow_ups(), command, words);
    let ask = || opened("x", 0, BusyPolicy::Enqueue);
    assert_eq!(armed(ask(), &["hint:30:yes!"]), 1);
    assert_eq!(armed(ask(), &["no hint!"]), 0);
    assert_eq!(armed(ask(), &["hint:30:!"]), 0, "nothing to say");
    assert_eq!(armed(ask(), &["hint:29:too soon!"]), 0);
    assert_eq!(armed(ask(), &["hint:30:a", "error:{}"]), 0);
    assert_eq!(armed_by(TurnScript::new(), ask(), &["hint:30:off!"]), 0);
    assert_eq!(armed(Command::Task(task_of("t1", "do")), &["hint:30:of a task!"]), 0);
    let mut script = with_follow_ups();
    script.command(ask());
    script.say(0, &["hint:30:a"]);
    script.command(control("s1", ControlKind::StopTurn(turn("x"))));
    assert!(script.last_commit().turns.len() == 1 && script.last_commit().timers.is_empty(), "stopped");
}

#[test]
fn timer_fires_once_and_its_turn_begins_with_the_commit() {
    let (mut script, id) = due();
    script.auto = false;
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    let commit = script.last_commit().clone();
    let fired = TimerWrite::Fire { id: id.clone(), turn: Some(id.turn().unwrap()), next: None };
    assert_eq!(commit.timers, [fired]);
    let opened: Vec<&TurnOpened> = commit.opened.iter().map(|open| &open.opened).collect();
    assert_eq!((opened, &commit.outbox), (vec![&follow_up(&id)], &None), "nothing is sent");
    // A timer that is loaded again before the commit is applied is not decided again.
    let page = TimerPage { timers: vec![PendingTimer { id: id.clone(), wait_ms: -1 }], is_all: true };
    script.handle(Input::Timers(page));
    script.later(1_000);
    assert_eq!(script.due.len(), 1);
    assert_eq!(script.last_start().turn, turn("x"), "not before the commit is applied");
    script.handle(Input::Committed(Vec::new()));
    assert_eq!(script.last_start().turn, id.turn().unwrap());
}

#[test]
fn a_client_changes_what_waits_and_not_what_is_due() {
    let mut script = with_follow_ups();
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    script.say(0, &["hint:30:hello!"]);
    let id = script.last_commit().timers[0].id().clone();
    let until = script.now.plus_ms(45_000);
    script.command(control("s1", ControlKind::SnoozeTimer { timer: id.clone(), until }));
    let next = NextDue { at: until, wait_ms: 45_000 };
    let by = Some("snooze".to_owned());
    assert_eq!(script.last_commit().timers, [TimerWrite::Postpone { id: id.clone(), next, by }]);
    assert_eq!(script.last_commit().audit[0].error, None);
    script.later(44_999);
    assert_eq!(script.due, [], "not when it was due before");
    script.later(1);
    assert_eq!(script.due, std::slice::from_ref(&id));
    // From here on only the owner decides, and a cancellation comes too late.
    script.command(control("c1", ControlKind::CancelTimer(id.clone())));
    assert!(script.last_commit().audit[0].error.is_some() && script.last_commit().timers.is_empty());
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    assert_eq!(script.last_commit().opened.len(), 1, "it fires all the same");

    let (mut script, id) = due();
    let next = NextDue { at: Timestamp(5), wait_ms: 700 };
    let verdict = TimerVerdict::Later { next, by: None };
    script.handle(Input::TimersDecided(vec![TimerDecision { id: id.clone(), thread: None, verdict }]));
    script.auto = false;
    script.command(control("c1", ControlKind::CancelTimer(id.clone())));
    let key = CommandKey::Control(agent(), CommandId::parse("c1").unwrap(), None);
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    let end = TimerWrite::End { id: id.clone(), state: TimerEnd::Cancelled, by: "client".to_owned() };
    assert_eq!(script.last_commit().timers, [end]);
    // The timer becomes due before that commit is applied, and is not decided.
    script.later(700);
    assert_eq!(script.due, [id]);
    script.machine.handle(Input::Committed(Vec::new()), script.now);
    assert_eq!(script.machine.stats(script.now).timers, 0);
}

#[test]
fn what_gateways_have_stored_is_read_when_they_say_so() {
    for (n, kind) in [
        ControlKind::PutSchedule(model::ScheduleName::parse("daily").unwrap()),
        ControlKind::DeleteSchedule(model::ScheduleName::parse("daily").unwrap()),
        ControlKind::DelayTask(TaskId::parse("k").unwrap()),
    ]
    .into_iter()
    .enumerate()
    {
        let mut script = with_follow_ups();
        let said = script.command(control(&format!("g{n}"), kind));
        assert!(said.iter().any(|line| line.starts_with("load timers")), "{said:?}");
        assert_eq!(script.last_commit().audit[0].error, None);
    }
}

#[test]
fn what_was_decided_otherwise_is_written_or_looked_at_again() {
    let (mut script, id) = due();
    let decide = |verdict| TimerDecision { id: id.clone(), thread: Some(thread("t")), verdict };
    let next = NextDue { at: Timestamp(5), wait_ms: 700 };
    script.handle(Input::TimersDecided(vec![decide(TimerVerdict::Later { next, by: None })]));
    assert!(script.last_commit().timers.iter().all(|write| matches!(write, TimerWrite::Arm(_))));
    script.later(700);
    let by = Some("quiet_hours".to_owned());
    script.handle(Input::TimersDecided(vec![decide(TimerVerdict::Later { next, by: by.clone() })]));
    assert_eq!(script.last_commit().timers, [TimerWrite::Postpone { id: id.clone(), next, by }]);
    script.later(700);
    let (state, by) = (TimerEnd::Refused, "max_in_a_row".to_owned());
    script.handle(Input::TimersDecided(vec![decide(TimerVerdict::End { state, by: by.clone() })]));
    assert_eq!(script.last_commit().timers, [TimerWrite::End { id: id.clone(), state, by }]);
    script.later(10_000);
    assert_eq!(script.due, vec![id; 3]);
    assert_eq!(script.machine.stats(script.now).timers, 0);
}

#[test]
fn a_follow_up_is_shown_when_it_is_committed() {
    let (mut script, id) = begun();
    script.shown.clear();
    script.say(0, &["are ", "you "]);
    let ask = SnapshotRequest {
        token: 1,
        gateway: GatewayId::parse("g1").unwrap(),
        thread: thread("t"),
        known: Vec::new(),
        max_messages: 8,
        max_bytes: 1_000,
    };
    let actions = script.machine.handle(Input::Snapshot(ask), script.now);
    let [Action::Snapshot(reply)] = &actions[..] else { panic!("{actions:?}") };
    assert!(script.shown.is_empty() && reply.open.is_empty(), "nothing of it before its commit");
    assert_eq!(
        script.say(2, &["hint:60:there?!"]),
        [format!("end {} run 0 complete", name(&id.turn().unwrap()))]
    );
    assert_eq!(script.shown.concat_text(), "are you there?");
    let commit = script.last_commit();
    let input = &commit.turns[0].messages[0];
    assert_eq!(input.metadata.get("synthetic"), Some(&json!(true)));
    assert_eq!(input.placement.batch_type, BatchType::SystemTrigger);
    assert!(matches!(&commit.timers[..], [TimerWrite::Arm(next)] if next.id != id), "it may be followed up");
}

trait Texts {
    fn concat_text(&self) -> String;
}

impl Texts for Vec<(String, String)> {
    fn concat_text(&self) -> String {
        self.iter().map(|(_, text)| text.as_str()).collect()
    }
}

#[test]
fn a_message_withdraws_a_follow_up_at_any_stage() {
    // The follow-up is decided, but not committed: the message comes first.
    let (mut script, id) = due();
    script.command(opened("y", 0, BusyPolicy::Enqueue));
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    let cancelled = TimerWrite::End { id, state: TimerEnd::Cancelled, by: "message".to_owned() };
    assert_eq!(script.last_commit().timers, [cancelled]);
    assert!(script.last_commit().outbox.is_none());
    // The follow-up has fired, but its input comes after the message in the stream.
    let (mut script, id) = due();
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    script.command(opened("y", 0, BusyPolicy::Enqueue));
    script.command(Command::Turn(Box::new(follow_up(&id))));
    withdrawn(&script, &id, "message");
    // The follow-up is being generated; the policy of the message does not matter.
    for policy in BusyPolicy::ALL {
        let (mut script, id) = begun();
        script.say(0, &["are you"]);
        let said = script.command(opened("y", 0, policy));
        assert!(said.iter().any(|line| line.starts_with("abandon ")), "{said:?}");
        assert!(said.contains(&"start y run 0".to_owned()), "{policy:?}: {said:?}");
        withdrawn(&script, &id, "message");
        script.say(0, &["an ordinary answer!"]);
        assert_eq!(script.history().last().unwrap(), "user \"ask y\", assistant \"an ordinary answer\"");
    }
}

#[test]
fn a_complete_follow_up_waits_while_a_message_is_checked() {
    let ready = || {
        let (mut script, id) = begun();
        script.auto = false;
        script.command(opened("y", 0, BusyPolicy::Enqueue));
        let commits = script.commits.len();
        // The end of the follow-up still waits for the check of the message.
        script.say(0, &["too late!"]);
        assert_eq!(script.commits.len(), commits, "the message may be a new one");
        script.auto = true;
        (script, id)
    };
    let key = || CommandKey::Turn(thread("t"), turn("y"), 0);
    let (mut script, id) = ready();
    script.handle(Input::Checked(vec![(key(), CommandVerdict::New)]));
    withdrawn(&script, &id, "message");
    let (mut script, _) = ready();
    script.handle(Input::Checked(vec![(key(), CommandVerdict::Known { digest: 0 })]));
    assert!(script.history().last().unwrap().contains("too late"), "a repetition takes nothing back");
}

#[test]
fn a_message_that_reads_like_a_trigger_is_a_message() {
    let (mut script, id) = begun();
    script.say(0, &["are you"]);
    let Command::Turn(mut typed) = opened("y", 0, BusyPolicy::Enqueue) else { unreachable!() };
    typed.content = "[AUTONOMOUS_FOLLOWUP: check_in]".to_owned();
    let said = json!({ "synthetic": "true", "timer_id": id.as_str() });
    let said = Metadata::new(said.as_object().unwrap().clone()).unwrap();
    (typed.origin, typed.metadata) = TurnOrigin::split(None, said);
    script.command(Command::Turn(typed));
    withdrawn(&script, &id, "message");
    script.say(0, &["hint:30:ok!"]);
    assert_eq!(script.last_commit().turns.len(), 1, "and is answered like any");
}

#[test]
fn a_follow_up_that_does_not_come_about_leaves_nothing() {
    let end = |words: &[&str]| {
        let (mut script, id) = begun();
        script.say(0, words);
        (script, id)
    };
    let (script, id) = end(&["par", "error:{}"]);
    withdrawn(&script, &id, "producer_error");
    let (script, id) = end(&[" \n!"]);
    withdrawn(&script, &id, "nothing_to_say");
    let (mut script, id) = begun();
    script.say(0, &["par"]);
    script.command(control("s1", ControlKind::StopTurn(id.turn().unwrap())));
    withdrawn(&script, &id, "stopped");
    let (mut script, id) = begun();
    script.later(200_000);
    withdrawn(&script, &id, "deadline");
    assert!(script.commits.iter().all(|commit| commit.failed_turns.is_empty()));
    let (mut script, id) = due();
    script.auto = false;
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    script.handle(Input::Committed(Vec::new()));
    let turn = id.turn().unwrap();
    script.handle(Input::Started { turn, run: 0, started: Started::Superseded("quiet_hours") });
    withdrawn(&script, &id, "quiet_hours");
}

/// A new owner requests the follow-up again. The answer comes before the driver reports that the
/// rules now forbid the follow-up.
#[test]
fn a_follow_up_whose_answer_has_begun_goes_on_despite_a_rule() {
    for (by, goes_on) in [("quiet_hours", true), ("message", false)] {
        let (mut script, id) = due();
        script.auto = false;
        script.handle(Input::TimersDecided(vec![fire(&id)]));
        script.handle(Input::Committed(Vec::new()));
        let turn = id.turn().unwrap();
        script.say(0, &["are you"]);
        let started = script.handle(Input::Started { turn, run: 0, started: Started::Superseded(by) });
        assert_eq!(started.iter().any(|action| action.starts_with("start")), goes_on, "{started:?}");
        assert_eq!(script.last_start().is_adopted, goes_on);
    }
}

#[test]
fn a_follow_up_that_the_store_refuses_is_no_event() {
    let (mut script, id) = begun();
    script.auto = false;
    script.say(0, &["there?!"]);
    let turn = id.turn().unwrap();
    let sends = |commit: &Commit| commit.outbox.iter().map(|batch| batch.outgoing.len()).sum::<usize>();
    assert_eq!(sends(script.last_commit()), 1, "its end");
    let actions = script.machine.handle(Input::Committed(vec![(turn, "no".to_owned())]), script.now);
    let sent = actions.iter().find_map(|action| match action {
        Action::Send(batch) => Some(batch.outgoing.len()),
        _ => None,
    });
    assert_eq!(sent, Some(0), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::End(_))), "{actions:?}");
}

#[test]
fn what_was_asked_before_a_person_wrote_fires_nothing() {
    // The message is answered before the timer's decision arrives, and the answer arms another
    // timer.
    let (mut script, id) = due();
    script.command(opened("y", 0, BusyPolicy::Enqueue));
    script.say(0, &["hint:30:hello again!"]);
    let cancelled = TimerWrite::End { id: id.clone(), state: TimerEnd::Cancelled, by: "message".to_owned() };
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    assert!(script.last_commit().timers.contains(&cancelled), "{:?}", script.last_commit());
    // The result is the same when the message was taken before the look-up, and its answer has
    // replaced the timer since.
    let mut script = with_follow_ups();
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    script.say(0, &["hint:30:hello!"]);
    script.command(opened("y", 0, BusyPolicy::Enqueue));
    script.later(30_000);
    let id = script.due.first().cloned().unwrap();
    script.say(0, &["hint:30:hello again!"]);
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    let cancelled_there = TimerWrite::End { id, state: TimerEnd::Cancelled, by: "message".to_owned() };
    assert!(script.last_commit().timers.contains(&cancelled_there), "{:?}", script.last_commit());
    // The result is the same while a commit is in flight, for which the firing has to wait.
    let (mut script, id) = due();
    script.auto = false;
    let mut decided = Some(());
    for command in [Command::Task(task_of("t1", "do")), opened("y", 0, BusyPolicy::Enqueue)] {
        script.command(command);
        let verdicts = script.checks.drain(..).map(|key| (key, CommandVerdict::New)).collect();
        script.handle(Input::Checked(verdicts));
        if script.commits.last().is_some_and(|commit| !commit.tasks.is_empty()) && decided.take().is_some() {
            script.handle(Input::TimersDecided(vec![fire(&id)]));
        }
    }
    script.handle(Input::Committed(Vec::new()));
    let commit = script.last_commit();
    assert!(commit.timers.contains(&cancelled), "{commit:?}");
    assert_eq!(commit.opened, [], "{commit:?}");
}

#[test]
fn nothing_fires_in_the_commit_of_a_message_that_was_rejected() {
    let mut script = with_follow_ups();
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    script.say(0, &["hint:30:hello!"]);
    let Command::Turn(mut busy) = opened("z", 0, BusyPolicy::Enqueue) else { unreachable!() };
    busy.origin = TurnOrigin::Heartbeat { batch: Position::MAX };
    script.command(Command::Turn(busy));
    script.auto = false;
    for command in
        [Command::Task(task_of("t1", "its commit is under way")), opened("y", 0, BusyPolicy::Reject)]
    {
        script.command(command);
        let verdicts = script.checks.drain(..).map(|key| (key, CommandVerdict::New)).collect();
        script.handle(Input::Checked(verdicts));
    }
    script.later(30_000);
    let id = script.due.first().cloned().unwrap();
    script.handle(Input::TimersDecided(vec![fire(&id)]));
    script.handle(Input::Committed(Vec::new()));
    let commit = script.last_commit();
    let failed: Vec<&str> = commit.failed_turns.iter().map(|failed| failed.code.as_str()).collect();
    assert_eq!(failed, ["busy"], "{commit:?}");
    let cancelled = TimerWrite::End { id, state: TimerEnd::Cancelled, by: "message".to_owned() };
    assert_eq!(commit.timers, [cancelled], "{commit:?}");
    assert_eq!(commit.opened, [], "{commit:?}");
}

#[test]
fn a_new_owner_withdraws_what_was_saved_beside_a_message() {
    let (_, id) = due();
    let of = |command: Command, seq| {
        let Command::Turn(opened) = command else { unreachable!() };
        OpenTurn { opened: *opened, seq: Seq(seq), age_ms: 0 }
    };
    let open_turns = vec![
        OpenTurn { opened: follow_up(&id), seq: Seq(1), age_ms: 0 },
        of(opened("y", 0, BusyPolicy::Enqueue), 2),
    ];
    let mut script = TurnScript::with(quiet(), Takeover { open_turns, ..bare() });
    script.handle(Input::CaughtUp(true));
    withdrawn(&script, &id, "message");
    assert_eq!(script.last_start().turn, turn("y"));
}

#[test]
fn saved_follow_up_begins_once_though_its_entry_is_repeated() {
    let (_, id) = due();
    let open_turns = vec![OpenTurn { opened: follow_up(&id), seq: Seq(1), age_ms: 0 }];
    let mut script = TurnScript::with(quiet(), Takeover { open_turns, checkpoint: Seq(1), ..bare() });
    assert_eq!(script.starts.len(), 1);
    // The store may not know the turn: a withdrawn follow-up leaves nothing.
    script.command(Command::Turn(Box::new(follow_up(&id))));
    assert_eq!((script.starts.len(), script.machine.stats(script.now).active_turns), (1, 1));
    script.say(0, &["Are you there?!"]);
    assert_eq!((script.machine.load().0, script.machine.stats(script.now).active_turns), (0, 0));
}

#[test]
fn an_ordinary_turn_is_never_withdrawn() {
    let mut script = with_follow_ups();
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    script.say(0, &["hello"]);
    script.command(opened("y", 0, BusyPolicy::Enqueue));
    script.say(1, &[" you!"]);
    assert_eq!(script.history(), ["user \"ask x\", assistant \"hello you\""]);
    assert_eq!(script.last_start().turn, turn("y"));
}

#[test]
fn a_new_owner_fires_what_it_finds() {
    let (script, id) = due();
    let timers = TimerPage { timers: vec![PendingTimer { id: id.clone(), wait_ms: 500 }], is_all: true };
    let mut next = TurnScript::with(quiet(), Takeover { timers, ..next_takeover(&script) });
    next.later(499);
    assert_eq!(next.due, []);
    next.later(1);
    assert_eq!(next.due, [id]);
}

#[test]
fn a_new_owner_asks_before_it_commits_a_follow_up() {
    let (script, id) = begun();
    let start = script.last_start();
    for is_wanted in [true, false] {
        let takeover = next_takeover(&script);
        assert_eq!(takeover.open_turns.len(), 1);
        let mut next = TurnScript::new();
        next.auto = false;
        next.machine = Partition::new(takeover, quiet(), 7, T0);
        next.seq = script.seq;
        // Its workflow answers the previous owner's request.
        next.say_as(&start, 0, 0, &["there?!"]);
        next.handle(Input::CaughtUp(true));
        assert!(next.last_start().is_adopted);
        assert!(next.commits.iter().all(|commit| commit.turns.is_empty()), "it may not be wanted any more");
        let started = if is_wanted { Started::Requested(next.rules) } else { Started::Superseded("message") };
        next.auto = true;
        next.handle(Input::Started { turn: start.turn.clone(), run: 0, started });
        match is_wanted {
            true => assert!(next.history().last().unwrap().contains("there?")),
            false => withdrawn(&next, &id, "message"),
        }
    }
}
