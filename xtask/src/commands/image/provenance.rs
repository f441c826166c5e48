//! The origin of an image: labels of the Open Container Initiative.

use std::process::Command;

use devservices::workspace;

const PREFIX: &str = "org.opencontainers.image";

/// The commit of the sources, with the suffix `-modified` if they differ from it. `None` outside a
/// checkout.
pub(crate) fn revision() -> Option<String> {
    let commit = git(&["rev-parse", "HEAD"])?;
    let is_modified = git(&["status", "--porcelain"]).is_some();
    Some(if is_modified { format!("{commit}-modified") } else { commit })
}

/// The public address of the sources, if the checkout has one.
pub(super) fn source() -> Option<String> {
    public_address(&git(&["remote", "get-url", "origin"])?)
}

/// The address without a login; `None` for a local path, which is useless elsewhere.
fn public_address(url: &str) -> Option<String> {
    let rest = url.strip_prefix("https://")?;
    let (_, host_and_path) = rest.split_once('@').unwrap_or(("", rest));
    Some(format!("https://{}", host_and_path.trim_end_matches(".git")))
}

/// The labels, as names and values. Title, description and licence come from the image's
/// Containerfile.
pub(super) fn labels(version: &str, revision: Option<&str>, source: Option<&str>) -> Vec<String> {
    let labels = [("version", Some(version)), ("revision", revision), ("source", source)];
    let known = labels.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| format!("{PREFIX}.{name}={value}")).collect()
}

/// The trimmed output of git; `None` if it is empty or git fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(workspace::root()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_version_and_revision_and_no_private_address() {
        let source = public_address("https://user:secret@code.example/team/antiphon.git");
        assert_eq!(source.as_deref(), Some("https://code.example/team/antiphon"));
        assert_eq!(public_address("/home/someone/antiphon"), None);
        assert_eq!(public_address("git@code.example:team/antiphon"), None);
        assert_eq!(
            labels("0.1.0", Some("4c0ffee"), source.as_deref()),
            [
                "org.opencontainers.image.version=0.1.0",
                "org.opencontainers.image.revision=4c0ffee",
                "org.opencontainers.image.source=https://code.example/team/antiphon",
            ]
        );
        assert_eq!(labels("0.1.0", None, None), ["org.opencontainers.image.version=0.1.0"]);
    }

    #[test]
    fn revision_is_that_of_the_checkout() {
        let Some(head) = git(&["rev-parse", "HEAD"]) else { return };
        let revision = revision().unwrap();
        assert!(revision == head || revision == format!("{head}-modified"), "{revision}");
    }
}
