//! What a card asks the broker for, and what it hears: bytes of a length that is known. A socket comes beside the answer.

use std::net::{Ipv4Addr, SocketAddrV4};

/// What a card wants a socket for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// It listens at this port.
    Listen(u16),
    /// It connects from this port, or any if that is 0, to there.
    Connect(u16, SocketAddrV4),
}

/// Bytes of a request: what for, the card's port, and an address and its port.
pub(super) const REQUEST_BYTES: usize = 9;
const LISTEN: u8 = 1;
const CONNECT: u8 = 2;

impl Request {
    pub(super) fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let (kind, own, to) = match self {
            Self::Listen(port) => (LISTEN, port, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
            Self::Connect(from, to) => (CONNECT, from, to),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = kind;
        bytes[1..3].copy_from_slice(&own.to_le_bytes());
        bytes[3..7].copy_from_slice(&to.ip().octets());
        bytes[7..9].copy_from_slice(&to.port().to_le_bytes());
        bytes
    }

    /// None: it is no request.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [kind, o0, o1, a, b, c, d, p0, p1] = *<&[u8; REQUEST_BYTES]>::try_from(bytes).ok()?;
        let own = u16::from_le_bytes([o0, o1]);
        let to = SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_le_bytes([p0, p1]));
        match kind {
            LISTEN => Some(Self::Listen(own)),
            CONNECT => Some(Self::Connect(own, to)),
            _ => None,
        }
    }
}

/// The port of the card's that the socket has; or an errno, and no socket.
pub(super) type Answer = Result<u16, i32>;

/// Bytes of an answer: an errno or 0, and a port.
pub(super) const ANSWER_BYTES: usize = 6;

pub(super) fn answer_to_bytes(answer: Answer) -> [u8; ANSWER_BYTES] {
    let (errno, port) = match answer {
        Ok(port) => (0, port),
        Err(errno) => (errno, 0),
    };
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&errno.to_le_bytes());
    bytes[4..].copy_from_slice(&port.to_le_bytes());
    bytes
}

/// None: it is no answer.
pub(super) fn answer_from_bytes(bytes: &[u8]) -> Option<Answer> {
    let [e0, e1, e2, e3, p0, p1] = *<&[u8; ANSWER_BYTES]>::try_from(bytes).ok()?;
    Some(match i32::from_le_bytes([e0, e1, e2, e3]) {
        0 => Ok(u16::from_le_bytes([p0, p1])),
        errno => Err(errno),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_what_is_heard() {
        let to = SocketAddrV4::new(Ipv4Addr::new(172, 31, 1, 254), 5001);
        for request in [Request::Listen(7), Request::Connect(0, to)] {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        }
        for answer in [Ok(61000), Err(libc::EADDRINUSE)] {
            assert_eq!(answer_from_bytes(&answer_to_bytes(answer)), Some(answer));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = Request::Listen(7).to_bytes();
        for bytes in [&good[..8], &[good, good].concat(), &[9; REQUEST_BYTES], &[]] {
            assert_eq!(Request::from_bytes(bytes), None);
        }
        assert_eq!(answer_from_bytes(&[0; 5]), None);
    }
}
