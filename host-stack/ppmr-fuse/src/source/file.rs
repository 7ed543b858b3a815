//! A file that is being written, and the thread that has its stream.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender},
    },
    time::SystemTime,
};

use fuser::{Errno, FileAttr, INodeNo, ReplyAttr, ReplyEmpty, ReplyWrite};
use snaprig_ppmr::driver::source::Writer;

use crate::{
    layout::{self, Entry, Part},
    lock,
    mounted::{self, TTL},
};

/// Names of files that are not whole yet end so, until they are renamed.
const TEMPORARY: [&str; 4] = [".temp", ".tmp", ".part", ".partial"];

/// What a file is called at the target: what it will be called when it is whole. Who reads it under that name has begun by
/// then, which it must: there is no room for all of it on its way.
pub fn final_name(name: &OsStr) -> OsString {
    let bytes = name.as_bytes();
    let mut ends = TEMPORARY.iter();
    let without = ends.find_map(|end| bytes.strip_suffix(end.as_bytes()));
    let without = without.map(OsStr::from_bytes);
    let name = without.filter(|rest| layout::is_name(rest)).unwrap_or(name);
    name.into()
}

/// What is to be done with a file, in this order.
pub enum Op {
    Write {
        offset: u64,
        bytes: Vec<u8>,
        reply: ReplyWrite,
    },
    Resize {
        bytes: u64,
        reply: ReplyAttr,
    },
    /// What is written goes on its way.
    Flush(ReplyEmpty),
    /// It will not be whole.
    Cancel,
    /// Nobody has it open any more.
    End,
}

/// A file, until its stream is over, and after that.
pub struct File {
    pub ino: INodeNo,
    pub owner: (u32, u32),
    pub time: SystemTime,
    /// What it is called here.
    pub entry: Mutex<Entry>,
    /// How much of it is written.
    pub bytes: AtomicU64,
    /// Its stream has failed.
    pub has_failed: AtomicBool,
    /// Memory for the next write.
    pub spare: Mutex<Vec<u8>>,
    pub ops: Sender<Op>,
}

impl File {
    pub fn attributes(&self) -> FileAttr {
        let (bytes, mode) = (self.bytes.load(Ordering::Relaxed), lock(&self.entry).mode);
        mounted::file(self.ino, bytes, mode, self.owner, self.time)
    }

    /// What the target is to know of it.
    pub fn told(&self) -> Entry {
        let entry = lock(&self.entry);
        Entry {
            name: final_name(&entry.name),
            mode: entry.mode,
        }
    }

    /// Does what is to be done, until the end. If this is well, all of it is on its way.
    pub fn run(&self, writer: Writer, ops: &Receiver<Op>) -> io::Result<()> {
        let mut stream = Stream::begin(self, writer);
        for op in ops {
            match op {
                Op::Write {
                    offset,
                    bytes,
                    reply,
                } => {
                    let (count, written) = (bytes.len(), stream.write(offset, &bytes));
                    // The next write comes as soon as there is a reply.
                    *lock(&self.spare) = bytes;
                    match written {
                        Ok(()) => reply.written(count as u32),
                        Err(errno) => reply.error(errno),
                    }
                }
                Op::Resize { bytes, reply } => match stream.grow(bytes) {
                    Ok(()) => reply.attr(&TTL, &self.attributes()),
                    Err(errno) => reply.error(errno),
                },
                Op::Flush(reply) => match stream.attempt(Writer::flush) {
                    Ok(()) => reply.ok(),
                    Err(errno) => reply.error(errno),
                },
                Op::Cancel => stream.cancel(),
                Op::End => break,
            }
        }
        stream.end()
    }
}

/// The stream of a file.
struct Stream<'a> {
    file: &'a File,
    told: Entry,
    /// Or why there is none any more.
    writer: io::Result<Writer>,
}

impl<'a> Stream<'a> {
    /// The head goes on its way at once: at the target there is a file from then on.
    fn begin(file: &'a File, writer: Writer) -> Self {
        let told = file.told();
        let writer = Ok(writer);
        let mut stream = Self { file, told, writer };
        let entry = stream.told.clone();
        // Whoever writes is told.
        let _ = stream.attempt(|writer| {
            layout::write_head(writer, &entry)?;
            writer.flush()
        });
        stream
    }

    /// The first failure is the end of the stream.
    fn attempt(&mut self, write: impl FnOnce(&mut Writer) -> io::Result<()>) -> Result<(), Errno> {
        let writer = self.writer.as_mut().map_err(|_| Errno::EIO)?;
        write(writer).map_err(|error| {
            self.writer = Err(error);
            self.file.has_failed.store(true, Ordering::Relaxed);
            Errno::EIO
        })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.grow(offset)?;
        self.tell()?;
        let count = bytes.len() as u64;
        self.attempt(|writer| {
            layout::write_part(writer, &Part::Data(count))?;
            writer.write_all(bytes)
        })?;
        self.file.bytes.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// Has zeroes up to there. What is written is on its way: it cannot be written again, or taken back.
    fn grow(&mut self, to: u64) -> Result<(), Errno> {
        let end = self.file.bytes.load(Ordering::Relaxed);
        let Some(more) = to.checked_sub(end) else {
            let name = self.told.name.display();
            tracing::warn!("{name}: written at byte {to}, when byte {end} was due: refused");
            return Err(Errno::ESPIPE);
        };
        if more > 0 {
            self.attempt(|writer| layout::write_part(writer, &Part::Hole(more)))?;
            self.file.bytes.store(to, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Tells the target if the file is called something else by now.
    fn tell(&mut self) -> Result<(), Errno> {
        let entry = self.file.told();
        if entry != self.told {
            let part = Part::Entry(entry.clone());
            self.attempt(|writer| layout::write_part(writer, &part))?;
            self.told = entry;
        }
        Ok(())
    }

    fn cancel(&mut self) {
        let why = "it was removed, or whoever wrote it was killed";
        let _ = self.attempt(|_| Err(io::Error::other(why)));
    }

    fn end(mut self) -> io::Result<()> {
        // The writer says why not.
        let _ = self.tell();
        self.writer.map(Writer::end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_name_says_what_the_final_one_is() {
        let is = |name: &str, final_one: &str| assert_eq!(final_name(name.as_ref()), final_one);
        is("ckpt_a.dmtcp.temp", "ckpt_a.dmtcp");
        is("a.img", "a.img");
        is("temp", "temp");
        is(".tmp", ".tmp");
        is("..tmp", "..tmp");
    }
}
