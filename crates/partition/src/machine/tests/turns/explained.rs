//! Why turns and tasks wait.

use super::*;

#[test]
fn what_waits_for_the_word_of_the_store_is_not_known_yet() {
    let mut script = Script::new();
    script.open("x");
    script.say(0, &["done!"]);
    let ask = |script: &mut Script| {
        let question = Question { token: 7, about: About::Thread(thread("t")) };
        match script.machine.handle(Input::Question(question), script.now).remove(0) {
            Action::Explain(explanation) => explanation,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut script).known_up_to, Seq(script.seq));
    script.auto = false;
    script.open("y");
    let explanation = ask(&mut script);
    assert_eq!((explanation.active, explanation.waiting), (None, Vec::new()));
    assert_eq!(explanation.known_up_to, Seq(script.seq - 1));
}

#[test]
fn open_messages_say_what_they_wait_for() {
    let mut script = Script::new();
    let ask = |script: &mut Script| {
        let question = Question { token: 7, about: About::Thread(thread("t")) };
        match script.machine.handle(Input::Question(question), script.now).remove(0) {
            Action::Explain(explanation) => explanation.open,
            other => panic!("{other:?}"),
        }
    };
    script.open("x");
    script.say(0, &["a"]);
    let [open] = &ask(&mut script)[..] else { panic!("one message is open") };
    assert_eq!((&open.message, open.buffer.expected, open.gap_for_ms), (&turn("x").answer(0), 1, None));
    script.say(2, &["c"]);
    let [open] = &ask(&mut script)[..] else { panic!("one message is open") };
    let buffer = &open.buffer;
    assert_eq!((buffer.expected, buffer.received, buffer.released), (1, 2, 1));
    assert_eq!(buffer.missing, [model::IdRange { first: 1, last: 1 }]);
    assert!(
        open.gap_for_ms.is_some_and(|for_ms| (1..=Limits::default().gap_timeout_ms).contains(&for_ms)),
        "{open:?}"
    );
    script.say(1, &["b"]);
    script.say(3, &["d!"]);
    assert_eq!(ask(&mut script), []);
}

#[test]
fn why_things_wait() {
    let mut script = Script::new();
    let ask = |script: &mut Script, about| {
        let actions = script.machine.handle(Input::Question(Question { token: 7, about }), script.now);
        match actions.into_iter().next() {
            Some(Action::Explain(explanation)) => explanation,
            other => panic!("{other:?}"),
        }
    };
    script.open("x");
    script.open("y");
    let thread_state = ask(&mut script, About::Thread(thread("t")));
    assert_eq!(thread_state.known_up_to, Seq(script.seq));
    assert_eq!(thread_state.active.unwrap().waits_for, Some(WaitReason::NoWorkflow));
    let [waiting] = &thread_state.waiting[..] else { panic!("{:?}", thread_state.waiting) };
    assert_eq!(
        (&waiting.turn, waiting.reason, waiting.steps_aside),
        (&turn("y"), WaitReason::HeadOfLine, false)
    );
    assert_eq!(ask(&mut script, About::Turn(turn("y"))).reason, Some(WaitReason::HeadOfLine));
    script.say(1, &["b"]);
    let active = ask(&mut script, About::Turn(turn("x"))).active.unwrap();
    assert_eq!((active.turn, active.waits_for), (turn("x"), Some(WaitReason::Gap)));
    script.task("t1");
    script.say(0, &["error:{}"]);
    let waiting = ask(&mut script, About::Agent(agent()));
    assert!(matches!(waiting.reason, Some(WaitReason::Backoff { for_ms }) if for_ms > 59_000));
    script.order(act("p", ActKind::Pause));
    assert_eq!(ask(&mut script, About::Agent(agent())).reason, Some(WaitReason::Paused));
}
