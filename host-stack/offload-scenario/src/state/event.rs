//! What happens to processes, and whose endpoints there are.

use std::collections::BTreeMap;

use snaprig_offload_wire::snapify_io;
use snaprig_scenario::links;
use snaprig_scif::node::EndpointId;
use snaprig_wire::{dma::Descriptor, scif::NodeId};

use super::{
    HostId,
    app::{AppId, AppTask},
    card,
    host::{self, HostTask},
    io, show,
    sockets::Heard,
    task::CardTask,
};

/// Something that happens to a process.
#[derive(Debug)]
pub enum Event {
    /// Something that links have happen.
    Net(links::Event),
    /// To the host's node: this host process is gone.
    HostGone(HostId),
    /// To the program behind an endpoint of a node.
    Hear(NodeId, EndpointId, Heard),
    /// To the node that has asked for copies with another one's memory.
    Copy(NodeId, NodeId, u64, Vec<Descriptor>),
    App(AppId, AppTask),
    Host(HostId, HostTask),
    Card(NodeId, CardTask),
}

impl From<links::Event> for Event {
    fn from(event: links::Event) -> Self {
        Self::Net(event)
    }
}

/// An event as a record shows it.
pub fn label(roles: &BTreeMap<(NodeId, EndpointId), Role>, event: &Event) -> String {
    match event {
        Event::Net(event) => event.label(),
        Event::Hear(node, endpoint, Heard::Frame(bytes)) => {
            let shown = match roles.get(&(*node, *endpoint)) {
                Some(Role::Host(_, role)) => role.show(bytes),
                Some(Role::Card(role)) => role.show(bytes),
                Some(Role::Io(_)) => show::<snapify_io::Message>(bytes),
                None => None,
            };
            shown.unwrap_or_else(|| format!("{} bytes for nobody", bytes.len()))
        }
        Event::Hear(_, _, Heard::Accepted(_)) => "accepted".into(),
        Event::Hear(_, _, heard) => format!("{heard:?}").to_lowercase(),
        Event::Copy(.., copies) => format!("DMA, {} descriptors", copies.len()),
        Event::HostGone(_) => "a host process is gone".into(),
        Event::App(_, task) => format!("{task:?}"),
        Event::Host(_, task) => format!("{task:?}"),
        Event::Card(_, task) => format!("{task:?}"),
    }
}

/// Whose endpoint it is.
#[derive(Clone, Debug)]
pub enum Role {
    Host(HostId, host::Role),
    Card(card::Role),
    Io(io::Role),
}
