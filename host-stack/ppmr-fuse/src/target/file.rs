//! A file that comes, and the thread that has its stream.

use std::{
    io::{self, Read},
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
        mpsc::Receiver,
    },
    time::SystemTime,
};

use fuser::{Errno, FileAttr, INodeNo, ReplyData};
use snaprig_ppmr::driver::target::Reader;

use super::window::{READ_MAX, Window};
use crate::{
    Outcome,
    layout::{self, Entry, LayoutError, Part},
    lock, mounted,
};

/// What is asked of a file, in this order.
pub enum Ask {
    Read {
        offset: u64,
        bytes: u32,
        reply: ReplyData,
    },
    /// Nobody has it open any more.
    Close,
}

/// A file that comes.
pub struct File {
    pub ino: INodeNo,
    pub time: SystemTime,
    pub entry: Mutex<Entry>,
    /// How much of it has been read.
    pub bytes: AtomicU64,
    /// How often it is open.
    pub open: AtomicU32,
}

impl File {
    pub fn attributes(&self, owner: (u32, u32)) -> FileAttr {
        let (bytes, mode) = (self.bytes.load(Ordering::Relaxed), lock(&self.entry).mode);
        mounted::file(self.ino, bytes, mode, owner, self.time)
    }

    /// What has become of it.
    pub fn outcome(&self, failure: Option<String>) -> Outcome {
        Outcome {
            name: lock(&self.entry).name.clone(),
            bytes: self.bytes.load(Ordering::Relaxed),
            failure,
        }
    }
}

/// The stream of a file.
pub struct Stream<'a> {
    file: &'a File,
    /// Or why there is none any more.
    reader: Result<Reader, String>,
    /// How many bytes the current part still has, and whether they are zeroes.
    left: u64,
    is_hole: bool,
    window: Window,
    /// How far anybody has read.
    read: u64,
    is_whole: bool,
}

/// What becomes of a file that nobody has open.
pub enum Closed {
    /// It may be opened again: all that was read of it is still here.
    Waits,
    /// All of it was read.
    Whole,
    /// Or why not.
    Failed(String),
}

impl<'a> Stream<'a> {
    pub fn new(file: &'a File, reader: Reader) -> Self {
        Self {
            file,
            reader: Ok(reader),
            left: 0,
            is_hole: false,
            window: Window::new(),
            read: 0,
            is_whole: false,
        }
    }

    /// Answers what is asked until the file is closed.
    pub fn serve(&mut self, asks: &Receiver<Ask>, renamed: &impl Fn(Entry)) -> Option<Closed> {
        for ask in asks {
            match ask {
                Ask::Read {
                    offset,
                    bytes,
                    reply,
                } => match self.read(offset, bytes as usize, renamed) {
                    Ok(bytes) => reply.data(bytes),
                    Err(errno) => reply.error(errno),
                },
                Ask::Close => return Some(self.close(renamed)),
            }
        }
        None
    }

    /// As much as is asked for: only the end of a file is short.
    fn read(
        &mut self,
        offset: u64,
        bytes: usize,
        renamed: &impl Fn(Entry),
    ) -> Result<&[u8], Errno> {
        let bytes = bytes.min(READ_MAX);
        let to = offset.checked_add(bytes as u64).ok_or(Errno::EINVAL)?;
        if offset < self.window.start() {
            let (name, start) = (lock(&self.file.entry).name.clone(), self.window.start());
            tracing::warn!(
                "{}: read at byte {offset}, when all before {start} has gone by: refused",
                name.display()
            );
            return Err(Errno::ESPIPE);
        }
        while self.window.end() < to && !self.is_whole {
            self.more(offset, to, renamed)?;
        }
        // What has come of a stream that has failed is not a file.
        self.reader.as_ref().map_err(|_| Errno::EIO)?;
        self.read = self.read.max(to.min(self.window.end()));
        self.window.get(offset, bytes).ok_or(Errno::ESPIPE)
    }

    /// Has more bytes come, or learns that these were all. The first failure is the end of the stream.
    fn more(&mut self, from: u64, to: u64, renamed: &impl Fn(Entry)) -> Result<(), Errno> {
        self.reader.as_ref().map_err(|_| Errno::EIO)?;
        self.fill(from, to, renamed).map_err(|error| {
            self.reader = Err(error.to_string());
            Errno::EIO
        })
    }

    fn fill(&mut self, from: u64, to: u64, renamed: &impl Fn(Entry)) -> Result<(), LayoutError> {
        let Ok(reader) = &mut self.reader else {
            return Ok(());
        };
        if self.left == 0 {
            match layout::read_part(reader)? {
                Some(Part::Data(bytes)) => (self.left, self.is_hole) = (bytes, false),
                Some(Part::Hole(bytes)) => (self.left, self.is_hole) = (bytes, true),
                Some(Part::Entry(entry)) => renamed(entry),
                None => self.is_whole = true,
            }
            return Ok(());
        }
        let want = (to - self.window.end()).min(self.left).min(READ_MAX as u64);
        let room = self.window.room(from, want as usize);
        let count = if self.is_hole {
            room.fill(0);
            room.len()
        } else {
            reader.read(room)?
        };
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.left -= count as u64;
        self.window.filled(count);
        self.file.bytes.store(self.window.end(), Ordering::Relaxed);
        Ok(())
    }

    /// Who has read all bytes need not have asked for more, to be told that there are none.
    fn close(&mut self, renamed: &impl Fn(Entry)) -> Closed {
        let end = self.window.end();
        while !self.is_whole && self.window.end() == end && self.more(end, end + 1, renamed).is_ok()
        {
        }
        match &self.reader {
            Err(failure) => Closed::Failed(failure.clone()),
            Ok(_) if self.is_whole && self.read == end => Closed::Whole,
            Ok(_) if self.window.start() == 0 => Closed::Waits,
            Ok(_) => Closed::Failed("it was closed before its end".into()),
        }
    }
}
