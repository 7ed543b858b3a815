//! The mount of a source: a flat directory of files that are written front to back, each of them a stream of one of the
//! source's ranks.
//!
//! - A write that is not at the end of a file is refused (`ESPIPE`), but a hole is zeroes. Nothing can be read back.
//! - A file may be renamed as long as it is open, and its last name is what it is called at the target. One that has a temporary
//!   name (`.temp`, `.tmp`, `.part`, `.partial` at its end) is called at the target what it would be called without that,
//!   from the beginning, and may be renamed to that after it was closed, too.
//! - fsync(2) and close(2) return when what is written is on its way, not when it is at the target. Writing fails with `EIO`
//!   when the stream has.
//! - The stream ends when the last descriptor is closed. It fails if one is closed because its process is killed, and if
//!   the file is removed before its end.
//!
//! What DMTCP does fits: a temporary name, fsync(2), close(2), then the final name; with gzip, another process writes on
//! after it has closed the file. Its coordinator writes scripts into its directory of checkpoints: that must be another one
//! (`dmtcp_coordinator --ckptdir`, and then `dmtcp_launch --join-coordinator --ckptdir MOUNT`).

mod file;
mod killed;

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsStr,
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex, PoisonError, atomic::Ordering, mpsc::channel},
    thread,
    time::SystemTime,
};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use snaprig_ppmr::driver::source::SourceNode;

use self::file::{File, Op, final_name};
use crate::{
    Outcome,
    layout::{Entry, is_name},
    lock,
    mounted::{self, Mounted, TTL},
};

/// The mount of a source. Dropped, it is unmounted, and what is not whole yet is cancelled.
#[derive(Debug)]
pub struct SourceMount {
    shared: Arc<Shared>,
    _mounted: Mounted,
}

/// Mounts a source on a directory: the files that are made there are the streams of these ranks, one after another.
///
/// Fails if there is no FUSE, the directory is not there, or this user may not mount on it.
pub fn mount_source(node: SourceNode, ranks: Vec<u32>, at: &Path) -> io::Result<SourceMount> {
    let shared = Arc::new(Shared {
        node,
        time: SystemTime::now(),
        state: Mutex::new(State {
            wanted: ranks.len(),
            ranks: ranks.into(),
            ..State::default()
        }),
        changed: Condvar::new(),
    });
    let mounted = Mounted::new(Source(shared.clone()), at, &[])?;
    Ok(SourceMount {
        shared,
        _mounted: mounted,
    })
}

impl SourceMount {
    /// Waits for a file that is at the target and was read there, or has failed: what became of it. None: all are over, and
    /// have their final names; or somebody has it stop ([`Self::stop`]).
    pub fn next(&self) -> Option<Outcome> {
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(outcome) = state.outcomes.pop_front() {
                state.wanted -= 1;
                return Some(outcome);
            }
            if state.is_stopped || state.is_over() {
                return None;
            }
            let changed = self.shared.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody waits any longer.
    pub fn stop(&self) {
        lock(&self.shared.state).is_stopped = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for SourceMount {
    fn drop(&mut self) {
        self.shared.node.cancel();
        for file in lock(&self.shared.state).files.values() {
            let _ = file.ops.send(Op::Cancel);
            let _ = file.ops.send(Op::End);
        }
    }
}

#[derive(Debug)]
struct Shared {
    node: SourceNode,
    time: SystemTime,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Those that have no file yet.
    ranks: VecDeque<u32>,
    /// How many nobody has been told the end of.
    wanted: usize,
    files: BTreeMap<INodeNo, Arc<File>>,
    /// How often each is open; none: its end has come.
    open: BTreeMap<INodeNo, u32>,
    last: u64,
    outcomes: VecDeque<Outcome>,
    is_stopped: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("ranks", &self.ranks)
            .field("outcomes", &self.outcomes)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Whoever wrote a file may still rename it to what it is called at the target.
    fn is_over(&self) -> bool {
        let is_final = |file: &Arc<File>| {
            let entry = lock(&file.entry);
            final_name(&entry.name) == entry.name
        };
        self.wanted == 0 && self.files.values().all(is_final)
    }

    fn find(&self, name: &OsStr) -> Option<&Arc<File>> {
        let mut files = self.files.values();
        files.find(|file| lock(&file.entry).name == name)
    }

    fn named(&self, parent: INodeNo, name: &OsStr) -> Result<Arc<File>, Errno> {
        if parent != INodeNo::ROOT {
            return Err(Errno::ENOTDIR);
        }
        self.find(name).cloned().ok_or(Errno::ENOENT)
    }

    fn file(&self, ino: INodeNo) -> Result<Arc<File>, Errno> {
        self.files.get(&ino).cloned().ok_or(Errno::ENOENT)
    }

    /// A file of this name is made: the next rank is its.
    fn begin(
        &mut self,
        shared: &Arc<Shared>,
        ino: INodeNo,
        entry: Entry,
        owner: (u32, u32),
    ) -> Result<Arc<File>, Errno> {
        let Some(rank) = self.ranks.pop_front() else {
            let name = entry.name.display();
            tracing::error!("{name}: a file more than processes were to move: refused");
            return Err(Errno::ENOSPC);
        };
        let (ops, todo) = channel();
        let file = Arc::new(File {
            ino,
            owner,
            time: SystemTime::now(),
            entry: Mutex::new(entry),
            bytes: 0.into(),
            has_failed: false.into(),
            spare: Mutex::default(),
            ops,
        });
        self.files.insert(ino, file.clone());
        self.open.insert(ino, 1);
        let (shared, own) = (shared.clone(), file.clone());
        thread::spawn(move || {
            let written = own.run(shared.node.writer(rank), &todo);
            // The source says it better, if it knows.
            let whole = shared.node.wait(rank);
            let failure = match (whole, written) {
                (Ok(()), Ok(())) => None,
                (Err(failure), Ok(())) => Some(failure.to_string()),
                (_, Err(error)) => Some(error.to_string()),
            };
            shared.over(Outcome {
                name: own.told().name,
                bytes: own.bytes.load(Ordering::Relaxed),
                failure,
            });
        });
        Ok(file)
    }
}

impl Shared {
    fn over(&self, outcome: Outcome) {
        outcome.log();
        lock(&self.state).outcomes.push_back(outcome);
        self.changed.notify_all();
    }
}

/// What the kernel asks.
struct Source(Arc<Shared>);

/// A handle is the number of its file.
fn handle(file: &File) -> FileHandle {
    FileHandle(file.ino.0)
}

/// The page cache would read nothing ahead here, and only copy.
const HOW: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;

impl Source {
    fn open_again(
        &self,
        req: &Request,
        ino: INodeNo,
        flags: OpenFlags,
    ) -> Result<Arc<File>, Errno> {
        let mut state = lock(&self.0.state);
        let file = state.file(ino)?;
        if flags.acc_mode() == OpenAccMode::O_RDONLY {
            return Err(Errno::EACCES);
        }
        let is_new = flags.0 & libc::O_TRUNC != 0;
        let is_empty = file.bytes.load(Ordering::Relaxed) == 0;
        match state.open.get_mut(&ino) {
            Some(_) if is_new && !is_empty => Err(Errno::EBUSY),
            Some(open) => {
                *open += 1;
                Ok(file)
            }
            // Its stream is over, and another one begins under its name.
            None if is_new => {
                let entry = lock(&file.entry).clone();
                state.begin(&self.0, ino, entry, (req.uid(), req.gid()))
            }
            None => Err(Errno::ESPIPE),
        }
    }

    fn rename(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let mut state = lock(&self.0.state);
        let file = state.named(from.0, from.1)?;
        let is_closed = !state.open.contains_key(&file.ino);
        if to.0 != INodeNo::ROOT || !is_name(to.1) {
            return Err(Errno::EINVAL);
        }
        if is_closed && final_name(to.1) != file.told().name {
            let (from, to) = (from.1.display(), to.1.display());
            tracing::error!(
                "{from}: renamed to {to} after it was closed: the target has it already"
            );
            return Err(Errno::EBUSY);
        }
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            return Err(Errno::EINVAL);
        }
        if let Some(other) = state.find(to.1).cloned()
            && other.ino != file.ino
        {
            if flags.contains(RenameFlags::RENAME_NOREPLACE) {
                return Err(Errno::EEXIST);
            }
            if state.open.contains_key(&other.ino) {
                return Err(Errno::EBUSY);
            }
            state.files.remove(&other.ino);
        }
        lock(&file.entry).name = to.1.into();
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }

    fn create_new(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
    ) -> Result<Arc<File>, Errno> {
        let mut state = lock(&self.0.state);
        match state.named(parent, name) {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) if is_name(name) => {}
            Err(errno) => return Err(errno),
        }
        state.last += 1;
        let ino = INodeNo(INodeNo::ROOT.0 + state.last);
        let name = name.into();
        let owner = (req.uid(), req.gid());
        state.begin(&self.0, ino, Entry { name, mode }, owner)
    }
}

impl Filesystem for Source {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        mounted::agree(config, InitFlags::FUSE_ATOMIC_O_TRUNC);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match lock(&self.0.state).named(parent, name) {
            Ok(file) => reply.entry(&TTL, &file.attributes(), Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if ino == INodeNo::ROOT {
            return reply.attr(&TTL, &mounted::directory(0o755, self.0.time));
        }
        match lock(&self.0.state).file(ino) {
            Ok(file) => reply.attr(&TTL, &file.attributes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let state = lock(&self.0.state);
        let file = match state.file(ino) {
            Ok(file) => file,
            Err(errno) => return reply.error(errno),
        };
        let is_owner = |id: Option<u32>, own| id.is_none_or(|id| id == own);
        if !is_owner(uid, file.owner.0) || !is_owner(gid, file.owner.1) {
            // Whose it is at the target is not for us to say.
            return reply.error(Errno::EPERM);
        }
        if let Some(mode) = mode {
            lock(&file.entry).mode = mode;
        }
        match size {
            None => reply.attr(&TTL, &file.attributes()),
            Some(_) if !state.open.contains_key(&ino) => reply.error(Errno::ESPIPE),
            Some(bytes) => {
                let _ = file.ops.send(Op::Resize { bytes, reply });
            }
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_new(req, parent, name, mode) {
            Ok(file) => {
                let attributes = file.attributes();
                reply.created(&TTL, &attributes, Generation(0), handle(&file), HOW);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_again(req, ino, flags) {
            Ok(file) => reply.opened(handle(&file), HOW),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = match lock(&self.0.state).file(ino) {
            Ok(file) => file,
            Err(_) => return reply.error(Errno::EIO),
        };
        let mut bytes = std::mem::take(&mut *lock(&file.spare));
        bytes.clear();
        bytes.extend_from_slice(data);
        let _ = file.ops.send(Op::Write {
            offset,
            bytes,
            reply,
        });
    }

    fn flush(&self, req: &Request, ino: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let Ok(file) = lock(&self.0.state).file(ino) else {
            return reply.error(Errno::EIO);
        };
        if killed::is_being_killed(req.pid()) {
            let _ = file.ops.send(Op::Cancel);
        }
        // What was written before is in the pool. Whoever closes an inherited descriptor does not wait for those who write.
        match file.has_failed.load(Ordering::Relaxed) {
            false => reply.ok(),
            true => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match lock(&self.0.state).file(ino) {
            Ok(file) => drop(file.ops.send(Op::Flush(reply))),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let mut state = lock(&self.0.state);
        if let Some(open) = state.open.get_mut(&ino) {
            *open -= 1;
            if *open == 0 {
                state.open.remove(&ino);
                if let Ok(file) = state.file(ino) {
                    let _ = file.ops.send(Op::End);
                }
            }
        }
        reply.ok();
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        match self.rename((parent, name), (newparent, newname), flags) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = lock(&self.0.state);
        let file = match state.named(parent, name) {
            Ok(file) => file,
            Err(errno) => return reply.error(errno),
        };
        // Nobody finds it any more; who has it open is told, and ends it.
        state.files.remove(&file.ino);
        let _ = file.ops.send(Op::Cancel);
        if state.open.remove(&file.ino).is_some() {
            let _ = file.ops.send(Op::End);
        }
        drop(state);
        self.0.changed.notify_all();
        reply.ok();
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        let state = lock(&self.0.state);
        let names: Vec<_> = state
            .files
            .values()
            .map(|file| (file.ino, lock(&file.entry).name.clone()))
            .collect();
        let names = names.iter().map(|(ino, name)| (*ino, &**name));
        mounted::list(names, offset, reply);
    }
}
