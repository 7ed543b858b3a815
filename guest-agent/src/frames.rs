//! Framed messages over anything that carries bytes.

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_wire::frame;

use crate::scif::Endpoint;

/// Sends one message over SCIF.
pub fn send<T: Serialize>(to: &Endpoint, message: &T) -> io::Result<()> {
    to.send(&frame::encode_framed(message))
}

/// Receives one message over SCIF.
pub fn receive<T: DeserializeOwned>(from: &Endpoint) -> io::Result<T> {
    let message = from.incoming().next(|to| from.recv(to))?;
    message.map_err(io::Error::other)
}

/// The same, without sleeping: a message that is there, or comes within the time that receiving spins.
pub fn receive_soon<T: DeserializeOwned>(from: &Endpoint) -> io::Result<Option<T>> {
    let message = from.incoming().next_there(|to| from.recv_soon(to))?;
    message.transpose().map_err(io::Error::other)
}

/// Writes one message to a stream.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&frame::encode_framed(message))
}

/// Reads one message from a stream.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix)?;
    let mut body = vec![0; frame::frame_len(prefix).map_err(io::Error::other)?];
    from.read_exact(&mut body)?;
    frame::decode(&body).map_err(io::Error::other)
}
