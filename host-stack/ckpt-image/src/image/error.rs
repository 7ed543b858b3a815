//! What can be wrong with an image, and with writing one.

use std::io;

use snaprig_image::PartError;

use super::{CHUNK_MAX, PAGE, STATE_MAX, VERSION};

/// Why bytes are not an image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It does not start as an image does.
    #[error("{name} is not a checkpoint image (wrong first bytes); name an image or a checkpoint")]
    Magic {
        /// The file or stream.
        name: String,
    },
    /// It was written by another version.
    #[error(
        "{name} is a checkpoint image of version {found}, this snaprig reads version {VERSION}; \
         restart it with the snaprig that wrote it"
    )]
    Version {
        /// The file or stream.
        name: String,
        /// The version it names.
        found: u32,
    },
    /// It does not match a checksum, or makes no sense.
    #[error("{name} is damaged at offset {offset} ({}): {what}; use an earlier checkpoint", Part(*.batch))]
    Damaged {
        /// The file or stream.
        name: String,
        /// Where the damaged part starts.
        offset: u64,
        /// The batch it is in; none: header or end.
        batch: Option<u64>,
        /// What is wrong.
        what: &'static str,
    },
    /// It ends before its end, or with something else.
    #[error("{name} is cut off at offset {offset}; use an earlier checkpoint")]
    Truncated {
        /// The file or stream.
        name: String,
        /// Where it ends.
        offset: u64,
    },
    /// A section of its state is not what its reader takes for one.
    #[error(
        "{name}: section {section} of its state (up to offset {offset}) cannot be decoded: {source}; \
         restart it with the snaprig that wrote it"
    )]
    State {
        /// The file or stream.
        name: String,
        /// Which section, from 0.
        section: u32,
        /// Where it ends.
        offset: u64,
        /// Why.
        source: postcard::Error,
    },
    /// It cannot be read.
    #[error("{name} cannot be read at offset {offset}: {source}")]
    Io {
        /// The file or stream.
        name: String,
        /// Where.
        offset: u64,
        /// Why.
        source: io::Error,
    },
}

struct Part(Option<u64>);

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.0 {
            Some(batch) => write!(f, "batch {batch}"),
            None => f.write_str("header or end"),
        }
    }
}

impl ImageError {
    pub(super) fn wrong(name: &str, offset: u64, batch: Option<u64>, wrong: PartError) -> Self {
        let name = name.to_owned();
        match wrong {
            PartError::Magic => Self::Magic { name },
            PartError::Version { found, .. } => Self::Version { name, found },
            PartError::Damaged(what) => Self::Damaged {
                name,
                offset,
                batch,
                what,
            },
        }
    }
}

/// Why an image was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// No room (ENOSPC, EDQUOT).
    #[error(
        "{name}: no room: {written} bytes of the image were written, about {needed} more are needed; \
         make room or choose another directory (--dir)"
    )]
    Full {
        /// The file or stream.
        name: String,
        /// Bytes written.
        written: u64,
        /// Bytes that are missing, as far as is known.
        needed: u64,
    },
    /// It cannot be written.
    #[error("{name} cannot be written after {written} bytes: {source}")]
    Io {
        /// The file or stream.
        name: String,
        /// Bytes written.
        written: u64,
        /// Why.
        source: io::Error,
    },
    /// There is no memory for buffers.
    #[error("no memory for buffers: {0}")]
    Memory(io::Error),
    /// The header has more than fits.
    #[error(
        "the header of the image is too long: cpu features and kernel release take over 64 KiB"
    )]
    Header,
    /// A section of state has more than fits.
    #[error("section {section} of the state takes over {STATE_MAX} bytes, or does not serialize")]
    State {
        /// Which section, from 0.
        section: u32,
    },
    /// Pages that are not whole, not aligned, past the end of all addresses, or more than the buffer holds.
    #[error(
        "{bytes:#x} bytes at {address:#x} of space {space} are not whole pages of {PAGE} bytes, or more \
         than the {CHUNK_MAX} of a buffer, or gone from an image without a parent"
    )]
    Run {
        /// The space.
        space: u32,
        /// Where.
        address: u64,
        /// How long.
        bytes: u64,
    },
    /// All buffers are in the caller's hands.
    #[error("all {0} buffers have been handed out: submit or drop one first")]
    Buffers(usize),
    /// A thread of the writer's panicked.
    #[error("{name}: a thread of the image's writer panicked")]
    Panicked {
        /// The file or stream.
        name: String,
    },
}
