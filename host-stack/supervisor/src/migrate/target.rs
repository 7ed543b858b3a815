//! Where a tree goes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use snaprig_peers::{Address, Token};
use snaprig_resources::error::{Error, Result};

/// Where a tree goes: the address at which another supervisor listens, and for TCP what both sides know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    address: Address,
    /// A file.
    token: Option<PathBuf>,
}

impl Target {
    /// At a Unix socket: the kernel says whose process is there.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self {
            address: Address::Unix(path.into()),
            token: None,
        }
    }

    /// At HOST:PORT; both sides know the token in this file.
    pub fn tcp(host: impl Into<String>, token: impl Into<PathBuf>) -> Self {
        Self {
            address: Address::Tcp(host.into()),
            token: Some(token.into()),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What both sides know; nothing, where the kernel says who they are.
    pub fn token(&self) -> Result<Option<Token>> {
        match (&self.address, &self.token) {
            (Address::Unix(_), _) => Ok(None),
            (Address::Tcp(_), Some(path)) => Ok(Some(Token::read(path)?)),
            (Address::Tcp(host), None) => Err(Error::Refusal {
                what: format!("over TCP, at {host}, both sides need a token (--token)"),
            }),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.address.fmt(f)
    }
}
