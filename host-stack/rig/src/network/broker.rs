//! Makes sockets for a card, which is hostile: they have the card's address, and are for addresses of its network alone. It
//! keeps none of them; how many a card has is bounded by the descriptors that its process may have.

use std::{
    fs, io,
    net::SocketAddrV4,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, Shutdown, SocketFlags, SocketType, accept_with, bind, connect, getsockname,
        listen, shutdown, socket_with, sockopt,
    },
};
use snaprig_peers::packets;

use super::{
    card_address, is_of,
    links::Namespace,
    message::{REQUEST_BYTES, Request, answer_to_bytes},
};

/// Connections that wait to be accepted, at most: those that the card's own kernel has, come on top.
const BACKLOG: i32 = 128;

/// The broker of one card, whichever process that is, until it is dropped.
pub(super) struct Broker {
    listener: Arc<OwnedFd>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    /// Serves the card that is this SCIF node, one of so many, at a path. Its sockets are in the namespace.
    pub(super) fn start(
        path: &Path,
        node: u16,
        cards: u16,
        namespace: &Arc<Namespace>,
    ) -> io::Result<Self> {
        let listener = Arc::new(packets::listen(path, 1, SocketFlags::empty())?);
        let listening = listener.clone();
        let maker = Maker { node, cards };
        let namespace = namespace.clone();
        let thread = thread::Builder::new().name(format!("network{node}"));
        let (tell, entered) = mpsc::channel();
        let thread = thread.spawn(move || {
            let entered = namespace.enter();
            let is_there = entered.is_ok();
            // Who does not wait for it is on the way out.
            let _ = tell.send(entered);
            if is_there {
                serve(&listening, maker);
            }
        })?;
        entered.recv().map_err(io::Error::other)??;
        Ok(Self {
            listener,
            path: path.into(),
            thread: Some(thread),
        })
    }
}

impl Drop for Broker {
    /// Its card has ended by now.
    fn drop(&mut self) {
        let _ = shutdown(&self.listener, Shutdown::Both);
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            // If it panicked, it is gone as well.
            let _ = thread.join();
        }
    }
}

/// One card after the other: the next one is there when the last one has ended.
fn serve(listener: &OwnedFd, maker: Maker) {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(card) => {
                // Whatever it broke off with: it has no more sockets then.
                let _ = maker.serve(&card);
            }
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => return,
        }
    }
}

#[derive(Clone, Copy)]
struct Maker {
    node: u16,
    cards: u16,
}

impl Maker {
    fn serve(self, card: &OwnedFd) -> io::Result<()> {
        // One byte more than a request has, so that a longer one is none.
        let mut bytes = [0; REQUEST_BYTES + 1];
        while let Some((len, _)) = packets::receive(card, &mut bytes)? {
            let Some(request) = Request::from_bytes(&bytes[..len]) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let made = match request {
                Request::Listen(port) => self.listen(port),
                Request::Connect(from, to) => self.connect(from, to),
            };
            match made {
                Ok((socket, port)) => {
                    packets::send(card, &answer_to_bytes(Ok(port)), &[socket.as_fd()])?;
                }
                Err(errno) => {
                    let answer = answer_to_bytes(Err(errno.raw_os_error()));
                    packets::send(card, &answer, &[])?;
                }
            }
        }
        Ok(())
    }

    fn listen(self, port: u16) -> rustix::io::Result<(OwnedFd, u16)> {
        let socket = self.bound(port)?;
        listen(&socket, BACKLOG)?;
        Ok((socket, port))
    }

    fn connect(self, from: u16, to: SocketAddrV4) -> rustix::io::Result<(OwnedFd, u16)> {
        if !is_of(*to.ip(), self.cards) {
            return Err(Errno::NETUNREACH);
        }
        let socket = self.bound(from)?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        let own = SocketAddrV4::try_from(getsockname(&socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
        Ok((socket, own.port()))
    }

    /// A socket that has the card's address, and this port of it, or any if it is 0.
    fn bound(self, port: u16) -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // The card's own kernel says what goes together.
        sockopt::set_tcp_nodelay(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(card_address(self.node), port))?;
        Ok(socket)
    }
}
