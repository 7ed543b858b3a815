//! The job's token: 32 random bytes in a file that only its owner can read. It never leaves the
//! machine through here: each side proves that it knows it by a keyed hash (BLAKE3) over both sides'
//! nonces and what the peer joins as. Hashes are compared in constant time.

use std::{
    fs, io,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::message::{Nonce, Proof, Role};

/// What the coordinator's proof is about, and the peer's: none passes for the other.
const COORDINATOR: &[u8] = b"snaprig coordinator 1: coordinator";
const PEER: &[u8] = b"snaprig coordinator 1: peer";

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
    #[error("{}: mode {mode:o} lets others read the token; `chmod 600` it, or make a new one", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is no token.
    #[error("{}: not a token: it does not have 32 bytes", path.display())]
    Length {
        /// The file.
        path: PathBuf,
    },
}

/// What all of a job know, and nobody else.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Random bytes of the kernel's.
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
    pub fn new(bytes: [u8; 32]) -> Self {
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
        file.take(33).read_to_end(&mut bytes).map_err(io)?;
        let bytes = bytes.try_into().map_err(|_| TokenError::Length {
            path: path.to_owned(),
        })?;
        Ok(Self(bytes))
    }

    /// The coordinator's proof to a peer with this nonce.
    pub fn of_coordinator(&self, peer: &Nonce, own: &Nonce) -> Proof {
        self.hash(&[COORDINATOR, peer, own])
    }

    /// A peer's proof to a coordinator with this nonce, good for this job and role only.
    pub fn of_peer(&self, own: &Nonce, coordinator: &Nonce, job: &str, role: &Role) -> Proof {
        let joins = snaprig_wire::frame::encode(&(job, role));
        self.hash(&[PEER, own, coordinator, &joins])
    }

    /// All parts but the last are of one length each, so that no two lists of them are the same bytes.
    fn hash(&self, parts: &[&[u8]]) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

/// Whether they are the same, in constant time.
pub fn is_same(one: &Proof, other: &Proof) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_proof_is_good_for_one_token_one_side_and_what_was_joined_as() {
        let (one, other) = (Token::new([1; 32]), Token::new([2; 32]));
        let (a, b) = ([3; 32], [4; 32]);
        let role = Role::Control;
        let proof = one.of_peer(&a, &b, "job", &role);
        assert!(is_same(&proof, &one.of_peer(&a, &b, "job", &role)));
        let member = Role::Member {
            name: "0".into(),
            incarnation: 1,
        };
        let others = [
            other.of_peer(&a, &b, "job", &role),
            one.of_peer(&b, &a, "job", &role),
            one.of_peer(&a, &b, "jo", &role),
            one.of_peer(&a, &b, "job", &member),
            one.of_coordinator(&a, &b),
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
