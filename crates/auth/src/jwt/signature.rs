//! Verifies signatures of tokens with `ring`.
//!
//! `jsonwebtoken` offers cryptography by one of two features. `aws_lc_rs` needs its own C build,
//! and `rust_crypto` adds `rsa` (with an open advisory), two curves and a second `rand`. So `ring`,
//! which TLS uses already, is installed as a custom provider.

use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{ErrorKind, Result},
    signature::{Error, Verifier},
};
use ring::{
    hmac,
    signature::{
        ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256,
        RsaPublicKeyComponents, UnparsedPublicKey,
    },
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| -> Result<Box<dyn JwtSigner>> { Err(ErrorKind::UnsupportedAlgorithm.into()) },
    verifier_factory: |algorithm, key| {
        if key.family() != algorithm.family() {
            return Err(ErrorKind::InvalidKeyFormat.into());
        }
        Ok(Box::new(Ring { algorithm: *algorithm, key: key.clone() }))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs `ring` as the provider; without one the library panics at the first token. The library
/// keeps the first provider for the whole process. If another user of the library has installed
/// one, it verifies the same signatures.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

struct Ring {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for Ring {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Ring {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let checked = match (self.algorithm, self.key.kind()) {
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (Algorithm::PS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PSS_2048_8192_SHA256, message, signature)
            }
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(&ED25519, point).verify(message, signature)
            }
            (Algorithm::HS256, DecodingKeyKind::SecretOrDer(secret)) => {
                hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), message, signature)
            }
            _ => return Err(Error::new()),
        };
        checked.map_err(|_| Error::new())
    }
}
