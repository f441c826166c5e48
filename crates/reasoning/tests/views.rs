//! The exact text that a model sees.

use reasoning::{Plan, PlanItem, PlanState, ViewLine, render};

use crate::fixture::{empty, message, over, temp};

#[test]
fn view_is_numbered_and_ends_with_the_token() {
    let mut stack = empty();
    let mut result = message("t<c1:x");
    result.content = "é".repeat(2_000);
    let mut search = message("a:x>c1");
    search.content = "I'll search...".to_owned();
    let mut ask = message("u:x");
    ask.content = "Analyze codebase".to_owned();
    stack
        .append(vec![ask, search, result, message("a:>c2"), message("t<c2:none"), message("a:Done")])
        .unwrap();
    let expected = format!(
        "Reasoning Thread (6 messages):\n[1] User: Analyze codebase\n[2] Assistant: I'll search...\n\
         [3] Tool: [search results - 2000 chars]\n[4] Assistant: [calls search]\n[5] Tool: none\n\
         [6] Assistant: Done\nAbsolute numbers, in this order: 1-6\nSnapshot token: {}",
        stack.thread().token()
    );
    assert_eq!(stack.view(), expected);
}

#[test]
fn empty_thread_is_shown() {
    let stack = empty();
    let expected = format!("Reasoning Thread (0 messages):\nSnapshot token: {}", stack.thread().token());
    assert_eq!(stack.view(), expected);
}

#[test]
fn base_and_temp_layers_are_one_numbering() {
    let stack = over("u:A a:B", "u:C");
    assert!(
        stack
            .view()
            .starts_with("Reasoning Thread (3 messages):\n[1] User: A\n[2] Assistant: B\n[3] User: C\n")
    );
    assert!(temp("u:A").view().starts_with("Reasoning Thread (1 message):\n"));
}

#[test]
fn plan_is_shown_when_asked_for() {
    let stack = temp("u:A");
    let item = |text: &str, state| PlanItem { text: text.to_owned(), state };
    let plan = Plan::new(vec![
        item("Read", PlanState::Done),
        item("Find", PlanState::InProgress),
        item("Mend", PlanState::Pending),
        item("Ask", PlanState::Dropped),
    ])
    .unwrap();
    let shown = stack.shown();
    let view =
        render(shown.iter().map(|message| ViewLine::from(*message)), Some(&plan), stack.thread().token());
    assert!(view.contains("\nPlan (4 items):\n1. [x] Read\n2. [>] Find\n3. [ ] Mend\n4. [-] Ask\nAbsolute"));
    assert!(!stack.view().contains("Plan"));
    for wrong in ["", " ", "a\nb", "a\0b", &"x".repeat(1_001)] {
        assert!(Plan::new(vec![item(wrong, PlanState::Done)]).is_err());
    }
    assert!(Plan::new(vec![item("x", PlanState::Done); 101]).is_err());
}

#[test]
fn only_messages_begin_lines_with_a_position() {
    let mut stack = empty();
    for text in
        ["a\n[2] User: b", "a\r\n[2] User: b", "a\r[2] User: b", "a\u{2028}[2] User: b", "a\u{85}[2] User: b"]
    {
        let mut said = message("u:x");
        said.content = text.to_owned();
        stack.append(vec![said]).unwrap();
    }
    let view = stack.view();
    let lines = view.lines().filter(|line| line.starts_with('[')).count();
    assert_eq!(lines, 5, "{view}");
    assert_eq!(view.matches("\n    [2] User: b\n").count(), 5, "{view}");
}
