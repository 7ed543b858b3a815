//! What the tree of every card has: directories, devices, the texts of /proc, and what the C library looks up.

use std::sync::Arc;

use snaprig_card_driver::errno::Errno;
use snaprig_card_memory::CardMemory;

use super::vfs::{Node, Vfs};
use crate::{
    files::memory_device,
    proc::{self, ProcFile},
    processors::{self, Topology},
};

/// What the C library looks up: the card's only user and group, and its own name.
const CONFIGURATION: [(&str, &str); 3] = [
    ("/etc/passwd", "root:x:0:0:root:/:/bin/sh\n"),
    ("/etc/group", "root:x:0:\n"),
    ("/etc/hosts", "127.0.0.1 localhost\n"),
];

/// Names that stand for descriptors (proc(5), `fd_names`).
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

impl Vfs {
    /// An empty root with /dev, /proc, /tmp, /run.
    pub fn new(memory: Arc<CardMemory>) -> Result<Self, Errno> {
        let mut vfs = Self::bare(memory);
        for directory in [
            "/tmp",
            "/run",
            "/dev/shm",
            "/etc",
            "/bin",
            proc::DESCRIPTORS,
        ] {
            vfs.make_directories(directory)?;
        }
        for path in ["/tmp", "/dev/shm"] {
            let node = vfs.lookup(vfs.root(), path, true)?;
            vfs.meta(node)?.set_mode(0o1777);
        }
        for (path, device) in memory_device::all() {
            vfs.register_device(path, device);
        }
        for (path, target) in LINKS {
            vfs.put(path, Node::Link(target.into()))?;
        }
        for (path, text) in CONFIGURATION {
            vfs.write_file(path, text.as_bytes(), 0o644)?;
        }
        for (path, file) in proc::FILES {
            vfs.put(path, Node::Proc(*file))?;
        }
        Ok(vfs)
    }

    /// What /sys says of each processor.
    pub fn put_processors(&mut self, topology: &Topology) -> Result<(), Errno> {
        processors::host_entry();
        for number in 0..topology.processors() {
            for (directory, texts) in processors::directories() {
                let directory = format!("{}/cpu{number}/{directory}", processors::DIRECTORY);
                self.make_directories(&directory)?;
                let directory = self.lookup(self.root(), &directory, true)?;
                for (name, text) in texts {
                    let node = Node::Proc(ProcFile::Processor(number, text));
                    self.add(directory, name, node)?;
                }
            }
        }
        Ok(())
    }
}
