//! How a card's process comes by sockets of its network: it asks the broker.

use std::{io, net::SocketAddrV4, os::fd::OwnedFd, path::Path};

use rustix::net::SocketFlags;
use snaprig_card_driver::{errno::Errno, network::Network};
use snaprig_peers::packets;

use super::message::{ANSWER_BYTES, Request, answer_from_bytes};

/// A connection to the broker.
pub(crate) struct Client {
    broker: OwnedFd,
}

impl Client {
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let broker = packets::connect(path, SocketFlags::empty())?;
        Ok(Self { broker })
    }

    fn ask(&self, request: Request) -> Result<(OwnedFd, u16), Errno> {
        let mut bytes = [0; ANSWER_BYTES + 1];
        let answered = packets::send(&self.broker, &request.to_bytes(), &[])
            .and_then(|()| packets::receive(&self.broker, &mut bytes));
        // Without the rig there is no network, and soon no card.
        let Ok(Some((len, mut sockets))) = answered else {
            return Err(Errno::ENETDOWN);
        };
        let port = answer_from_bytes(&bytes[..len]).ok_or(Errno::EPROTO)?;
        let port = port.map_err(Errno)?;
        // One that this process has no room for does not arrive (unix(7)).
        Ok((sockets.pop().ok_or(Errno::ENFILE)?, port))
    }
}

impl Network for Client {
    fn listen(&self, port: u16) -> Result<OwnedFd, Errno> {
        let (socket, _) = self.ask(Request::Listen(port))?;
        Ok(socket)
    }

    fn connect(&self, from: u16, to: SocketAddrV4) -> Result<(OwnedFd, u16), Errno> {
        self.ask(Request::Connect(from, to))
    }
}
