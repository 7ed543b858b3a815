//! What the two sides of a migration say to each other.
//!
//! ```text
//! source                                           target
//!   | -- Hello { nonce } ----------------------->    |
//!   | <- Hello { nonce }, Proof -----------------    |     each knows the token: a keyed hash (BLAKE3) of both nonces
//!   | -- Proof, Begin { command } -------------->    |
//!   | == image ================================>    |     pages while the tree runs; what is left when it stands still
//!   | == files of plugins =====================>    |     what they have put into the checkpoint's directory
//!   | <- Ready --- or Failed(why) ---------------    |     all is read, checked and restored, and stands still
//!   |    its tree ends                               |
//!   | -- Go ------------------------------------>    |     its tree runs
//!   | <- Running --------------------------------    |
//! ```
//! Before Ready has come, the source's tree runs on whatever happens. The target's runs when Go has come, and not
//! before; so there are never two. If Go is lost, there is none: the source's has ended. The target then keeps the
//! image as a checkpoint, and says so: whoever knows that the source's tree has ended can restart it.
//!
//! A message is its length (four bytes) and postcard. A peer on a Unix socket is the same user, or root; one on TCP
//! knows the token. Neither messages nor pages are encrypted: elsewhere than on a trusted network, a Unix socket can be
//! forwarded by ssh(1).

use std::{io, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use snaprig_peers::{
    Exchange, Nonce, Proof, Stream, Token, frame,
    token::{is_same, random},
};

/// Of what is said here.
const VERSION: u32 = 2;
/// Longest message, in bytes: a command line.
const MESSAGE_MAX: usize = 4 << 20;
/// How long connecting takes at most.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest message of a peer that has not proven who it is, in bytes.
const HELLO_MAX: usize = 128;
/// How long it takes at most until a peer has proven who it is.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// How long a peer may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long it takes at most to restore a tree.
const RESTORING_MAX: Duration = Duration::from_secs(120);
/// What the proofs of both sides are about.
const SOURCE: &str = "snaprig migration 1: source ";
const TARGET: &str = "snaprig migration 1: target ";
#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    nonce: Nonce,
}

/// What the source begins with.
#[derive(Serialize, Deserialize)]
pub struct Begin {
    /// The program's command line.
    pub command: Vec<String>,
}

/// What the target says of a tree.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It stands restored.
    Ready,
    /// It cannot be had.
    Failed(String),
}

/// What the source says then.
#[derive(Serialize, Deserialize)]
pub struct Go;

/// What the target says last.
#[derive(Serialize, Deserialize)]
pub struct Running;

/// The source's side of an introduction.
pub fn greet(stream: &Stream, token: Option<&Token>) -> io::Result<()> {
    introduce(stream, token, SOURCE, TARGET)
}

/// The target's.
pub fn meet(stream: &Stream, token: Option<&Token>) -> io::Result<()> {
    introduce(stream, token, TARGET, SOURCE)
}

/// All of it is said within one deadline: a peer that is not known yet keeps nobody for longer.
fn introduce(stream: &Stream, token: Option<&Token>, own: &str, other: &str) -> io::Result<()> {
    stream.check_user()?;
    let mut exchange = Exchange::new(stream, GREETING_MAX);
    let (version, nonce) = (VERSION, random()?);
    frame::send(&mut exchange, &Hello { version, nonce })?;
    let hello: Hello = frame::receive(&mut exchange, HELLO_MAX)?;
    if hello.version != VERSION {
        let what = format!("it speaks version {}, and this {VERSION}", hello.version);
        return Err(io::Error::other(what));
    }
    if let Some(token) = token {
        let proof = token.proof(own, [&nonce, &hello.nonce], &[]);
        // The target proves itself first: it is not told anything by somebody who has not proven who it is.
        if own == TARGET {
            frame::send(&mut exchange, &proof)?;
        }
        let theirs: Proof = frame::receive(&mut exchange, HELLO_MAX)?;
        if !is_same(&theirs, &token.proof(other, [&hello.nonce, &nonce], &[])) {
            return Err(io::Error::other("it does not know the token (--token)"));
        }
        if own == SOURCE {
            frame::send(&mut exchange, &proof)?;
        }
    }
    stream.set_silence_max(SILENCE_MAX)
}

/// Sends a message.
pub fn send(to: &Stream, message: &impl Serialize) -> io::Result<()> {
    frame::send(&mut Exchange::new(to, SILENCE_MAX), message)
}

/// Waits for a message.
pub fn receive<T: DeserializeOwned>(from: &Stream) -> io::Result<T> {
    frame::receive(&mut Exchange::new(from, SILENCE_MAX), MESSAGE_MAX)
}

/// Waits for a message of a side that restores.
pub fn receive_restored<T: DeserializeOwned>(from: &Stream) -> io::Result<T> {
    frame::receive(&mut Exchange::new(from, RESTORING_MAX), MESSAGE_MAX)
}
