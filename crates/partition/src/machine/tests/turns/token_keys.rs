//! Rotation of the key of turn tokens while turns are active.

use super::*;

fn keys(version: u32, current: u8, previous: Option<u8>) -> TokenKeys {
    let key = |byte: u8| TokenKey::new(&[byte; 32]).unwrap();
    TokenKeys::new(version, key(current), previous.map(key))
}

fn unauthorized(script: &mut TurnScript) -> u64 {
    script.machine.take_counters().unauthorized
}

#[test]
fn turns_under_way_go_on_and_later_ones_have_the_new_key() {
    let mut script = TurnScript::new();
    script.open("a");
    let old = script.last_start();
    script.say(0, &["one "]);
    script.handle(Input::TokenKeys(keys(1, 8, Some(7))));
    script.say(1, &["two!"]);
    assert_eq!((unauthorized(&mut script), script.commits.len()), (0, 1));
    script.open("b");
    let start = script.last_start();
    assert!(!start.token.matches(&keys(0, 7, None).token(&start.thread, &start.turn, start.run)));
    // Keys from before the rotation that are read late change nothing.
    script.handle(Input::TokenKeys(keys(0, 7, None)));
    script.say(0, &["three!"]);
    assert_eq!((unauthorized(&mut script), script.commits.len()), (0, 2));
    // The overlap has passed: no turn has the old token any more.
    script.handle(Input::TokenKeys(keys(1, 8, None)));
    script.open("c");
    let forged = Start { token: keys(0, 7, None).token(&thread("t"), &turn("c"), 0), ..old };
    script.say_as(&Start { turn: turn("c"), ..forged }, 0, 0, &["four!"]);
    assert_eq!((unauthorized(&mut script), script.commits.len()), (1, 2));
    script.say(0, &["four!"]);
    assert_eq!(script.commits.len(), 3);
}

#[test]
fn the_next_owner_accepts_the_tokens_of_the_owner_before() {
    let mut before = TurnScript::new();
    before.open("a");
    let asked = before.last_start();
    for (previous, is_accepted) in [(Some(7), true), (None, false)] {
        // The first chunk is read either before the machine knows that the request is made, or when
        // the turn runs.
        for begins_with_chunk in [true, false] {
            let takeover = Takeover { token_keys: keys(1, 8, previous), ..bare() };
            let mut script = TurnScript::with(quiet(), takeover);
            if begins_with_chunk {
                script.auto = false;
                script.open("a");
                script.say_as(&asked, 0, 0, &["one "]);
                script.auto = true;
                let key = script.checks.pop().unwrap();
                script.handle(Input::Checked(vec![(key, CommandVerdict::New)]));
            } else {
                script.open("a");
                script.say_as(&asked, 0, 0, &["one "]);
            }
            script.say_as(&asked, 0, 1, &["two!"]);
            assert_eq!(unauthorized(&mut script) == 0, is_accepted, "{previous:?} {begins_with_chunk}");
            assert_eq!(script.commits.len(), usize::from(is_accepted), "{previous:?} {begins_with_chunk}");
        }
    }
}

#[test]
fn a_stolen_key_counts_no_longer_once_it_is_dropped() {
    let mut script = TurnScript::new();
    script.open("a");
    let asked = script.last_start();
    script.say(0, &["one "]);
    script.handle(Input::TokenKeys(keys(1, 8, None)));
    script.say_as(&asked, 0, 1, &["forged!"]);
    assert_eq!((unauthorized(&mut script), script.commits.len()), (1, 0));
    let token = keys(1, 8, None).token(&asked.thread, &asked.turn, asked.run);
    script.say_as(&Start { token, ..asked }, 0, 1, &["two!"]);
    assert_eq!((unauthorized(&mut script), script.commits.len()), (0, 1));
}
