//! A control daemon for each node, in the node's network.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use snaprig_peers::Token;

use super::{namespaces::Namespaces, requests::LOOK_EVERY};
use crate::{
    Fabric, FabricBuilder, FabricError,
    node::Node,
    place::{DEFAULT_FABRIC, Place},
    tcp::{Addresses, Tcp},
};

/// Where daemons listen, each in a network of its own.
const PORT: u16 = 4791;
/// How long daemons have to find each other.
const FIND_MAX: Duration = Duration::from_secs(10);

/// Where the daemon of a node has its files.
pub fn place(directory: &Path, node: Node) -> io::Result<Place> {
    Place::named_in(&directory.join("fabrics").join(node.name()), DEFAULT_FABRIC)
}

/// Starts all daemons, and waits until all reach all.
pub fn start(
    fabric: &FabricBuilder,
    nodes: &[Node],
    directory: &Path,
    namespaces: Option<&Namespaces>,
) -> Result<Vec<Fabric>, FabricError> {
    let token = directory.join("token");
    Token::create(&token).map_err(|error| FabricError::Start(io::Error::other(error)))?;
    let addresses = addresses(nodes, namespaces.is_some()).map_err(FabricError::Start)?;
    let tcp = Tcp { addresses, token };
    let start = |node: &Node| {
        let place = place(directory, *node).map_err(FabricError::Start)?;
        let fabric = fabric.clone().tcp(Some(tcp.clone())).at(place);
        let start = || fabric.on_node(*node).start();
        match namespaces {
            Some(namespaces) => {
                let started = namespaces.within(node.number, start);
                started.map_err(FabricError::Start)?
            }
            None => start(),
        }
    };
    let fabrics: Vec<Fabric> = nodes.iter().map(start).collect::<Result<_, _>>()?;
    let begun = Instant::now();
    for fabric in &fabrics {
        while !fabric.describe()?.nodes.iter().all(|node| node.is_up) {
            if begun.elapsed() > FIND_MAX {
                let why = "the nodes' daemons do not reach each other";
                return Err(FabricError::Start(io::Error::other(why)));
            }
            thread::sleep(LOOK_EVERY);
        }
    }
    Ok(fabrics)
}

/// Where the daemons of nodes listen: at each node's address; where they share a network, at ports that nobody has.
fn addresses(nodes: &[Node], have_networks: bool) -> io::Result<Addresses> {
    if have_networks {
        let own = |node: &Node| SocketAddr::from((node.address(), PORT));
        return Ok(nodes.iter().map(own).collect());
    }
    // All at once, so that no two get the same.
    let free = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let free: Vec<_> = nodes.iter().map(free).collect::<Result<_, _>>()?;
    let addresses: Result<Vec<_>, _> = free.iter().map(TcpListener::local_addr).collect();
    Ok(addresses?.into_iter().collect())
}
