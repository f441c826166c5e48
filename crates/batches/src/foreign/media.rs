//! Types and keys of images, files and other media.

/// Words in the types of parts that are media.
const MEDIA: [&str; 10] = [
    "image",
    "audio",
    "video",
    "file",
    "document",
    "media",
    "asset_pointer",
    "source",
    "inlineData",
    "inline_data",
];
/// Keys that name a medium in parts without a type.
const MEDIUM_KEYS: [&str; 11] = [
    "image",
    "audio",
    "video",
    "file",
    "document",
    "source",
    "inlineData",
    "inline_data",
    "fileData",
    "file_data",
    "image_url",
];
/// True if a part type is a medium.
pub(super) fn is_medium_kind(kind: &str) -> bool {
    MEDIA.iter().any(|medium| kind.contains(medium))
        || matches!(kind, "computer_output" | "computer_screenshot")
}

/// True if a key names a medium, in a part without a type.
pub(super) fn is_medium_key(key: &str) -> bool {
    MEDIUM_KEYS.contains(&key)
}
