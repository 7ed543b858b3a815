//! The stream of one process, at the target: its chunks in their places, and what its reader does. The paper's linked list
//! of chunks (section IV, step 3).

use std::collections::{BTreeMap, VecDeque};

use crate::{
    failure::{Failure, Nonsense},
    message::Remote,
    pool::{Pool, Share},
};

/// A chunk of the source's that has no chunk here yet.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    pub offset: u64,
    pub bytes: u32,
    pub remote: Remote,
}

/// A chunk of the pool.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    slot: u32,
    bytes: u32,
    /// All of it has come.
    is_here: bool,
}

/// What the reader of a stream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// It is busy elsewhere: with what it was given, say.
    Away,
    /// It waits for bytes.
    Waits,
    /// It knows that it has read all.
    Drained,
}

/// The end of a stream, as the source says.
#[derive(Clone, Copy, Debug)]
struct End {
    bytes: u64,
    checksum: u64,
}

/// What a reader that waits is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    Part { slot: u32, at: u32, bytes: u32 },
    Drained,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    share: Share,
    announced: VecDeque<Announced>,
    /// The end of all that was announced.
    announced_bytes: u64,
    /// By their offsets.
    chunks: BTreeMap<u64, Chunk>,
    read_bytes: u64,
    /// So many bytes after those are with the reader.
    given_bytes: u64,
    end: Option<End>,
    pub reader: Reader,
    /// How it came to its end.
    pub over: Option<Result<(), Failure>>,
}

impl Stream {
    pub fn new() -> Self {
        Self {
            share: Share::default(),
            announced: VecDeque::new(),
            announced_bytes: 0,
            chunks: BTreeMap::new(),
            read_bytes: 0,
            given_bytes: 0,
            end: None,
            reader: Reader::Away,
            over: None,
        }
    }

    /// The next chunk of the source's. A control connection keeps its order, so another one than the next is nonsense:
    /// what has a place in the stream is never there twice, and no place is left out.
    pub fn announce(&mut self, chunk: Announced) -> Result<(), Nonsense> {
        if self.end.is_some() {
            return Err(Nonsense::Now);
        }
        let end = chunk.offset.checked_add(chunk.bytes.into());
        match end {
            Some(end) if chunk.offset == self.announced_bytes => self.announced_bytes = end,
            _ => return Err(Nonsense::Offset),
        }
        if self.over.is_none() {
            self.announced.push_back(chunk);
        }
        Ok(())
    }

    /// The source says that this was all.
    pub fn ended(&mut self, bytes: u64, checksum: u64) -> Result<(), Nonsense> {
        match self.end {
            Some(_) => return Err(Nonsense::Now),
            None if bytes != self.announced_bytes => return Err(Nonsense::Total),
            None => self.end = Some(End { bytes, checksum }),
        }
        Ok(())
    }

    /// Whether there is a chunk of the pool for the next one of the source's.
    pub fn can_place(&self, pool: &Pool) -> bool {
        !self.announced.is_empty() && pool.can_take(&self.share)
    }

    /// A chunk of the pool for the next one of the source's, if there is one for it.
    pub fn place(&mut self, pool: &mut Pool) -> Option<(Announced, u32)> {
        let next = *self.announced.front()?;
        let slot = pool.take(&mut self.share)?;
        self.announced.pop_front();
        let chunk = Chunk {
            slot,
            bytes: next.bytes,
            is_here: false,
        };
        self.chunks.insert(next.offset, chunk);
        Some((next, slot))
    }

    /// A chunk has come. Of a stream that has failed, nobody wants it.
    pub fn came(&mut self, offset: u64, pool: &mut Pool) -> Result<(), Nonsense> {
        let chunk = self.chunks.get_mut(&offset);
        let chunk = chunk.filter(|chunk| !chunk.is_here);
        chunk.ok_or(Nonsense::Offset)?.is_here = true;
        if self.over.is_some() {
            self.drop_chunks(pool);
        }
        Ok(())
    }

    /// What its reader is given, which waits.
    pub fn give(&mut self) -> Option<Given> {
        if self.is_drained() {
            self.reader = Reader::Drained;
            return Some(Given::Drained);
        }
        let next = self.read_bytes + self.given_bytes;
        let (offset, chunk) = self.chunks.range(..=next).next_back()?;
        // All chunks before the next byte are here. If its own is not, this one is before it, and given already.
        let at = u32::try_from(next - offset).ok()?;
        let bytes = chunk.bytes.checked_sub(at).filter(|bytes| *bytes > 0)?;
        if !chunk.is_here {
            return None;
        }
        self.reader = Reader::Away;
        self.given_bytes += u64::from(bytes);
        Some(Given::Part {
            slot: chunk.slot,
            at,
            bytes,
        })
    }

    fn is_drained(&self) -> bool {
        self.end.is_some_and(|end| end.bytes == self.read_bytes)
    }

    /// The reader is done with so many bytes of what it was given; false if that was less.
    pub fn took(&mut self, bytes: u32, pool: &mut Pool) -> bool {
        let bytes = u64::from(bytes);
        let Some(left) = self.given_bytes.checked_sub(bytes) else {
            return false;
        };
        self.given_bytes = left;
        self.read_bytes += bytes;
        if self.over.is_some() {
            self.drop_chunks(pool);
            return true;
        }
        while let Some(first) = self.chunks.first_entry()
            && first.key() + u64::from(first.get().bytes) <= self.read_bytes
        {
            pool.give(&mut self.share, first.remove().slot);
        }
        true
    }

    /// The reader is gone, and touches nothing of what it was given.
    pub fn reader_gone(&mut self, pool: &mut Pool) {
        self.reader = Reader::Away;
        self.given_bytes = 0;
        if self.over.is_some() {
            self.drop_chunks(pool);
        }
    }

    /// Whether this is the checksum of all of it, which has been read.
    pub fn is_checksum(&self, checksum: u64) -> bool {
        self.reader == Reader::Drained && self.end.is_some_and(|end| end.checksum == checksum)
    }

    /// It has failed: what was announced, and is wanted no more.
    pub fn fail(&mut self, failure: Failure, pool: &mut Pool) -> VecDeque<Announced> {
        self.over = Some(Err(failure));
        if self.reader == Reader::Waits {
            self.reader = Reader::Away;
        }
        self.drop_chunks(pool);
        std::mem::take(&mut self.announced)
    }

    /// The connection is gone: what was to come will not, and nobody writes there.
    pub fn cut_off(&mut self, pool: &mut Pool) {
        self.chunks
            .values_mut()
            .for_each(|chunk| chunk.is_here = true);
        self.drop_chunks(pool);
    }

    /// Of a stream that is over: all chunks that nobody reaches any more are free.
    fn drop_chunks(&mut self, pool: &mut Pool) {
        let given = self.read_bytes..self.read_bytes + self.given_bytes;
        let share = &mut self.share;
        self.chunks.retain(|offset, chunk| {
            let end = offset + u64::from(chunk.bytes);
            let is_given = (*offset).max(given.start) < end.min(given.end);
            let stays = !chunk.is_here || is_given;
            if !stays {
                pool.give(share, chunk.slot);
            }
            stays
        });
    }

    /// Whether its reader has to do the next thing.
    pub fn waits_for_reader(&self) -> bool {
        let is_next_here = || {
            let first = self.chunks.first_key_value();
            self.is_drained() || first.is_some_and(|(_, chunk)| chunk.is_here)
        };
        self.over.is_none() && is_next_here()
    }

    /// Whether nothing of the pool is its any more.
    pub fn has_nothing(&self) -> bool {
        self.chunks.is_empty()
    }

    /// How many chunks of the pool it has.
    pub fn chunks(&self) -> u32 {
        self.share.chunks()
    }

    /// How much of it was read.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    pub fn hash_state(&self, hash: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (self.over.is_some(), self.end.is_some()).hash(hash);
        (self.reader == Reader::Waits, self.announced.len()).hash(hash);
        (self.given_bytes > 0).hash(hash);
        let chunks = self.chunks.values();
        chunks.for_each(|chunk| chunk.is_here.hash(hash));
    }
}
