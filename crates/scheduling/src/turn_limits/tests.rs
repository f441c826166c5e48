use super::*;

fn limits(json: &str) -> TurnLimits {
    TurnLimits::parse(json).unwrap()
}

fn keys(
    limits: &TurnLimits,
    workflow: &str,
    model: Option<&str>,
    tenant: Option<&str>,
) -> Vec<(String, u32)> {
    let found = limits.of_turn(workflow, model, tenant);
    found.into_iter().map(|it| (it.key, it.limit.turns_at_once.unwrap_or_default())).collect()
}

#[test]
fn a_turn_meets_the_limit_that_names_it_else_the_one_of_each() {
    let limits = limits(
        r#"{"limits": [
            {"model": "m-1", "turns_at_once": 1, "tokens_per_minute": 9},
            {"tenant": "*", "turns_at_once": 2},
            {"tenant": "acme", "turns_at_once": 3},
            {"workflow": "research", "turns_at_once": 4}
        ]}"#,
    );
    let of = |key: &str, most| (key.to_owned(), most);
    assert_eq!(keys(&limits, "default", None, None), [of("tenant:-", 2)]);
    assert_eq!(keys(&limits, "default", Some("m-2"), Some("acme")), [of("tenant:acme", 3)]);
    assert_eq!(
        keys(&limits, "research", Some("m-1"), Some("other")),
        [of("model:m-1", 1), of("tenant:other", 2), of("workflow:research", 4)],
        "by their keys, so that all that are locked together are locked in the same order"
    );
    assert!(TurnLimits::default().of_turn("research", Some("m-1"), None).is_empty());
}

#[test]
fn tables_that_make_no_sense_are_refused_by_number() {
    for (wrong, says) in [
        ("[]", "invalid"),
        (r#"{"limits": [{"model": "m", "turns_at_once": 1, "per_hour": 3}]}"#, "per_hour"),
        (r#"{"limits": [{"turns_at_once": 1}]}"#, "limit 1: it is of one workflow, one model or one tenant"),
        (r#"{"limits": [{"model": "m", "tenant": "t", "turns_at_once": 1}]}"#, "limit 1: it is of one"),
        (r#"{"limits": [{"model": "", "turns_at_once": 1}]}"#, "limit 1: its name is empty"),
        (r#"{"limits": [{"model": "m"}]}"#, "limit 1: it has neither"),
        (r#"{"limits": [{"model": "m", "turns_at_once": 0}]}"#, "limit 1: its numbers are from 1"),
        (r#"{"limits": [{"model": "m", "turns_per_minute": 1000000001}]}"#, "limit 1: its numbers"),
        (
            r#"{"limits": [{"model": "m", "turns_at_once": 1}, {"model": "m", "turns_per_minute": 1}]}"#,
            "limit 2: there is one of the same before it",
        ),
    ] {
        let error = TurnLimits::parse(wrong).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(limits(r#"{"limits": []}"#).is_empty());
    assert!(!limits(r#"{"limits": [{"model": "m", "turns_at_once": 1}]}"#).is_empty());
}
