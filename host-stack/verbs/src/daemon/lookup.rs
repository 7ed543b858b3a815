//! What processes ask for while they hold locks in device memory: descriptors, and to pass events on.
//!
//! The daemon's own thread may be waiting for just those locks. So this is a thread and a socket of
//! its own, which never takes one.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{SocketFlags, accept_with},
};
use snaprig_hca::{Event, Memory};

use crate::{
    protocol::{Answer, Ask},
    socket,
};

/// Descriptors, by what they belong to; events to hand out.
#[derive(Debug, Default)]
pub struct Directory {
    /// Pool of each process, by its slot.
    pub pools: BTreeMap<u32, File>,
    /// All memory of each, if it can be had.
    pub memories: BTreeMap<u32, File>,
    /// Owner of each completion channel, and where its events go in.
    pub channels: BTreeMap<u32, (u32, File)>,
    /// What processes raised.
    pub raised: Vec<(Event, u32)>,
}

impl Directory {
    /// What a dead process had goes.
    pub fn forget(&mut self, process: u32) {
        self.pools.remove(&process);
        self.memories.remove(&process);
        self.channels.retain(|_, (owner, _)| *owner != process);
    }

    /// Where events of a queue's channel go in.
    pub fn channel_of(&self, memory: &Memory, cq: u32) -> Option<&File> {
        let channel = memory.cq(cq)?.channel.get().checked_sub(1)?;
        self.channels.get(&channel).map(|(_, file)| file)
    }
}

/// Serves a socket from now on.
pub fn start(
    listener: OwnedFd,
    memory: Memory,
    directory: Arc<Mutex<Directory>>,
    doorbell: OwnedFd,
) -> io::Result<()> {
    let serve = move || {
        let mut clients = Vec::new();
        while let Ok(ready) = wait(&listener, &clients) {
            for index in (0..clients.len()).rev() {
                if ready[index + 1] && !answer(&clients[index], &memory, &directory, &doorbell) {
                    clients.swap_remove(index);
                }
            }
            if ready[0]
                && let Ok(client) = accept_with(&listener, SocketFlags::CLOEXEC)
            {
                clients.push(client);
            }
        }
    };
    thread::Builder::new()
        .name("lookup".into())
        .spawn(serve)
        .map(drop)
}

/// Which of them have something to say.
fn wait(listener: &OwnedFd, clients: &[OwnedFd]) -> io::Result<Vec<bool>> {
    loop {
        let all = std::iter::once(listener).chain(clients);
        let mut fds: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
        }
    }
}

/// Answers one message; false if there are no more, or it is nonsense.
fn answer(
    client: &OwnedFd,
    memory: &Memory,
    directory: &Mutex<Directory>,
    doorbell: &OwnedFd,
) -> bool {
    let Ok(Some((ask, _))) = socket::receive::<Ask>(client) else {
        return false;
    };
    let Ok(mut directory) = directory.lock() else {
        return false;
    };
    let found = match ask {
        Ask::PoolOf { process } => directory.pools.get(&process),
        Ask::MemoryOf { process } => directory.memories.get(&process),
        Ask::ChannelOf { cq } => directory.channel_of(memory, cq),
        Ask::Raise { event, element } => {
            directory
                .raised
                .extend(Event::from_number(event).map(|event| (event, element)));
            // Fails only when 2^64 - 2 wake-ups wait already.
            let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
            return true;
        }
        _ => return false,
    };
    let sent = match found {
        Some(file) => socket::send(client, &Answer::Here, &[file.as_fd()]),
        None => socket::send(client, &Answer::Refused(libc::ENOENT), &[]),
    };
    sent.is_ok()
}
