//! Programs of the host that open files of cards: the requester for each (paper section 6, figure 8), in the process that has
//! the rig.
//!
//! What must stay true: who may connect to the socket is whoever may use the rig's directory; so many files are open at once.

use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::Arc,
    thread::JoinHandle,
};

use rustix::net::{Shutdown, shutdown};
use snaprig_offload_wire::snapify_io::{BUFFER_BYTES, LocalOpen, Message, RIG_SOCKET, SLOT_BYTES};
use snaprig_scif::client::{Endpoint, ScifError, SharedMemory};
use snaprig_snapify_io_client::serve::{Remote, serve};
use snaprig_wire::scif::{HOST, PortId, port};

use crate::daemon::{READ_WRITE, Running};

/// Serves programs until it is dropped.
pub struct Programs {
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

impl Programs {
    /// Of the rig in this directory.
    pub fn start(rig: &Path) -> io::Result<Self> {
        let listener = Arc::new(UnixListener::bind(rig.join(RIG_SOCKET))?);
        let (accepting, rig) = (listener.clone(), rig.to_owned());
        let thread = std::thread::spawn(move || accept(&accepting, &rig));
        Ok(Self {
            listener,
            thread: Some(thread),
        })
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        // Whoever accepts is told, as of no error that comes by itself (EINVAL).
        let _ = shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // There is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &UnixListener, rig: &Path) {
    let running = Arc::default();
    loop {
        let program = match listener.accept() {
            Ok((program, _)) => program,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
            Err(error) => {
                tracing::warn!(%error, "Snapify-IO takes the next program");
                continue;
            }
        };
        let Some(one) = Running::add(&running, HOST) else {
            // Dropping the connection is the answer.
            continue;
        };
        let rig = rig.to_owned();
        std::thread::spawn(move || {
            serve_one(program, &rig);
            drop(one);
        });
    }
}

fn serve_one(mut program: UnixStream, rig: &Path) {
    if let Err(failure) = serve(&mut program, |request| OnHost::connect(request, rig)) {
        tracing::warn!(%failure, "Snapify-IO");
    }
}

/// A card's daemon, and a buffer that it reads and writes.
struct OnHost {
    remote: Endpoint,
    memory: SharedMemory,
    window: i64,
    /// A slot's bytes, which the card may write to as long as they are in the buffer.
    copy: Vec<u8>,
}

impl OnHost {
    fn connect(request: &LocalOpen, rig: &Path) -> io::Result<Self> {
        let failed = |error: ScifError| io::Error::from_raw_os_error(error.errno);
        let remote = Endpoint::open(rig).map_err(failed)?;
        let peer = PortId {
            node: request.node,
            port: port::SNAPIFY_IO,
        };
        remote.connect(peer).map_err(failed)?;
        let memory = SharedMemory::new(BUFFER_BYTES)?;
        let window = remote.register(&memory, 0, memory.len(), None, READ_WRITE);
        Ok(Self {
            window: window.map_err(failed)?,
            remote,
            memory,
            copy: vec![0; SLOT_BYTES],
        })
    }
}

impl Remote for OnHost {
    fn send(&mut self, message: &Message) -> io::Result<()> {
        let sent = self.remote.send_message(message);
        sent.map_err(|error| io::Error::from_raw_os_error(error.errno))
    }

    fn receive(&mut self) -> io::Result<Message> {
        let received = self.remote.receive_message();
        received.map_err(|error| io::Error::from_raw_os_error(error.errno))
    }

    fn window(&self) -> i64 {
        self.window
    }

    fn room(&mut self, _: u8) -> &mut [u8] {
        &mut self.copy
    }

    fn put(&mut self, slot: u8, len: usize) {
        self.memory.write(place(slot), &self.copy[..len]);
    }

    fn get(&mut self, slot: u8, len: usize) -> &[u8] {
        let copy = &mut self.copy[..len];
        self.memory.read(place(slot), copy);
        copy
    }
}

/// Where a slot is in the buffer.
fn place(slot: u8) -> usize {
    usize::from(slot) * SLOT_BYTES
}
