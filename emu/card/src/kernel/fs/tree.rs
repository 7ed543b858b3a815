//! Names: a tree of directories with files, symbolic links, devices, sockets and /proc entries.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    FsContext, PATH_MAX, Stat, dev,
    inode::Inode,
    proc::{self, ProcFile},
    regular::{Directory, RegularFile},
    socket::Listener,
};
use crate::{
    kernel::{
        device::CharDevice,
        errno::Errno,
        file::{Cx, File},
        wait::SysResult,
    },
    memory::CardMemory,
};

/// Most names on a card.
const NODES_MAX: usize = 1 << 17;
const NAME_MAX: usize = 255;
/// Symbolic links followed in one path (path_resolution(7)).
const LINKS_MAX: usize = 40;
const ROOT: u64 = 1;

/// What a name stands for.
#[derive(Clone)]
pub enum Node {
    /// A directory: names and their nodes; its parent.
    Directory(BTreeMap<String, u64>, u64),
    /// A regular file.
    File(Arc<Inode>),
    /// A symbolic link.
    Link(String),
    /// A character device.
    Device(Arc<dyn CharDevice>),
    /// A Unix socket that listens, or once did.
    Socket(Arc<Listener>),
    /// A text of /proc.
    Proc(ProcFile),
}

/// The mounted tree.
pub struct Vfs {
    memory: Arc<CardMemory>,
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

/// Where a path leads: the directory, the last name in it, and what is there.
pub struct Found {
    /// The directory that holds the name.
    pub parent: u64,
    /// The name; empty for the root and for `.` or `..` at the end.
    pub name: String,
    /// The node, if there is one.
    pub node: Option<u64>,
}

impl Vfs {
    /// An empty root with /dev, /proc, /tmp, /run.
    pub fn new(memory: Arc<CardMemory>) -> Result<Self, Errno> {
        let mut nodes = BTreeMap::new();
        nodes.insert(ROOT, Node::Directory(BTreeMap::new(), ROOT));
        let mut vfs = Self {
            memory,
            nodes,
            next: ROOT + 1,
        };
        for directory in ["/tmp", "/run", "/dev/shm", "/etc", "/bin", "/proc/self"] {
            vfs.make_directories(directory)?;
        }
        dev::register(&mut vfs);
        for (path, file) in proc::FILES {
            vfs.put(path, Node::Proc(*file))?;
        }
        Ok(vfs)
    }

    /// The card's memory.
    pub fn memory(&self) -> &Arc<CardMemory> {
        &self.memory
    }

    /// Puts a device at `path`.
    pub fn register_device(&mut self, path: &str, device: Arc<dyn CharDevice>) {
        if let Err(errno) = self.put(path, Node::Device(device)) {
            tracing::error!(path, %errno, "a device has no name");
        }
    }

    /// Puts a file at `path`, with the directories on its way.
    pub fn write_file(&mut self, path: &str, bytes: &[u8], mode: u32) -> Result<(), Errno> {
        let number = self.next;
        let inode = Inode::new(&self.memory, number, mode);
        let mut done = 0;
        while done < bytes.len() {
            done += inode.write_at(done as u64, &bytes[done..])?;
        }
        self.put(path, Node::File(inode))
    }

    fn put(&mut self, path: &str, node: Node) -> Result<(), Errno> {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.make_directories(parent)?;
        }
        let found = self.find("/", path, false)?;
        if let Some(old) = found.node {
            self.unlink_node(found.parent, &found.name, old);
        }
        self.add(found.parent, &found.name, node).map(|_| ())
    }

    fn make_directories(&mut self, path: &str) -> Result<(), Errno> {
        let mut at = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = format!("{at}/{name}");
            let found = self.find("/", &at, true)?;
            if found.node.is_none() {
                self.add(
                    found.parent,
                    &found.name,
                    Node::Directory(BTreeMap::new(), found.parent),
                )?;
            }
        }
        Ok(())
    }

    /// Adds a node under a new name.
    pub fn add(&mut self, parent: u64, name: &str, node: Node) -> Result<u64, Errno> {
        if name.is_empty() {
            return Err(Errno::EEXIST);
        }
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if self.nodes.len() >= NODES_MAX {
            return Err(Errno::ENOSPC);
        }
        let number = self.next;
        self.next += 1;
        let names = self.directory_mut(parent)?;
        if names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        names.insert(name.to_owned(), number);
        self.nodes.insert(number, node);
        Ok(number)
    }

    /// A new regular file that has no name yet.
    pub fn new_inode(&self, mode: u32) -> Arc<Inode> {
        Inode::new(&self.memory, self.next, mode)
    }

    /// Gives an existing node another name (link(2), rename(2)).
    pub fn add_name(&mut self, parent: u64, name: &str, node: u64) -> Result<(), Errno> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.directory_mut(parent)?.insert(name.to_owned(), node);
        if let Some(Node::Directory(_, up)) = self.nodes.get_mut(&node) {
            *up = parent;
        }
        Ok(())
    }

    /// Takes a name away, and its node if it has no other.
    pub fn unlink_node(&mut self, parent: u64, name: &str, node: u64) {
        self.remove_name(parent, name);
        let named_elsewhere = matches!(self.nodes.get(&node), Some(Node::File(_)))
            && self.nodes.values().any(|other| {
                matches!(other, Node::Directory(names, _) if names.values().any(|n| *n == node))
            });
        if let Some(Node::File(inode)) = self.nodes.get(&node) {
            inode.link(-1);
        }
        if !named_elsewhere {
            self.nodes.remove(&node);
        }
    }

    /// Takes a name away only.
    pub fn remove_name(&mut self, parent: u64, name: &str) {
        if let Ok(names) = self.directory_mut(parent) {
            names.remove(name);
        }
    }

    /// The node with this number.
    pub fn node(&self, number: u64) -> Option<&Node> {
        self.nodes.get(&number)
    }

    /// A directory's names.
    pub fn directory(&self, number: u64) -> Result<&BTreeMap<String, u64>, Errno> {
        match self.nodes.get(&number) {
            Some(Node::Directory(names, _)) => Ok(names),
            Some(_) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn directory_mut(&mut self, number: u64) -> Result<&mut BTreeMap<String, u64>, Errno> {
        match self.nodes.get_mut(&number) {
            Some(Node::Directory(names, _)) => Ok(names),
            Some(_) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    /// Follows `path` from directory `base` (path_resolution(7)).
    pub fn find(&self, base: &str, path: &str, follow: bool) -> Result<Found, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let start = if path.starts_with('/') || base == "/" {
            ROOT
        } else {
            self.find("/", base, true)?.node.ok_or(Errno::ENOENT)?
        };
        self.walk(start, path, follow, &mut 0)
    }

    fn walk(
        &self,
        start: u64,
        path: &str,
        follow: bool,
        links: &mut usize,
    ) -> Result<Found, Errno> {
        let mut at = if path.starts_with('/') { ROOT } else { start };
        let must_be_directory = path.ends_with('/');
        let names: Vec<&str> = path
            .split('/')
            .filter(|n| !n.is_empty() && *n != ".")
            .collect();
        let mut found = Found {
            parent: at,
            name: String::new(),
            node: Some(at),
        };
        for (index, name) in names.iter().enumerate() {
            let last = index + 1 == names.len();
            if *name == ".." {
                at = match self.nodes.get(&at) {
                    Some(Node::Directory(_, parent)) => *parent,
                    _ => return Err(Errno::ENOTDIR),
                };
                found = Found {
                    parent: at,
                    name: String::new(),
                    node: Some(at),
                };
                continue;
            }
            let node = self.directory(at)?.get(*name).copied();
            if let Some(Node::Link(target)) = node.and_then(|node| self.nodes.get(&node))
                && (!last || follow || must_be_directory)
            {
                *links += 1;
                if *links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                found = self.walk(at, target, true, links)?;
            } else {
                found = Found {
                    parent: at,
                    name: (*name).to_owned(),
                    node,
                };
            }
            match found.node {
                Some(node) => at = node,
                None if last => {}
                None => return Err(Errno::ENOENT),
            }
        }
        if must_be_directory && let Some(node) = found.node {
            self.directory(node)?;
        }
        Ok(found)
    }

    /// open(2).
    pub fn open(
        &mut self,
        cx: &mut Cx,
        fs: &FsContext,
        path: &str,
        flags: i32,
        mode: u32,
    ) -> SysResult<Arc<dyn File>> {
        let create = flags & libc::O_CREAT != 0;
        let exclusive = create && flags & libc::O_EXCL != 0;
        let follow = flags & libc::O_NOFOLLOW == 0 && !exclusive;
        let found = self.find(&fs.cwd, path, follow)?;
        let number = match found.node {
            Some(_) if exclusive => return Err(Errno::EEXIST.into()),
            Some(node) => node,
            None if create && !path.ends_with('/') => {
                let inode = self.new_inode(mode & !fs.umask);
                self.add(found.parent, &found.name, Node::File(inode))?
            }
            None => return Err(Errno::ENOENT.into()),
        };
        let absolute = self.path_of(found.parent, &found.name);
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        match self.nodes.get(&number).ok_or(Errno::ENOENT)?.clone() {
            Node::Directory(..) if writes => Err(Errno::EISDIR.into()),
            Node::Directory(..) => Ok(Directory::new(number, absolute)),
            _ if flags & libc::O_DIRECTORY != 0 => Err(Errno::ENOTDIR.into()),
            Node::File(inode) => {
                if flags & libc::O_TRUNC != 0 && writes {
                    inode.truncate(0)?;
                }
                Ok(RegularFile::new(inode, absolute, flags))
            }
            Node::Link(_) => Err(Errno::ELOOP.into()),
            Node::Device(device) => device.open(cx, flags),
            Node::Socket(_) => Err(Errno::ENXIO.into()),
            Node::Proc(_) => Err(Errno::ENOENT.into()),
        }
    }

    /// The inode of the program at `path`.
    pub fn inode(&self, path: &str) -> Result<Arc<Inode>, Errno> {
        let node = self.find("/", path, true)?.node.ok_or(Errno::ENOENT)?;
        match self.nodes.get(&node) {
            Some(Node::File(inode)) => Ok(inode.clone()),
            Some(Node::Directory(..)) => Err(Errno::EACCES),
            _ => Err(Errno::ENOENT),
        }
    }

    /// The first `max` bytes of a program that may be executed.
    pub fn read_head(&self, path: &str, max: usize) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(path)?;
        if inode.mode() & 0o111 == 0 {
            return Err(Errno::EACCES);
        }
        Ok(inode.read_at(0, max))
    }

    /// All bytes of the program at `path`.
    pub fn read_all(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(path)?;
        // A sparse file may be larger than anything that could be loaded.
        if inode.size() > self.memory.bytes() {
            return Err(Errno::ENOMEM);
        }
        Ok(inode.read_at(0, inode.size() as usize))
    }

    /// What stat(2) tells of a node.
    pub fn stat(&self, number: u64) -> Result<Stat, Errno> {
        let node = self.nodes.get(&number).ok_or(Errno::ENOENT)?;
        let (mode, size) = match node {
            Node::File(inode) => return Ok(inode.stat()),
            Node::Directory(names, _) => (libc::S_IFDIR | 0o755, names.len() as u64),
            Node::Link(target) => (libc::S_IFLNK | 0o777, target.len() as u64),
            Node::Device(_) => (libc::S_IFCHR | 0o666, 0),
            Node::Socket(_) => (libc::S_IFSOCK | 0o777, 0),
            Node::Proc(ProcFile::Exe) => (libc::S_IFLNK | 0o777, 0),
            Node::Proc(_) => (libc::S_IFREG | 0o444, 0),
        };
        let nlink = if matches!(node, Node::Directory(..)) {
            2
        } else {
            1
        };
        Ok(Stat {
            ino: number,
            mode,
            nlink,
            size,
            ..Stat::default()
        })
    }

    /// The absolute path of a name in a directory.
    pub fn path_of(&self, parent: u64, name: &str) -> String {
        let mut parts = vec![name.to_owned()];
        let mut at = parent;
        while at != ROOT {
            let Some(Node::Directory(_, up)) = self.nodes.get(&at) else {
                break;
            };
            let Some(Node::Directory(names, _)) = self.nodes.get(up) else {
                break;
            };
            let Some((name, _)) = names.iter().find(|(_, node)| **node == at) else {
                break;
            };
            parts.push(name.clone());
            at = *up;
        }
        parts.retain(|part| !part.is_empty());
        parts.reverse();
        format!("/{}", parts.join("/"))
    }
}
