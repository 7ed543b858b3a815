//! A node of a fabric: a machine of a cluster, as programs on it see one. It has some of the fabric's HCAs, a name, an
//! address, and a place for files.
//!
//! Nodes are counted from 1. Node N has the HCAs behind those of the nodes before it, all as many. A program knows its
//! node by its environment, and its libibverbs shows it that node's HCAs alone; a program that is on no node sees all.

use std::{env, io, net::Ipv4Addr, ops::Range, path::PathBuf};

use crate::{
    place::{HCAS_MAX, Place},
    start::Environment,
};

/// Names a program's node, by its number.
pub const NODE_ENV: &str = "SNAPRIG_NODE";
/// How many HCAs each node has; without it, 1.
pub const NODE_HCAS_ENV: &str = "SNAPRIG_NODE_HCAS";
/// A directory for files of a program's node.
pub const NODE_DIRECTORY_ENV: &str = "SNAPRIG_NODE_DIR";
/// Addresses of nodes begin so: node N has the Nth of this network.
const NETWORK: [u8; 3] = [10, 77, 0];
/// Bits of a node's address that are the network's.
pub const NETWORK_BITS: u8 = 24;
/// Where programs start that start others on nodes; every node reaches it.
pub const HEAD: Ipv4Addr = Ipv4Addr::new(NETWORK[0], NETWORK[1], NETWORK[2], 254);

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number, from 1.
    pub number: u32,
    /// HCAs of each node.
    pub hcas_each: u32,
}

impl Node {
    /// A node; none: there is none of this number, or there are too many HCAs.
    pub fn new(number: u32, hcas_each: u32) -> Option<Self> {
        let last = number.checked_mul(hcas_each)?;
        let exists = number > 0 && hcas_each > 0 && last <= HCAS_MAX as u32;
        exists.then_some(Self { number, hcas_each })
    }

    /// That of this process, as its environment says.
    pub fn from_env() -> Option<Self> {
        let number = |name| env::var(name).ok()?.parse().ok();
        Self::new(number(NODE_ENV)?, number(NODE_HCAS_ENV).unwrap_or(1))
    }

    /// Another one of the same fabric.
    pub fn other(self, number: u32) -> Option<Self> {
        Self::new(number, self.hcas_each)
    }

    /// What programs on it have in their environment beside the fabric's. Makes its directory.
    pub fn environment(self, place: &Place) -> io::Result<Environment> {
        let directory = self.directory(place);
        std::fs::create_dir_all(&directory)?;
        Ok(vec![
            (NODE_ENV, self.number.to_string().into()),
            (NODE_HCAS_ENV, self.hcas_each.to_string().into()),
            (NODE_DIRECTORY_ENV, directory.into()),
        ])
    }

    /// Where its files are.
    pub fn directory(self, place: &Place) -> PathBuf {
        place.directory.join(self.name())
    }

    /// Its HCAs, of a fabric with so many; the numbers are the fabric's.
    pub fn hcas(self, of: u32) -> Range<u32> {
        let first = (self.number - 1) * self.hcas_each;
        first.min(of)..(first + self.hcas_each).min(of)
    }

    /// What it is called, as a host.
    pub fn name(self) -> String {
        format!("node{}", self.number)
    }

    /// The number of the node that is called so.
    pub fn number_of(name: &str) -> Option<u32> {
        name.strip_prefix("node")?.parse().ok()
    }

    /// Its address.
    pub fn address(self) -> Ipv4Addr {
        let [a, b, c] = NETWORK;
        Ipv4Addr::new(a, b, c, self.number as u8)
    }

    /// The node with this address.
    pub fn at(self, address: Ipv4Addr) -> Option<Self> {
        let [network @ .., number] = address.octets();
        (network == NETWORK).then(|| self.other(number.into()))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_the_hcas_one_after_another() {
        let node = |number| Node::new(number, 2).unwrap();
        assert_eq!(node(1).hcas(5), 0..2);
        assert_eq!(node(3).hcas(5), 4..5);
        assert_eq!(node(4).hcas(5), 5..5);
        assert_eq!(Node::new(0, 1), None);
        assert_eq!(Node::new(33, 2), None, "a fabric has 64 HCAs at most");
    }

    #[test]
    fn names_and_addresses_lead_back() {
        let node = Node::new(7, 1).unwrap();
        assert_eq!(node.at(node.address()), Some(node));
        assert_eq!(Node::number_of(&node.name()), Some(7));
        assert_eq!(node.at(HEAD), None);
        assert_eq!(node.at(Ipv4Addr::LOCALHOST), None);
    }
}
