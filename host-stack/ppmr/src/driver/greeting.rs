//! Who is at the other end of a socket: both sides prove that they know the token, before a machine hears of them.
//!
//! ```text
//! source                                     target
//!   | -- Hello { version, purpose, nonce } --> |
//!   | <- Challenge { nonce, proof } ---------- |   the target proves first: nobody tells a stranger what is to come
//!   | -- Proof ------------------------------> |
//! ```
//!
//! A proof is about what its socket is for. A socket of chunks names that of messages by the nonce which the target has drawn
//! for it, so that it is of no other connection.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use snaprig_peers::{
    Nonce, Proof, Token,
    frame::{receive, send},
    token::{is_same, random},
};

/// What the target's proof is about, and the source's: neither passes for the other.
const TARGET: &str = "snaprig ppmr 1: target ";
const SOURCE: &str = "snaprig ppmr 1: source ";
const VERSION: u32 = 1;
/// No message of a greeting is longer.
const BYTES_MAX: usize = 128;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Messages, of a new connection.
    Control,
    /// Chunks of the connection for whose messages the target has drawn this nonce.
    Chunks(Nonce),
}

#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    purpose: Purpose,
    nonce: Nonce,
}

#[derive(Serialize, Deserialize)]
struct Challenge {
    nonce: Nonce,
    proof: Proof,
}

/// A source's part: the nonce that the target has drawn.
pub fn ask(with: &mut (impl Read + Write), token: &Token, purpose: Purpose) -> io::Result<Nonce> {
    let nonce = random()?;
    let hello = Hello {
        version: VERSION,
        purpose,
        nonce,
    };
    send(with, &hello)?;
    let challenge: Challenge = receive(with, BYTES_MAX)?;
    let proof = |context| prove(token, context, [&nonce, &challenge.nonce], purpose);
    check(&challenge.proof, &proof(TARGET))?;
    send(with, &proof(SOURCE))?;
    Ok(challenge.nonce)
}

/// A target's part: what the socket is for, and the nonce that it has drawn.
pub fn answer(with: &mut (impl Read + Write), token: &Token) -> io::Result<(Purpose, Nonce)> {
    let hello: Hello = receive(with, BYTES_MAX)?;
    if hello.version != VERSION {
        let why = format!(
            "the source greets in version {}, not {VERSION}",
            hello.version
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let nonce = random()?;
    let proof = |context| prove(token, context, [&hello.nonce, &nonce], hello.purpose);
    let challenge = Challenge {
        nonce,
        proof: proof(TARGET),
    };
    send(with, &challenge)?;
    check(&receive(with, BYTES_MAX)?, &proof(SOURCE))?;
    Ok((hello.purpose, nonce))
}

fn prove(token: &Token, context: &str, nonces: [&Nonce; 2], purpose: Purpose) -> Proof {
    token.proof(context, nonces, &snaprig_wire::frame::encode(&purpose))
}

fn check(proof: &Proof, expected: &Proof) -> io::Result<()> {
    match is_same(proof, expected) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the other side has another token; both need the same one",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixStream, thread};

    /// What both sides of a greeting find.
    fn greet(
        tokens: [u8; 2],
        purpose: Purpose,
    ) -> (io::Result<Nonce>, io::Result<(Purpose, Nonce)>) {
        let (mut own, mut peer) = UnixStream::pair().unwrap();
        let [asks, answers] = tokens.map(|token| Token::new([token; 32]));
        let target = thread::spawn(move || answer(&mut peer, &answers));
        let source = ask(&mut own, &asks, purpose);
        drop(own);
        (source, target.join().unwrap())
    }

    #[test]
    fn who_has_the_token_is_known() {
        for purpose in [Purpose::Control, Purpose::Chunks([7; 32])] {
            let (source, target) = greet([1, 1], purpose);
            assert_eq!(target.unwrap(), (purpose, source.unwrap()));
        }
    }

    #[test]
    fn who_has_another_one_is_told_nothing() {
        let (source, target) = greet([1, 2], Purpose::Control);
        let source = source.unwrap_err();
        assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
        assert!(target.is_err());
    }

    #[test]
    fn a_proof_of_the_target_is_none_of_a_source() {
        let (mut own, mut peer) = UnixStream::pair().unwrap();
        let target = thread::spawn(move || answer(&mut peer, &Token::new([1; 32])));
        let hello = Hello {
            version: VERSION,
            purpose: Purpose::Control,
            nonce: [0; 32],
        };
        send(&mut own, &hello).unwrap();
        let challenge: Challenge = receive(&mut own, BYTES_MAX).unwrap();
        send(&mut own, &challenge.proof).unwrap();
        let refused = target.join().unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
