use proptest::prelude::*;

use super::*;
use crate::{AccessRole, Permission};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn key() -> TicketKey {
    TicketKey::new(&[7; 32]).unwrap()
}

fn thread(name: &str) -> ThreadId {
    ThreadId::parse(name).unwrap()
}

fn requester() -> Principal {
    let id = KeyId::parse("00010203abcdefff").unwrap();
    Principal {
        tenant: TenantName::parse("acme").unwrap(),
        name: format!("key:{id}").into(),
        permissions: AccessRole::Viewer.permissions(),
        thread: None,
        expires_at: None,
        source: CredentialSource::Key(PresentedKey { id, secret: SecretMark([7; 8]) }),
    }
}

fn made() -> Ticket {
    issue(&requester(), &thread("t"), USUAL_LIFETIME_S, &key(), NOW).unwrap()
}

/// A text with a valid MAC over any payload.
fn sealed(payload: &[u8]) -> String {
    let mac = key().mac(payload).unwrap().finalize().into_bytes();
    format!("tkt_{}.{}", URL_SAFE_NO_PAD.encode(payload), URL_SAFE_NO_PAD.encode(mac))
}

#[test]
fn a_ticket_follows_one_thread_and_does_nothing_else() {
    let ticket = made();
    assert_eq!(ticket.expires_at, NOW.plus_ms(300_000));
    // A ticket can be used repeatedly, because a browser reconnects to the same URL.
    for _ in 0..2 {
        let principal = check(&ticket.text, &[key()], NOW).unwrap();
        assert!(principal.can_stream(&thread("t")) && !principal.can_stream(&thread("u")));
        assert!(Permission::ALL.into_iter().all(|permission| !principal.has_permission(permission)));
        assert_eq!((principal.tenant(), principal.name()), (requester().tenant(), requester().name()));
        assert_eq!((principal.key(), principal.expires_at()), (requester().key(), Some(ticket.expires_at)));
        assert_eq!(principal.source(), CredentialSource::Ticket { key: requester().key() });
    }
    assert!(has_prefix(&ticket.text) && !has_prefix("ant_x"));
}

#[test]
fn a_ticket_ends_when_it_says_or_with_its_credential() {
    let ticket = made();
    let just_before = Timestamp(ticket.expires_at.0 - 1);
    assert!(check(&ticket.text, &[key()], just_before).is_ok());
    assert_eq!(check(&ticket.text, &[key()], ticket.expires_at), Err(TicketError::Expired));

    let until = |ms| Principal { expires_at: Some(NOW.plus_ms(ms)), ..requester() };
    let issued =
        |requester: &Principal, now| issue(requester, &thread("t"), 60, &key(), now).map(|t| t.expires_at);
    assert_eq!(issued(&until(20_999), NOW), Ok(NOW.plus_ms(20_000)));
    assert_eq!(issued(&until(999), NOW), Err(IssueError::Expired));
    assert_eq!(issued(&until(-1), NOW), Err(IssueError::Expired));
    assert_eq!(issued(&requester(), NOW.plus_ms(1)), Ok(NOW.plus_ms(61_000)));
}

#[test]
fn who_may_not_follow_gets_no_ticket() {
    let issued = |requester: &Principal, lifetime_s| {
        issue(requester, &thread("t"), lifetime_s, &key(), NOW).map(|ticket| ticket.expires_at)
    };
    let blind = Principal { permissions: Permissions::of(&[Permission::WriteThreads]), ..requester() };
    assert_eq!(issued(&blind, 60), Err(IssueError::NotAllowed));
    // A ticket must not obtain another ticket, or tickets could be renewed forever.
    let holder = check(&made().text, &[key()], NOW).unwrap();
    assert_eq!(issued(&holder, 60), Err(IssueError::NotAllowed));
    for wrong in [0, 901, u32::MAX] {
        assert_eq!(issued(&requester(), wrong), Err(IssueError::Lifetime));
    }
    assert_eq!(issued(&requester(), 1), Ok(NOW.plus_ms(1000)));
    assert_eq!(issued(&requester(), 900), Ok(NOW.plus_ms(900_000)));
}

#[test]
fn other_keys_and_other_ends_make_no_tickets() {
    let ticket = made();
    let other = TicketKey::new(&[8; 32]).unwrap();
    assert!(check(&ticket.text, &[other.clone(), key()], NOW).is_ok(), "any of the keys counts");
    assert_eq!(check(&ticket.text, &[], NOW), Err(TicketError::Forged));
    assert_eq!(check(&ticket.text, &[other], NOW), Err(TicketError::Forged));
    assert_eq!(TicketKey::new(&[7; 31]).map(|_| ()), Err(InvalidTicketKey(31)));
    // A MAC with the same key over the same bytes, but without our prefix.
    let (payload, _) = ticket.text[4..].split_once('.').unwrap();
    let mut bare = Hmac::<Sha256>::new_from_slice(&[7; 32]).unwrap();
    bare.update(&URL_SAFE_NO_PAD.decode(payload).unwrap());
    let mac = URL_SAFE_NO_PAD.encode(bare.finalize().into_bytes());
    assert_eq!(check(&format!("tkt_{payload}.{mac}"), &[key()], NOW), Err(TicketError::Forged));
}

#[test]
fn other_texts_are_no_tickets() {
    let text = made().text;
    let (payload, mac) = text[4..].split_once('.').unwrap();
    let bad = [
        String::new(),
        "tkt_".to_owned(),
        "tkt_.".to_owned(),
        format!("tkt_{payload}"),
        format!("tkt_{payload}."),
        format!("tkt_.{mac}"),
        format!("tkt_{mac}.{payload}"),
        format!("tkt_{payload}.{}", &mac[..mac.len() - 1]),
        format!("tkt_{payload}.{}", &mac[..22]),
        format!("{text}\n"),
        format!("{text}="),
        format!("{text}A"),
        format!("{text}.{mac}"),
        format!(" {text}"),
        text.replacen("tkt_", "TKT_", 1),
        text.replacen("tkt_", "", 1),
        format!("tkt_{}.{mac}", "A".repeat(1 << 20)),
    ];
    for bad in bad {
        assert!(check(&bad, &[key()], NOW).is_err(), "{bad:?}");
    }
}

/// The MAC is valid, but the payload is malformed or from another version of this program.
#[test]
fn a_payload_that_is_not_exact_is_refused() {
    let (payload, _) = made().text[4..].split_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let payload = URL_SAFE_NO_PAD.decode(payload).unwrap();
    assert!(check(&sealed(&payload), &[key()], NOW).is_ok());
    for end in 0..payload.len() {
        assert_eq!(check(&sealed(&payload[..end]), &[key()], NOW), Err(TicketError::Malformed), "{end}");
    }
    let mut longer = payload.clone();
    longer.push(0);
    let mut newer = payload.clone();
    newer[0] = 3;
    let mut tenant = payload.clone();
    tenant[18] = b'A';
    let mut thread = payload.clone();
    *thread.last_mut().unwrap() = b'/';
    for payload in [longer, newer, tenant, thread] {
        assert_eq!(check(&sealed(&payload), &[key()], NOW), Err(TicketError::Malformed));
    }
}

#[test]
fn the_longest_names_fit() {
    let requester = Principal {
        tenant: TenantName::parse(&"a".repeat(32)).unwrap(),
        name: "n".repeat(128).into(),
        source: CredentialSource::Jwt,
        ..requester()
    };
    let thread = thread(&"t".repeat(128));
    let ticket = issue(&requester, &thread, 60, &key(), NOW).unwrap();
    assert_eq!(ticket.text.len(), 459);
    let principal = check(&ticket.text, &[key()], NOW).unwrap();
    assert!(principal.can_stream(&thread));
    assert_eq!(principal.source(), CredentialSource::Ticket { key: None });
    let local = issue(&Principal::local(), &thread, 60, &key(), NOW).unwrap();
    assert_eq!(check(&local.text, &[key()], NOW).unwrap().tenant().as_str(), None);
}

#[test]
fn nothing_shows_the_ticket() {
    let ticket = made();
    let shown = format!("{ticket:?} {:?} {:?}", key(), check(&ticket.text, &[key()], NOW));
    assert!(!shown.contains("tkt_") && !shown.contains("7, 7"), "{shown}");
}

proptest! {
    #[test]
    fn a_ticket_with_a_flipped_bit_is_refused(at in 0_usize..1000, bit in 0_u8..8) {
        let ticket = made();
        let mut bytes = ticket.text.into_bytes();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(text) = String::from_utf8(bytes) {
            prop_assert!(check(&text, &[key()], NOW).is_err(), "{text}");
        }
    }

    #[test]
    fn no_text_breaks_the_reader(text: String, payload: Vec<u8>) {
        prop_assert!(check(&text, &[key()], NOW).is_err());
        let prefixed = format!("tkt_{text}");
        prop_assert!(check(&prefixed, &[key()], NOW).is_err());
        prop_assert!(check(&sealed(&payload), &[key()], NOW).is_err());
    }
}
