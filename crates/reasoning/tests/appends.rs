//! The messages that can be appended, and those that are refused.

use reasoning::{
    MAX_ARGUMENTS_BYTES, MAX_CONTENT_BYTES, MAX_SIGNATURE_BYTES, NewMessage, ReasoningRole, SessionCall,
    append,
};

use crate::fixture::{empty, message, messages, temp};

fn refusal(words: &str) -> String {
    append(messages(words)).unwrap_err().to_string()
}

#[test]
fn numbers_are_dense_and_rise() {
    let mut stack = temp("u:A a:B");
    assert_eq!(stack.append(messages("u:C a:D")).unwrap(), 3);
    assert_eq!(crate::fixture::shown(&stack), [1, 2, 3, 4]);
}

#[test]
fn result_takes_the_name_of_its_call() {
    let new = append(messages("a:A>c1 t<c1:r")).unwrap();
    assert_eq!(new.messages[1].tool.as_deref(), Some("search"));
    assert!(new.waiting.is_empty() && new.answers.is_empty());
}

#[test]
fn results_answer_calls_that_wait() {
    let mut stack = temp("u:A a:B>c1,c2");
    let refused = stack.append(messages("t<c3:r")).unwrap_err();
    assert_eq!(refused.to_string(), "no call \"c3\" waits for a result");
    stack.append(messages("t<c2:r")).unwrap();
    assert!(stack.append(messages("t<c2:again")).is_err());
    assert!(
        stack.append(messages("a:C>c1")).unwrap_err().to_string().contains("waits for its result already")
    );
    // After a call was answered, its id may be reused.
    stack.append(messages("t<c1:r a:C>c1 t<c1:r")).unwrap();
    assert!(stack.append(messages("t<c1:r")).is_err());
    assert_eq!(stack.thread().len(), 6);
}

#[test]
fn messages_that_do_not_fit_together_are_refused() {
    assert_eq!(refusal("t<c1:r a:A>c1 t<c1:r t<c1:r"), "no call \"c1\" waits for a result");
    assert_eq!(refusal("a:A>c1,c1"), "the call \"c1\" waits for its result already");
    assert_eq!(refusal("u:A>c1"), "a call belongs to a message of the role assistant only");
    assert_eq!(
        refusal("t:r"),
        "the id of the call that is answered belongs to a message of the role tool only"
    );
    assert_eq!(refusal("u:"), "the content is blank");
    assert_eq!(refusal(""), "the list of messages is blank");
}

#[test]
fn wrong_messages_change_nothing() {
    let mut stack = empty();
    let with = |change: &dyn Fn(&mut reasoning::NewMessage)| {
        let mut new = message("a:A");
        change(&mut new);
        vec![message("u:fine"), new]
    };
    let call = |id: &str, name: &str| vec![SessionCall::new(id, name)];
    let long_arguments = SessionCall {
        arguments: Some("x".repeat(MAX_ARGUMENTS_BYTES + 1)),
        ..SessionCall::new("c", "search")
    };
    let nul_signature = SessionCall { signature: Some("\0".to_owned()), ..SessionCall::new("c", "search") };
    for wrong in [
        with(&|new| new.content = "a\0b".to_owned()),
        with(&|new| new.content = "x".repeat(MAX_CONTENT_BYTES + 1)),
        with(&|new| new.thinking = Some("\0".to_owned())),
        with(&|new| new.role = ReasoningRole::Summary),
        with(&|new| new.tool = Some("search".to_owned())),
        with(&|new| new.calls = call("", "search")),
        with(&|new| new.calls = call("c", "a\nb")),
        with(&|new| new.calls = call(&"c".repeat(129), "search")),
        with(&|new| new.calls = vec![long_arguments.clone()]),
        with(&|new| new.calls = vec![nul_signature.clone()]),
        with(&|new| new.signature = Some("x".repeat(MAX_SIGNATURE_BYTES + 1))),
        with(&|new| {
            new.role = ReasoningRole::User;
            new.signature = Some("x".to_owned());
        }),
        with(&|new| new.calls = (0..129).flat_map(|n| call(&n.to_string(), "search")).collect()),
        vec![message("u:A"); 101],
    ] {
        assert!(stack.append(wrong).is_err());
        assert!(stack.shown().is_empty());
    }
}

#[test]
fn thinking_goes_with_its_message() {
    let mut stack = empty();
    stack.append(vec![message("u:A"), thinks("a:B", "hm"), message("u:C")]).unwrap();
    assert_eq!(crate::fixture::shown(&stack), [1, 2, 3]);
    crate::fixture::range(&mut stack, 2, 3, "s").unwrap();
    assert!(stack.shown().iter().all(|message| message.thinking.is_none()));
    stack.undo(None).unwrap();
    assert_eq!(stack.shown()[1].thinking.as_deref(), Some("hm"));
}

/// A message with signed thinking.
fn thinks(word: &str, thinking: &str) -> NewMessage {
    let signature = Some(format!("signed {thinking}"));
    NewMessage { thinking: Some(thinking.to_owned()), signature, ..message(word) }
}

#[test]
fn thinking_alone_takes_no_number() {
    let mut stack = empty();
    let first = stack.append(vec![message("u:A"), thinks("a:", "hm"), message("a:B>c1"), message("t<c1:r")]);
    assert_eq!((first, crate::fixture::shown(&stack)), (Ok(1), vec![1, 2, 3]));
    assert!(stack.view().starts_with("Reasoning Thread (3 messages):\n[1] User: A\n[2] Assistant: B\n"));
    let second = stack.shown()[1];
    assert_eq!((second.thinking.as_deref(), second.signature.as_deref()), (Some("hm"), Some("signed hm")));
    let before = stack.view();
    for wrong in [
        vec![thinks("a:", "hm")],
        vec![thinks("a:", "hm"), message("u:B")],
        vec![thinks("a:", "hm"), thinks("a:", "so"), message("a:B")],
        vec![thinks("a:", "hm"), thinks("a:B", "so")],
    ] {
        let refusal = stack.append(wrong).unwrap_err();
        assert_eq!(refusal.reason.code(), "thinking_alone", "{refusal}");
        assert_eq!(stack.view(), before);
    }
}

#[test]
fn arguments_and_signatures_are_kept_as_they_came() {
    let call = SessionCall {
        arguments: Some("{\"q\": \"caf\u{e9}\"}".to_owned()),
        signature: Some("sig".to_owned()),
        ..SessionCall::new("c1", "search")
    };
    let mut stack = empty();
    stack.append(vec![NewMessage { calls: vec![call.clone()], ..thinks("a:", "hm") }]).unwrap();
    assert_eq!(stack.shown()[0].calls, [call]);
    assert_eq!(stack.shown()[0].signature.as_deref(), Some("signed hm"));
    // The entries have no arguments, because decisions do not need them.
    assert_eq!(stack.thread().entries[0].calls, [SessionCall::new("c1", "search")]);
}

#[test]
fn text_that_shows_nothing_is_blank() {
    for blank in [" ", "\u{200b}", "\u{200d}\u{fe0f}", "\u{3164}", "\u{2060}\n\u{feff}", "\u{e0020}"] {
        let said = NewMessage { content: blank.to_owned(), ..message("u:x") };
        assert_eq!(append(vec![said]).unwrap_err().reason.code(), "blank", "{blank:?}");
        let mut stack = temp("u:A u:B");
        let refusal = crate::fixture::range(&mut stack, 1, 2, blank).unwrap_err();
        assert_eq!(refusal.reason.code(), "blank_summary", "{blank:?}");
    }
    assert!(append(vec![NewMessage { content: "\u{2764}\u{fe0f}".to_owned(), ..message("u:x") }]).is_ok());
}
