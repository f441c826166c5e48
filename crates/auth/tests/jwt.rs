//! Valid and invalid tokens with real signatures.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use auth::{
    AccessRole, CredentialSource, Permission, Permissions,
    jwt::{InvalidJwks, Jwks, JwtAlgorithm, JwtError, JwtRules, verify},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use model::Timestamp;
use ring::{
    hmac,
    rand::SystemRandom,
    rsa::KeyPair as RsaKeyPair,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
        RsaEncoding,
    },
};
use serde_json::{Value, json};

const NOW_S: i64 = 1_800_000_000;
const NOW: Timestamp = Timestamp(NOW_S * 1000);
const SET: &str = include_str!("keys/jwks.json");
const SECRET: &[u8] = b"a secret that is known to all, 32";

fn der(pem: &str) -> Vec<u8> {
    let body = pem.lines().skip_while(|line| !line.starts_with("-----BEGIN")).skip(1);
    let body: String = body.take_while(|line| !line.starts_with("-----END")).collect();
    STANDARD.decode(body).unwrap()
}

fn rsa(encoding: &'static dyn RsaEncoding, message: &[u8]) -> Vec<u8> {
    let key = RsaKeyPair::from_pkcs8(&der(include_str!("keys/rsa.pem"))).unwrap();
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(encoding, &SystemRandom::new(), message, &mut signature).unwrap();
    signature
}

fn sign(algorithm: JwtAlgorithm, message: &[u8]) -> Vec<u8> {
    match algorithm {
        JwtAlgorithm::Rs256 => rsa(&RSA_PKCS1_SHA256, message),
        JwtAlgorithm::Ps256 => rsa(&RSA_PSS_SHA256, message),
        JwtAlgorithm::Es256 => {
            let (der, random) = (der(include_str!("keys/ec.pem")), SystemRandom::new());
            let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &random).unwrap();
            key.sign(&random, message).unwrap().as_ref().to_vec()
        }
        JwtAlgorithm::EdDsa => {
            let key =
                Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der(include_str!("keys/ed25519.pem"))).unwrap();
            key.sign(message).as_ref().to_vec()
        }
        JwtAlgorithm::Hs256 => mac(SECRET, message),
    }
}

fn mac(secret: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message).as_ref().to_vec()
}

fn encoded(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let message = format!("{}.{}", part(header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn claims() -> Value {
    json!({
        "iss": "https://id.example/", "aud": "antiphon", "sub": "alice", "tenant": "acme", "role": "operator",
        "exp": NOW_S + 600, "iat": NOW_S - 10, "jti": "x", "email": "a@example",
    })
}

/// The claims with these changes; null removes a claim.
fn with(changes: Value) -> Value {
    let mut claims = claims();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => claims.as_object_mut().unwrap().remove(name),
            value => claims.as_object_mut().unwrap().insert(name.clone(), value.clone()),
        };
    }
    claims
}

fn rules() -> JwtRules {
    JwtRules::new("https://id.example/", "antiphon")
}

fn set() -> Jwks {
    Jwks::parse(SET.as_bytes()).unwrap()
}

/// A set with only this key of ours, with the changes that [`with`] describes.
fn set_of(kid: &str, changes: Value) -> Result<Jwks, InvalidJwks> {
    let all: Value = serde_json::from_str(SET).unwrap();
    let mut key = all["keys"].as_array().unwrap().iter().find(|key| key["kid"] == kid).unwrap().clone();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => key.as_object_mut().unwrap().remove(name),
            value => key.as_object_mut().unwrap().insert(name.clone(), value.clone()),
        };
    }
    Jwks::parse(json!({ "keys": [key] }).to_string().as_bytes())
}

/// A token signed with the EC key, which is the fastest.
fn token(claims: &Value) -> String {
    token_of("ec", JwtAlgorithm::Es256, claims)
}

fn token_of(kid: &str, algorithm: JwtAlgorithm, claims: &Value) -> String {
    let header = json!({ "alg": algorithm.name(), "typ": "JWT", "kid": kid });
    encoded(&header, claims, |message| sign(algorithm, message))
}

/// Verifies a token with this header, correctly signed with the EC key.
fn headed(header: Value) -> Result<(), JwtError> {
    judged(&encoded(&header, &claims(), |message| sign(JwtAlgorithm::Es256, message)))
}

fn judged(token: &str) -> Result<(), JwtError> {
    verify(token, &set(), &rules(), NOW).map(|_| ())
}

fn claim(name: &str) -> Result<(), JwtError> {
    Err(JwtError::Claim(name.to_owned()))
}

const PUBLIC: [(&str, JwtAlgorithm); 4] = [
    ("rsa", JwtAlgorithm::Rs256),
    ("rsa", JwtAlgorithm::Ps256),
    ("ec", JwtAlgorithm::Es256),
    ("ed", JwtAlgorithm::EdDsa),
];

#[test]
fn a_good_token_of_each_algorithm_is_taken() {
    for (kid, algorithm) in PUBLIC {
        let principal = verify(&token_of(kid, algorithm, &claims()), &set(), &rules(), NOW).unwrap();
        assert_eq!((principal.name(), principal.tenant().as_str()), ("jwt:alice", Some("acme")));
        assert_eq!(
            (principal.source(), principal.key(), principal.thread()),
            (CredentialSource::Jwt, None, None)
        );
        assert_eq!(principal.permissions(), AccessRole::Operator.permissions());
        assert_eq!(principal.expires_at(), Some(Timestamp((NOW_S + 600 + 30) * 1000)));
    }
    let secret = Jwks::secret(SECRET).unwrap();
    let token = token_of("any", JwtAlgorithm::Hs256, &claims());
    let allowed = JwtRules { algorithms: vec![JwtAlgorithm::Hs256], ..rules() };
    assert!(verify(&token, &secret, &allowed, NOW).is_ok());
    assert_eq!(verify(&token, &secret, &rules(), NOW), Err(JwtError::OtherAlgorithm));
    let guess = Jwks::secret(&[b'x'; 32]).unwrap();
    assert_eq!(verify(&token, &guess, &allowed, NOW), Err(JwtError::Signature));
}

#[test]
fn tokens_that_openssl_signed_are_taken() {
    for token in include_str!("keys/tokens.txt").lines() {
        assert_eq!(verify(token, &set(), &rules(), NOW).unwrap().name(), "jwt:alice");
    }
}

#[test]
fn a_changed_token_is_refused() {
    for (kid, algorithm) in PUBLIC {
        let token = token_of(kid, algorithm, &claims());
        let other = token_of(kid, algorithm, &with(json!({ "role": "admin" })));
        let (head, signature) = token.rsplit_once('.').unwrap();
        let (other_head, _) = other.rsplit_once('.').unwrap();
        assert_eq!(judged(&format!("{other_head}.{signature}")), Err(JwtError::Signature), "{kid}");
        assert_eq!(judged(&format!("{head}.")), Err(JwtError::Signature));
        let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            bytes[at] ^= 1;
            let changed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(&bytes));
            assert_eq!(judged(&changed), Err(JwtError::Signature));
            bytes[at] ^= 1;
        }
        // Some libraries once accepted zeros as a signature of any message on a curve.
        let zeros = URL_SAFE_NO_PAD.encode(vec![0; bytes.len()]);
        assert_eq!(judged(&format!("{head}.{zeros}")), Err(JwtError::Signature));
    }
}

#[test]
fn what_is_no_token_is_refused() {
    let good = token(&claims());
    let bad = [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "...".to_owned(),
        good.replacen('.', "", 1),
        format!("{good}."),
        format!(".{good}"),
        format!("{good}.{good}"),
        format!("{good}\n"),
        format!("{good}="),
        format!(" {good}"),
        good.replacen('.', " .", 1),
        format!("ant_{good}"),
        "ä.ö.ü".to_owned(),
        encoded(&json!([]), &claims(), |_| vec![]),
        encoded(&json!({ "typ": "JWT" }), &claims(), |_| vec![]),
        token(&json!([1])),
        token(&json!("claims")),
    ];
    for bad in bad {
        assert_eq!(judged(&bad), Err(JwtError::Malformed), "{bad:?}");
    }
    // With duplicate claims, different parsers choose different ones.
    let double = r#"{"iss":"https://id.example/","aud":"antiphon","sub":"a","sub":"b","exp":1800000600}"#;
    let head = URL_SAFE_NO_PAD.encode(json!({ "alg": "ES256", "kid": "ec" }).to_string());
    let message = format!("{head}.{}", URL_SAFE_NO_PAD.encode(double));
    let signature = URL_SAFE_NO_PAD.encode(sign(JwtAlgorithm::Es256, message.as_bytes()));
    assert_eq!(judged(&format!("{message}.{signature}")), Err(JwtError::Malformed));
}

#[test]
fn a_huge_token_is_refused_unread() {
    let fill = |length: usize| token(&with(json!({ "fill": "x".repeat(length) })));
    let spare = 8192 - fill(0).len();
    assert_eq!(judged(&fill(spare * 3 / 4 - 2)), Ok(()));
    assert_eq!(judged(&fill(spare)), Err(JwtError::TooLong));
    assert_eq!(judged(&"x".repeat(1 << 20)), Err(JwtError::TooLong));
    assert_eq!(judged(&token(&with(json!({ "deep": null })))), Ok(()));
    let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    let message = format!("{}.{}", token(&claims()).split_once('.').unwrap().0, URL_SAFE_NO_PAD.encode(deep));
    let signature = URL_SAFE_NO_PAD.encode(sign(JwtAlgorithm::Es256, message.as_bytes()));
    assert_eq!(judged(&format!("{message}.{signature}")), Err(JwtError::Malformed));
}

#[test]
fn no_signature_is_never_enough() {
    for alg in ["none", "None", "NONE", "", "nOnE"] {
        let header = json!({ "alg": alg, "typ": "JWT", "kid": "ec" });
        for signature in [vec![], sign(JwtAlgorithm::Es256, b"")] {
            let token = encoded(&header, &claims(), |_| signature.clone());
            assert_eq!(judged(&token), Err(JwtError::Malformed), "{alg}");
        }
    }
    assert_eq!(headed(json!({ "alg": null, "kid": "ec" })), Err(JwtError::Malformed));
}

#[test]
fn a_public_key_is_never_a_secret() {
    let all: Value = serde_json::from_str(SET).unwrap();
    let n = URL_SAFE_NO_PAD.decode(all["keys"][0]["n"].as_str().unwrap()).unwrap();
    let header = json!({ "alg": "HS256", "kid": "rsa" });
    let forged = encoded(&header, &claims(), |message| mac(&n, message));
    assert_eq!(judged(&forged), Err(JwtError::OtherAlgorithm));
    // The token is refused even if HS256 is allowed, which happens when a key set is used as a
    // secret by mistake.
    let every = JwtRules { algorithms: JwtAlgorithm::ALL.to_vec(), ..rules() };
    assert_eq!(verify(&forged, &set(), &every, NOW), Err(JwtError::OtherAlgorithm));
    let pem = include_str!("keys/rsa.pem").as_bytes();
    let forged = encoded(&header, &claims(), |message| mac(pem, message));
    assert_eq!(verify(&forged, &set(), &every, NOW), Err(JwtError::OtherAlgorithm));
    // A secret does not verify tokens with a public key's algorithm.
    let secret = Jwks::secret(SECRET).unwrap();
    assert_eq!(verify(&token(&claims()), &secret, &every, NOW), Err(JwtError::OtherAlgorithm));
}

#[test]
fn a_key_is_for_one_algorithm() {
    let signed = |kid: &str, alg: &str, by: JwtAlgorithm| {
        encoded(&json!({ "alg": alg, "kid": kid }), &claims(), |message| sign(by, message))
    };
    for (kid, alg, by) in [
        ("ec", "RS256", JwtAlgorithm::Rs256),
        ("rsa", "ES256", JwtAlgorithm::Es256),
        ("ed", "ES256", JwtAlgorithm::Es256),
        ("ec", "EdDSA", JwtAlgorithm::EdDsa),
        ("rsa", "RS384", JwtAlgorithm::Rs256),
        ("rsa", "RS512", JwtAlgorithm::Rs256),
        ("rsa", "PS512", JwtAlgorithm::Ps256),
        ("ec", "ES384", JwtAlgorithm::Es256),
        ("rsa", "HS512", JwtAlgorithm::Hs256),
    ] {
        assert_eq!(judged(&signed(kid, alg, by)), Err(JwtError::OtherAlgorithm), "{kid} {alg}");
    }
    // The set may allow fewer algorithms than the key's type.
    let only = set_of("rsa", json!({ "alg": "RS256" })).unwrap();
    let (rs, ps) = (signed("rsa", "RS256", JwtAlgorithm::Rs256), signed("rsa", "PS256", JwtAlgorithm::Ps256));
    assert!(verify(&rs, &only, &rules(), NOW).is_ok());
    assert_eq!(verify(&ps, &only, &rules(), NOW), Err(JwtError::OtherAlgorithm));
    // Our settings may also allow fewer algorithms.
    let ours = JwtRules { algorithms: vec![JwtAlgorithm::Ps256], ..rules() };
    assert_eq!(verify(&rs, &set(), &ours, NOW), Err(JwtError::OtherAlgorithm));
    assert!(verify(&ps, &set(), &ours, NOW).is_ok());
    let none = JwtRules { algorithms: vec![], ..rules() };
    assert_eq!(verify(&rs, &set(), &none, NOW), Err(JwtError::OtherAlgorithm));
}

#[test]
fn a_key_is_found_by_its_name() {
    for kid in
        ["other", "", "EC", "../../", "../../etc/passwd", "ec\0", "' or 1=1 --", "https://evil.example/jwks"]
    {
        let refused = headed(json!({ "alg": "ES256", "kid": kid }));
        assert_eq!(refused, Err(JwtError::UnknownKey { kid: kid.to_owned() }));
    }
    assert_eq!(headed(json!({ "alg": "ES256", "kid": "x".repeat(257) })), Err(JwtError::Malformed));
    assert_eq!(headed(json!({ "alg": "ES256", "kid": 7 })), Err(JwtError::Malformed));
    // A key that the token contains or refers to is ignored.
    let own = json!({ "kty": "oct", "k": "AAAA" });
    assert_eq!(
        headed(json!({ "alg": "ES256", "kid": "new", "jwk": own, "jku": "https://evil.example" })),
        Err(JwtError::UnknownKey { kid: "new".to_owned() })
    );
    let log = JwtError::UnknownKey { kid: "a\nb".to_owned() }.to_string();
    assert_eq!(log, r#"the token's key "a\nb" is not known"#);
}

#[test]
fn a_token_without_a_key_name_needs_a_single_key_that_fits() {
    assert_eq!(headed(json!({ "alg": "ES256" })), Ok(()));
    let nameless = set_of("ec", json!({ "kid": null })).unwrap();
    let token = encoded(&json!({ "alg": "ES256" }), &claims(), |message| sign(JwtAlgorithm::Es256, message));
    assert!(verify(&token, &nameless, &rules(), NOW).is_ok());
    let mut all: Value = serde_json::from_str(SET).unwrap();
    let mut second = all["keys"][1].clone();
    second["kid"] = json!("second");
    all["keys"].as_array_mut().unwrap().push(second);
    let two = Jwks::parse(all.to_string().as_bytes()).unwrap();
    assert_eq!(verify(&token, &two, &rules(), NOW), Err(JwtError::NoKeyNamed));
    let named = token_of("ec", JwtAlgorithm::Es256, &claims());
    assert!(verify(&named, &two, &rules(), NOW).is_ok());
    let unnamed = verify(&named, &nameless, &rules(), NOW);
    assert_eq!(unnamed, Err(JwtError::UnknownKey { kid: "ec".to_owned() }));
}

#[test]
fn the_header_says_what_the_token_is_for() {
    for typ in ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"] {
        assert_eq!(headed(json!({ "alg": "ES256", "kid": "ec", "typ": typ })), Ok(()), "{typ}");
    }
    for typ in ["", "JOSE", "logout+jwt", "dpop+jwt", "at+jwt ", "application/application/jwt"] {
        let refused = headed(json!({ "alg": "ES256", "kid": "ec", "typ": typ }));
        assert_eq!(refused, Err(JwtError::OtherType), "{typ}");
    }
    for crit in [json!([]), json!(["b64"]), json!(["exp"])] {
        let refused = headed(json!({ "alg": "ES256", "kid": "ec", "crit": crit, "b64": false }));
        assert_eq!(refused, Err(JwtError::Critical));
    }
}

#[test]
fn issuer_and_audience_are_ours() {
    let bad = json!(["https://id.example", "https://id.example/x", "https://ID.example/", ""]);
    for issuer in bad.as_array().unwrap() {
        assert_eq!(judged(&token(&with(json!({ "iss": issuer })))), Err(JwtError::OtherIssuer), "{issuer}");
    }
    let list = json!(["https://id.example/", "https://evil.example/"]);
    assert_eq!(judged(&token(&with(json!({ "iss": list })))), Err(JwtError::OtherIssuer));
    for audience in [json!("antiphon"), json!(["antiphon"]), json!(["other", "antiphon"])] {
        assert_eq!(judged(&token(&with(json!({ "aud": audience })))), Ok(()), "{audience}");
    }
    for audience in
        [json!("other"), json!(""), json!("Antiphon"), json!([]), json!(["other"]), json!("antiphon ")]
    {
        let refused = judged(&token(&with(json!({ "aud": audience }))));
        assert_eq!(refused, Err(JwtError::OtherAudience), "{audience}");
    }
    for audience in [json!(["antiphon", 1]), json!({ "antiphon": true }), json!(1)] {
        assert_eq!(judged(&token(&with(json!({ "aud": audience })))), claim("aud"), "{audience}");
    }
    let empty =
        |rules: JwtRules, changes: Value| verify(&token(&with(changes)), &set(), &rules, NOW).map(|_| ());
    let empty_rules = JwtRules { audience: String::new(), ..rules() };
    assert_eq!(empty(empty_rules, json!({ "aud": "" })), Err(JwtError::OtherAudience));
    let empty_rules = JwtRules { issuer: String::new(), ..rules() };
    assert_eq!(empty(empty_rules, json!({ "iss": "" })), Err(JwtError::OtherIssuer));
    for name in ["iss", "aud", "sub", "exp", "iat"] {
        assert_eq!(judged(&token(&with(json!({ name: null })))), claim(name));
    }
}

#[test]
fn times_are_held_against_the_callers_clock() {
    let at = |changes: Value| judged(&token(&with(changes)));
    assert_eq!(at(json!({ "exp": NOW_S - 29 })), Ok(()));
    assert_eq!(at(json!({ "exp": NOW_S - 30 })), Err(JwtError::Expired));
    assert_eq!(at(json!({ "exp": NOW_S - 59 })), Err(JwtError::Expired));
    assert_eq!(at(json!({ "exp": 0 })), Err(JwtError::Expired));
    assert_eq!(at(json!({ "nbf": NOW_S + 30 })), Ok(()));
    assert_eq!(at(json!({ "nbf": NOW_S + 31 })), Err(JwtError::NotYet));
    assert_eq!(at(json!({ "nbf": NOW_S + 3600 })), Err(JwtError::NotYet));
    assert_eq!(at(json!({ "iat": NOW_S + 30 })), Ok(()));
    assert_eq!(at(json!({ "iat": NOW_S + 31 })), Err(JwtError::NotYet));
    let day = 24 * 3600;
    assert_eq!(at(json!({ "iat": NOW_S - day - 29 })), Ok(()));
    assert_eq!(at(json!({ "iat": NOW_S - day - 30 })), Err(JwtError::TooOld));
    assert_eq!(at(json!({ "exp": f64::from(1_800_000_000) + 0.5 })), Ok(()));
    for name in ["exp", "iat", "nbf"] {
        for value in [json!("1800000600"), json!(-1), json!(1e300), json!(u64::MAX), json!(true)] {
            let refused = at(json!({ name: value }));
            assert_eq!(refused, claim(name), "{name} {value}");
        }
    }
    assert_eq!(at(json!({ "exp": [NOW_S + 600] })), Err(JwtError::Malformed));
    // A token whose expiry is far in the future is valid for a day.
    let long = verify(&token(&with(json!({ "exp": 253_402_300_799_i64 }))), &set(), &rules(), NOW).unwrap();
    assert_eq!(long.expires_at(), Some(Timestamp((NOW_S - 10 + day + 30) * 1000)));
}

#[test]
fn a_tenant_is_named_or_allowed_to_be_missing() {
    let open = JwtRules { default_tenant_allowed: true, ..rules() };
    let missing = token(&with(json!({ "tenant": null })));
    assert_eq!(judged(&missing), claim("tenant"));
    assert_eq!(verify(&missing, &set(), &open, NOW).unwrap().tenant().as_str(), None);
    // An invalid tenant is never treated as a missing one.
    for tenant in [json!(""), json!("Acme"), json!("a/b"), json!(["acme"]), json!(1), json!({})] {
        let refused = verify(&token(&with(json!({ "tenant": tenant }))), &set(), &open, NOW);
        assert_eq!(refused, Err(JwtError::Claim("tenant".to_owned())), "{tenant}");
    }
    let renamed = JwtRules { tenant_claim: "https://acme.example/org".to_owned(), ..rules() };
    let token = token(&with(json!({ "https://acme.example/org": "other" })));
    assert_eq!(verify(&token, &set(), &renamed, NOW).unwrap().tenant().as_str(), Some("other"));
}

#[test]
fn a_role_is_one_of_ours_and_scopes_narrow_it() {
    let got = |changes: Value| verify(&token(&with(changes)), &set(), &rules(), NOW).map(|p| p.permissions());
    assert_eq!(got(json!({ "role": "viewer" })), Ok(AccessRole::Viewer.permissions()));
    assert_eq!(got(json!({ "role": ["admin"] })), Ok(AccessRole::Admin.permissions()));
    for role in ["root", "", "Admin", "viewer admin"] {
        assert_eq!(got(json!({ "role": role })), Err(JwtError::UnknownRole), "{role}");
    }
    for role in [json!(null), json!([]), json!(["viewer", "admin"]), json!([1]), json!(7)] {
        assert_eq!(got(json!({ "role": role })).map(|_| ()), claim("role"), "{role}");
    }
    let read = Permissions::of(&[Permission::ReadThreads]);
    assert_eq!(got(json!({ "scope": "openid threads:read keys:manage" })), Ok(read));
    assert_eq!(got(json!({ "scope": "openid profile" })), Ok(Permissions::NONE));
    assert_eq!(got(json!({ "scope": "" })), Ok(Permissions::NONE));
    assert_eq!(got(json!({ "scope": ["threads:read"] })).map(|_| ()), claim("scope"));
    let unread = JwtRules { scope_claim: None, ..rules() };
    let principal = verify(&token(&with(json!({ "scope": "openid" }))), &set(), &unread, NOW).unwrap();
    assert_eq!(principal.permissions(), AccessRole::Operator.permissions());
}

#[test]
fn a_subject_becomes_a_short_visible_name() {
    let name = |subject: &str| {
        let principal = verify(&token(&with(json!({ "sub": subject }))), &set(), &rules(), NOW).unwrap();
        principal.name().to_owned()
    };
    assert_eq!(name("auth0|5f7"), "jwt:auth0|5f7");
    assert_eq!(name(&"x".repeat(124)), format!("jwt:{}", "x".repeat(124)));
    let hashed = name("Zoë");
    assert_eq!((hashed.len(), &hashed[..11]), (75, "jwt:sha256:"));
    let others =
        [name(&"x".repeat(125)), name("a b"), name("a\nb"), name("a\0"), name("a/b"), name(&hashed[4..])];
    for other in &others {
        assert!(other.starts_with("jwt:sha256:") && *other != hashed && other.len() == 75, "{other}");
    }
    assert_eq!(judged(&token(&with(json!({ "sub": "" })))), claim("sub"));
    assert_eq!(judged(&token(&with(json!({ "sub": 7 })))), claim("sub"));
}

#[test]
fn a_key_set_is_bounded_and_one_bad_key_spoils_no_other() {
    let mut all: Value = serde_json::from_str(SET).unwrap();
    let weak: Value = serde_json::from_str(include_str!("keys/rsa-1024.json")).unwrap();
    let good = all["keys"][1].clone();
    let changed = |kid: &str, name: &str, value: Value| {
        let mut key = good.clone();
        (key["kid"], key[name]) = (json!(kid), value);
        key
    };
    let bad = [
        weak,
        json!({ "kty": "oct", "k": "c2VjcmV0", "kid": "oct" }),
        changed("enc", "use", json!("enc")),
        changed("ops", "key_ops", json!(["sign"])),
        changed("curve", "crv", json!("P-384")),
        changed("point", "x", json!("AAAA")),
        changed("alg", "alg", json!("RS256")),
        changed("unknown", "alg", json!("XY256")),
        changed("type", "kty", json!("XYZ")),
        json!({ "kty": "RSA", "kid": "half", "n": "AQAB" }),
        good.clone(),
        json!(7),
        json!({ "kid": 7, "kty": "EC" }),
    ];
    let count = bad.len();
    all["keys"].as_array_mut().unwrap().extend(bad);
    let read = Jwks::parse(all.to_string().as_bytes()).unwrap();
    assert_eq!(read.skipped().len(), count);
    assert_eq!(format!("{read:?}"), r#"{Some("rsa"): Rsa, Some("ec"): P256, Some("ed"): Ed25519}"#);
    assert!(verify(&token(&claims()), &read, &rules(), NOW).is_ok());
    let kids: Vec<_> = read.skipped().iter().map(|key| (key.kid.as_deref(), key.why)).collect();
    assert!(kids.contains(&(Some("weak"), "an RSA key must have 2048 to 8192 bits")));
    assert!(kids.contains(&(Some("ec"), "another key of its type has the same kid")));

    let parsed = |text: &str| Jwks::parse(text.as_bytes()).map(|_| ()).unwrap_err();
    for text in ["", "{}", "[]", "null", r#"{"keys":{}}"#, "{\"keys\":[]} x", "\u{feff}{}"] {
        assert_eq!(parsed(text), InvalidJwks::Malformed, "{text}");
    }
    assert_eq!(parsed(r#"{"keys":[]}"#), InvalidJwks::NoKeys(vec![]));
    let many = json!({ "keys": vec![good; 33] }).to_string();
    assert_eq!(parsed(&many), InvalidJwks::TooMany(33));
    assert_eq!(parsed(&" ".repeat(65_537)), InvalidJwks::TooLong(65_537));
    let weak = set_of("rsa", json!({ "use": "enc" })).unwrap_err();
    assert_eq!(weak.to_string(), r#"the key set has no usable key: "rsa": its use is not sig"#);
    assert_eq!(Jwks::secret(&[1; 31]).map(|_| ()), Err(InvalidJwks::ShortSecret(31)));
    assert!(!format!("{:?}", Jwks::secret(SECRET)).contains("known"));
}

#[test]
fn a_modulus_with_a_zero_before_it_is_taken() {
    let all: Value = serde_json::from_str(SET).unwrap();
    let mut n = URL_SAFE_NO_PAD.decode(all["keys"][0]["n"].as_str().unwrap()).unwrap();
    n.insert(0, 0);
    let padded = set_of("rsa", json!({ "n": URL_SAFE_NO_PAD.encode(n) })).unwrap();
    let token = token_of("rsa", JwtAlgorithm::Rs256, &claims());
    assert!(verify(&token, &padded, &rules(), NOW).is_ok());
}
