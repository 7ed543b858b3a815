//! The list of all kinds of state.

use crate::{
    counters::Counters, epolls::Epolls, event::Reporter, files::Files, huge::HugePages,
    locks::Locks, memory::Memory, outside::Outside, pipes::Pipes, plugins::Plugins,
    processes::Processes, resource::Resources, sockets::Sockets, standard::Standard, sysv::SystemV,
    terminals::Terminals, watches::Watches,
};

/// One of each kind, for a checkpoint or for a restart; what happens in it that nobody asks for, the reporter tells. A descriptor is of the first kind that recognises it: what whoever
/// launched the tree has passed on is that, whatever it is; no other kind is recognised by two.
pub fn all(reporter: &Reporter) -> Resources {
    vec![
        Box::new(Standard::new(reporter)),
        Box::new(Plugins::default()),
        Box::new(Memory::default()),
        Box::new(SystemV::new(reporter)),
        Box::new(HugePages),
        Box::new(Outside),
        Box::new(Pipes::default()),
        Box::new(Terminals::new(reporter)),
        Box::new(Counters),
        Box::new(Epolls::default()),
        Box::new(Watches),
        Box::new(Processes),
        Box::new(Files::new(reporter)),
        Box::new(Sockets::new(reporter)),
        Box::new(Locks),
    ]
}
