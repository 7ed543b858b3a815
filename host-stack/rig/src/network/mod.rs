//! A network between the host and its cards, with the addresses that MPSS gives on an internal bridge: the host is
//! 172.31.1.254, and card `N` is 172.31.1.N. (Without a bridge MPSS has a network for each card; programs that are told by
//! their peers which addresses they have, as MPI's are, do not expect a host of several.)
//!
//! ```text
//!   rig's process                                            card's process
//!   +-----------------------------------+    SCM_RIGHTS      +----------------------------------+
//!   | broker, in the cards' namespace:  | <----------------> | network thread: accept4, read,   |
//!   | socket, bind, listen, connect     |                    | write on what it is given        |
//!   +-----------------------------------+                    |   queues <-> sockets of programs |
//!                                                            +----------------------------------+
//!   host: micbr0, 172.31.1.254  <--- veth --->  namespace of the cards: 172.31.1.1, 172.31.1.2, ...
//! ```
//!
//! A card's TCP is the host kernel's, so that all programs of the host reach cards as they reach any other machine.
//!
//! | file | what it is |
//! |---|---|
//! | `links` | the namespace, and the interface on both sides |
//! | `message` | what a card asks the broker, and what it hears |
//! | `broker` | makes sockets for a card, with that card's address and for the network's addresses alone |
//! | `client` | the card's side of that |
//!
//! What must stay true: a card's process makes, binds and connects no socket of the network itself; the interface ends with the
//! rig, however that ends.

mod broker;
mod client;
mod links;
mod message;

use std::{
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::network::Interface;

pub(crate) use self::client::Client;
use self::{
    broker::Broker,
    links::{Link, Namespace},
};

/// The host's address.
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 31, 1, 254);
/// The network, as programs are told it.
pub const NETWORK: &str = "172.31.1.0/24";
/// Bits of an address that are the network's.
const PREFIX: u8 = 24;
/// What the interface is called on every card.
const CARD_INTERFACE: &str = "mic0";
/// What the host is called on cards.
const HOST_NAME: &str = "host";

/// Why cards have no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// This process may not make interfaces and namespaces.
    #[error(
        "a network for cards takes CAP_NET_ADMIN and CAP_SYS_ADMIN: as root, or in a network of its own: unshare -rn COMMAND"
    )]
    NotAllowed,
    /// There is such an interface.
    #[error(
        "there is an interface {interface} already, of another rig or of a real card; in a network of its own: unshare -rn COMMAND"
    )]
    Taken {
        /// The interface.
        interface: &'static str,
    },
    /// The network namespace of the cards.
    #[error("a network namespace for cards: {0}")]
    Namespace(#[source] io::Error),
    /// The ip program did not do what it was told.
    #[error(
        "the interface to cards: ip(8) said: {said}; this takes CAP_NET_ADMIN, and the kernel's veth"
    )]
    Ip {
        /// What it said.
        said: String,
    },
    /// There is no ip program.
    #[error("a network for cards takes ip(8), of Debian's package iproute2: {0}")]
    NoIp(#[source] io::Error),
    /// The socket at which a card asks for others.
    #[error("the network of card {node}: {source}")]
    Broker {
        /// The card.
        node: u16,
        /// Why.
        source: io::Error,
    },
}

/// The network of a rig's cards.
pub(crate) struct Network {
    _brokers: Vec<Broker>,
    _link: Link,
}

impl Network {
    /// Makes the network of so many cards, and serves whoever is these cards, in the rig's directory.
    pub(crate) fn start(directory: &Path, cards: u16) -> Result<Self, NetworkError> {
        let namespace = Arc::new(Namespace::new()?);
        let link = Link::make(cards, &namespace)?;
        let broker = |node| {
            let started = Broker::start(&socket(directory, node), node, cards, &namespace);
            started.map_err(|source| NetworkError::Broker { node, source })
        };
        Ok(Self {
            _brokers: (1..=cards).map(broker).collect::<Result<_, _>>()?,
            _link: link,
        })
    }
}

/// What a card is told of its network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CardNetwork {
    /// Where it asks for sockets.
    socket: PathBuf,
    /// How many cards there are.
    cards: u16,
}

impl CardNetwork {
    pub(crate) fn of(directory: &Path, node: u16, cards: u16) -> Self {
        Self {
            socket: socket(directory, node),
            cards,
        }
    }

    /// The interface of the card that is this node.
    pub(crate) fn interface(&self, node: u16) -> Interface {
        let cards = (1..=self.cards).map(|node| (card_address(node), name_of(node)));
        let host = (HOST_ADDRESS, HOST_NAME.to_owned());
        Interface {
            name: CARD_INTERFACE.into(),
            address: card_address(node),
            prefix: PREFIX,
            gateway: HOST_ADDRESS,
            hosts: std::iter::once(host).chain(cards).collect(),
        }
    }

    /// Whoever makes sockets for it.
    pub(crate) fn connect(&self) -> io::Result<Client> {
        Client::connect(&self.socket)
    }
}

fn socket(directory: &Path, node: u16) -> PathBuf {
    directory.join(format!("network{node}.sock"))
}

/// What the card that is this SCIF node is called.
pub fn name_of(node: u16) -> String {
    format!("mic{}", node - 1)
}

/// The address of the card that is this SCIF node.
pub fn card_address(node: u16) -> Ipv4Addr {
    // There are eight cards at most.
    Ipv4Addr::new(172, 31, 1, node as u8)
}

/// Whether an address is of a network of so many cards.
fn is_of(address: Ipv4Addr, cards: u16) -> bool {
    address == HOST_ADDRESS || (1..=cards).any(|node| card_address(node) == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_mpss() {
        let network = CardNetwork::of(Path::new("/"), 2, 2);
        let Interface { address, hosts, .. } = network.interface(2);
        assert_eq!(address.to_string(), "172.31.1.2");
        let hosts: Vec<_> = hosts
            .iter()
            .map(|(ip, name)| format!("{ip} {name}"))
            .collect();
        assert_eq!(
            hosts,
            ["172.31.1.254 host", "172.31.1.1 mic0", "172.31.1.2 mic1"]
        );
        assert!(is_of(card_address(2), 2) && is_of(HOST_ADDRESS, 1));
        for other in ["172.31.1.3", "172.31.2.1", "127.0.0.1", "169.254.169.254"] {
            assert!(!is_of(other.parse().unwrap(), 2), "{other}");
        }
    }
}
