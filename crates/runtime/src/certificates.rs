//! Checks TLS files before anything connects, and recognises refused certificates. Waiting does not
//! repair either. So the wrong file is named at once, instead of looking like an unreachable
//! server.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, ClientConfig, RootCertStore};

/// A file cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file has no certificate.
    #[error("{}: there is no certificate in it (PEM, BEGIN CERTIFICATE)", path.display())]
    NoCertificate { path: PathBuf },
    /// The content of the file is damaged or of another kind.
    #[error("{}: {why}", path.display())]
    Invalid { path: PathBuf, why: String },
    /// The file has no private key.
    #[error("{}: there is no private key in it (PEM, BEGIN PRIVATE KEY)", path.display())]
    NoKey { path: PathBuf },
    /// The certificate and the key do not match.
    #[error("{} is not the private key of {}: {why}", key.display(), certificate.display())]
    OtherKey { certificate: PathBuf, key: PathBuf, why: String },
}

/// Checks a file of CA certificates (PEM).
///
/// # Errors
/// The file cannot be read, or one of the certificates cannot be used.
pub fn check_authorities(path: &Path) -> Result<(), CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| invalid(path, &error))?;
    }
    Ok(())
}

/// Checks the files (PEM) of a client certificate and its private key.
///
/// # Errors
/// One of them cannot be read or used, or they do not match.
pub fn check_client_certificate(certificate: &Path, key: &Path) -> Result<(), CertificateError> {
    let chain = certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| match error {
        pem::Error::NoItemsFound => CertificateError::NoKey { path: key.to_owned() },
        error => invalid(key, &error),
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(certificate, &error))?;
    let config = builder.with_root_certificates(RootCertStore::empty()).with_client_auth_cert(chain, private);
    config.map(drop).map_err(|error| CertificateError::OtherKey {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        why: error.to_string(),
    })
}

/// The certificate that prevented a connection, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedCertificate {
    /// This process does not accept the server's certificate.
    OfServer(String),
    /// The server does not accept our certificate, or requires one.
    OfClient(String),
}

impl RefusedCertificate {
    /// A description for people. `authorities`: the authorities that verify server certificates.
    pub fn describe(&self, authorities: &str) -> String {
        match self {
            Self::OfServer(why) => {
                format!(
                    "the certificate of the server is refused ({why}); it is checked against {authorities}"
                )
            }
            Self::OfClient(why) => {
                format!("the server refuses the certificate of this client, or wants one ({why})")
            }
        }
    }
}

/// The certificate that caused a connection error, if one did.
pub fn refused_certificate(error: &(dyn Error + 'static)) -> Option<RefusedCertificate> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return of_certificate(found);
        }
        // The sources of an I/O error do not include its inner error.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn of_certificate(error: &rustls::Error) -> Option<RefusedCertificate> {
    use AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
            Some(RefusedCertificate::OfServer(error.to_string()))
        }
        rustls::Error::AlertReceived(
            Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired,
        ) => Some(RefusedCertificate::OfClient(error.to_string())),
        _ => None,
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| invalid(path, &error))?;
    if found.is_empty() {
        return Err(CertificateError::NoCertificate { path: path.to_owned() });
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    std::fs::read(path).map_err(|source| CertificateError::Read { path: path.to_owned(), source })
}

fn invalid(path: &Path, error: &dyn Error) -> CertificateError {
    CertificateError::Invalid { path: path.to_owned(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustls::CertificateError as Refused;

    use super::*;

    fn file(name: &str, content: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("antiphon-certificates-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("folder");
        let path = folder.join(name);
        fs::write(&path, content).expect("file");
        path
    }

    #[test]
    fn files_without_a_certificate_are_refused_by_name() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (path, why) in [
            (PathBuf::from("/nowhere/ca.crt"), "No such file"),
            (std::env::temp_dir(), "directory"),
            (file("empty", ""), "there is no certificate in it"),
            (file("text", "not a certificate"), "there is no certificate in it"),
            (file("broken", broken), "invalid peer certificate"),
            (file("half", &broken[..40]), ""),
        ] {
            let error = check_authorities(&path).expect_err("it is no certificate").to_string();
            assert!(error.starts_with(&path.display().to_string()) && error.contains(why), "{error}");
        }
        let error = check_client_certificate(&file("none", ""), &file("key", "")).expect_err("empty");
        assert!(matches!(error, CertificateError::NoCertificate { .. }), "{error}");
    }

    #[test]
    fn refused_certificates_are_no_servers_that_are_away() {
        let unknown = rustls::Error::InvalidCertificate(Refused::UnknownIssuer);
        let wrapped = io::Error::new(io::ErrorKind::InvalidData, unknown);
        let refused = refused_certificate(&wrapped).expect("a certificate");
        let why = refused.describe("the authorities in a file");
        assert!(why.contains("UnknownIssuer") && why.ends_with("the authorities in a file"), "{why}");
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        let refused = refused_certificate(&io::Error::other(io::Error::other(alert)));
        assert!(matches!(refused, Some(RefusedCertificate::OfClient(_))), "{refused:?}");
        for away in [
            io::Error::from(io::ErrorKind::ConnectionRefused),
            io::Error::other(rustls::Error::AlertReceived(AlertDescription::InternalError)),
        ] {
            assert_eq!(refused_certificate(&away), None, "{away}");
        }
    }
}
