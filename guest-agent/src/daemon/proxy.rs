//! What a process writes to its standard output and error, on its way to the host process that owns
//! it.
//!
//! What must stay true: what the process had written when it ended, or asked for a flush, is sent
//! before the host is told of that.

use std::{
    io::{self, PipeReader, PipeWriter, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use snaprig_offload_wire::coi::FromDaemon;

use crate::{frames, scif::Endpoint};

/// Bytes in one message.
const MESSAGE_BYTES: usize = 16 << 10;

/// The ends of a process's output that are its own.
pub struct Written([PipeWriter; 2]);

/// The other ends.
#[derive(Clone)]
pub struct Proxy([Arc<Stream>; 2]);

struct Stream {
    /// 1 standard output, 2 standard error.
    number: u8,
    from: PipeReader,
    state: Mutex<State>,
    /// Something was sent, or nothing will be any more.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    to: Option<Arc<Endpoint>>,
    /// The process has ended, the host is gone, or nobody can write any more.
    over: bool,
}

impl Written {
    /// Standard output and error for the process.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        self.0.each_ref().map(AsFd::as_fd)
    }
}

impl Proxy {
    /// Both ends.
    pub fn new() -> io::Result<(Self, Written)> {
        let ((from_out, out), (from_err, err)) = (io::pipe()?, io::pipe()?);
        let stream = |number, from| {
            Arc::new(Stream {
                number,
                from,
                state: Mutex::default(),
                changed: Condvar::new(),
            })
        };
        let proxy = Self([stream(1, from_out), stream(2, from_err)]);
        Ok((proxy, Written([out, err])))
    }

    /// Sends what the process writes to a connection of the host's, from now on.
    pub fn start(&self, host: &Arc<Endpoint>) {
        for stream in &self.0 {
            stream.lock().to = Some(host.clone());
            let stream = stream.clone();
            std::thread::spawn(move || stream.pump());
        }
    }

    /// Returns when all that the process has written is sent.
    pub fn drain(&self) {
        for stream in &self.0 {
            let mut state = stream.lock();
            while !state.over && stream.is_readable(0) {
                let woken = stream.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The process has ended: sends the last that it wrote, and no more, whoever else might write.
    pub fn finish(&self) {
        for stream in &self.0 {
            let mut state = stream.lock();
            while !state.over && state.to.is_some() && stream.is_readable(0) {
                stream.pass(&mut state);
            }
            state.over = true;
            stream.changed.notify_all();
        }
    }
}

impl Stream {
    fn pump(&self) {
        loop {
            // Without the lock: this may take for ever.
            self.is_readable(-1);
            let mut state = self.lock();
            if !state.over && self.is_readable(0) {
                self.pass(&mut state);
            }
            self.changed.notify_all();
            if state.over {
                return;
            }
        }
    }

    /// Passes on what is there.
    fn pass(&self, state: &mut State) {
        let mut buffer = [0; MESSAGE_BYTES];
        let read = (&self.from).read(&mut buffer);
        let sent = match (read, &state.to) {
            (Ok(count @ 1..), Some(host)) => {
                let output = FromDaemon::Output(self.number, buffer[..count].to_vec());
                frames::send(host, &output).is_ok()
            }
            _ => false,
        };
        state.over |= !sent;
    }

    /// Whether there is something to read, or the end, after at most so many milliseconds.
    fn is_readable(&self, milliseconds: i32) -> bool {
        let mut entry = libc::pollfd {
            fd: self.from.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, valid for the call.
        unsafe { libc::poll(&raw mut entry, 1, milliseconds) > 0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
