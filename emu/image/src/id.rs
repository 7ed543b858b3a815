//! The name of an image.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::Xxh3;

/// Names an image: a hash of all that is in it. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(u64);

impl ImageId {
    /// The id with this number; none if the number is zero.
    pub fn new(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// Its number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The text is not 16 hexadecimal digits, or all of them are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an image's id is 16 hexadecimal digits, not all zero")]
pub struct NoId;

impl FromStr for ImageId {
    type Err = NoId;

    fn from_str(text: &str) -> Result<Self, NoId> {
        match u64::from_str_radix(text, 16) {
            Ok(number) if text.len() == 16 => Self::new(number).ok_or(NoId),
            _ => Err(NoId),
        }
    }
}

impl Serialize for ImageId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.collect_str(self),
            false => self.0.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for ImageId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        if from.is_human_readable() {
            let text = String::deserialize(from)?;
            return text.parse().map_err(D::Error::custom);
        }
        Self::new(u64::deserialize(from)?).ok_or_else(|| D::Error::custom(NoId))
    }
}

/// What becomes the id of an image as its header and records go by.
#[derive(Clone, Default)]
pub(crate) struct Digest(Xxh3);

impl Digest {
    /// The checksum of the next part.
    pub fn add(&mut self, sum: u64) {
        self.0.update(&sum.to_le_bytes());
    }

    /// The image's id.
    pub fn id(&self) -> ImageId {
        ImageId(self.0.digest().max(1))
    }
}
