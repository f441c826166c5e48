//! Reasons why turns and tasks wait.

use super::*;

#[test]
fn what_waits_for_the_word_of_the_store_is_not_known_yet() {
    let mut script = TurnScript::new();
    script.open("x");
    script.say(0, &["done!"]);
    let ask = |script: &mut TurnScript| {
        let query = StatusQuery { token: 7, target: QueryTarget::Thread(thread("t")) };
        match script.machine.handle(Input::Status(query), script.now).remove(0) {
            Action::Status(reply) => reply.status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut script).applied_seq, Seq(script.seq));
    script.auto = false;
    script.open("y");
    let status = ask(&mut script);
    assert_eq!((status.active, status.waiting), (None, Vec::new()));
    assert_eq!(status.applied_seq, Seq(script.seq - 1));
}

#[test]
fn open_messages_say_what_they_wait_for() {
    let mut script = TurnScript::new();
    let ask = |script: &mut TurnScript| {
        let query = StatusQuery { token: 7, target: QueryTarget::Thread(thread("t")) };
        match script.machine.handle(Input::Status(query), script.now).remove(0) {
            Action::Status(reply) => reply.status.open,
            other => panic!("{other:?}"),
        }
    };
    script.open("x");
    script.say(0, &["a"]);
    let [open] = &ask(&mut script)[..] else { panic!("one message is open") };
    assert_eq!((&open.message, open.expected, open.gap_for_ms), (&turn("x").answer(0), 1, None));
    script.say(2, &["c"]);
    let [open] = &ask(&mut script)[..] else { panic!("one message is open") };
    assert_eq!((open.expected, open.received, open.released), (1, 2, 1));
    assert_eq!(open.missing, [model::IdRange { first: 1, last: 1 }]);
    assert!(
        open.gap_for_ms
            .is_some_and(|for_ms| (1..=PartitionLimits::default().gap_timeout_ms).contains(&for_ms)),
        "{open:?}"
    );
    script.say(1, &["b"]);
    script.say(3, &["d!"]);
    assert_eq!(ask(&mut script), []);
}

#[test]
fn why_things_wait() {
    let mut script = TurnScript::new();
    let ask = |script: &mut TurnScript, target| {
        let actions = script.machine.handle(Input::Status(StatusQuery { token: 7, target }), script.now);
        match actions.into_iter().next() {
            Some(Action::Status(reply)) => reply.status,
            other => panic!("{other:?}"),
        }
    };
    script.open("x");
    script.open("y");
    let thread_state = ask(&mut script, QueryTarget::Thread(thread("t")));
    assert_eq!(thread_state.applied_seq, Seq(script.seq));
    assert_eq!(thread_state.active.unwrap().waits_for, Some(WaitReason::Requested));
    let [waiting] = &thread_state.waiting[..] else { panic!("{:?}", thread_state.waiting) };
    assert_eq!((&waiting.turn, waiting.reason, waiting.yields), (&turn("y"), WaitReason::HeadOfLine, false));
    assert_eq!(ask(&mut script, QueryTarget::Turn(turn("y"))).reason, Some(WaitReason::HeadOfLine));
    script.say(1, &["b"]);
    let active = ask(&mut script, QueryTarget::Turn(turn("x"))).active.unwrap();
    assert_eq!((active.turn, active.waits_for), (turn("x"), Some(WaitReason::Gap)));
    script.task("t1");
    script.say(0, &["error:{}"]);
    let waiting = ask(&mut script, QueryTarget::Agent(agent()));
    assert!(matches!(waiting.reason, Some(WaitReason::Backoff { for_ms }) if for_ms > 59_000));
    script.command(control("p", ControlKind::Pause));
    assert_eq!(ask(&mut script, QueryTarget::Agent(agent())).reason, Some(WaitReason::Paused));
}

#[test]
fn what_may_begin_and_how_long_turns_take_is_measured() {
    let mut script = TurnScript::with(PartitionLimits { active_turns: 1, ..quiet() }, bare());
    script.open("x");
    script.later(2_000);
    script.task("t1");
    let runnable = |script: &mut TurnScript| {
        let stats = script.machine.stats(script.now);
        (stats.runnable_agents, stats.oldest_runnable_ms)
    };
    assert_eq!(runnable(&mut script), (1, 0));
    script.later(3_000);
    assert_eq!(runnable(&mut script), (1, 3_000));
    script.say(0, &["hi"]);
    assert_eq!(script.machine.take_turn_times().first_chunk_ms, [5_000]);
    script.later(1_000);
    script.say(1, &["there!"]);
    let times = script.machine.take_turn_times();
    assert_eq!((times.first_chunk_ms, times.committed_ms), (vec![], vec![6_000]));
    assert_eq!(runnable(&mut script), (1, 0), "the task is under way");
    script.say(0, &["done!"]);
    assert_eq!(runnable(&mut script), (0, 0));
    assert_eq!(script.machine.take_turn_times(), TurnTimes::default(), "of tasks nothing is timed");
    script.command(control("pause", ControlKind::Pause));
    script.task("t2");
    assert_eq!(runnable(&mut script), (0, 0), "a paused agent is not runnable");
}

#[test]
fn ages_go_on_under_the_next_owner() {
    let ask = |script: &mut TurnScript| {
        let query = StatusQuery { token: 7, target: QueryTarget::Thread(thread("t")) };
        match script.machine.handle(Input::Status(query), script.now).remove(0) {
            Action::Status(reply) => (reply.status.active.unwrap().idle_ms, reply.status.waiting[0].age_ms),
            other => panic!("{other:?}"),
        }
    };
    let mut script = TurnScript::with(PartitionLimits { replay_entries: 4, ..quiet() }, bare());
    script.open("x");
    script.later(1_000);
    script.say(0, &["so"]);
    script.open("y");
    script.later(30_000);
    assert_eq!(ask(&mut script), (30_000, 30_000));
    let mut next = TurnScript::with(quiet(), bare());
    next.now = script.now.plus_ms(10_000);
    (next.machine, next.seq) = (Partition::new(bare(), quiet(), 9, next.now), script.seq);
    next.handle(Input::Entries { entries: script.log.clone(), room: 1_000 });
    next.handle(Input::CaughtUp(true));
    assert_eq!(ask(&mut next), (40_000, 40_000), "read from the stream again");
    script.later(30_000);
    // Repeated commands make the replay long.
    script.open("y");
    script.open("y");
    let saved: Vec<OpenTurn> = script.saves.iter().flat_map(|save| save.turns.clone()).collect();
    let ages: Vec<i64> = saved.iter().map(|saved| saved.age_ms).collect();
    assert_eq!(ages, [61_000, 60_000], "saved with their age");
    let mut next = TurnScript::with(quiet(), Takeover { open_turns: saved, ..next_takeover(&script) });
    next.later(2_000);
    assert_eq!(ask(&mut next).1, 62_000);
}

#[test]
fn a_turn_that_waits_for_a_budget_is_no_backoff() {
    let mut script = TurnScript::new();
    script.task("t1");
    script.say(0, &["error:{}"]);
    let failed = script.machine.stats(script.now);
    assert_eq!((failed.backing_off, failed.waiting_agents.total()), (1, 1));
    script.auto = false;
    let other = AgentId::parse("other").unwrap();
    script.command(Command::Task(Task { agent: other.clone(), ..task_of("t2", "do") }));
    let key = std::mem::take(&mut script.checks).remove(0);
    script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
    script.handle(Input::Committed(Vec::new()));
    let start = script.last_start();
    assert_eq!(start.agent, other);
    let started = Started::NotNow(NotNow::Budget { for_ms: 3_600_000 });
    script.handle(Input::Started { turn: start.turn, run: start.run, started });
    let stats = script.machine.stats(script.now);
    assert_eq!(stats.backing_off, 1);
    let of = |reason| stats.waiting_agents.of(reason);
    assert_eq!((of(WaitReason::Backoff { for_ms: 0 }), of(WaitReason::Budget { for_ms: 0 })), (1, 1));
    assert_eq!(stats.waiting_turns.total(), 0);
    script.auto = true;
    script.open("x");
    script.open("y");
    script.open("z");
    let stats = script.machine.stats(script.now);
    assert_eq!((stats.waiting_turns.of(WaitReason::HeadOfLine), stats.waiting_turns.total()), (2, 2));
}

fn news(script: &mut TurnScript, name: &str, news: RequestNews) {
    script.handle(Input::Requests(vec![(turn(name), 0, news)]));
}

/// Reasons that subscribers are shown, each with the second at which it is shown.
fn notices(script: &mut TurnScript, seconds: i64) -> Vec<(i64, &'static str)> {
    let mut reasons = Vec::new();
    for second in 1..=seconds {
        script.later(1_000);
        view(script);
        let notices = script.machine.wait_notices(script.now).into_iter();
        reasons.extend(notices.map(|(notice, gateways)| {
            assert_eq!((notice.message, gateways.len()), (turn("x").answer(0), 1));
            (second, notice.reason.name())
        }));
    }
    reasons
}

/// A gateway with subscribers of the thread sends a query, as it does every two seconds.
fn view(script: &mut TurnScript) {
    let gateway = GatewayId::parse("gateway-1").unwrap();
    let known = Vec::new();
    let (thread, max_messages, max_bytes) = (thread("t"), 4, 1 << 20);
    let request = SnapshotRequest { token: 1, gateway, thread, known, max_messages, max_bytes };
    script.handle(Input::Snapshot(request));
}

fn viewed() -> TurnScript {
    let mut script = TurnScript::new();
    script.rules.deadline_ms = 60_000;
    view(&mut script);
    script.open("x");
    script
}

#[test]
fn viewers_are_shown_why_no_chunk_comes() {
    let mut script = viewed();
    assert_eq!(notices(&mut script, 8), [], "nothing is known");
    news(&mut script, "x", RequestNews::NotTaken);
    assert_eq!(
        notices(&mut script, 11),
        [(1, "no_workflow"), (11, "no_workflow")],
        "again, for those who joined"
    );
    news(&mut script, "x", RequestNews::Taken { deliveries: 1, is_alive: true });
    assert_eq!(notices(&mut script, 3), [(1, "taken")], "what was shown is over");
    news(&mut script, "x", RequestNews::HandedBack { deliveries: 1, again_ms: 2_000 });
    assert_eq!(notices(&mut script, 2), [(1, "handed_back")]);
    script.say(0, &["a", "b"]);
    assert_eq!(notices(&mut script, 4), [], "it is being answered");
    news(&mut script, "x", RequestNews::Acknowledged);
    assert_eq!(notices(&mut script, 1), [(1, "unfinished")]);
    script.say(3, &["d"]);
    assert_eq!(notices(&mut script, 3), [(1, "gap")]);
}

#[test]
fn what_is_answered_soon_has_no_notice() {
    let mut script = viewed();
    news(&mut script, "x", RequestNews::NotTaken);
    assert_eq!(notices(&mut script, 4), [], "a service may be about to take it");
    script.say(0, &["a!"]);
    assert_eq!(notices(&mut script, 20), []);
}

#[test]
fn turns_fail_with_what_is_known_of_their_requests() {
    let done = RequestNews::Acknowledged;
    for (happened, words, code) in [
        (None, &[][..], "deadline"),
        (Some(RequestNews::NotTaken), &[], "no_workflow"),
        (Some(RequestNews::Taken { deliveries: 0, is_alive: false }), &[], "deadline"),
        (Some(RequestNews::HandedBack { deliveries: 3, again_ms: 0 }), &[], "handed_back"),
        (Some(RequestNews::Lost), &[], "lost_service"),
        (Some(done), &[], "no_answer"),
        (Some(done), &["some", "text"], "unfinished"),
    ] {
        let mut script = TurnScript::new();
        script.open("x");
        if !words.is_empty() {
            script.say(0, words);
        }
        if let Some(happened) = happened {
            news(&mut script, "x", happened);
        }
        script.later(script.rules.deadline_ms + 2_000);
        assert_eq!(script.last_commit().failed_turns[0].code, code, "{happened:?}");
    }
}

#[test]
fn a_request_that_is_given_up_fails_its_turn_soon() {
    let mut script = TurnScript::new();
    script.open("x");
    let given_up = RequestNews::GivenUp { deliveries: 16 };
    news(&mut script, "x", given_up);
    script.later(900);
    assert!(script.commits.iter().all(|commit| commit.failed_turns.is_empty()), "its last chunks may come");
    script.later(1_100);
    assert_eq!(script.last_commit().failed_turns[0].code, "handed_back");
    // News about another run is ignored.
    script.open("y");
    script.handle(Input::Requests(vec![(turn("y"), 1, given_up)]));
    script.later(1_500);
    assert_eq!(script.machine.silent_turns(script.now), [(turn("y"), 0, 1_500)]);
}

#[test]
fn nothing_is_said_of_requests_while_the_reader_is_behind() {
    let mut script = viewed();
    news(&mut script, "x", RequestNews::Acknowledged);
    script.handle(Input::CaughtUp(false));
    assert_eq!(notices(&mut script, 5), []);
    news(&mut script, "x", RequestNews::GivenUp { deliveries: 16 });
    script.later(5_000);
    assert!(script.machine.is_active(&turn("x")), "its final chunk may stand unread in the stream");
    script.handle(Input::CaughtUp(true));
    script.later(2_000);
    assert_eq!(script.last_commit().failed_turns[0].code, "handed_back");
}

#[test]
fn an_answer_without_its_token_is_named() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    script.say_as(&Start { token: TurnToken::received("guess"), ..start.clone() }, 0, 0, &["intruder!"]);
    let query = StatusQuery { token: 7, target: QueryTarget::Turn(turn("x")) };
    let actions = script.machine.handle(Input::Status(query), script.now);
    let Some(Action::Status(reply)) = actions.into_iter().next() else { panic!("no status") };
    let reason = reply.status.active.and_then(|active| active.waits_for);
    assert_eq!(reason, Some(WaitReason::Unanswered(Unanswered::NoToken)));
    script.say_as(&start, 0, 0, &["hello!"]);
    assert_eq!(script.history().last().map(String::as_str), Some("user \"ask x\", assistant \"hello\""));
}

#[test]
fn a_service_that_says_nothing_is_shown_after_a_while() {
    let mut script = viewed();
    news(&mut script, "x", RequestNews::Taken { deliveries: 1, is_alive: true });
    assert_eq!(notices(&mut script, 6), [(5, "taken")]);
}

#[test]
fn messages_came_when_their_chunks_did() {
    let mut script = TurnScript::new();
    script.open("x");
    let at = |ms: i64| Some(T0.plus_ms(ms));
    let times_shown = |script: &mut TurnScript| {
        let query = StatusQuery { token: 7, target: QueryTarget::Batch(thread("t")) };
        let Action::Status(reply) = script.machine.handle(Input::Status(query), script.now).remove(0) else {
            panic!("no status")
        };
        let active = reply.status.active.unwrap();
        assert_eq!((active.accepted_at, active.started_at), (T0, Some(T0)));
        let batch = active.batch.unwrap();
        assert_eq!((batch.continues, batch.is_cut), (None, false));
        let times =
            batch.messages.iter().map(|it| (it.content.clone(), it.times.started_at, it.times.created_at));
        times.collect::<Vec<_>>()
    };
    let input = ("ask x".to_owned(), at(0), at(0));
    assert_eq!(times_shown(&mut script), std::slice::from_ref(&input));
    for (number, words) in (0..).zip([&["look", "call:c:1"][..], &["result:c:C"], &["so"], &["it is!"]]) {
        script.later(1_000);
        // An input that waits behind the turn was accepted while it ran.
        if number == 2 {
            script.open("y");
        }
        script.say(if number == 0 { 0 } else { number + 1 }, words);
        let shown = match number {
            0 => vec![input.clone(), ("look".to_owned(), at(1_000), None)],
            1 => vec![
                input.clone(),
                ("look".to_owned(), at(1_000), at(1_000)),
                ("C".to_owned(), at(2_000), at(2_000)),
            ],
            _ => continue,
        };
        assert_eq!(times_shown(&mut script), shown);
    }
    let commit = script.commits.iter().find(|commit| !commit.turns.is_empty()).unwrap();
    let times: Vec<_> =
        commit.turns[0].messages.iter().map(|it| (it.times.started_at, it.times.created_at)).collect();
    assert_eq!(
        times,
        [(at(0), at(0)), (at(1_000), at(1_000)), (at(2_000), at(2_000)), (at(3_000), at(4_000))]
    );
    assert_eq!(script.last_start().waited_ms, Some(1_000), "from its acceptance to the end of the other");
}
