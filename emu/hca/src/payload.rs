//! Data of a packet, and how it gets from where it is to where it belongs.

use std::borrow::Cow;

use crate::{Hca, Host, Segment, cell::U64, queue};

/// Where the data of a packet is.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// In a process's memory, in these places.
    Memory(&'a [Segment]),
    /// In a send queue's slot: so many bytes from byte `at`.
    Slot {
        /// The slot's words after its head.
        words: &'a [U64],
        /// First byte.
        at: usize,
        /// Bytes.
        length: usize,
    },
    /// Here.
    Bytes(Cow<'a, [u8]>),
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(a), Self::Memory(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            _ => false,
        }
    }
}

/// Bytes of a slot that are moved at a time.
const SLOT_PART: usize = 256;

impl Payload<'_> {
    /// No data.
    pub const EMPTY: Payload<'static> = Payload::Memory(&[]);

    /// Bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        match self {
            Self::Memory(segments) => segments.iter().map(|s| s.length).sum(),
            Self::Slot { length, .. } => *length as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// All of it, copied out of where it is.
    pub fn to_bytes<H: Host>(&self, host: &H) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.length()).ok()?];
        match self {
            Self::Memory(segments) => {
                let mut rest = &mut bytes[..];
                for segment in *segments {
                    let (part, after) = rest.split_at_mut(segment.length as usize);
                    if !host.read(*segment, part) {
                        return None;
                    }
                    rest = after;
                }
            }
            Self::Slot { words, at, .. } => queue::load_bytes(words, *at, &mut bytes),
            Self::Bytes(there) => bytes.copy_from_slice(there),
        }
        Some(bytes)
    }
}

/// The data or its place is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl<H: Host> Hca<'_, H> {
    /// Puts data into places, one after the other; what does not fit is left.
    pub(crate) fn put(&self, payload: &Payload<'_>, to: &[Segment]) -> Result<(), Lost> {
        match payload {
            Payload::Memory(from) => self.copy_lists(from, to),
            Payload::Slot { words, at, length } => {
                let mut part = [0; SLOT_PART];
                let mut done = 0;
                let mut targets = Cursor::new(to);
                while done < *length {
                    let count = (*length - done).min(SLOT_PART);
                    queue::load_bytes(words, at + done, &mut part[..count]);
                    self.put_bytes(&part[..count], &mut targets)?;
                    done += count;
                }
                Ok(())
            }
            Payload::Bytes(bytes) => self.put_bytes(bytes, &mut Cursor::new(to)),
        }
    }

    fn put_bytes(&self, mut bytes: &[u8], to: &mut Cursor<'_>) -> Result<(), Lost> {
        while !bytes.is_empty() {
            let Some(target) = to.next(bytes.len() as u64) else {
                return Ok(());
            };
            let (now, later) = bytes.split_at(target.length as usize);
            if !self.host.write(now, target) {
                return Err(Lost);
            }
            bytes = later;
        }
        Ok(())
    }

    fn copy_lists(&self, from: &[Segment], to: &[Segment]) -> Result<(), Lost> {
        let mut targets = Cursor::new(to);
        for segment in from {
            let mut done = 0;
            while done < segment.length {
                let Some(target) = targets.next(segment.length - done) else {
                    return Ok(());
                };
                if !self.host.copy(segment.part(done, target.length), target) {
                    return Err(Lost);
                }
                done += target.length;
            }
        }
        Ok(())
    }
}

/// A place in a list of segments.
struct Cursor<'a> {
    list: &'a [Segment],
    at: u64,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn new(list: &'a [Segment]) -> Self {
        Self { list, at: 0 }
    }

    /// Up to `length` bytes more.
    #[inline]
    fn next(&mut self, length: u64) -> Option<Segment> {
        loop {
            let first = self.list.first()?;
            let part = first.part(self.at, length);
            if part.length > 0 {
                self.at += part.length;
                return Some(part);
            }
            self.list = &self.list[1..];
            self.at = 0;
        }
    }
}

/// A list of places that has room for every list there is. A short one, as most are, is all here.
#[derive(Debug)]
pub struct Places {
    few: [Segment; FEW],
    many: Vec<Segment>,
    count: usize,
}

/// Places that need no memory of their own.
const FEW: usize = 4;

impl Places {
    /// An empty one.
    #[inline]
    pub fn new() -> Self {
        Self {
            few: [Segment::EMPTY; FEW],
            many: Vec::new(),
            count: 0,
        }
    }

    /// Adds a place.
    #[inline]
    pub fn push(&mut self, segment: Segment) {
        if self.count == queue::SGES_MAX {
            return;
        }
        if let Some(slot) = self.few.get_mut(self.count) {
            *slot = segment;
        } else {
            if self.many.is_empty() {
                self.many.extend(self.few);
            }
            self.many.push(segment);
        }
        self.count += 1;
    }

    /// What is in it.
    #[inline]
    pub fn list(&self) -> &[Segment] {
        self.few.get(..self.count).unwrap_or(&self.many)
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::new()
    }
}
