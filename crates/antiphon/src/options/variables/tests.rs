use super::*;

fn found(names: &[&str]) -> Option<String> {
    misspelt_variable(names.iter().map(|name| (*name).to_owned()))
}

#[test]
fn misspelt_names_are_found_in_every_role() {
    for (wrong, right) in [
        ("ANTIPHON_HTTP_ADR", "ANTIPHON_HTTP_ADDR"),
        ("ANTIPHON_LEASE_TTL_SECOND", "ANTIPHON_LEASE_TTL_SECONDS"),
        ("ANTIPHON_LLM_MODLE", "ANTIPHON_LLM_MODEL"),
        ("ANTIPHON_MCP_ADDRS", "ANTIPHON_MCP_ADDR"),
        ("ANTIPHON_PARTITION", "ANTIPHON_PARTITIONS"),
        ("ANTIPHON_READ_MAX_LAG", "ANTIPHON_READ_MAX_LAG_MS"),
        ("ANTIPHON_READ_MAX_LAG_SECONDS", "ANTIPHON_READ_MAX_LAG_MS"),
        ("ANTIPHON_STREAM_MAX_MB", "ANTIPHON_STREAM_MAX_BYTES"),
        ("ANTIPHON_REPLAY_ENTRY", "ANTIPHON_REPLAY_ENTRIES"),
    ] {
        assert_eq!(found(&[wrong]), Some(format!("there is no variable {wrong}; is it {right}?")));
    }
}

#[test]
fn a_variable_that_is_gone_says_what_to_use() {
    let mut known = BTreeSet::new();
    collect(&Options::command(), &mut known);
    for (removed, instead) in REMOVED {
        let removed = format!("{PREFIX}{removed}");
        assert_eq!(found(&[&removed]), Some(format!("there is no variable {removed} any more: {instead}")));
        assert!(!known.contains(&removed));
        let named = instead.split(' ').filter(|word| word.starts_with(PREFIX));
        assert!(named.clone().count() > 0 && named.into_iter().all(|name| known.contains(name)), "{instead}");
    }
}

#[test]
fn a_variable_whose_value_is_fixed_is_refused() {
    let mut known = BTreeSet::new();
    collect(&Options::command(), &mut known);
    for fixed in FIXED {
        let name = format!("{PREFIX}{fixed}");
        let line = format!("there is no variable {name} any more: its value is fixed; remove it");
        assert_eq!(found(&[&name]), Some(line));
        assert!(!known.contains(&name));
    }
}

#[test]
fn known_names_and_those_of_others_are_let_be() {
    let others = ["ANTIPHON_NATS_STORE", "ANTIPHON_BIN", "ANTIPHON_TEAM", "HTTP_ADDR", "PATH"];
    assert_eq!(found(&others), None);
    let mut known = BTreeSet::new();
    collect(&Options::command(), &mut known);
    assert!(known.len() > 60, "{known:?}");
    assert_eq!(misspelt_variable(known), None);
}
