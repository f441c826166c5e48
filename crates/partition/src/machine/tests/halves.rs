//! Characters that a publisher has cut into two chunks.

use super::saving::soon;
use super::*;

#[test]
fn halves_become_the_character_in_whatever_order_they_come() {
    assert_eq!(run("0Ahoy< 1>there 2! ok"), r#"Ahoy | 🚤there |  commit("Ahoy🚤there" @3) | complete"#);
    assert_eq!(run("2>! 1< 0Ahoy"), r#"- | - | Ahoy,,🚤 commit("Ahoy🚤" @3)"#);
    assert_eq!(run("0a< 0a< 1>!"), r#"a | - | 🚤 commit("a🚤" @3)"#, "a duplicate joins nothing");
}

#[test]
fn a_half_without_its_other_is_replaced() {
    assert_eq!(run("0a< 1b!"), "a | \u{fffd}b commit(\"a\u{fffd}b\" @2)");
    assert_eq!(run("0>a 1b<!"), "\u{fffd}a | b\u{fffd} commit(\"\u{fffd}ab\u{fffd}\" @2)");
    assert_eq!(
        run("0a< 0>b^1 1c!^1"),
        "a | ^1 \u{fffd}b | ^1 c commit(\"\u{fffd}bc\" @3)",
        "another attempt is another text"
    );
}

#[test]
fn the_next_owner_joins_what_was_saved() {
    let mut script = ChunkScript::with(soon(), takeover());
    assert_eq!(script.run("0a< 2<d< +20s b:0x"), "a | - | - | b:x save(0,2)");
    let mut saved: Vec<SpilledMessage> = script.saves.iter().flat_map(|save| save.messages.clone()).collect();
    for chunk in saved.iter_mut().flat_map(|saved| saved.chunks.iter_mut()) {
        // As Postgres keeps it.
        let stored = serde_json::to_string(&**chunk).unwrap();
        *chunk = Arc::new(serde_json::from_str(&stored).unwrap());
    }
    script.run("saved ok");
    let takeover = Takeover { epoch: 2, checkpoint: Seq(2), spilled_messages: saved, ..takeover() };
    let mut second = ChunkScript::with(PartitionLimits::default(), takeover);
    assert_eq!(second.first, "a");
    assert_eq!(second.run("b:0x! 3>! 1>"), "b:x commit(b:\"x\" @3) | - | 🚤,<d,🚤");
    assert_eq!(second.run("ok"), "b:complete commit(\"a🚤<d🚤\" @5)");
}
