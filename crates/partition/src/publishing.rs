//! The numbered frames of a partition's threads, and the gateways that receive them.

use crate::followers::Followers;
use crate::frames::Frames;

#[derive(Debug)]
pub(crate) struct Publishing {
    pub(crate) frames: Frames,
    pub(crate) followers: Followers,
}
