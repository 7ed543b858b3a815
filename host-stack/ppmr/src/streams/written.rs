//! The stream of one process, at the source: what its writer does, and its chunks until they are free again.

use std::collections::BTreeMap;

use crate::{
    failure::{Failure, Nonsense},
    message::Remote,
    pool::{Pool, Share},
};

/// What the writer of a stream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// It is busy elsewhere.
    Away,
    /// It waits for room.
    Waits,
    /// It has room, and fills it.
    Fills,
    /// It has said that this is all, with this checksum.
    Ended(u64),
}

/// The chunk that is being filled.
#[derive(Clone, Copy, Debug, Hash)]
struct Filling {
    slot: u32,
    bytes: u32,
}

/// Where a chunk is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// The target is told of it, and may pull it.
    Announced,
    /// It is being put where the target has placed it.
    Put,
}

/// A chunk that is not free again.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Chunk {
    pub slot: u32,
    pub bytes: u32,
    /// Its bytes are not in the pool, but in memory that was lent.
    pub lent: Option<Remote>,
    pub at: At,
}

/// Room for a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub slot: u32,
    pub at: u32,
    pub bytes: u32,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    share: Share,
    pub writer: Writer,
    filling: Option<Filling>,
    /// By their offsets.
    chunks: BTreeMap<u64, Chunk>,
    /// How much was written.
    pub bytes: u64,
    /// How much of it the target is to have been told of.
    announced: u64,
    is_end_said: bool,
    /// How it came to its end.
    pub over: Option<Result<(), Failure>>,
}

impl Stream {
    pub fn new() -> Self {
        Self {
            share: Share::default(),
            writer: Writer::Away,
            filling: None,
            chunks: BTreeMap::new(),
            bytes: 0,
            announced: 0,
            is_end_said: false,
            over: None,
        }
    }

    /// Room for its writer, which waits, if there is some.
    pub fn room(&mut self, pool: &mut Pool, chunk_bytes: u32) -> Option<Room> {
        let filling = match self.filling {
            Some(filling) => filling,
            None => Filling {
                slot: pool.take(&mut self.share)?,
                bytes: 0,
            },
        };
        self.filling = Some(filling);
        self.writer = Writer::Fills;
        Some(Room {
            slot: filling.slot,
            at: filling.bytes,
            bytes: chunk_bytes - filling.bytes,
        })
    }

    /// The writer has put so many bytes into its room; false if it had no such room.
    pub fn wrote(&mut self, bytes: u32, chunk_bytes: u32) -> bool {
        let (Writer::Fills, Some(filling)) = (self.writer, &mut self.filling) else {
            return false;
        };
        if bytes > chunk_bytes - filling.bytes {
            return false;
        }
        filling.bytes += bytes;
        let is_full = filling.bytes == chunk_bytes;
        self.bytes += u64::from(bytes);
        self.writer = Writer::Away;
        if is_full {
            self.seal(None);
        }
        true
    }

    /// The writer has a chunk in memory of its own; false if it had no room for one.
    pub fn lent(&mut self, at: Remote, bytes: u32, chunk_bytes: u32) -> bool {
        let (Writer::Fills, Some(filling)) = (self.writer, &mut self.filling) else {
            return false;
        };
        if filling.bytes != 0 || !(1..=chunk_bytes).contains(&bytes) {
            return false;
        }
        filling.bytes = bytes;
        self.bytes += u64::from(bytes);
        self.writer = Writer::Away;
        self.seal(Some(at));
        true
    }

    /// What is in its chunk goes on its way; false if the writer has room in it.
    pub fn flush(&mut self) -> bool {
        if self.writer != Writer::Away {
            return false;
        }
        self.seal(None);
        true
    }

    /// The writer has written all; false if it says so while it has room, or again.
    pub fn ended(&mut self, checksum: u64) -> bool {
        if self.writer != Writer::Away {
            return false;
        }
        self.seal(None);
        self.writer = Writer::Ended(checksum);
        true
    }

    /// No more comes into the chunk that is being filled.
    fn seal(&mut self, lent: Option<Remote>) {
        if let Some(Filling { slot, bytes }) = self.filling.take_if(|filling| filling.bytes > 0) {
            let chunk = Chunk {
                slot,
                bytes,
                lent,
                at: At::Announced,
            };
            self.chunks.insert(self.bytes - u64::from(bytes), chunk);
        }
    }

    /// The next chunk that the target is told of now.
    pub fn announce(&mut self) -> Option<(u64, Chunk)> {
        let (offset, chunk) = self.chunks.range(self.announced..).next()?;
        self.announced = offset + u64::from(chunk.bytes);
        Some((*offset, *chunk))
    }

    /// Its checksum, if the target is to be told now that this was all.
    pub fn say_end(&mut self) -> Option<u64> {
        match self.writer {
            Writer::Ended(checksum) if !self.is_end_said => {
                self.is_end_said = true;
                Some(checksum)
            }
            _ => None,
        }
    }

    /// A chunk that the target has placed is on its way there.
    pub fn put(&mut self, offset: u64) -> Result<Chunk, Nonsense> {
        match self.chunks.get_mut(&offset) {
            Some(chunk) if chunk.at == At::Announced => {
                chunk.at = At::Put;
                Ok(*chunk)
            }
            _ => Err(Nonsense::Offset),
        }
    }

    /// A chunk that was so far is free again. Its slot, if its memory was lent.
    pub fn recycle(
        &mut self,
        offset: u64,
        at: At,
        pool: &mut Pool,
    ) -> Result<Option<u32>, Nonsense> {
        match self.chunks.get(&offset) {
            Some(chunk) if chunk.at == at => {}
            _ => return Err(Nonsense::Offset),
        }
        let chunk = self.chunks.remove(&offset).ok_or(Nonsense::Offset)?;
        pool.give(&mut self.share, chunk.slot);
        Ok(chunk.lent.map(|_| chunk.slot))
    }

    /// The slots of all of its chunks that are in memory that was lent, when no chunk can be reached any more.
    pub fn forget_chunks(&mut self) -> Vec<u32> {
        let chunks = std::mem::take(&mut self.chunks).into_values();
        let lent = chunks.filter(|chunk| chunk.lent.is_some());
        lent.map(|chunk| chunk.slot).collect()
    }

    /// Room that no writer fills any more is not needed.
    pub fn drop_room(&mut self, pool: &mut Pool) {
        if self.writer != Writer::Fills
            && let Some(filling) = self.filling.take()
        {
            pool.give(&mut self.share, filling.slot);
        }
    }

    /// Whether all of it has been announced and is free again.
    pub fn is_recycled(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Whether the target may say that it has all of it.
    pub fn may_be_whole(&self) -> bool {
        self.is_end_said && self.is_recycled()
    }

    /// Whether its writer has to do the next thing.
    pub fn waits_for_writer(&self) -> bool {
        self.over.is_none() && matches!(self.writer, Writer::Away | Writer::Fills)
    }

    /// How much of it is at the target.
    pub fn moved_bytes(&self) -> u64 {
        let filling = self.filling.map_or(0, |filling| filling.bytes);
        let here = self.chunks.values().map(|chunk| u64::from(chunk.bytes));
        self.bytes - u64::from(filling) - here.sum::<u64>()
    }

    /// How many chunks of the pool it has.
    pub fn chunks(&self) -> u32 {
        self.share.chunks()
    }

    pub fn hash_state(&self, hash: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (self.writer != Writer::Waits, self.over.is_some()).hash(hash);
        (self.share.chunks(), self.is_end_said).hash(hash);
        self.chunks.values().for_each(|chunk| chunk.at.hash(hash));
    }
}
