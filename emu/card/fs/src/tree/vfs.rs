//! Names: a tree of directories with files, symbolic links, devices, sockets and /proc entries.

use std::{collections::BTreeMap, sync::Arc};

use snaprig_card_driver::{device::CharDevice, errno::Errno};
use snaprig_card_memory::CardMemory;

use super::names::Names;
use crate::{
    files::{queue::Queue, socket::Listener},
    inode::Inode,
    meta::{Meta, Timestamp},
    proc::ProcFile,
    stat::Stat,
};

/// Most names on a card.
const NAMES_MAX: usize = 1 << 17;
/// Most bytes of symbolic links on a card.
const LINK_BYTES_MAX: usize = 16 << 20;
/// What a name adds to the size of its directory, as tmpfs(5) has it.
const NAME_BYTES: u64 = 20;
/// What a name stands for.
pub enum Node {
    /// A directory: names and their nodes; its parent.
    Directory(Names, u64),
    /// A regular file.
    File(Arc<Inode>),
    /// A symbolic link.
    Link(String),
    /// A character device.
    Device(Arc<dyn CharDevice>),
    /// A Unix socket that listens, or once did; none if mknod(2) made it.
    Socket(Option<Arc<Listener>>),
    /// A FIFO.
    Fifo(Arc<Queue>),
    /// A text of /proc.
    Proc(ProcFile),
}

impl Node {
    /// A directory with nothing in it.
    pub fn directory(parent: u64) -> Self {
        Self::Directory(Names::default(), parent)
    }

    /// Its type (inode(7)).
    pub fn kind(&self) -> u32 {
        match self {
            Self::Directory(..) => libc::S_IFDIR,
            Self::Link(_) | Self::Proc(ProcFile::Exe) => libc::S_IFLNK,
            Self::Device(_) => libc::S_IFCHR,
            Self::Socket(_) => libc::S_IFSOCK,
            Self::Fifo(_) => libc::S_IFIFO,
            Self::File(_) | Self::Proc(_) => libc::S_IFREG,
        }
    }

    /// Permission bits of one that nobody has chosen them for.
    fn usual_mode(&self) -> u32 {
        match self {
            Self::Directory(..) => 0o755,
            Self::Link(_) | Self::Proc(ProcFile::Exe) | Self::Socket(_) => 0o777,
            Self::Device(_) => 0o666,
            Self::File(_) | Self::Fifo(_) => 0o644,
            Self::Proc(_) => 0o444,
        }
    }
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

/// The mounted tree.
pub struct Vfs {
    memory: Arc<CardMemory>,
    root: Arc<Meta>,
    nodes: BTreeMap<u64, (Arc<Meta>, Node)>,
    /// Directories without a name that somebody still has open, or works in.
    removed: Vec<u64>,
    /// Names in all directories, and bytes of all symbolic links.
    names: usize,
    link_bytes: usize,
}

impl Vfs {
    /// A root with nothing in it.
    pub(super) fn bare(memory: Arc<CardMemory>) -> Self {
        let root = Meta::new(0o755);
        root.link(1);
        let node = Node::directory(root.number);
        Self {
            memory,
            nodes: BTreeMap::from([(root.number, (root.clone(), node))]),
            root,
            removed: Vec::new(),
            names: 0,
            link_bytes: 0,
        }
    }

    /// The card's memory.
    pub fn memory(&self) -> &Arc<CardMemory> {
        &self.memory
    }

    /// The root directory.
    pub fn root(&self) -> &Arc<Meta> {
        &self.root
    }

    /// A directory that was removed: nothing can be found or made in it.
    pub fn removed_directory(&mut self) -> Arc<Meta> {
        let meta = Meta::new(0o755);
        meta.link(-1);
        let node = Node::directory(self.root.number);
        self.nodes.insert(meta.number, (meta.clone(), node));
        self.removed.push(meta.number);
        meta
    }

    /// Puts a device at `path`.
    pub fn register_device(&mut self, path: &str, device: Arc<dyn CharDevice>) {
        if let Err(errno) = self.put(path, Node::Device(device)) {
            tracing::error!(path, %errno, "a device has no name");
        }
    }

    /// Puts a file at `path`, with the directories on its way.
    pub fn write_file(&mut self, path: &str, bytes: &[u8], mode: u32) -> Result<(), Errno> {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.make_directories(parent)?;
        }
        let inode = Inode::new(&self.memory, mode);
        let mut done = 0;
        while done < bytes.len() {
            done += inode.write_at(done as u64, &bytes[done..])?;
        }
        self.put(path, Node::File(inode))
    }

    /// Puts a node at `path`, in place of what is there, with the directories on its way.
    pub fn put(&mut self, path: &str, node: Node) -> Result<(), Errno> {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.make_directories(parent)?;
        }
        let found = self.find(&self.root, path, false)?;
        if let Some(old) = found.node {
            self.unlink_node(found.parent, &found.name, old);
        }
        self.add(found.parent, &found.name, node).map(|_| ())
    }

    /// Makes a directory with those on its way; what is there stays.
    pub fn make_directories(&mut self, path: &str) -> Result<(), Errno> {
        let mut at = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = format!("{at}/{name}");
            let found = self.find(&self.root, &at, true)?;
            if found.node.is_none() {
                self.add(found.parent, &found.name, Node::directory(found.parent))?;
            }
        }
        Ok(())
    }

    /// Adds a node under a new name.
    pub fn add(&mut self, parent: u64, name: &str, node: Node) -> Result<u64, Errno> {
        let meta = match &node {
            Node::File(inode) => inode.meta().clone(),
            node => Meta::new(node.usual_mode()),
        };
        self.add_with(parent, name, node, meta)
    }

    /// The same with attributes of its own. A node that has none of its names left gets one again.
    pub fn add_with(
        &mut self,
        parent: u64,
        name: &str,
        node: Node,
        meta: Arc<Meta>,
    ) -> Result<u64, Errno> {
        if name.is_empty() || self.child(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let link_bytes = match &node {
            Node::Link(target) => target.len(),
            _ => 0,
        };
        if self.names >= NAMES_MAX || self.link_bytes + link_bytes > LINK_BYTES_MAX {
            return Err(Errno::ENOSPC);
        }
        let number = meta.number;
        let is_directory = matches!(node, Node::Directory(..));
        self.insert_name(parent, name, number)?;
        if is_directory {
            meta.link(1);
            self.meta(parent)?.link(1);
        }
        self.nodes.insert(number, (meta, node));
        self.names += 1;
        self.link_bytes += link_bytes;
        Ok(number)
    }

    /// Gives a node another name (link(2)).
    pub fn link(&mut self, parent: u64, name: &str, node: u64) -> Result<(), Errno> {
        if self.directory(node).is_ok() {
            return Err(Errno::EPERM);
        }
        if self.names >= NAMES_MAX {
            return Err(Errno::ENOSPC);
        }
        let meta = self.meta(node)?.clone();
        self.insert_name(parent, name, node)?;
        meta.link(1);
        self.names += 1;
        Ok(())
    }

    /// Gives a node another name, in place of whatever has that name (rename(2)). Both names and
    /// directories are there; what is replaced may be replaced.
    pub fn rename(&mut self, from: &Found, to: &Found, node: u64) -> Result<(), Errno> {
        self.directory(from.parent)?;
        self.directory(to.parent)?;
        if let Some(old) = to.node {
            self.unlink_node(to.parent, &to.name, old);
        }
        self.remove_name(from.parent, &from.name);
        self.insert_name(to.parent, &to.name, node)?;
        self.moved(node, from.parent, to.parent)
    }

    /// Two nodes get each other's name (rename(2), RENAME_EXCHANGE).
    pub fn exchange(&mut self, one: &Found, other: &Found) -> Result<(), Errno> {
        let (a, b) = (
            one.node.ok_or(Errno::ENOENT)?,
            other.node.ok_or(Errno::ENOENT)?,
        );
        self.insert_name(one.parent, &one.name, b)?;
        self.insert_name(other.parent, &other.name, a)?;
        self.moved(a, one.parent, other.parent)?;
        self.moved(b, other.parent, one.parent)
    }

    /// A node has moved from one directory to another.
    fn moved(&mut self, node: u64, from: u64, to: u64) -> Result<(), Errno> {
        if let Some((_, Node::Directory(_, up))) = self.nodes.get_mut(&node) {
            *up = to;
            self.meta(from)?.link(-1);
            self.meta(to)?.link(1);
        }
        self.meta(node)?.lock().ctime = Timestamp::now();
        Ok(())
    }

    /// Takes a name away, and its node if it has no other and nobody needs it.
    pub fn unlink_node(&mut self, parent: u64, name: &str, node: u64) {
        if self.remove_name(parent, name) {
            self.names -= 1;
        }
        let Some((meta, it)) = self.nodes.get(&node) else {
            return;
        };
        if matches!(it, Node::Directory(..)) {
            meta.lock().nlink = 0;
            self.removed.push(node);
            if let Ok(parent) = self.meta(parent) {
                parent.link(-1);
            }
            self.sweep();
        } else if meta.link(-1) == 0
            && let Some((_, Node::Link(target))) = self.nodes.remove(&node)
        {
            self.link_bytes -= target.len();
        }
    }

    /// Forgets removed directories that nobody has open any more.
    fn sweep(&mut self) {
        let nodes = &mut self.nodes;
        self.removed.retain(|number| {
            let needed = nodes
                .get(number)
                .is_some_and(|(meta, _)| Arc::strong_count(meta) > 1);
            if !needed {
                nodes.remove(number);
            }
            needed
        });
    }

    fn insert_name(&mut self, directory: u64, name: &str, node: u64) -> Result<(), Errno> {
        match self.nodes.get_mut(&directory) {
            // Nothing is made in a directory that is gone.
            Some((meta, Node::Directory(names, _))) if meta.lock().nlink > 0 => {
                names.insert(name, node);
                meta.modified();
                Ok(())
            }
            Some((_, Node::Directory(..))) | None => Err(Errno::ENOENT),
            Some(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Whether the name was there.
    fn remove_name(&mut self, directory: u64, name: &str) -> bool {
        let Some((meta, Node::Directory(names, _))) = self.nodes.get_mut(&directory) else {
            return false;
        };
        meta.modified();
        names.remove(name).is_some()
    }

    /// The node with this number.
    pub fn node(&self, number: u64) -> Option<&Node> {
        self.nodes.get(&number).map(|(_, node)| node)
    }

    /// Its attributes.
    pub fn meta(&self, number: u64) -> Result<&Arc<Meta>, Errno> {
        let entry = self.nodes.get(&number).ok_or(Errno::ENOENT)?;
        Ok(&entry.0)
    }

    /// A directory's names.
    pub fn directory(&self, number: u64) -> Result<&Names, Errno> {
        match self.node(number) {
            Some(Node::Directory(names, _)) => Ok(names),
            Some(_) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    /// The directory above this one.
    pub fn parent(&self, number: u64) -> Result<u64, Errno> {
        match self.node(number) {
            Some(Node::Directory(_, parent)) => Ok(*parent),
            Some(_) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    /// Whether a directory is another, or somewhere in it.
    pub fn is_within(&self, mut directory: u64, other: u64) -> bool {
        loop {
            if directory == other {
                return true;
            }
            match self.parent(directory) {
                Ok(up) if up != directory => directory = up,
                _ => return false,
            }
        }
    }

    /// The inode of the program at `path`.
    pub fn inode(&self, path: &str) -> Result<Arc<Inode>, Errno> {
        let node = self.lookup(&self.root, path, true)?;
        match self.node(node) {
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
        let (meta, node) = self.nodes.get(&number).ok_or(Errno::ENOENT)?;
        let size = match node {
            Node::File(inode) => return Ok(inode.stat()),
            Node::Directory(names, _) => (names.len() as u64 + 2) * NAME_BYTES,
            Node::Link(target) => target.len() as u64,
            _ => 0,
        };
        let mut stat = Stat::of(meta, node.kind());
        stat.size = size;
        if let Node::Device(device) = node {
            stat.rdev = device.number();
        }
        Ok(stat)
    }

    /// A path of a regular file, `hint` if that leads to it; none if it has no name.
    pub fn path_to(&self, inode: &Arc<Inode>, hint: &str) -> Option<String> {
        let is_it = |node: &Node| matches!(node, Node::File(other) if Arc::ptr_eq(other, inode));
        let hinted = self.lookup(&self.root, hint, true);
        if hinted.is_ok_and(|node| self.node(node).is_some_and(is_it)) {
            return Some(hint.to_owned());
        }
        self.path_of_node(is_it)
    }

    /// A path of the first node that is the one.
    pub fn path_of_node(&self, is_it: impl Fn(&Node) -> bool) -> Option<String> {
        let (number, _) = self.nodes.iter().find(|(_, (_, node))| is_it(node))?;
        self.nodes
            .iter()
            .find_map(|(parent, (_, node))| match node {
                Node::Directory(names, _) => Some(self.path_of(*parent, names.name_of(*number)?)),
                _ => None,
            })
    }

    /// The absolute path of a name in a directory.
    pub fn path_of(&self, parent: u64, name: &str) -> String {
        let mut parts = vec![name.to_owned()];
        let mut at = parent;
        while at != self.root.number {
            let Some(Node::Directory(_, up)) = self.node(at) else {
                break;
            };
            let Some(Node::Directory(names, _)) = self.node(*up) else {
                break;
            };
            let Some(name) = names.name_of(at) else {
                break;
            };
            parts.push(name.to_owned());
            at = *up;
        }
        parts.retain(|part| !part.is_empty());
        parts.reverse();
        format!("/{}", parts.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use snaprig_card_driver::{errno::Errno, wait::SysResult};

    use crate::test_kit::{Kit, error};

    fn rename_flags(kit: &mut Kit, one: &str, other: &str, flags: u64) -> SysResult {
        let at = libc::AT_FDCWD as u64;
        let (one, other) = (kit.path(one), kit.other_path(other));
        kit.call(libc::SYS_renameat2, &[at, one, at, other, flags])
    }

    #[test]
    fn a_name_that_is_too_long_is_refused_before_anything_changes() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"data");
        let long = format!("/tmp/{}", "b".repeat(256));
        let too_long = error(Errno::ENAMETOOLONG);
        assert_eq!(rename_flags(&mut kit, "/tmp/a", &long, 0), too_long);
        assert_eq!(kit.vfs.read_all("/tmp/a").unwrap(), b"data");
        assert_eq!(kit.two_paths(libc::SYS_link, "/tmp/a", &long), too_long);
        assert_eq!(kit.open(&long, libc::O_RDONLY), too_long);
        assert_eq!(kit.open(&long, libc::O_CREAT | libc::O_RDWR), too_long);
        let fits = &long[..long.len() - 1];
        assert_eq!(rename_flags(&mut kit, "/tmp/a", fits, 0), Ok(0));
        assert_eq!(kit.vfs.read_all(fits).unwrap(), b"data");
    }

    #[test]
    fn rename_replaces_unless_told_not_to() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"a");
        kit.file("/tmp/b", b"b");
        let noreplace = libc::RENAME_NOREPLACE.into();
        let exchange = libc::RENAME_EXCHANGE.into();
        assert_eq!(
            rename_flags(&mut kit, "/tmp/a", "/tmp/b", noreplace),
            error(Errno::EEXIST)
        );
        for was in [b"b", b"a"] {
            assert_eq!(kit.vfs.read_all("/tmp/b").unwrap(), was);
            assert_eq!(rename_flags(&mut kit, "/tmp/a", "/tmp/b", exchange), Ok(0));
        }
        assert_eq!(
            rename_flags(&mut kit, "/tmp/a", "/tmp/b", noreplace | exchange),
            error(Errno::EINVAL)
        );
        assert_eq!(kit.vfs.read_all("/tmp/b").unwrap(), b"b");
        assert_eq!(rename_flags(&mut kit, "/tmp/a", "/tmp/c", noreplace), Ok(0));
        assert_eq!(rename_flags(&mut kit, "/tmp/c", "/tmp/b", 0), Ok(0));
        assert_eq!(kit.vfs.read_all("/tmp/b").unwrap(), b"a");
        assert!(!kit.exists("/tmp/a") && !kit.exists("/tmp/c"));
    }

    #[test]
    fn a_file_lives_as_long_as_its_last_name() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"a");
        assert_eq!(kit.two_paths(libc::SYS_link, "/tmp/a", "/tmp/b"), Ok(0));
        let a = kit.path("/tmp/a");
        assert_eq!(kit.call(libc::SYS_unlink, &[a]), Ok(0));
        assert_eq!(kit.vfs.read_all("/tmp/b").unwrap(), b"a");
        let b = kit.path("/tmp/b");
        assert_eq!(kit.call(libc::SYS_unlink, &[b]), Ok(0));
        assert!(!kit.exists("/tmp/b"));
    }

    #[test]
    fn names_and_symbolic_links_are_bounded() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"");
        let full = (0..super::NAMES_MAX + 1).find_map(|i| {
            kit.two_paths(libc::SYS_link, "/tmp/a", &format!("/tmp/{i}"))
                .err()
        });
        assert_eq!(full, error::<()>(Errno::ENOSPC).err());

        let mut kit = Kit::new();
        let target = "t".repeat(4095);
        let full = (0..super::NAMES_MAX).find_map(|i| {
            kit.two_paths(libc::SYS_symlink, &target, &format!("/tmp/{i}"))
                .err()
        });
        assert_eq!(full, error::<()>(Errno::ENOSPC).err());
        let first = kit.path("/tmp/0");
        assert_eq!(kit.call(libc::SYS_unlink, &[first]), Ok(0));
        assert_eq!(kit.two_paths(libc::SYS_symlink, &target, "/tmp/0"), Ok(0));
        let longer = format!("{target}t");
        let at = "/tmp/longer";
        assert_eq!(
            kit.two_paths(libc::SYS_symlink, &longer, at),
            error(Errno::ENAMETOOLONG)
        );
        assert_eq!(
            kit.two_paths(libc::SYS_symlink, "", at),
            error(Errno::ENOENT)
        );
    }

    #[test]
    fn inode_numbers_are_unique() {
        let mut kit = Kit::new();
        kit.file("/new/f", b"");
        let ino = |path| {
            let node = kit.vfs.lookup(kit.vfs.root(), path, true).unwrap();
            kit.vfs.stat(node).unwrap().ino
        };
        assert_ne!(ino("/new"), ino("/new/f"));
    }

    #[test]
    fn a_directory_is_found_under_its_new_name() {
        let mut kit = Kit::new();
        kit.file("/tmp/d/f", b"");
        let fd = kit.open("/tmp/d", libc::O_DIRECTORY).unwrap();
        kit.two_paths(libc::SYS_rename, "/tmp/d", "/tmp/e").unwrap();
        let path = kit.path("f");
        assert!(kit.call(libc::SYS_openat, &[fd, path, 0]).is_ok());
        assert_eq!(kit.call(libc::SYS_fchdir, &[fd]), Ok(0));
        kit.call(libc::SYS_getcwd, &[0x2000, 100]).unwrap();
        assert_eq!(kit.bytes(0x2000, 7), b"/tmp/e\0");
        let path = kit.path("/tmp/e/f");
        kit.call(libc::SYS_unlink, &[path]).unwrap();
        let path = kit.path("/tmp/e");
        kit.call(libc::SYS_rmdir, &[path]).unwrap();
        let path = kit.path("tmp");
        assert_eq!(
            kit.call(libc::SYS_openat, &[fd, path, 0]),
            error(Errno::ENOENT)
        );
    }
}
