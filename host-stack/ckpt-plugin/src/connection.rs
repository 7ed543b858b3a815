//! A plugin's connection to its supervisor.
//!
//! What must stay true: nothing is sent through a descriptor that the program has closed and that is another file's by
//! now; the descriptor is not closed while the plugin's thread may read from it.

use std::{
    io,
    mem::ManuallyDrop,
    os::{
        fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, poll},
    net::{RecvFlags, SendFlags, Shutdown, SocketFlags},
};
use serde::Serialize;
use snaprig_peers::packets;

use crate::message::{Descriptor, MESSAGE_MAX, ToPlugin, decode, encode};

/// Programs count on it that their next file has the lowest number: this one is out of their way.
const HIGH: RawFd = 500;

/// A connection: the plugin has it, and its thread.
#[derive(Debug)]
pub struct Connection {
    fd: RawFd,
    /// The file that it is (fstat(2)).
    device: AtomicU64,
    inode: AtomicU64,
}

impl Connection {
    /// To the supervisor that listens there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let socket = packets::connect(path, SocketFlags::empty())?;
        let socket = match rustix::io::fcntl_dupfd_cloexec(&socket, HIGH) {
            Ok(high) => high,
            Err(_) => socket,
        };
        let Descriptor { device, inode, .. } = describe(socket.as_raw_fd())?;
        Ok(Self {
            fd: socket.into_raw_fd(),
            device: device.into(),
            inode: inode.into(),
        })
    }

    /// This end of it.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor {
            fd: self.fd,
            device: self.device.load(Relaxed),
            inode: self.inode.load(Relaxed),
        }
    }

    /// In a restarted process it is another socket under the same number.
    pub fn look_again(&self) -> io::Result<()> {
        let now = describe(self.fd)?;
        self.device.store(now.device, Relaxed);
        self.inode.store(now.inode, Relaxed);
        Ok(())
    }

    /// Whether the program has left it alone.
    pub fn is_own(&self) -> bool {
        describe(self.fd).is_ok_and(|now| now == self.descriptor())
    }

    /// Sends a message; what cannot be sent is of no interest any more: the supervisor has gone.
    pub fn send<T: Serialize>(&self, message: &T) {
        if self.is_own() {
            let bytes = encode(message);
            let socket = self.socket();
            while let Err(rustix::io::Errno::INTR) =
                rustix::net::send(&*socket, &bytes, SendFlags::NOSIGNAL)
            {}
        }
    }

    /// Waits for a message; none: the supervisor has gone. The program may have put another file there meanwhile:
    /// whoever calls looks whether it has before the message counts. Its bytes are put where those of others were.
    pub fn receive(&self, bytes: &mut Vec<u8>) -> Option<ToPlugin> {
        bytes.clear();
        bytes.reserve(MESSAGE_MAX);
        loop {
            match rustix::net::recv(&*self.socket(), spare_capacity(bytes), RecvFlags::empty()) {
                Ok((0, _)) => return None,
                Ok(_) => return decode(bytes),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits so long for a message, or for the supervisor to go; whether it was in vain.
    pub fn is_silent(&self, patience: Duration) -> bool {
        let socket = self.socket();
        let mut entry = [PollFd::new(&*socket, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        };
        // EINTR: it is asked again at once.
        !matches!(poll(&mut entry, Some(&patience)), Ok(1..))
    }

    /// Whether the supervisor has gone.
    pub fn has_ended(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut byte = [0; 1];
        let looked = rustix::net::recv(&*self.socket(), &mut byte[..], flags);
        self.is_own() && !matches!(looked, Ok((1.., _)) | Err(rustix::io::Errno::AGAIN))
    }

    /// Nobody uses it any more: its thread's read ends.
    pub fn end(&self) {
        if self.is_own() {
            // It may have ended already.
            let _ = rustix::net::shutdown(&*self.socket(), Shutdown::Both);
        }
    }

    /// In a child of fork(2), which has not its thread: that one's reference is never dropped here.
    pub fn close_in_child(&self) {
        self.close();
    }

    fn close(&self) {
        if self.is_own() {
            // SAFETY: it is still the socket that was opened here, whose number nobody else was told; this process does
            // not use this object any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }

    fn socket(&self) -> ManuallyDrop<OwnedFd> {
        // SAFETY: the number stays open as long as this object, unless the program closes what it does not know; then it
        // may be another file's, and to read from that breaks no memory. It is not closed here.
        ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(self.fd) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// A descriptor, and what file it is of.
pub fn describe(fd: RawFd) -> io::Result<Descriptor> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is not closed here; whether it is open is found out.
    let file = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) });
    let metadata = file.metadata()?;
    Ok(Descriptor {
        fd,
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}
