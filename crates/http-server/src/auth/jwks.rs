//! Verifies tokens of an identity provider, and fetches its keys.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use auth::Principal;
use auth::jwt::{self, Jwks, JwksRefresh, JwtError, JwtRules, RefreshReason};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use model::Timestamp;
use reqwest::{Client, Url};
use runtime::spawn_named;

use crate::auth::config::{TokenConfig, TokenError, TokenKeys};
use crate::auth::error::AuthError;

/// Maximum time to fetch the document.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the document.
const MAX_BYTES: usize = 64 << 10;
const TOO_LONG: &str = "it is too long";

#[derive(Debug)]
pub(crate) struct JwksClient {
    rules: JwtRules,
    source: Arc<JwksSource>,
}

/// The keys and their source.
#[derive(Debug)]
struct JwksSource {
    keys_at: KeySource,
    gate: Mutex<JwksRefresh>,
    /// The fetch in progress, shared by all requests that wait for it. Locked before `gate`.
    fetching: Mutex<Option<Fetching>>,
}

type Fetching = Shared<BoxFuture<'static, ()>>;

/// Clears the fetch in progress when it has ended, even by a panic.
struct UnderWay(Arc<JwksSource>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        *self.0.fetching() = None;
    }
}

#[derive(Debug)]
enum KeySource {
    Url(Client, Box<Url>),
    File(PathBuf),
    /// A shared secret, so there is nothing to fetch.
    Secret(Vec<u8>),
}

impl JwksClient {
    pub(crate) fn new(config: &TokenConfig) -> Result<Self, TokenError> {
        let keys_at = match &config.keys {
            TokenKeys::Url(url) => {
                let url = Url::parse(url).ok().filter(is_safe).ok_or(TokenError::Address)?;
                KeySource::Url(runtime::http::client(Some(FETCH_TIMEOUT))?, Box::new(url))
            }
            TokenKeys::File(path) => {
                // The file may be replaced later, but if it is missing now, the settings are wrong.
                check_file(path).map_err(|why| TokenError::File { path: path.clone(), why })?;
                KeySource::File(path.clone())
            }
            TokenKeys::Secret(secret) => {
                Jwks::secret(secret)?;
                KeySource::Secret(secret.clone())
            }
        };
        let (gate, fetching) = (Mutex::new(JwksRefresh::new()), Mutex::default());
        let source = Arc::new(JwksSource { keys_at, gate, fetching });
        Ok(Self { rules: config.rules.clone(), source })
    }

    fn gate(&self) -> MutexGuard<'_, JwksRefresh> {
        self.source.gate()
    }

    pub(crate) async fn verify(&self, token: &str, now: Timestamp) -> Result<Principal, AuthError> {
        let keys = self.gate().keys(now);
        let keys = match keys {
            Some(keys) => keys,
            None => {
                self.refresh(now).await;
                self.gate()
                    .keys(now)
                    .ok_or(AuthError::Away("the keys of the identity provider are not there"))?
            }
        };
        let refused = |refused: JwtError| AuthError::Refused(refused.to_string());
        match jwt::verify(token, &keys, &self.rules, now) {
            // The provider may have rotated its keys since they were fetched.
            Err(unknown @ JwtError::UnknownKey { .. }) => {
                let has_newer = match self.fetching(RefreshReason::UnknownKey, now) {
                    Some(fetching) => {
                        fetching.await;
                        true
                    }
                    // A fetch may have ended since the keys were read.
                    None => self.gate().keys(now).is_some_and(|newer| !Arc::ptr_eq(&newer, &keys)),
                };
                if !has_newer {
                    return Err(refused(unknown));
                }
                let newer = self.gate().keys(now).unwrap_or(keys);
                jwt::verify(token, &newer, &self.rules, now).map_err(refused)
            }
            verified => verified.map_err(refused),
        }
    }

    /// Fetches the keys when they are old.
    pub(crate) async fn refresh(&self, now: Timestamp) {
        if let Some(fetching) = self.fetching(RefreshReason::Age, now) {
            fetching.await;
        }
    }

    /// The fetch in progress, or a new one; `None` when it is too early for another. It runs in a
    /// separate task: the gate allows one fetch in half a minute, many requests wait for it, and a
    /// request that is cancelled must not cancel the fetch.
    fn fetching(&self, why: RefreshReason, now: Timestamp) -> Option<Fetching> {
        let mut fetching = self.source.fetching();
        if fetching.is_none() && self.gate().may_fetch(why, now) {
            let source = Arc::clone(&self.source);
            let fetch = spawn_named("identity provider", async move {
                let under_way = UnderWay(source);
                under_way.0.fetch(now).await;
            });
            // A panic is in the log already, and the keys stay.
            *fetching = Some(fetch.map(drop).boxed().shared());
        }
        fetching.clone()
    }
}

impl JwksSource {
    fn gate(&self) -> MutexGuard<'_, JwksRefresh> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetching(&self) -> MutexGuard<'_, Option<Fetching>> {
        self.fetching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self, now: Timestamp) {
        let fetched = match &self.keys_at {
            KeySource::Secret(secret) => Jwks::secret(secret).ok(),
            KeySource::File(path) => match tokio::fs::read(path).await {
                Ok(json) if json.len() <= MAX_BYTES => parsed(&json),
                Ok(_) => complain(TOO_LONG),
                Err(error) => complain(&error.to_string()),
            },
            KeySource::Url(client, url) => match document(client, url).await {
                Ok(json) => parsed(&json),
                Err(error) => complain(&error),
            },
        };
        if let Some(keys) = fetched {
            self.gate().fetched(keys, now);
        }
    }
}

fn check_file(path: &Path) -> Result<(), String> {
    let json = std::fs::read(path).map_err(|error| error.to_string())?;
    if json.len() > MAX_BYTES {
        return Err(TOO_LONG.to_owned());
    }
    Jwks::parse(&json).map(drop).map_err(|error| error.to_string())
}

/// Parses the keys of a document, and logs those that are left out.
fn parsed(json: &[u8]) -> Option<Jwks> {
    match Jwks::parse(json) {
        Ok(keys) => {
            for skipped in keys.skipped() {
                tracing::debug!(?skipped, "a key of the identity provider is not used");
            }
            Some(keys)
        }
        Err(error) => {
            tracing::warn!(%error, "the keys of the identity provider cannot be read; those before stay");
            None
        }
    }
}

fn complain(error: &str) -> Option<Jwks> {
    tracing::warn!(error, "the keys of the identity provider cannot be fetched; those before stay");
    None
}

async fn document(client: &Client, url: &Url) -> Result<Vec<u8>, String> {
    let fetched = async {
        let response = client.get(url.clone()).send().await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("the provider answers {}", response.status()));
        }
        match runtime::http::read_at_most(response, MAX_BYTES).await {
            Ok((body, false)) => Ok(body),
            Ok((_, true)) => Err(format!("it is longer than {MAX_BYTES} bytes")),
            Err(error) => Err(error.to_string()),
        }
    };
    tokio::time::timeout(FETCH_TIMEOUT, fetched).await.unwrap_or_else(|_| Err("it takes too long".to_owned()))
}

/// Whether the document can be fetched from this URL: over TLS, or from this machine. A party that
/// can change the document in transit can issue tokens.
fn is_safe(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use futures_util::future::join_all;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// An identity provider whose document the test changes.
    struct Idp {
        url: String,
        document: Arc<Mutex<String>>,
        fetches: Arc<AtomicUsize>,
    }

    impl Idp {
        fn provider(&self) -> JwksClient {
            let rules = JwtRules::new("https://idp.example", "antiphon");
            JwksClient::new(&TokenConfig { rules, keys: TokenKeys::Url(self.url.clone()) }).unwrap()
        }

        async fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/jwks", listener.local_addr().unwrap());
            let (document, fetches) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicUsize::new(0)));
            let (said, counted) = (Arc::clone(&document), Arc::clone(&fetches));
            runtime::spawn_named("test idp", async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    counted.fetch_add(1, Ordering::SeqCst);
                    let mut request = [0; 4_096];
                    assert!(stream.read(&mut request).await.unwrap() > 0);
                    let body = said.lock().unwrap().clone();
                    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length";
                    stream
                        .write_all(format!("{head}: {}\r\n\r\n{body}", body.len()).as_bytes())
                        .await
                        .unwrap();
                }
            });
            Self { url, document, fetches }
        }

        fn says(&self, keys: &[(&str, &Ed25519KeyPair)]) {
            let jwk = |(kid, key): &(&str, &Ed25519KeyPair)| {
                let x = URL_SAFE_NO_PAD.encode(key.public_key());
                json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": kid, "x": x})
            };
            let keys: Vec<Value> = keys.iter().map(jwk).collect();
            *self.document.lock().unwrap() = json!({ "keys": keys }).to_string();
        }
    }

    fn pair(seed: u8) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
    }

    fn token(kid: &str, key: &Ed25519KeyPair, now: Timestamp) -> String {
        let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let seconds = now.0 / 1_000;
        let claims = json!({
            "iss": "https://idp.example", "aud": "antiphon", "sub": "ann", "tenant": "acme", "role": "viewer",
            "iat": seconds, "exp": seconds + 60,
        });
        let signed = format!("{}.{}", part(json!({"alg": "EdDSA", "kid": kid})), part(claims));
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())))
    }

    #[tokio::test]
    async fn keys_are_fetched_when_a_token_names_a_new_one() {
        let (idp, first, second) = (Idp::new().await, pair(1), pair(2));
        idp.says(&[("a", &first)]);
        let provider = idp.provider();
        let now = Timestamp(1_800_000_000_000);
        let ann = provider.verify(&token("a", &first, now), now).await.unwrap();
        assert_eq!((ann.name(), ann.tenant().as_str()), ("jwt:ann", Some("acme")));
        // A flood of tokens with unknown keys causes one fetch in half a minute.
        idp.says(&[("a", &first), ("b", &second)]);
        for _ in 0..50 {
            assert!(provider.verify(&token("b", &second, now), now).await.is_err());
        }
        let later = now.plus_ms(31_000);
        assert!(provider.verify(&token("b", &second, later), later).await.is_ok());
        assert_eq!(idp.fetches.load(Ordering::SeqCst), 2);
        // An invalid document or an unavailable provider removes no key.
        *idp.document.lock().unwrap() = "{".to_owned();
        let later = now.plus_ms(700_000);
        provider.refresh(later).await;
        assert_eq!(idp.fetches.load(Ordering::SeqCst), 3);
        assert!(provider.verify(&token("a", &first, later), later).await.is_ok());
        // A key removed by the provider is removed here.
        idp.says(&[("b", &second)]);
        let later = now.plus_ms(800_000);
        provider.refresh(later).await;
        assert!(provider.verify(&token("a", &first, later), later).await.is_err());
        assert!(provider.verify(&token("b", &second, later), later).await.is_ok());
    }

    #[tokio::test]
    async fn all_who_show_a_new_key_at_once_wait_for_its_fetch() {
        let (idp, first, second) = (Idp::new().await, pair(1), pair(2));
        idp.says(&[("a", &first)]);
        let provider = idp.provider();
        let now = Timestamp(1_800_000_000_000);
        // The first fetch of the keys is shared, too.
        let first_token = token("a", &first, now);
        for verified in join_all((0..20).map(|_| provider.verify(&first_token, now))).await {
            assert!(verified.is_ok(), "{verified:?}");
        }
        idp.says(&[("a", &first), ("b", &second)]);
        let later = now.plus_ms(31_000);
        let new = token("b", &second, later);
        for verified in join_all((0..20).map(|_| provider.verify(&new, later))).await {
            assert!(verified.is_ok(), "{verified:?}");
        }
        assert_eq!(idp.fetches.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_client_that_leaves_stops_no_fetch() {
        let (idp, first, second) = (Idp::new().await, pair(1), pair(2));
        idp.says(&[("a", &first)]);
        let provider = idp.provider();
        let now = Timestamp(1_800_000_000_000);
        provider.refresh(now).await;
        idp.says(&[("b", &second)]);
        let later = now.plus_ms(31_000);
        let token = token("b", &second, later);
        // The request starts a fetch and is dropped before the provider can answer.
        let mut asking = Box::pin(provider.verify(&token, later));
        std::future::poll_fn(|context| {
            assert!(asking.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(asking);
        let fetched = async {
            while provider.verify(&token, later).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(FETCH_TIMEOUT, fetched).await.expect("the fetch was given up with its request");
        assert_eq!(idp.fetches.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_file_that_is_missing_or_holds_no_keys_stops_the_start() {
        let folder = std::env::temp_dir().join(format!("antiphon-jwks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let opened = |name: &str| {
            let rules = JwtRules::new("https://idp.example", "antiphon");
            let opened = JwksClient::new(&TokenConfig { rules, keys: TokenKeys::File(folder.join(name)) });
            opened.map(drop).map_err(|error| error.to_string())
        };
        std::fs::write(folder.join("broken"), "{").unwrap();
        std::fs::write(folder.join("long"), " ".repeat(MAX_BYTES + 1)).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair(1).public_key());
        let good = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "a", "x": x}]});
        std::fs::write(folder.join("good"), good.to_string()).unwrap();
        for (name, why) in [("missing", "No such file"), ("broken", "broken"), ("long", TOO_LONG)] {
            let error = opened(name).unwrap_err();
            assert!(error.contains(why) && error.contains(name) && !error.contains('\n'), "{error}");
        }
        assert_eq!(opened("good"), Ok(()));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        let safe = |url| is_safe(&Url::parse(url).unwrap());
        for good in
            ["https://idp.example/jwks", "http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]/x"]
        {
            assert!(safe(good), "{good}");
        }
        for bad in
            ["http://idp.example/jwks", "ftp://localhost/x", "http://127.0.0.1.example/x", "file:///etc/x"]
        {
            assert!(!safe(bad), "{bad}");
        }
    }
}
