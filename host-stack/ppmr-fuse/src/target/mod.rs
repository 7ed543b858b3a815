//! The mount of a target: a flat directory, in which files appear as their streams begin.
//!
//! - A file is read front to back, by whoever opens it, and a read waits for bytes that have not come yet. What was read last
//!   (128 KiB at least) can be read again; what has gone by cannot (`ESPIPE`). Its size, as stat(2) has it, is what has been
//!   read.
//! - Its end is there only when all of it has come as it was written: otherwise the read fails (`EIO`).
//! - Who closes a file may open it again as long as all that was read of it is still kept. After that the file is gone, and
//!   its writer fails, unless all of it was read.
//! - Looking up a name that has not come yet waits, if that is wanted ([`Options::wait`]): who reads may begin before who
//!   writes.

mod file;
mod window;

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsStr,
    io,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, Request,
};
use snaprig_ppmr::driver::target::{Reader, TargetNode};

use self::file::{Ask, Closed, File, Stream};
use crate::{
    Outcome, layout,
    layout::Entry,
    lock,
    mounted::{self, Mounted, TTL},
};

/// Most files that nobody has opened yet; of more, the oldest goes.
const UNOPENED_MAX: usize = 4096;

/// How a target is mounted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How long whoever looks up a name waits for it to come.
    pub wait: Duration,
    /// So many files come, and no more: none are waited for after them.
    pub files: Option<usize>,
}

/// The mount of a target. Dropped, it is unmounted, and what is not whole yet fails.
#[derive(Debug)]
pub struct TargetMount {
    shared: Arc<Shared>,
    _mounted: Mounted,
}

/// Mounts a target on a directory.
///
/// Fails if there is no FUSE, the directory is not there, or this user may not mount on it.
pub fn mount_target(node: TargetNode, at: &Path, options: Options) -> io::Result<TargetMount> {
    let shared = Arc::new(Shared {
        node,
        options,
        time: SystemTime::now(),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let mounted = Mounted::new(Target(shared.clone()), at, &[MountOption::RO])?;
    let taking = shared.clone();
    thread::spawn(move || {
        while let Some(reader) = taking.node.next_reader() {
            let shared = taking.clone();
            thread::spawn(move || shared.take(reader));
        }
    });
    Ok(TargetMount {
        shared,
        _mounted: mounted,
    })
}

impl TargetMount {
    /// Where it listens.
    pub fn node(&self) -> &TargetNode {
        &self.shared.node
    }

    /// Waits for a file that was read, or has failed: what became of it. None: there are as many as were to come, or somebody
    /// has it stop ([`Self::stop`]), which is the failure of those that have come and were not read.
    pub fn next(&self) -> Option<Outcome> {
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(outcome) = state.outcomes.pop_front() {
                state.told += 1;
                return Some(outcome);
            }
            if state.is_stopped || self.shared.options.files == Some(state.told) {
                return None;
            }
            let changed = self.shared.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody waits any longer.
    pub fn stop(&self) {
        self.shared.stop();
    }
}

impl Drop for TargetMount {
    fn drop(&mut self) {
        self.shared.stop();
        self.shared.node.stop();
        // Their threads end with whoever asks them.
        lock(&self.shared.state).files.clear();
    }
}

#[derive(Debug)]
struct Shared {
    node: TargetNode,
    options: Options,
    time: SystemTime,
    state: Mutex<State>,
    changed: Condvar,
}

/// A file, and the thread that has its stream, which ends with this.
struct Coming {
    file: Arc<File>,
    asks: Sender<Ask>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<INodeNo, Coming>,
    /// How many have come.
    come: usize,
    /// Streams that have begun and are not over, those that have no name yet included.
    under_way: usize,
    outcomes: VecDeque<Outcome>,
    /// How many somebody was told of.
    told: usize,
    is_stopped: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("come", &self.come)
            .field("outcomes", &self.outcomes)
            .finish_non_exhaustive()
    }
}

impl State {
    fn find(&self, name: &OsStr) -> Option<&Arc<File>> {
        let mut files = self.files.values().map(|coming| &coming.file);
        files.find(|file| lock(&file.entry).name == name)
    }

    /// A stream is over: what became of it, if that is for anybody to hear.
    fn over(&mut self, outcome: Option<Outcome>) {
        self.under_way -= 1;
        if !self.is_stopped {
            self.outcomes.extend(outcome.inspect(Outcome::log));
        }
    }

    /// Nobody waits any longer: whatever was not read by now has failed.
    fn stop(&mut self) {
        if self.is_stopped {
            return;
        }
        self.is_stopped = true;
        let why = || Some("stopped before all of it was read".to_owned());
        let named = self.files.values().map(|coming| coming.file.outcome(why()));
        let nameless = self.under_way - self.files.len();
        let nameless = std::iter::repeat_with(|| Outcome {
            name: "without a name".into(),
            bytes: 0,
            failure: why(),
        })
        .take(nameless);
        self.outcomes
            .extend(named.chain(nameless).inspect(Outcome::log));
    }

    /// Has nobody wait for files that nobody opens.
    fn make_room(&mut self) {
        let is_unopened = |coming: &Coming| coming.file.open.load(Ordering::Relaxed) == 0;
        let unopened = self.files.iter().filter(|(_, coming)| is_unopened(coming));
        let oldest = unopened.clone().next().map(|(ino, _)| *ino);
        if unopened.count() > UNOPENED_MAX
            && let Some(oldest) = oldest
        {
            self.files.remove(&oldest);
        }
    }
}

impl Shared {
    fn stop(&self) {
        lock(&self.state).stop();
        self.changed.notify_all();
    }

    /// Has a stream be a file, until it is over.
    fn take(&self, mut reader: Reader) {
        lock(&self.state).under_way += 1;
        let (rank, head) = (reader.stream().rank, layout::read_head(&mut reader));
        match head {
            Ok(entry) => self.serve(reader, entry),
            Err(error) => lock(&self.state).over(Some(Outcome {
                name: format!("rank {rank}").into(),
                bytes: 0,
                failure: Some(error.to_string()),
            })),
        }
        self.changed.notify_all();
    }

    fn serve(&self, reader: Reader, entry: Entry) {
        let (asks, asked) = channel();
        let file = {
            let mut state = lock(&self.state);
            state.come += 1;
            let ino = INodeNo(INodeNo::ROOT.0 + state.come as u64);
            if state.find(&entry.name).is_some() {
                return state.over(Some(Outcome {
                    name: entry.name,
                    bytes: 0,
                    failure: Some("another file of this name is there".into()),
                }));
            }
            let file = Arc::new(File {
                ino,
                time: SystemTime::now(),
                entry: Mutex::new(entry),
                bytes: 0.into(),
                open: AtomicU32::new(0),
            });
            state.files.insert(
                ino,
                Coming {
                    file: file.clone(),
                    asks,
                },
            );
            state.make_room();
            file
        };
        self.changed.notify_all();
        let renamed = |entry: Entry| self.rename(&file, entry);
        let mut stream = Stream::new(&file, reader);
        loop {
            let closed = stream.serve(&asked, &renamed);
            let mut state = lock(&self.state);
            // Somebody has opened it meanwhile.
            if closed.is_some() && file.open.load(Ordering::Relaxed) > 0 {
                continue;
            }
            let failure = match closed {
                // Nobody asks any more.
                None => return state.over(None),
                Some(Closed::Waits) => continue,
                Some(Closed::Whole) => None,
                Some(Closed::Failed(failure)) => Some(failure),
            };
            state.files.remove(&file.ino);
            return state.over(Some(file.outcome(failure)));
        }
    }

    /// Whoever wrote the file calls it something else.
    fn rename(&self, file: &File, entry: Entry) {
        let state = lock(&self.state);
        let is_other = |other: &Arc<File>| other.ino != file.ino;
        if state.find(&entry.name).is_some_and(is_other) {
            tracing::warn!(
                "{}: another file of this name is there",
                entry.name.display()
            );
            return;
        }
        *lock(&file.entry) = entry;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for a file of this name.
    fn wait_for(&self, name: &OsStr) -> Option<Arc<File>> {
        let until = Instant::now() + self.options.wait;
        let mut state = lock(&self.state);
        loop {
            let found = state.find(name).cloned();
            let left = until.saturating_duration_since(Instant::now());
            if found.is_some() || left.is_zero() || !self.may_come(&state) {
                return found;
            }
            let changed = self.changed.wait_timeout(state, left);
            state = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether there may be files that are not there yet.
    fn may_come(&self, state: &State) -> bool {
        !state.is_stopped && self.options.files.is_none_or(|files| state.come < files)
    }
}

/// What the kernel asks.
struct Target(Arc<Shared>);

impl Target {
    fn attributes(&self, file: &File) -> fuser::FileAttr {
        let root = mounted::directory(0o555, self.0.time);
        file.attributes((root.uid, root.gid))
    }

    fn entry(&self, file: Option<&Arc<File>>, reply: ReplyEntry) {
        match file {
            Some(file) => reply.entry(&TTL, &self.attributes(file), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }
}

impl Clone for Target {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Filesystem for Target {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Whoever waits for a name does not keep others from looking up theirs.
        mounted::agree(config, InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let state = lock(&self.0.state);
        let found = state.find(name).cloned();
        if found.is_some() || self.0.options.wait.is_zero() || !self.0.may_come(&state) {
            return self.entry(found.as_ref(), reply);
        }
        drop(state);
        let (own, name) = (self.clone(), name.to_owned());
        thread::spawn(move || own.entry(own.0.wait_for(&name).as_ref(), reply));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if ino == INodeNo::ROOT {
            return reply.attr(&TTL, &mounted::directory(0o555, self.0.time));
        }
        match lock(&self.0.state).files.get(&ino) {
            Some(coming) => reply.attr(&TTL, &self.attributes(&coming.file)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match lock(&self.0.state).files.get(&ino) {
            Some(coming) => {
                coming.file.open.fetch_add(1, Ordering::Relaxed);
                // How long a file is, is not known: the page cache would end it too early.
                reply.opened(FileHandle(ino.0), FopenFlags::FOPEN_DIRECT_IO);
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = lock(&self.0.state);
        let Some(coming) = state.files.get(&ino) else {
            return reply.error(Errno::EIO);
        };
        let _ = coming.asks.send(Ask::Read {
            offset,
            bytes,
            reply,
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
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
        let state = lock(&self.0.state);
        if let Some(coming) = state.files.get(&ino)
            && coming.file.open.fetch_sub(1, Ordering::Relaxed) == 1
        {
            let _ = coming.asks.send(Ask::Close);
        }
        reply.ok();
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        let state = lock(&self.0.state);
        let files = state.files.values().map(|coming| &coming.file);
        let names: Vec<_> = files
            .map(|file| (file.ino, lock(&file.entry).name.clone()))
            .collect();
        let names = names.iter().map(|(ino, name)| (*ino, &**name));
        mounted::list(names, offset, reply);
    }
}
