//! Sets the revision of the binary: `ANTIPHON_REVISION` if it is set, otherwise the commit of the
//! checkout.

use std::process::Command;

/// The revision if neither is available.
const UNKNOWN: &str = "unknown";

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[allow(clippy::disallowed_methods, reason = "what a build script is given is in its environment")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=ANTIPHON_REVISION");
    let given = std::env::var("ANTIPHON_REVISION").ok().filter(|revision| !revision.is_empty());
    if given.is_none() {
        // A commit changes the file of its branch; a switch to another branch changes HEAD.
        let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
        for name in ["HEAD".to_owned(), "packed-refs".to_owned()].into_iter().chain(branch) {
            let path = git(&["rev-parse", "--git-path", &name]);
            if let Some(path) = path.filter(|path| std::path::Path::new(path).exists()) {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
    let revision = given.or_else(|| git(&["rev-parse", "HEAD"])).unwrap_or_else(|| UNKNOWN.to_owned());
    println!("cargo::rustc-env=BUILD_REVISION={revision}");
}
