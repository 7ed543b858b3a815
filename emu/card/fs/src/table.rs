//! Descriptors of a process.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
};

use snaprig_card_driver::{errno::Errno, file::File, wait::Channel};

use crate::{
    files::regular::{Directory, PathOnly, RegularFile},
    locks::Locks,
    meta::Meta,
};

/// An open file description: the file and its status flags, shared by duplicates.
pub struct Open {
    /// The file.
    pub file: Arc<dyn File>,
    /// The attributes of the name that it was opened by, if the file does not know them itself.
    pub meta: Option<Arc<Meta>>,
    flags: AtomicI32,
}

impl Open {
    /// A description with the `O_*` flags of open(2).
    pub fn new(file: Arc<dyn File>, flags: i32) -> Arc<Self> {
        Self::named(file, flags, None)
    }

    /// The same of something that has these attributes.
    pub fn named(file: Arc<dyn File>, flags: i32, meta: Option<Arc<Meta>>) -> Arc<Self> {
        Arc::new(Self {
            file,
            meta,
            flags: AtomicI32::new(flags),
        })
    }

    /// Attributes of what is open, if that has any of its own.
    pub fn attributes(&self) -> Option<&Arc<Meta>> {
        let file = self.file.as_any();
        if let Some(file) = file.downcast_ref::<RegularFile>() {
            return Some(file.inode().meta());
        }
        if let Some(directory) = file.downcast_ref::<Directory>() {
            return Some(directory.meta());
        }
        if let Some(place) = file.downcast_ref::<PathOnly>() {
            return Some(place.meta());
        }
        self.meta.as_ref()
    }

    /// The locks of what is open, and the description's name among owners. What has no name in the tree cannot be
    /// opened twice, so nobody else ever locks it.
    pub fn locks(&self) -> Option<(&Locks, u64)> {
        let file = self.file.as_any();
        if let Some(file) = file.downcast_ref::<RegularFile>() {
            return Some((&file.inode().meta().locks, file.id()));
        }
        let directory = file.downcast_ref::<Directory>()?;
        Some((&directory.meta().locks, directory.id()))
    }

    /// Whether it says where something is, and no more (open(2), O_PATH).
    pub fn is_path_only(&self) -> bool {
        self.flags() & libc::O_PATH != 0
    }

    /// Its status flags.
    pub fn flags(&self) -> i32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the flags that fcntl(2) may set.
    pub fn set_flags(&self, flags: i32) {
        let settable = libc::O_NONBLOCK | libc::O_APPEND | libc::O_DIRECT | libc::O_NOATIME;
        self.flags.store(
            self.flags() & !settable | flags & settable,
            Ordering::Relaxed,
        );
    }

    /// EBADF unless it was opened for reading.
    pub fn check_readable(&self) -> Result<(), Errno> {
        match self.flags() & libc::O_ACCMODE {
            libc::O_WRONLY | libc::O_ACCMODE => Err(Errno::EBADF),
            _ => Ok(()),
        }
    }

    /// EBADF unless it was opened for writing.
    pub fn check_writable(&self) -> Result<(), Errno> {
        match self.flags() & libc::O_ACCMODE {
            libc::O_RDONLY | libc::O_ACCMODE => Err(Errno::EBADF),
            _ => Ok(()),
        }
    }

    /// Whether calls on it do not wait.
    pub fn nonblock(&self) -> bool {
        self.flags() & libc::O_NONBLOCK != 0
    }
}

/// Descriptor numbers and what they refer to.
pub struct FileTable {
    entries: BTreeMap<i32, (Arc<Open>, bool)>,
    /// Which table this is, among those who lock files.
    id: u64,
}

impl Default for FileTable {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            entries: BTreeMap::new(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Locks are the original's (fork(2)).
impl Clone for FileTable {
    fn clone(&self) -> Self {
        Self {
            entries: self.entries.clone(),
            ..Self::default()
        }
    }
}

impl FileTable {
    /// Descriptors 0, 1 and 2.
    pub fn new(stdio: [Arc<dyn File>; 3]) -> Self {
        let mut table = Self::default();
        for (fd, file) in stdio.into_iter().enumerate() {
            table
                .entries
                .insert(fd as i32, (Open::new(file, libc::O_RDWR), false));
        }
        table
    }

    /// Which table this is, among those who lock files.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What `fd` refers to. One that only says where something is cannot be worked with (open(2),
    /// O_PATH).
    pub fn get(&self, fd: i32) -> Result<Arc<Open>, Errno> {
        let open = self.get_any(fd)?;
        match open.is_path_only() {
            true => Err(Errno::EBADF),
            false => Ok(open),
        }
    }

    /// What `fd` refers to, even if it only says where something is.
    pub fn get_any(&self, fd: i32) -> Result<Arc<Open>, Errno> {
        self.entries
            .get(&fd)
            .map(|(open, _)| open.clone())
            .ok_or(Errno::EBADF)
    }

    /// EMFILE unless `count` numbers below `limit` are free. A call that makes a file asks first, so
    /// that nothing is made, accepted or created in vain.
    pub fn check_room(&self, count: usize, limit: usize) -> Result<(), Errno> {
        let end = i32::try_from(limit).unwrap_or(i32::MAX);
        match limit.saturating_sub(self.entries.range(..end).count()) {
            free if free < count => Err(Errno::EMFILE),
            _ => Ok(()),
        }
    }

    /// The lowest free number from `from` on, below `limit`.
    pub fn insert(
        &mut self,
        open: Arc<Open>,
        close_on_exec: bool,
        from: i32,
        limit: usize,
    ) -> Result<i32, Errno> {
        let mut fd = from;
        for used in self.entries.range(from..).map(|(fd, _)| *fd) {
            if used != fd {
                break;
            }
            fd += 1;
        }
        if fd as usize >= limit {
            return Err(Errno::EMFILE);
        }
        self.entries.insert(fd, (open, close_on_exec));
        Ok(fd)
    }

    /// Puts a description at a number; what was there is closed.
    pub fn insert_at(
        &mut self,
        fd: i32,
        open: Arc<Open>,
        close_on_exec: bool,
        wake: &mut dyn FnMut(Channel),
    ) {
        if let Some((old, _)) = self.entries.insert(fd, (open, close_on_exec)) {
            self.let_go(old, wake);
        }
    }

    /// Closes one descriptor.
    pub fn close(&mut self, fd: i32, wake: &mut dyn FnMut(Channel)) -> Result<(), Errno> {
        let (open, _) = self.entries.remove(&fd).ok_or(Errno::EBADF)?;
        self.let_go(open, wake);
        Ok(())
    }

    /// With any descriptor of a file the locks of the table go (fcntl(2)).
    fn let_go(&self, open: Arc<Open>, wake: &mut dyn FnMut(Channel)) {
        if let Some((locks, _)) = open.locks() {
            locks.forget_table(self.id, wake);
        }
        release(open, wake);
    }

    /// Closes what execve(2) closes.
    pub fn close_on_exec(&mut self, wake: &mut dyn FnMut(Channel)) {
        let closing: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, (_, close))| *close)
            .map(|(fd, _)| *fd)
            .collect();
        for fd in closing {
            let _ = self.close(fd, wake);
        }
    }

    /// Closes everything.
    pub fn close_all(&mut self, wake: &mut dyn FnMut(Channel)) {
        for (open, _) in std::mem::take(&mut self.entries).into_values() {
            self.let_go(open, wake);
        }
    }

    /// The close-on-exec flag of `fd`.
    pub fn closes_on_exec(&self, fd: i32) -> Result<bool, Errno> {
        self.entries
            .get(&fd)
            .map(|(_, close)| *close)
            .ok_or(Errno::EBADF)
    }

    /// Sets the close-on-exec flag of `fd`.
    pub fn set_close_on_exec(&mut self, fd: i32, close: bool) -> Result<(), Errno> {
        self.entries.get_mut(&fd).ok_or(Errno::EBADF)?.1 = close;
        Ok(())
    }

    /// Every descriptor: number, description, close-on-exec.
    pub fn iter(&self) -> impl Iterator<Item = (i32, &Arc<Open>, bool)> {
        self.entries
            .iter()
            .map(|(fd, (open, close))| (*fd, open, *close))
    }

    /// Every description.
    pub fn files(&self) -> impl Iterator<Item = &Arc<Open>> {
        self.entries.values().map(|(open, _)| open)
    }
}

/// Runs the file's `release` if this was the last reference. All references live in tables, or are on
/// their way from one to another, and are only touched under the kernel lock.
pub fn release(open: Arc<Open>, wake: &mut dyn FnMut(Channel)) {
    if let Some(open) = Arc::into_inner(open) {
        open.file.release(wake);
    }
}
