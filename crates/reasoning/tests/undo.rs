//! Undo, checkpoints and the discarded log.

use model::Timestamp;

use crate::fixture::{empty, last, messages, range, shown, summary_id, temp, texts};

#[test]
fn undo_twice_after_compressing_twice_is_byte_identical() {
    let mut stack = temp("u:A a:B>c1 t<c1:r a:D u:E");
    let views = [stack.view(), {
        last(&mut stack, 2, "DE").unwrap();
        stack.view()
    }];
    range(&mut stack, 2, 4, "all").unwrap();
    stack.undo(None).unwrap();
    assert_eq!(stack.view(), views[1]);
    stack.undo(None).unwrap();
    assert_eq!(stack.view(), views[0]);
    assert_eq!(stack.undo(None).unwrap_err().to_string(), "there is no compression to take back");
}

#[test]
fn undo_keeps_what_was_appended_since() {
    let mut stack = temp("u:A a:B u:C");
    let done = last(&mut stack, 2, "BC").unwrap();
    stack.append(messages("a:D")).unwrap();
    assert_eq!(
        stack.undo(Some("rm-1")).unwrap_err().to_string().split(':').next(),
        Some("rm-1 is not the newest summary")
    );
    stack.undo(Some(&summary_id(&done))).unwrap();
    assert_eq!((texts(&stack).as_str(), shown(&stack)), ("A B C D", vec![1, 2, 3, 5]));
    // The number of an undone summary is not assigned again.
    last(&mut stack, 2, "CD").unwrap();
    assert_eq!(shown(&stack), [1, 2, 6]);
}

#[test]
fn discarded_log_has_originals_in_order() {
    let mut stack = temp("u:A a:B u:C a:D");
    range(&mut stack, 2, 3, "BC").unwrap();
    range(&mut stack, 1, 2, "ABC").unwrap();
    stack.undo(None).unwrap();
    let log: Vec<_> = stack
        .discarded()
        .map(|entry| (entry.layer.replaced.clone(), entry.summary.content.clone(), entry.layer.is_undone))
        .collect();
    assert_eq!(log, [(vec![2, 3], "BC".to_owned(), false), (vec![1, 5], "ABC".to_owned(), true)]);
    assert_eq!(stack.messages()[1].content, "B");
}

#[test]
fn restore_takes_back_all_since_the_checkpoint() {
    let mut stack = temp("u:A a:B u:C a:D");
    stack.checkpoint("begin", Timestamp(0)).unwrap();
    range(&mut stack, 1, 2, "AB").unwrap();
    stack.checkpoint("AB", Timestamp(1)).unwrap();
    let view = stack.view();
    last(&mut stack, 2, "CD").unwrap();
    last(&mut stack, 2, "ABCD").unwrap();
    assert_eq!(stack.restore("AB"), Ok(2));
    assert_eq!(stack.view(), view);
    assert_eq!(stack.restore("AB"), Ok(0));
    stack.append(messages("u:E")).unwrap();
    assert_eq!(stack.restore("begin"), Ok(1));
    assert_eq!(texts(&stack), "A B C D E");
    let gone = stack.restore("AB").unwrap_err().to_string();
    assert_eq!(gone, "what the checkpoint \"AB\" names was taken back; valid: begin");
    let unknown = stack.restore("x").unwrap_err().to_string();
    assert_eq!(unknown, "there is no checkpoint \"x\"; valid: begin");
}

#[test]
fn checkpoint_made_again_names_the_newer_state() {
    let mut stack = temp("u:A a:B u:C");
    stack.checkpoint("x", Timestamp(0)).unwrap();
    last(&mut stack, 2, "BC").unwrap();
    stack.checkpoint("x", Timestamp(1)).unwrap();
    assert_eq!((stack.restore("x"), texts(&stack).as_str()), (Ok(0), "A BC"));
    for wrong in ["", " ", "a\nb", "\0", &"x".repeat(129)] {
        assert!(stack.checkpoint(wrong, Timestamp(0)).is_err());
    }
    let mut many = empty();
    for number in 0..100 {
        many.checkpoint(&number.to_string(), Timestamp(0)).unwrap();
    }
    assert!(many.checkpoint("100", Timestamp(0)).is_err());
    many.checkpoint("99", Timestamp(0)).unwrap();
}
