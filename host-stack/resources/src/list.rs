//! The list of all kinds of state.

use crate::{
    counters::Counters, epolls::Epolls, files::Files, huge::HugePages, locks::Locks,
    memory::Memory, outside::Outside, pipes::Pipes, plugins::Plugins, processes::Processes,
    resource::Resources, sockets::Sockets, standard::Standard, sysv::SystemV, terminals::Terminals,
    watches::Watches,
};

/// One of each kind, for a checkpoint or for a restart. A descriptor is of the first kind that recognises it: what whoever
/// launched the tree has passed on is that, whatever it is; no other kind is recognised by two.
pub fn all() -> Resources {
    vec![
        Box::new(Standard::default()),
        Box::new(Plugins::default()),
        Box::new(Memory::default()),
        Box::new(SystemV::default()),
        Box::new(HugePages),
        Box::new(Outside),
        Box::new(Pipes::default()),
        Box::new(Terminals::default()),
        Box::new(Counters),
        Box::new(Epolls::default()),
        Box::new(Watches),
        Box::new(Processes),
        Box::new(Files::default()),
        Box::new(Sockets::default()),
        Box::new(Locks),
    ]
}
