//! Vocabularies in a folder next to the program, as in container images. They have 47 MB, which are
//! pulled once instead of with each release.
//!
//! The files have the data that `bpe-openai` would embed, in MessagePack. The patterns that split a
//! text before it is encoded are those of that crate.

use std::path::Path;
#[cfg(not(feature = "embedded"))]
use std::{path::PathBuf, sync::LazyLock};

use bpe_openai::Tokenizer;
use bpe_openai::byte_pair_encoding::BytePairEncoding;

use crate::error::VocabularyError;

/// A vocabulary: its file, and the patterns of its splitter. A pattern with `true` ends in a
/// character that does not belong to the match.
struct Vocabulary {
    file: &'static str,
    patterns: [(&'static str, bool); 3],
}

const CL100K: Vocabulary = Vocabulary {
    file: "cl100k_base.dict",
    patterns: [
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+$",
            false,
        ),
        (r"\s+\s", true),
        (r"\s+", false),
    ],
};

const O200K: Vocabulary = Vocabulary {
    file: "o200k_base.dict",
    patterns: [
        (
            concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+$"
            ),
            false,
        ),
        (r"\s+\s", true),
        (r"\s+", false),
    ],
};

#[cfg(not(feature = "embedded"))]
type Loaded = LazyLock<Result<Tokenizer, VocabularyError>>;

/// The tokenizer of `cl100k_base`; loaded at its first use.
#[cfg(not(feature = "embedded"))]
pub(crate) fn cl100k_base() -> Result<&'static Tokenizer, &'static VocabularyError> {
    static LOADED: Loaded = LazyLock::new(|| CL100K.read(&folder()));
    LOADED.as_ref()
}

/// The tokenizer of `o200k_base`; loaded at its first use.
#[cfg(not(feature = "embedded"))]
pub(crate) fn o200k_base() -> Result<&'static Tokenizer, &'static VocabularyError> {
    static LOADED: Loaded = LazyLock::new(|| O200K.read(&folder()));
    LOADED.as_ref()
}

/// Checks that the files exist.
///
/// # Errors
/// The first missing file.
#[cfg(not(feature = "embedded"))]
pub(crate) fn check() -> Result<(), VocabularyError> {
    check_in(&folder())
}

fn check_in(folder: &Path) -> Result<(), VocabularyError> {
    for vocabulary in [CL100K, O200K] {
        let path = folder.join(vocabulary.file);
        std::fs::File::open(&path).map_err(|error| VocabularyError::new(&path, error))?;
    }
    Ok(())
}

/// The folder `tokenizers` next to the program.
#[cfg(not(feature = "embedded"))]
fn folder() -> PathBuf {
    let program = std::env::current_exe().ok();
    program.as_deref().and_then(Path::parent).unwrap_or(Path::new("/")).join("tokenizers")
}

impl Vocabulary {
    fn read(&self, folder: &Path) -> Result<Tokenizer, VocabularyError> {
        let path = folder.join(self.file);
        let bytes = std::fs::read(&path).map_err(|error| VocabularyError::new(&path, error))?;
        let encoding: BytePairEncoding =
            rmp_serde::from_slice(&bytes).map_err(|error| VocabularyError::new(&path, error))?;
        Tokenizer::new_lookahead(encoding, &self.patterns, false)
            .map_err(|error| VocabularyError::new(&path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for one test, deleted with it.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tokenizers-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn vocabularies_in_files_count_as_embedded_ones_do() {
        let folder = Folder::new("whole");
        let missing = check_in(&folder.0).unwrap_err().to_string();
        assert!(missing.contains("cl100k_base.dict: No such file"), "{missing}");
        let embedded = [bpe_openai::cl100k_base(), bpe_openai::o200k_base()];
        for (vocabulary, embedded) in [CL100K, O200K].iter().zip(embedded) {
            let bytes = rmp_serde::to_vec(&embedded.bpe).unwrap();
            std::fs::write(folder.0.join(vocabulary.file), bytes).unwrap();
            let read = vocabulary.read(&folder.0).unwrap();
            for text in TEXTS {
                let (one, other) = (read.encode(*text), embedded.encode(*text));
                assert_eq!(one, other, "{text:?} by {}", vocabulary.file);
            }
        }
        check_in(&folder.0).unwrap();
    }

    #[test]
    fn a_file_that_is_cut_off_is_an_error() {
        let folder = Folder::new("cut");
        let bytes = rmp_serde::to_vec(&bpe_openai::cl100k_base().bpe).unwrap();
        std::fs::write(folder.0.join(CL100K.file), &bytes[..bytes.len() / 2]).unwrap();
        let error = CL100K.read(&folder.0).err().unwrap().to_string();
        assert!(error.contains("cl100k_base.dict"), "{error}");
    }

    /// Texts for each part of the patterns: contractions, letters and marks of several scripts,
    /// numbers, signs, line ends, spaces within and at the end.
    const TEXTS: &[&str] = &[
        "",
        "I'M sure they'll say it's fine; we've, you're, they'd, can't",
        "HTTPServer camelCase ÄÖÜ straße e\u{301}te\u{301} Ωμέγα Привет",
        "1234567 3.14 2026-11-27 x86_64 ٣٤٥",
        "fn main() { println!(\"{}\", a / b); } // done\r\n\r\n\tpath/to/file\n",
        "お誕生日おめでとう 你好 สวัสดี 🦀👩‍👩‍👧",
        "  two  spaces   and\n\n\n lines  \n  ",
        "   ",
    ];
}
