//! Capture and restore of processes: `/dev/card/checkpoint` (see `snaprig_wire::checkpoint`), the
//! part that BLCR's kernel module plays in the paper (sections 4.1 and 4.3).
//!
//! ```text
//! capture:  stop the tree's threads --> describe --> pages, run by run --> end --> let them go on, or
//!                                                                             hold them until they end
//! restore:  process chunk --> areas, files --> pages --> end --> descriptors, names --> threads start
//! preload:  process chunk --> areas, files --> pages --> end: the next image of its chain builds on what is there
//! ```
//! Both are calls that wait for a file descriptor and are run again; what they have done so far is
//! kept in the open device file, by thread.
//!
//! | file | what it is |
//! |---|---|
//! | `image` | what an image says, but for pages |
//! | `pages` | lists of pages, and what has changed since the last image |
//! | `capture`, `restore` | the two calls |
//! | `hold` | who is stopped, and for how long |
//!
//! What must stay true: what cannot be restored is not captured; a stopped process does not run, and
//! does not end, until its image is written (or given up: a signal ends either call with EINTR); a
//! process that is being restored does not run before the last byte of its image has been checked, and
//! leaves nothing behind if one is wrong, or if the card is full.
//!
//! A process is captured with its descendants, and what they share (memory, descriptions, pipes, connections) is shared
//! again after a restore.

mod capture;
pub(crate) mod hold;
mod image;
pub(crate) mod pages;
mod restore;

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use snaprig_card_driver::{
    clock::monotonic,
    device::CharDevice,
    errno::Errno,
    file::{Cx, Description, File},
    wait::{Stop, SysResult},
};
use snaprig_card_fs::{Open, Sockets, Vfs};
use snaprig_image::ImageId;
use snaprig_wire::checkpoint as wire;

pub use self::pages::Chain;
use crate::{
    call::Call,
    checkpoint::{
        capture::ImageWriter,
        hold::let_others_go,
        restore::{ImageReader, Tree},
    },
    state::{State, lock},
};

/// The device.
#[derive(Default)]
pub struct CheckpointDevice;

impl CharDevice for CheckpointDevice {
    fn open(&self, _cx: &mut Cx, flags: i32) -> SysResult<Arc<dyn File>> {
        Ok(self.open_disconnected(flags))
    }

    fn open_disconnected(&self, _flags: i32) -> Arc<dyn File> {
        Arc::new(Service::default())
    }
}

/// An open descriptor of the device, with the work of each thread that is in the middle of a call.
#[derive(Default)]
struct Service {
    work: Mutex<BTreeMap<i32, Work>>,
    preloaded: Mutex<Option<Preloaded>>,
}

/// What the last image that was preloaded says, and its ids.
struct Preloaded {
    ids: [Option<ImageId>; 2],
    tree: Tree,
}

enum Work {
    Capture(Box<ImageWriter>),
    Restore(Box<ImageReader>),
}

impl Service {
    fn take(&self, tid: i32) -> Option<Work> {
        self.lock().remove(&tid)
    }

    fn keep(&self, tid: i32, work: Work) {
        self.lock().insert(tid, work);
    }

    fn keep_preloaded(&self, preloaded: Preloaded) {
        *self.preloaded() = Some(preloaded);
    }

    fn take_preloaded(&self) -> Option<Preloaded> {
        self.preloaded().take()
    }

    fn preloaded(&self) -> MutexGuard<'_, Option<Preloaded>> {
        let preloaded = self.preloaded.lock();
        preloaded.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for Service {
    fn describe(&self) -> Description {
        Description::Device {
            path: wire::PATH.into(),
            flags: libc::O_RDWR,
        }
    }

    fn abandon(&self, tid: i32) {
        self.take(tid);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Call<'_> {
    /// Runs the call if it is an ioctl on the checkpoint device.
    pub fn checkpoint(&mut self, number: u64, a: [u64; 6]) -> Option<SysResult> {
        let request = a[1] as u32;
        if number as i64 != libc::SYS_ioctl || !is_request(request) {
            return None;
        }
        let files = self.process().files.clone();
        let open = lock(&files).get(a[0] as i32).ok()?;
        let service = open.file.as_any().downcast_ref::<Service>()?;
        let result = match request {
            wire::CAPTURE => self.capture(service, a[2]),
            wire::MARK => Ok(self.mark()),
            wire::RELEASE => Ok(0),
            wire::WROTE => self.wrote(a[2]),
            wire::PRELOAD => self.preload(service, a[2]),
            _ => self.restore(service, a[2]),
        };
        let goes_on = matches!(result, Err(Stop::Wait(_)));
        let goes_on = goes_on || result.is_ok() && self.thread().holds;
        if request == wire::RELEASE || request == wire::CAPTURE && !goes_on {
            let_others_go(self.state, self.tid);
        }
        Some(result)
    }

    pub(super) fn with_file<T>(
        &mut self,
        open: &Arc<Open>,
        f: impl FnOnce(&dyn File, &mut Cx) -> SysResult<T>,
    ) -> SysResult<T> {
        let (nonblock, append) = (open.nonblock(), open.flags() & libc::O_APPEND != 0);
        self.with_cx(|_, _, cx| {
            cx.nonblock = nonblock;
            cx.append = append;
            f(&*open.file, cx)
        })
    }

    fn with_cx<T>(
        &mut self,
        f: impl FnOnce(&mut Vfs, &mut Sockets, &mut Cx) -> SysResult<T>,
    ) -> SysResult<T> {
        let mm = self.process().mm.clone();
        let waker = self.kernel.waker();
        let (tid, pid, identity) = (self.tid, self.pid, self.identity());
        let mut woken = Vec::new();
        let result = {
            let mut wake = |channel| woken.push(channel);
            let mut cx = Cx {
                tid,
                pid,
                identity,
                memory: &mut *lock(&mm),
                wake: &mut wake,
                waker: &waker,
                nonblock: false,
                append: false,
                now: monotonic(),
            };
            f(&mut self.state.vfs, &mut self.state.sockets, &mut cx)
        };
        for channel in woken {
            self.state.wake(channel);
        }
        result
    }
}

/// Whether an ioctl(2) request is one of the device's.
pub(super) fn is_request(request: u32) -> bool {
    [
        wire::CAPTURE,
        wire::MARK,
        wire::RESTORE,
        wire::RELEASE,
        wire::PRELOAD,
        wire::WROTE,
    ]
    .contains(&request)
}

/// A process and its descendants, itself first.
fn tree(state: &State, pid: i32) -> Vec<i32> {
    let (mut tree, mut at) = (vec![pid], 0);
    while let Some(&parent) = tree.get(at) {
        let children = state.processes.values().filter(|p| p.parent == parent);
        tree.extend(children.map(|process| process.pid));
        at += 1;
    }
    tree
}

fn refused(error: snaprig_card_image::stream::ImageError) -> Stop {
    tracing::warn!(%error, "a process image is refused");
    Errno::EBADMSG.into()
}
