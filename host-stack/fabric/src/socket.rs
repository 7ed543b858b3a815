//! What a fabric's daemon and its programs say to each other, as messages over [`packets`].

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_peers::packets;

/// Longest message.
const BYTES_MAX: usize = 4096;

/// Sends a message.
pub fn send<T: Serialize>(to: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut buffer = [0; BYTES_MAX];
    let bytes = postcard::to_slice(message, &mut buffer).map_err(io::Error::other)?;
    packets::send(to, bytes, fds)
}

/// A message's bytes, for who sends them on.
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(io::Error::other)
}

/// Receives a message; none at the end.
pub fn receive<T: DeserializeOwned>(from: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = [0; BYTES_MAX];
    let Some((len, fds)) = packets::receive(from, &mut buffer)? else {
        return Ok(None);
    };
    let message = postcard::from_bytes(&buffer[..len]).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}
