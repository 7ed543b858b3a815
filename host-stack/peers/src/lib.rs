//! How processes of this project reach each other over sockets, and how they find out whom they talk to.
//!
//! | module | what it is for |
//! |---|---|
//! | [`address`] | where a peer is: the path of a Unix socket, or `HOST:PORT` |
//! | [`listener`] | waiting for peers at an address |
//! | [`name`] | the path of a Unix socket that is too long for an address |
//! | [`stream`] | a connection to a peer, and whose it is |
//! | [`token`] | a secret that peers share, and proofs that they know it |
//! | [`frame`] | messages over a connection that blocks |
//! | [`connection`] | messages over a connection that does not |
//! | [`lines`] | commands and their answers as lines of JSON |
//! | [`packets`] | messages with descriptors, between processes of one machine |
//! | [`exchange`] | a conversation that ends in time, however slowly the peer talks |
//!
//! What must stay true: a peer is hostile until it has proved who it is. Whatever it sends, it gets no more memory than
//! a maximum that the caller chooses, and no more time than a deadline that counts the whole exchange, not one read.

pub mod address;
pub mod connection;
pub mod exchange;
pub mod frame;
pub mod lines;
pub mod listener;
pub mod name;
pub mod packets;
pub mod stream;
pub mod token;

pub use self::{
    address::{Address, AddressError},
    exchange::Exchange,
    listener::Listener,
    stream::Stream,
    token::{Nonce, Proof, Token, TokenError},
};
