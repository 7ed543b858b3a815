//! Where a tree goes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::store::Arrival;
use snaprig_peers::{Address, AddressError, Token};
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

    /// Where a migration that has come is asked about.
    pub fn of(arrival: &Arrival) -> Result<Self> {
        let address = arrival.address.parse();
        let address = address.map_err(|error: AddressError| Error::Refusal {
            what: error.to_string(),
        })?;
        Ok(Self {
            address,
            token: arrival.token.clone(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The file of what both sides know, if they need one.
    pub fn token_file(&self) -> Option<&Path> {
        self.token.as_deref()
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
