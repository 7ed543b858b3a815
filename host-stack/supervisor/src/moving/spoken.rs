//! What processes of this machine say to each other: a packet a message, with descriptors.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_peers::packets;

/// The longest message.
const BYTES_MAX: usize = 4096;
/// The longest reason, in characters.
pub const WHY_MAX: usize = BYTES_MAX / 8;

/// Says it.
pub fn say(socket: impl AsFd, what: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let said = postcard::to_stdvec(what).map_err(io::Error::other)?;
    packets::send(socket, &said, fds)
}

/// What is said next, and with what; none: nobody is there.
pub fn hear<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = [0; BYTES_MAX];
    let Some((len, fds)) = packets::receive(socket, &mut bytes)? else {
        return Ok(None);
    };
    let said = postcard::from_bytes(&bytes[..len]).map_err(io::Error::other)?;
    Ok(Some((said, fds)))
}
