//! A token: 32 random bytes that peers share, in a file that only its owner can read.
//!
//! It never goes over a connection. Each side sends a nonce, and proves that it knows the token by a keyed hash (BLAKE3)
//! over a context, both nonces, and whatever else the proof is to be good for. The context says which protocol the proof
//! is of, and which side's, so that none passes for another. Proofs are compared in constant time ([`is_same`]).

use std::{
    fs, io,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::rand::{GetRandomFlags, getrandom};

/// How many bytes a token has.
const LEN: usize = 32;

/// Random bytes that are used once.
pub type Nonce = [u8; 32];
/// Shows that its sender knows the token.
pub type Proof = [u8; 32];

/// Why a token cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read it.
    #[error("{}: mode {mode:o} means that others can read the token; `chmod 600` it, or make a new one", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is no token.
    #[error(
        "{}: not a token: it does not have 32 bytes; `head -c 32 /dev/urandom` makes one, the same for all peers",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
    },
}

/// What all peers know, and nobody else.
#[derive(Clone)]
pub struct Token([u8; LEN]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        at += match getrandom(&mut bytes[at..], GetRandomFlags::empty()) {
            Err(rustix::io::Errno::INTR) => 0,
            other => other?,
        };
    }
    Ok(bytes)
}

impl Token {
    /// With these bytes.
    pub fn new(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// A new one, in a file that is not there yet.
    pub fn create(path: &Path) -> Result<Self, TokenError> {
        let io = |source| TokenError::Io {
            path: path.into(),
            source,
        };
        let token = Self(random().map_err(io)?);
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600);
        let mut file = file.open(path).map_err(io)?;
        file.write_all(&token.0).map_err(io)?;
        file.sync_all().map_err(io)?;
        Ok(token)
    }

    /// That of a file.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let io = |source| TokenError::Io {
            path: path.into(),
            source,
        };
        let file = fs::File::open(path).map_err(io)?;
        let mode = file.metadata().map_err(io)?.mode();
        if mode & 0o077 != 0 {
            return Err(TokenError::Mode {
                path: path.into(),
                mode: mode & 0o7777,
            });
        }
        let mut bytes = Vec::new();
        file.take(LEN as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(io)?;
        let bytes = bytes.try_into().map_err(|_| TokenError::Length {
            path: path.to_owned(),
        })?;
        Ok(Self(bytes))
    }

    /// A proof within a context, to a peer: over both nonces, in the order that the protocol says, and whatever else it is
    /// to be good for. No context may be the beginning of another one that is used with the same token; nonces are of one
    /// length; so the bytes that are hashed are another's only if all of it is the same.
    pub fn proof(&self, context: &str, nonces: [&Nonce; 2], about: &[u8]) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(context.as_bytes());
        for nonce in nonces {
            hasher.update(nonce);
        }
        *hasher.update(about).finalize().as_bytes()
    }
}

/// Whether two proofs are the same. How long it takes to find out does not depend on where they differ.
pub fn is_same(one: &Proof, other: &Proof) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_proof_is_good_for_one_token_context_pair_of_nonces_and_subject() {
        let (one, other) = (Token::new([1; 32]), Token::new([2; 32]));
        let (a, b) = ([3; 32], [4; 32]);
        let proof = one.proof("protocol: side", [&a, &b], b"job");
        assert!(is_same(
            &proof,
            &one.proof("protocol: side", [&a, &b], b"job")
        ));
        let others = [
            other.proof("protocol: side", [&a, &b], b"job"),
            one.proof("protocol: other", [&a, &b], b"job"),
            one.proof("protocol: side", [&b, &a], b"job"),
            one.proof("protocol: side", [&a, &b], b"jo"),
        ];
        for wrong in others {
            assert!(!is_same(&proof, &wrong));
        }
        assert_eq!(format!("{one:?}"), "Token(..)");
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = Token::create(&path).unwrap();
        assert_eq!(Token::read(&path).unwrap().0, token.0);
        assert!(matches!(Token::create(&path), Err(TokenError::Io { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            Token::read(&path),
            Err(TokenError::Mode { mode: 0o640, .. })
        ));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for len in [0, 31, 33] {
            fs::write(&path, vec![0; len]).unwrap();
            assert!(matches!(Token::read(&path), Err(TokenError::Length { .. })));
        }
    }
}
