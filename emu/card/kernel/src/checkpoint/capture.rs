//! Capture: a tree of processes to a stream.

use std::{collections::BTreeMap, sync::Arc};

use snaprig_card_driver::{
    clock::{self, monotonic},
    errno::Errno,
    file::File,
    wait::{Stop, SysResult},
};
use snaprig_card_fs::{
    Open,
    files::{pipe::PipeEnd, queue::Queue, regular::RegularFile, socket::Socket},
    image::{
        Describer, Numbered,
        stored::{PAGES_START, Storing},
    },
};
use snaprig_card_image::writer::{StartError, Writer};
use snaprig_card_memory::{CardMemory, PAGE, USER_END};
use snaprig_card_platform::{Cpu, Regs};
use snaprig_image::transport::Outbox;
use snaprig_wire::{checkpoint as wire, frame};

use super::{Service, Work, is_request, tree};
use crate::{
    call::Call,
    checkpoint::{
        hold::let_others_go,
        image::{ProcessImage, SpaceImage, ThreadImage, TreeImage, restartable},
        pages::{self, Base, Chain, Extent, PageQueue, Said, checksum},
    },
    mm::{AddressSpace, Area, Backing},
    state::{State, Thread, lock},
};

/// What a caller wants of a capture.
#[derive(Clone, Copy)]
struct How {
    /// 0, or which image of a chain.
    chain: u32,
    holds: bool,
    live: bool,
    mapped: bool,
    /// Files that are mapped shared come to the other card by another way.
    apart: bool,
}

impl How {
    fn of(flags: u32) -> Option<Self> {
        let has = |flag| flags & flag != 0;
        let how = Self {
            chain: flags & !(wire::HOLD | wire::LIVE | wire::MAPPED | wire::APART),
            holds: has(wire::HOLD),
            live: has(wire::LIVE),
            mapped: has(wire::MAPPED),
            apart: has(wire::APART),
        };
        let is_known = [0, wire::TRACK, wire::INCREMENT].contains(&how.chain);
        let is_whole = how.chain == 0 && !how.mapped;
        let fits = !(how.live && (how.holds || how.chain == 0)) && (is_whole || !how.apart);
        (is_known && fits).then_some(how)
    }
}

/// An image on its way out.
pub struct ImageWriter {
    writer: Writer<Outbox>,
    /// Pages that are still to come.
    pages: PageQueue,
    /// What the next image can build on once this one is out.
    base: Option<Base>,
}

impl Call<'_> {
    pub(super) fn capture(&mut self, service: &Service, argument: u64) -> SysResult {
        let [argument] = self.read_words(argument)?;
        let (fd, flags) = (argument as i32, (argument >> 32) as u32);
        let how = How::of(flags).ok_or(Errno::EINVAL)?;
        let files = self.process().files.clone();
        let to = lock(&files).get(fd)?;
        to.check_writable()?;
        let mut writing = match service.take(self.tid) {
            Some(Work::Capture(writing)) => writing,
            _ => {
                let tree = self.stop_others()?;
                if !self.is_read_outside(&tree, &to) {
                    tracing::warn!("nobody but who is captured would read the image");
                    return Err(Errno::EDEADLK.into());
                }
                let regular = to.file.as_any().downcast_ref::<RegularFile>();
                let target = regular.map(|file| file.inode().clone());
                let storing = Storing::new(target, how.mapped);
                let writing = self.begin(&tree, how, storing)?;
                if how.live {
                    let_others_go(self.state, self.tid);
                }
                Box::new(writing)
            }
        };
        loop {
            let Some(part) = writing.writer.sink().front() else {
                let ImageWriter { writer, pages, .. } = &mut *writing;
                if writer.step(pages).map_err(|_| Errno::EIO)? {
                    continue;
                }
                let said = std::mem::take(&mut writing.pages.said);
                let base = writing.base.take();
                self.process().chain = base.zip(writing.writer.id()).map(|(mut base, id)| {
                    base.said.extend(said);
                    Chain { id, base }
                });
                self.thread().holds = how.holds;
                return Ok(0);
            };
            match self.with_file(&to, |file, cx| file.write(cx, part)) {
                Ok(count) => writing.writer.sink().took(count),
                Err(Stop::Wait(wait)) => {
                    service.keep(self.tid, Work::Capture(writing));
                    return Err(Stop::Wait(wait));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Remembers what shared file pages hold. They may change meanwhile: then they are not what was
    /// remembered, and so in the image.
    pub(super) fn mark(&mut self) -> u64 {
        let mm = self.process().mm.clone();
        let (mm, memory) = (lock(&mm), &self.kernel.memory);
        let mut marked = BTreeMap::new();
        for (start, area) in mm.areas().filter(|(_, area)| is_saved_elsewhere(area)) {
            mm.present(start, area.end, |va, frame| {
                marked.insert(va, checksum(memory, frame));
            });
        }
        self.process().marked = Some(Arc::new(marked));
        0
    }

    /// Others have written to memory of the process, past what notices it.
    pub(super) fn wrote(&mut self, argument: u64) -> SysResult {
        let [address, bytes] = self.read_words(argument)?;
        let end = address
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(PAGE));
        let end = end.filter(|end| *end <= USER_END).ok_or(Errno::EINVAL)?;
        let start = address & !(PAGE - 1);
        let mm = self.process().mm.clone();
        let (mm, dirty) = (lock(&mm), self.kernel.memory.dirty());
        for (area_start, area) in mm
            .areas()
            .filter(|(at, area)| *at < end && area.end > start)
        {
            let (from, to) = (start.max(area_start), end.min(area.end));
            match &area.backing {
                // Others see pages of it that this process has not touched.
                Backing::File { inode, offset, .. } if area.shared => {
                    let written = offset + (from - area_start)..offset + (to - area_start);
                    inode.each_frame(|at, frame| {
                        if written.contains(&at) {
                            dirty.mark(frame);
                        }
                    });
                }
                _ => mm.present(from, to, |_, frame| dirty.mark(frame)),
            }
        }
        Ok(0)
    }

    /// Waits until every other thread of the tree is parked outside ring 3, its extended state saved.
    /// Returns the tree's processes, the caller's first.
    fn stop_others(&mut self) -> Result<Vec<i32>, Stop> {
        let me = self.tid;
        let tree = tree(self.state, self.pid);
        for pid in &tree {
            let by = self.state.process(*pid).stopped_by;
            if by.is_some_and(|by| by != me) {
                return Err(Errno::EBUSY.into());
            }
        }
        let mut missing = false;
        for pid in &tree {
            self.state.process(*pid).stopped_by = Some(me);
            for tid in self.state.process(*pid).threads.clone() {
                let thread = self.state.thread(tid);
                if tid != me && !thread.parked {
                    missing = true;
                    thread.poke();
                }
            }
        }
        match missing {
            true => Err(Stop::wait(self.thread().channel)),
            false => Ok(tree),
        }
    }

    /// Whether what is written to a pipe or socket is read by a process that is not of the tree.
    fn is_read_outside(&mut self, tree: &[i32], to: &Open) -> bool {
        let Some(queue) = written_queue(&*to.file) else {
            return true;
        };
        let others = self.state.processes.values();
        let mut others = others.filter(|process| !tree.contains(&process.pid));
        others.any(|process| {
            let files = lock(&process.files);
            files.files().any(|open| reads(&*open.file, &queue))
        })
    }

    /// The image's beginning, and the list of its pages.
    fn begin(&mut self, tree: &[i32], how: How, mut storing: Storing) -> Result<ImageWriter, Stop> {
        // Unless this image is written to its end, there is nothing to build on.
        let last = self.process().chain.take();
        let last = match how.chain {
            wire::INCREMENT => Some(last.ok_or(Errno::ENODATA)?),
            _ => None,
        };
        let own = match &self.thread().xstate {
            Some(saved) => saved.clone(),
            None => self.cpu.xstate().map_err(|_| Errno::EIO)?,
        };
        self.thread().xstate = Some(own);
        let (mut spaces, mut tables) = (Numbered::default(), Numbered::default());
        let (mut contexts, mut actions) = (Numbered::default(), Numbered::default());
        // The marks of each space.
        let mut marks: Vec<Option<Arc<BTreeMap<u64, u64>>>> = Vec::new();
        let mut processes = Vec::new();
        for pid in tree {
            let threads = self.threads(*pid)?;
            let process = self.state.process(*pid);
            let space = spaces.meet(&process.mm);
            marks.resize(spaces.met().len(), None);
            if !how.mapped && !how.apart {
                marks[space as usize].clone_from(&process.marked);
            }
            let process = ProcessImage {
                space,
                table: tables.meet(&process.files),
                context: contexts.meet(&process.fs),
                actions: actions.meet(&process.actions),
                threads,
                ..ProcessImage::of(process)
            };
            processes.push(process);
        }
        let spaces: Vec<_> = spaces.met().iter().map(lock).collect();
        for (mm, marked) in spaces.iter().zip(&marks) {
            let areas = mm.areas().filter(|_| marked.is_some() || how.apart);
            for (_, area) in areas.filter(|(_, area)| is_saved_elsewhere(area)) {
                if let Backing::File { inode, .. } = &area.backing {
                    storing.skip(inode);
                }
            }
        }
        let vfs = &self.state.vfs;
        let mut describer = Describer::new(vfs, &self.state.sockets, storing);
        for table in tables.met() {
            describer.table(&lock(table));
        }
        let mut files = describer.describe();
        let mut storing = describer.storing;
        let space_images = spaces
            .iter()
            .map(|mm| SpaceImage::of(mm, vfs, &mut storing))
            .collect();
        files.stored = storing.images();
        let memory = &self.kernel.memory;
        // What is saved elsewhere, but has changed since.
        let has_changed = |space: usize, area: &Area, va, frame| {
            marks[space].as_ref().is_some_and(|marked| {
                is_saved_elsewhere(area) && marked.get(&va) != Some(&checksum(memory, frame))
            })
        };
        let all: Vec<_> = spaces.iter().map(|mm| &**mm).collect();
        let mut pages = pages::list(&all, &storing, has_changed);
        let epoch = match how.chain {
            0 => None,
            _ => Some(end_epoch(memory, self.cpu, &all, &pages)?),
        };
        let image = TreeImage {
            processes,
            spaces: space_images,
            contexts: contexts
                .met()
                .iter()
                .map(|fs| lock(fs).image(vfs))
                .collect(),
            actions: actions.met().iter().map(|a| lock(a).clone()).collect(),
            files,
            page_bytes: pages.iter().map(|extent| extent.pages * PAGE).sum(),
            live: how.live,
        };
        let mut base = epoch.map(|epoch| Base {
            epoch,
            extents: pages.clone(),
            said: Said::new(),
        });
        let (dirty, is_shared) = (memory.dirty(), memory.shared());
        // Of what is in a file that others have too, they tell.
        let is_told = |page: &Extent| how.mapped && page.address >= PAGES_START;
        let is_open = |page: &Extent| is_shared(page.frame) && !is_told(page);
        let (mut parent, mut gone) = (None, Vec::new());
        if let Some(Chain { id, base: last }) = last {
            (parent, gone) = (Some(id), last.gone(&pages));
            pages = last.changed(&pages, |page| match last.said.get(&page.address) {
                Some(said) if !is_told(page) => checksum(memory, page.frame) == *said,
                _ => !dirty.changed_since(page.frame, last.epoch) && !is_open(page),
            });
            if let Some(base) = &mut base {
                base.said = last.said;
                for page in pages.iter().flat_map(|extent| extent.each()) {
                    base.said.remove(&page.address);
                }
            }
        }
        // What no image builds on need not be compared with anything.
        let said = pages.iter().filter(|_| base.is_some());
        let said = said.flat_map(|extent| extent.each()).filter(is_open);
        let open = said.map(|page| page.address).collect();
        drop(is_shared);
        let process = frame::encode(&image);
        let writer = Writer::start(Outbox::default(), &process, parent, &gone);
        let writer = writer.map_err(|error| {
            tracing::warn!(%error, "a process is not captured");
            match error {
                StartError::TooLarge(_) => Errno::EFBIG,
                StartError::Memory(_) => Errno::ENOMEM,
            }
        })?;
        Ok(ImageWriter {
            writer,
            pages: PageQueue::new(memory, pages, open),
            base,
        })
    }

    /// What the image says of a process's threads.
    fn threads(&mut self, pid: i32) -> Result<Vec<ThreadImage>, Errno> {
        let tids = self.state.process(pid).threads.clone();
        tids.into_iter()
            .map(|tid| {
                let image = thread_image(self.state, tid, tid == self.tid)?;
                image.is_sound().then_some(image).ok_or_else(|| {
                    tracing::warn!(tid, "a thread's registers point out of user space");
                    Errno::EOVERFLOW
                })
            })
            .collect()
    }
}

/// Ends an epoch of write tracking: no CPU writes to these pages, from now on, without being noticed.
/// Returns the epoch that begins. `cpu` is of the first of the spaces.
fn end_epoch(
    memory: &CardMemory,
    cpu: &mut dyn Cpu,
    spaces: &[&AddressSpace],
    pages: &[Extent],
) -> Result<u32, Errno> {
    let untold = |error| {
        tracing::warn!(%error, "this host does not say what a process writes to");
        Errno::EOPNOTSUPP
    };
    memory.track_writes().map_err(untold)?;
    let mut cpu = Some(cpu);
    for mm in spaces {
        mm.show_writes(cpu.take());
    }
    let frames = pages.iter().map(Extent::frames);
    memory.dirty().end_epoch(frames).map_err(untold)
}

/// What a write to a pipe or socket goes into.
fn written_queue(file: &dyn File) -> Option<Arc<Queue>> {
    let file = file.as_any();
    if let Some(socket) = file.downcast_ref::<Socket>() {
        return socket.stream().ok().map(|stream| stream.outgoing.clone());
    }
    let (queue, ..) = file.downcast_ref::<PipeEnd>()?.ends();
    Some(queue.clone())
}

/// Whether it is an end that reads from `queue`.
fn reads(file: &dyn File, queue: &Arc<Queue>) -> bool {
    let file = file.as_any();
    let streams = file.downcast_ref::<Socket>().map(Socket::streams);
    let mut streams = streams.into_iter().flatten();
    let end = file.downcast_ref::<PipeEnd>();
    streams.any(|stream| Arc::ptr_eq(&stream.incoming, queue))
        || end.is_some_and(|end| end.ends().1 && end.is_of(queue))
}

/// What the image says of a thread that is parked, or that captures.
fn thread_image(state: &mut State, tid: i32, captures: bool) -> Result<ThreadImage, Errno> {
    let woken = state.futexes.is_woken(tid);
    let thread: &Thread = state.thread(tid);
    let is_ioctl = thread.call == Some(libc::SYS_ioctl as u64);
    if !captures && is_ioctl && is_request(thread.regs.rsi as u32) {
        // What it has read or written so far is lost to a restored one.
        return Err(Errno::EBUSY);
    }
    Ok(ThreadImage {
        tid,
        name: thread.name.clone(),
        regs: match captures {
            true => Regs {
                rax: wire::RESTARTED as u64,
                ..thread.regs
            },
            false => restartable(thread, woken),
        },
        xstate: thread.xstate.clone().ok_or(Errno::EIO)?,
        mask: thread.restore_mask.unwrap_or(thread.mask),
        pending: thread.pending.clone(),
        alt_stack: thread.alt_stack,
        clear_child_tid: thread.clear_child_tid,
        robust_list: thread.robust_list,
        deadline: thread.deadline.map(|end| end.saturating_sub(monotonic())),
        ran: thread.ran,
        affinity: thread.affinity.map(|set| set.to_vec()),
        policy: thread.policy,
        rseq: thread.rseq.moved(),
        vfork_child: thread.vfork_child,
    })
}

/// Whether an area is of a file that its process may have saved itself: local store is saved as files
/// (paper section 4.1). The card's clock is the card's.
fn is_saved_elsewhere(area: &Area) -> bool {
    area.shared
        && match &area.backing {
            Backing::File { inode, path, .. } => path != clock::PATH && inode.stat().nlink > 0,
            Backing::Anonymous | Backing::Device { .. } | Backing::Gone => false,
        }
}
