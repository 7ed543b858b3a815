//! A process that is becoming what it was, and the calls that it makes for that.

use std::ops::Range;

use libc::pid_t;
use snaprig_tracee::{
    memory,
    remote::{self, Call, Remote, call, result},
    trace::Tracee,
};

use crate::{
    error::{Error, Result},
    opened::damaged,
    state::{Body, Process},
};

/// Room beside the stub, where the vDSO waits.
pub const SPARE_BYTES: u64 = 256 << 10;

/// A process that is becoming what it was.
pub struct Growing<'a> {
    /// What the image says of it.
    pub process: &'a Process,
    /// More of it: it lives.
    pub body: &'a Body,
    /// Its first thread, held.
    pub first: Tracee,
    /// Where the stub is by which it makes calls.
    pub stub: u64,
}

impl Growing<'_> {
    /// Its first thread, to make calls.
    pub fn remote(&self) -> Result<Remote<'_>> {
        Ok(Remote::new(&self.first, self.process.pid)?)
    }

    /// Has it make calls that must succeed.
    pub fn make(&self, what: &str, calls: &[Call]) -> Result<()> {
        let results = self.remote()?.calls(self.stub, self.process.pid, calls)?;
        for (index, returned) in results.into_iter().enumerate() {
            result(returned).map_err(|source| Error::Process {
                pid: self.process.pid,
                what: format!("{what} ({:?})", calls[index]),
                source,
            })?;
        }
        Ok(())
    }

    /// A call whose third argument is the address of these bytes, if there are any.
    pub fn call_with(&self, mut call: Call, bytes: Option<&[u8]>) -> Result<i64> {
        if let Some(bytes) = bytes {
            let mut data = Data::at(remote::data(self.stub));
            call.arguments[2] = data.put(bytes);
            data.write(self.process.pid)?;
        }
        let made = self.remote()?.calls(self.stub, self.process.pid, &[call])?;
        Ok(made[0])
    }

    /// Signals that waited.
    pub fn queue(&self, pending: &[[u64; 16]], thread: Option<(&Tracee, i32)>) -> Result<()> {
        let pid = self.process.pid as u64;
        for part in pending.chunks(256) {
            let mut data = Data::at(remote::data(self.stub));
            let calls: Vec<_> = part
                .iter()
                .map(|info| {
                    let (at, signal) = (data.put_words(info), info[0] & 0xffff_ffff);
                    match thread {
                        None => call(libc::SYS_rt_sigqueueinfo, [pid, signal, at]),
                        Some((_, tid)) => {
                            call(libc::SYS_rt_tgsigqueueinfo, [pid, tid as u64, signal, at])
                        }
                    }
                })
                .collect();
            data.write(self.process.pid)?;
            match thread {
                None => self.make("a signal that waited", &calls)?,
                Some((tracee, tid)) => {
                    Remote::new(tracee, self.process.pid)?.calls(self.stub, tid, &calls)?;
                }
            }
        }
        Ok(())
    }
}

/// Data of calls, put together before they are written.
pub struct Data {
    start: u64,
    bytes: Vec<u8>,
}

impl Data {
    /// Data that will be at an address.
    pub fn at(start: u64) -> Self {
        Self {
            start,
            bytes: Vec::new(),
        }
    }

    /// Adds bytes; their address.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.start + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        at
    }

    /// Adds words; their address.
    pub fn put_words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(&bytes)
    }

    /// Writes all of it to where the process finds it.
    pub fn write(&self, pid: pid_t) -> Result<()> {
        if self.bytes.len() as u64 > remote::DATA_BYTES {
            return Err(damaged("more of a process than there is room for"));
        }
        Ok(memory::write(pid, self.start, &self.bytes)?)
    }
}

/// Where areas are, seen from the first.
pub fn offsets(areas: &[(Vec<u8>, Range<u64>)]) -> impl Iterator<Item = u64> + Clone {
    let first = areas.iter().map(|(_, part)| part.start).min().unwrap_or(0);
    areas.iter().map(move |(_, part)| part.start - first)
}

/// The call that moves a part of memory.
pub fn moved(part: &Range<u64>, to: u64) -> Call {
    let bytes = part.end - part.start;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    call(libc::SYS_mremap, [part.start, bytes, bytes, flags, to])
}
