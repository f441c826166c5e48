//! Characters that a publisher has split between two chunks.

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
        // As stored in Postgres.
        let stored = serde_json::to_string(&**chunk).unwrap();
        *chunk = Arc::new(serde_json::from_str(&stored).unwrap());
    }
    script.run("saved ok");
    let takeover = Takeover { epoch: 2, checkpoint: Seq(2), spilled_messages: saved, ..takeover() };
    let mut second = ChunkScript::with(PartitionLimits::default(), takeover);
    assert_eq!(second.first, "a");
    assert_eq!(second.run("0a<"), "-", "it is read again as its publisher wrote it");
    assert_eq!(second.run("b:0x! 3>! 1>"), "b:x commit(b:\"x\" @4) | - | 🚤,<d,🚤");
    assert_eq!(second.run("ok"), "b:complete commit(\"a🚤<d🚤\" @6)");
}

/// Chunks behind a gap are saved unjoined, and saved again once they are joined. The store returns
/// the later version.
#[test]
fn halves_that_waited_when_they_were_saved_are_joined_later() {
    let limits = PartitionLimits { replay_entries: 4, ..soon() };
    let mut script = ChunkScript::with(limits, takeover());
    assert_eq!(script.run("0a 2b< 3>c 5>d +20s b:0x"), "a | - | - | - | - | b:x save(0,2,3,5)");
    let first = script.saves[0].messages[0].clone();
    assert_eq!(script.run("saved ok"), "commit(@4) | -");
    // The next owner loads the first part alone, or with a second one that has the chunks before
    // the last gap.
    let go_on = |saved: SpilledMessage, rest: &str| {
        let takeover = Takeover { epoch: 2, checkpoint: Seq(4), spilled_messages: vec![saved], ..takeover() };
        let mut second = ChunkScript::with(PartitionLimits::default(), takeover);
        let shown = second.first.clone();
        (shown, second.run(rest))
    };
    let (shown, rest) = go_on(first.clone(), "1x 4y< 6!");
    assert_eq!((shown.as_str(), rest.as_str()), ("a", r#"x,b,🚤c | y,🚤d |  commit("axb🚤cy🚤d" @7)"#));
    // The store combines both parts: chunks 1, 2 and 3 were released and joined before the second
    // part was saved, and chunk 5 still waits.
    let mut both = first;
    both.chunks.retain(|chunk| ![2, 3].contains(&chunk.id));
    let joined = Chunk { halves: Halves::NONE, ..Chunk::content(3, "🚤c", false) };
    let open = Chunk { halves: Halves::new(None, Some(0xD83D)), ..Chunk::content(4, "y", false) };
    both.chunks
        .extend([Chunk::content(1, "x", false), Chunk::content(2, "b", false), joined, open].map(Arc::new));
    let (shown, rest) = go_on(both, "6!");
    assert_eq!((shown.as_str(), rest.as_str()), ("a,x,b,🚤c,y,🚤d", r#" commit("axb🚤cy🚤d" @5)"#));
}
