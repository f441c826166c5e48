use proptest::prelude::*;

use super::*;
use crate::Permission;

const NOW: Timestamp = Timestamp(1_000_000);

fn made() -> NewKey {
    NewKey::from_random([0, 1, 2, 3, 0xab, 0xcd, 0xef, 0xff], [0x5a; 32])
}

fn stored(key: &NewKey) -> StoredKey {
    StoredKey {
        id: key.id(),
        digest: key.digest(),
        previous: None,
        tenant: TenantName::parse("acme").unwrap(),
        role: AccessRole::Operator,
        scopes: None,
        name: "ci".to_owned(),
        expires_at: None,
        revoked_at: None,
    }
}

fn check(text: &str, stored: &StoredKey) -> Result<Principal, ApiKeyError> {
    ApiKey::parse(text)?.check(stored, NOW)
}

#[test]
fn a_key_opens_what_it_is_for() {
    let key = made();
    assert_eq!(key.text(), format!("ant_00010203abcdefff_{}", "5a".repeat(32)));
    assert_eq!(KeyId::parse("00010203abcdefff"), Some(key.id()));
    let principal = check(key.text(), &stored(&key)).unwrap();
    assert_eq!(principal.name(), "key:00010203abcdefff");
    assert_eq!(principal.tenant().as_str(), Some("acme"));
    assert_eq!(principal.permissions(), AccessRole::Operator.permissions());
    let presented = PresentedKey { id: key.id(), secret: SecretMark::of(&key.digest()) };
    assert_eq!((principal.source(), principal.key()), (CredentialSource::Key(presented), Some(presented)));
}

#[test]
fn scopes_narrow_and_never_widen() {
    let key = made();
    let scopes = Permissions::of(&[Permission::ReadThreads, Permission::ManageKeys]);
    let principal = check(key.text(), &StoredKey { scopes: Some(scopes), ..stored(&key) }).unwrap();
    assert_eq!(principal.permissions(), Permissions::of(&[Permission::ReadThreads]));
    let none = StoredKey { scopes: Some(Permissions::NONE), ..stored(&key) };
    assert_eq!(check(key.text(), &none).unwrap().permissions(), Permissions::NONE);
}

#[test]
fn what_is_over_opens_nothing() {
    let key = made();
    let until = |at| StoredKey { expires_at: Some(Timestamp(at)), ..stored(&key) };
    assert_eq!(check(key.text(), &until(NOW.0)), Err(ApiKeyError::Expired));
    assert_eq!(check(key.text(), &until(NOW.0 + 1)).unwrap().expires_at(), Some(Timestamp(NOW.0 + 1)));
    let revoked = StoredKey { revoked_at: Some(Timestamp(NOW.0 + 99)), ..stored(&key) };
    assert_eq!(check(key.text(), &revoked), Err(ApiKeyError::Revoked));
    // A caller that does not know the secret must not learn the state of the key.
    let guess = NewKey::from_random([0, 1, 2, 3, 0xab, 0xcd, 0xef, 0xff], [0x5b; 32]);
    assert_eq!(check(guess.text(), &revoked), Err(ApiKeyError::Wrong));
}

#[test]
fn a_replaced_secret_opens_the_key_until_its_time() {
    let (old, key) = (NewKey::from_random([0, 1, 2, 3, 0xab, 0xcd, 0xef, 0xff], [0x5b; 32]), made());
    let until = |at, expires_at: Option<i64>| StoredKey {
        previous: Some(PreviousSecret { digest: old.digest(), valid_until: Timestamp(at) }),
        expires_at: expires_at.map(Timestamp),
        ..stored(&key)
    };
    let after = NOW.0 + 5;
    for (rotated, ends) in [(until(after, None), after), (until(after, Some(after - 1)), after - 1)] {
        let (new, earlier) = (check(key.text(), &rotated).unwrap(), check(old.text(), &rotated).unwrap());
        assert_eq!((new.expires_at(), earlier.expires_at()), (rotated.expires_at, Some(Timestamp(ends))));
        assert_eq!(new.permissions(), earlier.permissions());
        assert_ne!(new.key(), earlier.key());
        // A stream of the replaced secret ends as soon as the secret does.
        let mark = earlier.key().unwrap().secret;
        assert!(rotated.principal(mark, NOW).is_ok());
        assert_eq!(rotated.principal(mark, Timestamp(ends)), Err(ApiKeyError::Expired));
        assert_eq!(stored(&key).principal(mark, NOW), Err(ApiKeyError::Wrong));
    }
    assert_eq!(check(old.text(), &until(NOW.0, None)), Err(ApiKeyError::Expired));
    let third = NewKey::from_random([0, 1, 2, 3, 0xab, 0xcd, 0xef, 0xff], [0x5c; 32]);
    assert_eq!(check(third.text(), &until(after, None)), Err(ApiKeyError::Wrong));
    assert!(!format!("{:?}", until(after, None)).contains("digest"));
}

#[test]
fn the_id_is_a_part_of_the_key() {
    let key = made();
    let other = NewKey::from_random([9; 8], [0x5a; 32]);
    assert_eq!(check(other.text(), &stored(&key)), Err(ApiKeyError::Wrong));
    let swapped = StoredKey { id: other.id(), ..stored(&key) };
    assert_eq!(check(key.text(), &swapped), Err(ApiKeyError::Wrong));
}

#[test]
fn other_texts_are_no_keys() {
    let key = made();
    let text = key.text();
    let (head, secret) = text.rsplit_once('_').unwrap();
    let bad = [
        String::new(),
        "ant_".to_owned(),
        "ant__".to_owned(),
        head.to_owned(),
        format!("{head}_"),
        format!("{text}\n"),
        format!("{text}\0"),
        format!(" {text}"),
        format!("{text} "),
        format!("{text}_"),
        format!("{text}0"),
        text[..text.len() - 1].to_owned(),
        text.to_uppercase(),
        format!("{head}_{}", secret.to_uppercase()),
        text.replacen("abcdefff", "ABCDEFFF", 1),
        text.replacen("ant_", "Ant_", 1),
        text.replacen("ant_", "ant-", 1),
        text.replacen("ant_", "", 1),
        format!("ant_0_{secret}"),
        format!("ant_00010203abcdeffg_{secret}"),
        format!("ant_{secret}_00010203abcdefff"),
        text.replacen('5', "٥", 1),
    ];
    for bad in bad {
        assert_eq!(ApiKey::parse(&bad).map(|_| ()), Err(ApiKeyError::Malformed), "{bad:?}");
    }
    assert!(ApiKey::has_prefix("ant_x") && !ApiKey::has_prefix("eyJhbGciOi"));
}

#[test]
fn nothing_shows_the_secret() {
    let key = made();
    let presented = ApiKey::parse(key.text()).unwrap();
    let stored = stored(&key);
    let principal = presented.check(&stored, NOW).unwrap();
    let shown = format!("{key:?} {key:#?} {presented:?} {stored:?} {stored:#?} {principal:?}");
    let digest: String = key.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    let bytes = format!("{:?}", key.digest());
    for secret in ["5a5a", "90, 90", &digest[..8], &bytes[1..bytes.len() - 1]] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
    assert!(shown.contains("NewKey(00010203abcdefff, …)"));
}

proptest! {
    #[test]
    fn any_key_is_read_back_and_fits_only_itself(id: [u8; 8], secret: [u8; 32], at in 0_usize..85, to in 0_u8..16) {
        let key = NewKey::from_random(id, secret);
        prop_assert!(check(key.text(), &stored(&key)).is_ok());
        let mut other = key.text().as_bytes().to_vec();
        other[at] = b"0123456789abcdef"[usize::from(to)];
        let other = String::from_utf8(other).unwrap();
        prop_assert_eq!(check(&other, &stored(&key)).is_ok(), other == key.text());
    }

    #[test]
    fn no_text_breaks_the_reader(text: String) {
        prop_assert!(ApiKey::parse(&text).is_err());
    }
}
