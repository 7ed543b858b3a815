//! open(2) and openat2(2), in the order of Linux's fs/open.c and fs/namei.c.

use std::sync::Arc;

use snaprig_card_driver::{
    errno::Errno,
    file::File,
    wait::{Stop, SysResult},
};
use snaprig_card_memory::PAGE;

use crate::{
    call::FsCall,
    files::{
        pipe::PipeEnd,
        queue::Queue,
        regular::{Directory, PathOnly, RegularFile},
    },
    inode::Inode,
    meta::Meta,
    proc::ProcFile,
    table::Open,
    tree::{Last, Node, Place, Vfs, count},
};

/// As the kernel has it; the C library says 0, for it is always on.
pub const O_LARGEFILE: i32 = 0o100_000;
/// O_TMPFILE without the O_DIRECTORY in it.
const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// Flags that mean something; open(2) ignores the others.
const KNOWN: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | O_LARGEFILE
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | TMPFILE;
/// Those that O_PATH leaves a meaning to.
const WITH_PATH: i32 = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_PATH | libc::O_CLOEXEC;
/// Those that the description does not keep (fcntl(2), F_GETFL).
pub const NOT_KEPT: i32 =
    libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC | libc::O_CLOEXEC;
/// Bytes of `struct open_how`.
const HOW_BYTES: u64 = 24;
/// Of the ways to resolve a path (openat2(2)): there are neither mounts nor links that are magic.
const RESOLVE_NOTHING: u64 = libc::RESOLVE_NO_XDEV | libc::RESOLVE_NO_MAGICLINKS;

/// How something is opened.
#[derive(Clone, Copy)]
pub struct OpenHow {
    /// `O_*` flags.
    pub flags: i32,
    /// Permission bits of what is made, without those of the umask.
    pub mode: u32,
    /// Symbolic links are not followed at all.
    pub no_links: bool,
}

impl OpenHow {
    /// open(2) with any flags: EINVAL if they do not go together.
    fn new(flags: i32, mode: u32) -> Result<Self, Errno> {
        let flags = match flags & libc::O_PATH {
            0 => flags & KNOWN,
            _ => flags & WITH_PATH,
        };
        let how = Self {
            flags,
            mode: mode & 0o7777,
            no_links: false,
        };
        how.check()?;
        Ok(how)
    }

    fn check(&self) -> Result<(), Errno> {
        let both = libc::O_CREAT | libc::O_DIRECTORY;
        let is_temporary = self.has(TMPFILE);
        if self.flags & both == both
            || is_temporary && !(self.has(libc::O_DIRECTORY) && self.writes())
        {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Whether it asks for the right to write. (Opening for neither asks for both.)
    fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
}

/// What a path leads open(2) to.
struct Target {
    node: u64,
    place: Place,
    created: bool,
    must_be_directory: bool,
}

impl FsCall<'_> {
    /// open(2), openat(2).
    pub fn openat(&mut self, dirfd: i32, at: u64, flags: i32, mode: u32) -> SysResult {
        let mut how = OpenHow::new(flags, mode)?;
        if !how.has(libc::O_PATH) {
            how.flags |= O_LARGEFILE;
        }
        self.open_how(dirfd, at, how)
    }

    /// openat2(2).
    pub fn openat2(&mut self, dirfd: i32, at: u64, how: u64, len: u64) -> SysResult {
        if len < HOW_BYTES {
            return Err(Errno::EINVAL.into());
        }
        if len > PAGE {
            return Err(Errno::E2BIG.into());
        }
        let mut bytes = vec![0; len as usize];
        self.cx.memory.read(how, &mut bytes)?;
        let (own, later) = bytes.split_at(HOW_BYTES as usize);
        if later.iter().any(|byte| *byte != 0) {
            return Err(Errno::E2BIG.into());
        }
        let word = |at: usize| u64::from_le_bytes(own[at..at + 8].try_into().expect("8 bytes"));
        let (flags, mode, resolve) = (word(0), word(8), word(16));
        let flags = i32::try_from(flags).map_err(|_| Errno::EINVAL)?;
        let how = OpenHow {
            flags,
            mode: mode as u32,
            no_links: resolve & libc::RESOLVE_NO_SYMLINKS != 0,
        };
        let makes = how.has(libc::O_CREAT | TMPFILE);
        if flags & !KNOWN != 0
            || how.has(libc::O_PATH) && flags & !WITH_PATH != 0
            || resolve & !(RESOLVE_NOTHING | libc::RESOLVE_NO_SYMLINKS) != 0
            || mode & !0o7777 != 0
            || mode != 0 && !makes
        {
            return Err(Errno::EINVAL.into());
        }
        how.check()?;
        self.open_how(dirfd, at, how)
    }

    fn open_how(&mut self, dirfd: i32, at: u64, how: OpenHow) -> SysResult {
        let path = self.path(at)?;
        self.check_room(1)?;
        let base = self.base(dirfd, &path)?;
        let open = match self.open_fd_name(&path, how.flags)? {
            Some(open) => open,
            None => self.open_path(&base, &path, how)?,
        };
        self.insert(open, how.has(libc::O_CLOEXEC))
    }

    fn open_path(&mut self, base: &Meta, path: &str, how: OpenHow) -> SysResult<Arc<Open>> {
        if let Ok(node) = self.vfs.lookup(base, path, true)
            && let Some(Node::Proc(file)) = self.vfs.node(node)
            && !how.has(libc::O_PATH)
        {
            let file = *file;
            if file == ProcFile::Exe {
                let exe = self.proc.exe();
                let root = self.vfs.root().clone();
                return self.open_node(&root, &exe, how);
            }
            let file = super::proc::open(self, file, path.to_owned())?;
            return Ok(Open::new(file, how.flags & !NOT_KEPT));
        }
        self.open_node(base, path, how)
    }

    fn open_node(&mut self, base: &Meta, path: &str, how: OpenHow) -> SysResult<Arc<Open>> {
        if how.has(TMPFILE) {
            return Ok(self.vfs.open_temporary(self.fs.umask, base, path, how)?);
        }
        let Target {
            node: number,
            place,
            created,
            must_be_directory,
        } = self.vfs.target(self.fs.umask, base, path, how)?;
        let is_directory = self.vfs.directory(number).is_ok();
        if how.has(libc::O_CREAT) {
            if how.has(libc::O_EXCL) && !created {
                return Err(Errno::EEXIST.into());
            }
            if is_directory {
                return Err(Errno::EISDIR.into());
            }
        }
        if must_be_directory && !is_directory {
            return Err(Errno::ENOTDIR.into());
        }
        let path = match (&place.last, is_directory) {
            (_, true) => self.vfs.path_of(number, ""),
            (Last::Name(name), false) => self.vfs.path_of(place.directory, name),
            (_, false) => self.vfs.path_of(place.directory, ""),
        };
        let meta = self.vfs.meta(number)?.clone();
        let flags = how.flags & !NOT_KEPT;
        let wants_to_write = how.writes() || how.has(libc::O_TRUNC);
        let file: Arc<dyn File> = match self.vfs.node(number).ok_or(Errno::ENOENT)? {
            Node::File(inode) => {
                if how.has(libc::O_TRUNC) && !created {
                    inode.truncate(0)?;
                }
                RegularFile::new(inode.clone(), path, how.flags)
            }
            Node::Directory(..) if how.has(libc::O_PATH) || !wants_to_write => {
                Directory::new(meta.clone(), path, how.flags)
            }
            Node::Directory(..) => return Err(Errno::EISDIR.into()),
            _ if how.has(libc::O_PATH) => PathOnly::new(meta.clone(), path, how.flags),
            Node::Link(_) => return Err(Errno::ELOOP.into()),
            Node::Device(device) => device.clone().open(&mut self.cx, how.flags)?,
            Node::Socket(_) => return Err(Errno::ENXIO.into()),
            Node::Proc(_) => return Err(Errno::ENOENT.into()),
            Node::Fifo(queue) => {
                let queue = queue.clone();
                self.open_fifo(&queue, how.flags)?
            }
        };
        Ok(Open::named(file, flags, Some(meta)))
    }

    /// open(2) of a FIFO waits for the other end, unless it is told not to or opens both (fifo(7)).
    fn open_fifo(&mut self, queue: &Arc<Queue>, flags: i32) -> SysResult<Arc<PipeEnd>> {
        let nonblock = flags & libc::O_NONBLOCK != 0;
        let end = match self.waits.opening.remove(&self.cx.tid) {
            Some(end) if end.is_of(queue) => end,
            other => {
                if let Some(end) = other {
                    end.release(self.cx.wake);
                }
                let mode = flags & libc::O_ACCMODE;
                let (reads, writes) = (mode != libc::O_WRONLY, mode != libc::O_RDONLY);
                if nonblock && !reads && queue.has_no_reader() {
                    return Err(Errno::ENXIO.into());
                }
                PipeEnd::open(queue, reads, writes, self.cx.wake)
            }
        };
        if nonblock || end.has_partner() {
            return Ok(end);
        }
        self.waits.opening.insert(self.cx.tid, end);
        Err(Stop::wait(queue.channel))
    }
}

impl Vfs {
    /// What is to be opened; it is made if it is not there and is to be.
    fn target(
        &mut self,
        umask: u32,
        base: &Meta,
        path: &str,
        how: OpenHow,
    ) -> Result<Target, Errno> {
        let creates = how.has(libc::O_CREAT);
        let mut follows = !(how.has(libc::O_NOFOLLOW) || creates && how.has(libc::O_EXCL));
        let (mut start, mut path) = (base.number, path.to_owned());
        let mut must_be_directory = how.has(libc::O_DIRECTORY);
        let mut links = match how.no_links {
            true => usize::MAX / 2,
            false => 0,
        };
        loop {
            let place = self.place_from(start, &path, &mut links)?;
            if creates && place.slash {
                return Err(Errno::EISDIR);
            }
            // Slashes after a link have all links that it leads to followed.
            must_be_directory |= place.slash;
            follows |= place.slash;
            let (node, created) = match (self.last_of(&place), &place.last) {
                (Err(Errno::ENOENT), Last::Name(name)) if creates => {
                    let inode = Inode::new(self.memory(), how.mode & !umask);
                    let name = name.clone();
                    (self.add(place.directory, &name, Node::File(inode))?, true)
                }
                (node, _) => (node?, false),
            };
            if let Some(Node::Link(target)) = self.node(node)
                && follows
            {
                count(&mut links)?;
                (start, path) = (place.directory, target.clone());
                continue;
            }
            return Ok(Target {
                node,
                place,
                created,
                must_be_directory,
            });
        }
    }

    /// A file without a name (open(2), O_TMPFILE).
    fn open_temporary(
        &mut self,
        umask: u32,
        base: &Meta,
        path: &str,
        how: OpenHow,
    ) -> Result<Arc<Open>, Errno> {
        let directory = self.lookup(base, path, !how.has(libc::O_NOFOLLOW))?;
        self.directory(directory)?;
        if self.meta(directory)?.lock().nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let inode = Inode::nameless(self.memory(), how.mode & !umask);
        if how.has(libc::O_EXCL) {
            inode.keep_nameless();
        }
        let path = self.path_of(directory, &format!("#{} (deleted)", inode.meta().number));
        let flags = how.flags & !NOT_KEPT;
        Ok(Open::new(RegularFile::new(inode, path, flags), flags))
    }
}
