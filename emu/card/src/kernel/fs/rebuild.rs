//! Descriptors of a restored process, from what a snapshot says of them.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use serde::{Deserialize, Serialize};

use super::{
    FileTable, Open, RegularFile, Vfs,
    epoll::Epoll,
    event::Event,
    locks::{self, LocksImage},
    meta::Meta,
    nameless::{FileRef, Nameless},
    pipe::{PipeEnd, Queue},
    regular::Directory,
    socket::Socket,
    timer::Timer,
    tree::Node,
};
use crate::kernel::{
    errno::Errno,
    file::{Cx, Description, File},
    pidfd::PidFd,
    signalfd::SignalFd,
    wait::Stop,
};

/// One descriptor in a snapshot. Descriptors that share a description have the same `shared`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileImage {
    /// The number.
    pub fd: i32,
    /// Close on exec.
    pub close_on_exec: bool,
    /// `O_*` status flags.
    pub flags: i32,
    /// The same for duplicates.
    pub shared: u64,
    /// What it is.
    pub description: Description,
    /// What is locked of it.
    pub locks: LocksImage,
}

/// A file of the snapshot is not on this card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("descriptor {fd} ({path}): {errno}")]
pub struct RebuildError {
    /// The descriptor.
    pub fd: i32,
    /// What it referred to.
    pub path: String,
    /// Why it cannot be opened.
    pub errno: Errno,
}

/// What a snapshot says of a process's descriptors.
pub fn describe(files: &FileTable, vfs: &Vfs, nameless: &mut Nameless) -> Vec<FileImage> {
    files
        .iter()
        .map(|(fd, open, close_on_exec)| FileImage {
            fd,
            close_on_exec,
            flags: open.flags(),
            shared: Arc::as_ptr(open) as u64,
            description: describe_one(&*open.file, vfs, nameless),
            locks: locks::image(open, files.id()),
        })
        .collect()
}

/// A file knows the path that it was opened by; that may be another's, or nobody's, by now.
fn describe_one(file: &dyn File, vfs: &Vfs, nameless: &mut Nameless) -> Description {
    let mut description = file.describe();
    let Description::Path {
        path,
        flags,
        position,
    } = &mut description
    else {
        return description;
    };
    if let Some(directory) = file.as_any().downcast_ref::<Directory>()
        && directory.meta().lock().nlink > 0
    {
        *path = vfs.path_of(directory.node(), "");
    }
    if let Some(file) = file.as_any().downcast_ref::<RegularFile>() {
        match nameless.refer(vfs, file.inode(), path) {
            FileRef::Named(now) => {
                *path = now;
                if *flags & libc::O_TMPFILE == libc::O_TMPFILE {
                    *flags &= !libc::O_TMPFILE;
                }
            }
            FileRef::Nameless { index, path } => {
                return Description::Nameless {
                    index,
                    path,
                    flags: *flags,
                    position: *position,
                };
            }
        }
    }
    description
}

/// The descriptors again. 0 to 2 are `stdio` where the snapshot has a console.
pub fn rebuild(
    vfs: &mut Vfs,
    cx: &mut Cx,
    pid: i32,
    images: &[FileImage],
    nameless: &Nameless,
    stdio: &[Arc<dyn File>; 3],
) -> Result<FileTable, RebuildError> {
    let mut rebuilt: BTreeMap<u64, Arc<Open>> = BTreeMap::new();
    let mut queues: BTreeMap<u64, Arc<Queue>> = BTreeMap::new();
    let mut table = FileTable::default();
    nameless.finish().map_err(|errno| RebuildError {
        fd: -1,
        path: "nameless files".into(),
        errno,
    })?;
    for image in images {
        let open = match rebuilt.get(&image.shared) {
            Some(open) => open.clone(),
            None => {
                let (file, meta) = one(vfs, cx, image, nameless, stdio, &mut queues)?;
                Open::named(file, image.flags, meta)
            }
        };
        locks::restore(&open, (table.id(), pid), &image.locks, cx.wake).map_err(|errno| {
            RebuildError {
                fd: image.fd,
                path: "its locks".into(),
                errno,
            }
        })?;
        rebuilt.insert(image.shared, open.clone());
        table.insert_at(image.fd, open, image.close_on_exec, cx.wake);
    }
    for image in images {
        if let Description::Epoll { watched } = &image.description {
            watch_again(&table, image.fd, watched);
        }
    }
    // What a new queue has of its own; a pipe of which not every end was captured is at its end.
    for queue in queues.values() {
        queue.close_reader(cx.wake);
        queue.close_writer(cx.wake);
    }
    Ok(table)
}

/// A file again, and the attributes of its name.
type Rebuilt = (Arc<dyn File>, Option<Arc<Meta>>);

fn one(
    vfs: &mut Vfs,
    cx: &mut Cx,
    image: &FileImage,
    nameless: &Nameless,
    stdio: &[Arc<dyn File>; 3],
    queues: &mut BTreeMap<u64, Arc<Queue>>,
) -> Result<Rebuilt, RebuildError> {
    let failed = |path: &str, errno| RebuildError {
        fd: image.fd,
        path: path.into(),
        errno,
    };
    let mut meta = None;
    let file: Arc<dyn File> = match &image.description {
        Description::Path {
            path,
            flags,
            position,
        } => {
            let open = vfs.open_at(cx, path, *flags).map_err(|stop| match stop {
                Stop::Errno(errno) => failed(path, errno),
                Stop::Wait(_) => failed(path, Errno::EIO),
            })?;
            let file = open.file.clone();
            meta = open.meta.clone();
            if let Some(file) = file.as_any().downcast_ref::<RegularFile>() {
                place(file, *position).map_err(|errno| failed(path, errno))?;
            }
            if let Some(directory) = file.as_any().downcast_ref::<Directory>() {
                directory.position.store(*position, Ordering::Relaxed);
            }
            file
        }
        Description::Nameless {
            index,
            path,
            flags,
            position,
        } => {
            let inode = nameless.get(*index).map_err(|errno| failed(path, errno))?;
            let file = RegularFile::new(inode, path.clone(), *flags);
            place(&file, *position).map_err(|errno| failed(path, errno))?;
            file
        }
        Description::Device { path, flags } => {
            let node = vfs
                .lookup(vfs.root(), path, true)
                .map_err(|errno| failed(path, errno))?;
            meta = vfs.meta(node).ok().cloned();
            match vfs.node(node) {
                Some(Node::Device(device)) => device.open_disconnected(*flags),
                _ => return Err(failed(path, Errno::ENODEV)),
            }
        }
        Description::Pipe {
            id,
            reads,
            writes,
            capacity,
            bytes,
        } => {
            let queue = queues.entry(*id).or_insert_with(Queue::new);
            queue.restore(*capacity, bytes);
            PipeEnd::restored(queue, *reads, *writes, cx.wake)
        }
        Description::Event { count, flags } => Event::new(*count, *flags),
        Description::Timer {
            clock,
            left,
            interval,
            missed,
        } => Timer::new(*clock, *left, *interval, *missed),
        Description::Epoll { .. } => Epoll::new(),
        Description::Signals { mask } => SignalFd::new(*mask),
        Description::Process => PidFd::ended(),
        Description::Socket => Socket::reset(),
        Description::Console => stdio[usize::try_from(image.fd).unwrap_or(1).min(2)].clone(),
    };
    Ok((file, meta))
}

fn place(file: &RegularFile, position: u64) -> Result<(), Errno> {
    let position = i64::try_from(position).map_err(|_| Errno::EINVAL)?;
    file.seek(position, libc::SEEK_SET).map(|_| ())
}

fn watch_again(table: &FileTable, epfd: i32, watched: &[(i32, u32, u64)]) {
    let Ok(epoll) = table.get(epfd) else { return };
    let Some(epoll) = epoll.file.as_any().downcast_ref::<Epoll>() else {
        return;
    };
    for (fd, events, data) in watched {
        if let Ok(open) = table.get(*fd) {
            // The table holds it, and a new instance watches nothing twice.
            let _ = epoll.control(libc::EPOLL_CTL_ADD, *fd, &open, *events, *data);
        }
    }
}
