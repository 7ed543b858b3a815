//! A fabric whose nodes share nothing but TCP: each has a control daemon of its own, with device memory of its own, and the
//! daemons carry packets between each other.
//!
//! ```text
//!   node 1: programs, device memory, daemon ---- TCP ---- node 2: daemon, device memory, programs
//! ```
//! All nodes are told the same list of addresses, and each which of them is its own: node N listens at the Nth, and nowhere
//! else.

use std::{
    env, fmt, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use crate::start::Environment;

/// The addresses of all nodes, as [`Tcp`] reads them; without it, all nodes have one daemon.
pub const TCP_ENV: &str = "SNAPRIG_TCP";
/// The file of the token that all daemons show each other that they know.
pub const TOKEN_ENV: &str = "SNAPRIG_TCP_TOKEN";

/// Where the daemons of all nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<SocketAddr>);

/// How addresses are written.
pub const ADDRESSES: &str = "ADDRESS:PORT of each node, with commas";

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let addresses: Result<Vec<_>, _> = text.split(',').map(str::parse).collect();
        let addresses = addresses.map_err(|why| format!("{ADDRESSES}: {why}"))?;
        Ok(Self(addresses))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(SocketAddr::to_string).collect();
        f.write_str(&all.join(","))
    }
}

impl FromIterator<SocketAddr> for Addresses {
    fn from_iter<T: IntoIterator<Item = SocketAddr>>(addresses: T) -> Self {
        Self(addresses.into_iter().collect())
    }
}

impl Addresses {
    /// How many nodes there are.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Where the daemon of a node is.
    pub fn of(&self, node: u32) -> Option<SocketAddr> {
        self.0.get(node.checked_sub(1)? as usize).copied()
    }

    /// The first node with this address.
    pub fn node_at(&self, address: IpAddr) -> Option<u32> {
        let at = self.0.iter().position(|one| one.ip() == address)?;
        Some(at as u32 + 1)
    }
}

/// How the nodes of a fabric reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Where their daemons are.
    pub addresses: Addresses,
    /// The file of their token.
    pub token: PathBuf,
}

impl Tcp {
    /// What the environment says; none: all nodes have one daemon.
    pub fn from_env() -> io::Result<Option<Self>> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let Some(text) = env::var(TCP_ENV).ok().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let addresses = text.parse();
        let addresses = addresses.map_err(|why| invalid(format!("{TCP_ENV}={text}: {why}")))?;
        let token = env::var_os(TOKEN_ENV);
        let token = token.ok_or_else(|| invalid(format!("{TCP_ENV} needs {TOKEN_ENV}")))?;
        Ok(Some(Self {
            addresses,
            token: token.into(),
        }))
    }

    /// The same for programs.
    pub fn environment(&self) -> Environment {
        let addresses = self.addresses.to_string().into();
        vec![(TCP_ENV, addresses), (TOKEN_ENV, self.token.clone().into())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_nodes_in_order() {
        let text = "10.77.0.1:7471,[::1]:7472";
        let addresses: Addresses = text.parse().unwrap();
        assert_eq!(addresses.to_string(), text);
        assert_eq!(addresses.count(), 2);
        assert_eq!(addresses.of(2), "[::1]:7472".parse().ok());
        assert_eq!((addresses.of(0), addresses.of(3)), (None, None));
        let node_at = |text: &str| addresses.node_at(text.parse().unwrap());
        assert_eq!((node_at("::1"), node_at("10.77.0.9")), (Some(2), None));
        for wrong in ["", "10.77.0.1", "10.77.0.1:1,", "host:1"] {
            assert!(wrong.parse::<Addresses>().is_err(), "{wrong}");
        }
    }
}
