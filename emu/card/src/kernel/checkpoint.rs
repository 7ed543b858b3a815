//! Capture and restore of processes: `/dev/card/checkpoint` (see `snaprig_wire::checkpoint`), the
//! part that BLCR's kernel module plays in the paper (sections 4.1 and 4.3).
//!
//! ```text
//! capture:  stop the other threads --> describe --> pages, run by run --> end --> let them go on
//! restore:  process chunk --> areas, descriptors --> pages --> end --> threads start
//! ```
//! Both are calls that wait for a file descriptor and are run again; what they have done so far is
//! kept in the open device file, by thread.
//!
//! What must stay true: what cannot be restored is not captured; a stopped process does not run until its image is written (or given up: a
//! signal ends either call with EINTR); a process that is being restored does not run before the
//! last byte of its image has been checked, and leaves nothing behind if one is wrong.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use snaprig_wire::{checkpoint as wire, frame};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    call::Call,
    clock,
    credentials::Credentials,
    device::CharDevice,
    errno::Errno,
    file::{Cx, Description, File},
    fs::{
        FsContext, Inode, Open, Span, Vfs,
        nameless::{self, FileRef, Nameless, NamelessImage},
        rebuild,
    },
    jobs::Job,
    limits::Limits,
    mm::{AddressSpace, Area, Backing, Traits},
    rseq::Rseq,
    sched::{Affinity, Policy, SET_BYTES},
    settings::Settings,
    signal::{Actions, AltStack, Pending, SigSet},
    state::{Process, State, Thread, lock},
    timers::Timers,
    wait::{Channel, Stop, SysResult},
};
use crate::{
    capture::stream::{Decoder, Encoder, Link, PAGES_AT, PAGES_MAX, Piece},
    memory::PAGE,
    platform::{Regs, USER_END},
    xstate,
};

/// Bytes that are written at once, if there are so many small runs.
const WRITE_MIN: usize = 256 << 10;
/// Bytes that are read at once.
const READ_MAX: usize = 64 << 10;
/// `syscall` is two bytes long.
const SYSCALL_BYTES: u64 = 2;

/// What an image says of a process, but for its pages.
#[derive(Debug, Serialize, Deserialize)]
struct ProcessImage {
    pid: i32,
    exe: String,
    argv: Vec<String>,
    brk: (u64, u64),
    areas: Vec<AreaImage>,
    files: Vec<rebuild::FileImage>,
    fs: FsContext,
    actions: Actions,
    pending: Pending,
    timers: Timers,
    limits: Limits,
    credentials: Credentials,
    settings: Settings,
    ran: Duration,
    children_ran: Duration,
    threads: Vec<ThreadImage>,
    nameless: Vec<NamelessImage>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AreaImage {
    start: u64,
    end: u64,
    prot: i32,
    shared: bool,
    traits: Traits,
    /// File, which must exist on the other card if it has a name, and offset.
    file: Option<(FileRef, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ThreadImage {
    tid: i32,
    name: String,
    regs: Regs,
    xstate: Vec<u8>,
    mask: SigSet,
    pending: Pending,
    alt_stack: AltStack,
    clear_child_tid: u64,
    robust_list: u64,
    /// The end of its timed wait, as time left.
    deadline: Option<Duration>,
    ran: Duration,
    /// The cores that it wants. Another card may have fewer: then it wants all of them.
    affinity: Option<Vec<u8>>,
    policy: Policy,
    rseq: Rseq,
}

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
}

enum Work {
    Capture(Writing),
    Restore(Box<Reading>),
}

impl Service {
    fn take(&self, tid: i32) -> Option<Work> {
        self.lock().remove(&tid)
    }

    fn keep(&self, tid: i32, work: Work) {
        self.lock().insert(tid, work);
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

/// An image of a process that the next one builds on.
pub struct Chain {
    id: u64,
    /// The epoch of write tracking that began with it.
    epoch: u32,
    /// Its pages, in ascending order: address and frame.
    pages: Vec<(u64, u64)>,
}

/// An image on its way out.
struct Writing {
    encoder: Encoder,
    /// What the process has once it is out.
    chain: Option<Chain>,
    /// Room for what is encoded.
    bytes: Vec<u8>,
    /// Bytes of it that are encoded, and that are written.
    encoded: usize,
    written: usize,
    /// Runs of pages that are still to come.
    runs: VecDeque<Run>,
    ended: bool,
}

impl Writing {
    /// Encodes a run of pages.
    fn add(&mut self, address: u64, len: usize, fill: impl FnOnce(&mut [u8])) {
        let end = self.encoded + PAGES_AT + len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let chunk = &mut self.bytes[self.encoded..end];
        self.encoder.pages(chunk, address, fill);
        self.encoded = end;
    }
}

/// Neighbouring pages of an image, from an address on.
enum Run {
    /// Frames of the process's memory; whether zeros need not be said.
    Memory(u64, VecDeque<u64>, bool),
    /// A part of a nameless file.
    File(u64, Arc<Inode>, Span),
}

/// An image on its way in.
struct Reading {
    decoder: Decoder,
    process: Option<(ProcessImage, AddressSpace, Nameless)>,
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
            _ => self.restore(service, a[2]),
        };
        let goes_on = matches!(result, Err(Stop::Wait(_)));
        if request == wire::CAPTURE && !goes_on {
            let_others_go(self.state, self.tid);
        }
        Some(result)
    }

    fn capture(&mut self, service: &Service, argument: u64) -> SysResult {
        let [argument] = self.read_words(argument)?;
        let (fd, flags) = (argument as i32, (argument >> 32) as u32);
        if ![0, wire::TRACK, wire::INCREMENT].contains(&flags) {
            return Err(Errno::EINVAL.into());
        }
        let files = self.process().files.clone();
        let to = lock(&files).get(fd)?;
        to.check_writable()?;
        let mut writing = match service.take(self.tid) {
            Some(Work::Capture(writing)) => writing,
            _ => {
                self.stop_others()?;
                self.begin(flags)?
            }
        };
        loop {
            if writing.written == writing.encoded && !self.encode_next(&mut writing) {
                self.process().chain = writing.chain;
                return Ok(0);
            }
            let part = &writing.bytes[writing.written..writing.encoded];
            match self.with_file(&to, |file, cx| file.write(cx, part)) {
                Ok(count) => writing.written += count,
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
    fn mark(&mut self) -> u64 {
        let mm = self.process().mm.clone();
        let mm = lock(&mm);
        let pages = shared_file_pages(&mm);
        let marked = pages.map(|(va, frame)| (va, self.checksum(frame)));
        self.process().marked = Some(marked.collect());
        0
    }

    fn checksum(&self, frame: u64) -> u64 {
        let mut page = [0; PAGE as usize];
        self.kernel.memory.read(frame, &mut page);
        xxh3_64(&page)
    }

    /// Shared file pages that are not what they were when they were saved elsewhere.
    fn changed_pages(&self, mm: &AddressSpace, marked: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
        shared_file_pages(mm)
            .filter(|(va, frame)| marked.get(va) != Some(&self.checksum(*frame)))
            .collect()
    }

    /// Waits until every other thread is parked outside ring 3, its extended state saved.
    fn stop_others(&mut self) -> Result<(), Stop> {
        let me = self.tid;
        let process = self.process();
        if process.stopped_by.is_some_and(|by| by != me) {
            return Err(Errno::EBUSY.into());
        }
        process.stopped_by = Some(me);
        let others: Vec<i32> = process
            .threads
            .iter()
            .copied()
            .filter(|t| *t != me)
            .collect();
        let mut missing = false;
        for tid in others {
            let thread = self.state.thread(tid);
            if !thread.parked {
                missing = true;
                thread.poke();
            }
        }
        if missing {
            Err(Stop::wait(self.thread().channel))
        } else {
            Ok(())
        }
    }

    /// The image's beginning, and the list of its pages.
    fn begin(&mut self, flags: u32) -> Result<Writing, Stop> {
        // Unless this image is written to its end, there is nothing to build on.
        let last = self.process().chain.take();
        let last = match flags {
            wire::INCREMENT => Some(last.ok_or(Errno::ENODATA)?),
            _ => None,
        };
        let own = match &self.thread().xstate {
            Some(saved) => saved.clone(),
            None => self.cpu.xstate().map_err(|_| Errno::EIO)?,
        };
        let me = self.tid;
        let tids = self.process().threads.clone();
        let threads = tids
            .into_iter()
            .map(|tid| {
                let woken = self.state.futexes.is_woken(tid);
                let thread = self.state.thread(tid);
                let xstate = if tid == me {
                    Some(own.clone())
                } else {
                    thread.xstate.clone()
                };
                let regs = match tid == me {
                    true => Regs {
                        rax: wire::RESTARTED as u64,
                        ..thread.regs
                    },
                    false => restartable(thread, woken),
                };
                let image = ThreadImage {
                    tid,
                    name: thread.name.clone(),
                    regs,
                    xstate: xstate.ok_or(Errno::EIO)?,
                    mask: thread.restore_mask.unwrap_or(thread.mask),
                    pending: thread.pending.clone(),
                    alt_stack: thread.alt_stack,
                    clear_child_tid: thread.clear_child_tid,
                    robust_list: thread.robust_list,
                    deadline: thread.deadline.map(|end| end.saturating_sub(super::now())),
                    ran: thread.ran,
                    affinity: thread.affinity.map(|set| set.to_vec()),
                    policy: thread.policy,
                    rseq: thread.rseq.moved(),
                };
                image.is_sound().then_some(image).ok_or_else(|| {
                    tracing::warn!(tid, "a thread's registers point out of user space");
                    Errno::EOVERFLOW
                })
            })
            .collect::<Result<Vec<_>, Errno>>()?;
        let process = self.state.process(self.pid);
        let (mm, files) = (process.mm.clone(), process.files.clone());
        let (exe, argv) = (process.exe.clone(), process.argv.clone());
        let (fs, actions) = (lock(&process.fs).clone(), lock(&process.actions).clone());
        let (pending, timers) = (process.pending.clone(), process.timers.left());
        let (limits, ran, children_ran) =
            (process.limits.clone(), process.ran, process.children_ran);
        let (credentials, settings) = (process.credentials.clone(), process.settings);
        let marked = process.marked.take();
        let (mm, vfs) = (lock(&mm), &self.state.vfs);
        let epoch = match flags {
            0 => None,
            _ => Some(mm.end_epoch(self.cpu).map_err(|error| {
                tracing::warn!(%error, "this host does not say what a process writes to");
                Errno::EOPNOTSUPP
            })?),
        };
        let mut nameless = Nameless::default();
        let image = ProcessImage {
            pid: self.pid,
            exe,
            argv,
            brk: mm.brk,
            areas: mm
                .areas()
                .map(|(start, area)| AreaImage::of(start, area, vfs, &mut nameless))
                .collect(),
            files: rebuild::describe(&lock(&files), vfs, &mut nameless),
            fs,
            actions,
            pending,
            timers,
            limits,
            credentials,
            settings,
            ran,
            children_ran,
            threads,
            nameless: nameless.images(),
        };
        let changed = marked
            .as_ref()
            .map(|marked| self.changed_pages(&mm, marked));
        let mut pages = own_pages(&mm);
        pages.extend(changed.into_iter().flatten().map(|page| (page, false)));
        pages.sort_unstable();
        let mut random = [0; 8];
        super::info::random(&mut random);
        let mut link = Link {
            id: u64::from_le_bytes(random) | 1,
            ..Link::default()
        };
        let chain = epoch.map(|epoch| Chain {
            id: link.id,
            epoch,
            pages: pages.iter().map(|(page, _)| *page).collect(),
        });
        if let Some(last) = last {
            link.parent = last.id;
            link.gone = last.gone(&pages);
            let (memory, is_shared) = (&self.kernel.memory, self.kernel.memory.shared());
            let mut saved = last.pages.iter().peekable();
            pages.retain(|&(page, _)| {
                let (_, frame) = page;
                while saved.next_if(|other| **other < page).is_some() {}
                saved.peek() != Some(&&page)
                    || memory.dirty().changed_since(frame, last.epoch)
                    || is_shared(frame)
            });
            // What was something before must be said to be zero now.
            pages.iter_mut().for_each(|(_, sparse)| *sparse = false);
        }
        let mut encoder = Encoder::default();
        let bytes = encoder.start(&frame::encode(&image), &link);
        let bytes = bytes.map_err(|error| {
            tracing::warn!(%error, "a process is not captured");
            Errno::EFBIG
        })?;
        let mut runs = runs(pages);
        let files = nameless.spans(PAGES_MAX / PAGE as usize);
        runs.extend(files.map(|(address, file, span)| Run::File(address, file, span)));
        // What is saved elsewhere stays as it is until the next mark.
        self.state.process(self.pid).marked = marked;
        Ok(Writing {
            encoder,
            chain,
            encoded: bytes.len(),
            bytes,
            written: 0,
            runs,
            ended: false,
        })
    }

    /// The next chunks of the image; false at its end.
    fn encode_next(&mut self, writing: &mut Writing) -> bool {
        (writing.encoded, writing.written) = (0, 0);
        while writing.encoded < WRITE_MIN {
            match writing.runs.pop_front() {
                Some(Run::File(address, file, span)) => {
                    let mut pages = file.read_at(span.offset, span.len);
                    pages.resize(span.len, 0);
                    writing.add(address, span.len, |room| room.copy_from_slice(&pages));
                }
                Some(Run::Memory(address, frames, sparse)) => {
                    self.encode_memory(writing, address, frames, sparse);
                }
                None if !writing.ended => {
                    let end = writing.encoder.end();
                    writing.bytes.truncate(writing.encoded);
                    writing.bytes.extend_from_slice(&end);
                    writing.encoded += end.len();
                    writing.ended = true;
                }
                None => break,
            }
        }
        writing.encoded > 0
    }

    /// The first part of a run that is to be in the image; the rest is put back.
    fn encode_memory(
        &self,
        writing: &mut Writing,
        mut address: u64,
        mut frames: VecDeque<u64>,
        sparse: bool,
    ) {
        let memory = &self.kernel.memory;
        let is_zero = |frame: &u64| sparse && memory.is_zero(*frame);
        while frames.front().is_some_and(is_zero) {
            frames.pop_front();
            address += PAGE;
        }
        let count = frames.iter().position(is_zero).unwrap_or(frames.len());
        let rest = frames.split_off(count);
        if !rest.is_empty() {
            let next = address + count as u64 * PAGE;
            writing.runs.push_front(Run::Memory(next, rest, sparse));
        }
        if count > 0 {
            writing.add(address, count * PAGE as usize, |room| {
                for (page, frame) in room.chunks_exact_mut(PAGE as usize).zip(frames) {
                    memory.read(frame, page);
                }
            });
        }
    }

    fn restore(&mut self, service: &Service, argument: u64) -> SysResult {
        let [first, second] = self.read_words(argument)?;
        let fd = first as i32;
        let stdio = [(first >> 32) as i32, second as i32, (second >> 32) as i32];
        let files = self.process().files.clone();
        let from = lock(&files).get(fd)?;
        from.check_readable()?;
        let mut reading = match service.take(self.tid) {
            Some(Work::Restore(reading)) => reading,
            _ => Box::new(Reading {
                decoder: Decoder::default(),
                process: None,
            }),
        };
        while reading.decoder.wants() > 0 {
            let want = reading.decoder.wants().min(READ_MAX);
            let bytes = match self.with_file(&from, |file, cx| file.read(cx, want)) {
                Ok(bytes) => bytes,
                Err(Stop::Wait(wait)) => {
                    service.keep(self.tid, Work::Restore(reading));
                    return Err(Stop::Wait(wait));
                }
                Err(error) => return Err(error),
            };
            if bytes.is_empty() {
                break;
            }
            let piece = reading.decoder.push(&bytes).map_err(refused)?;
            match piece {
                Some(Piece::Process(bytes)) => {
                    let image: ProcessImage = frame::decode(bytes).map_err(|_| Errno::EBADMSG)?;
                    let files = Nameless::rebuild(&self.kernel.memory, &image.nameless)?;
                    let mm = self.empty_copy(&image, &files)?;
                    reading.process = Some((image, mm, files));
                }
                Some(Piece::Link(link)) if link.parent != 0 => {
                    tracing::warn!("an increment is not restored without what it builds on");
                    return Err(Errno::EBADMSG.into());
                }
                Some(Piece::Pages { address, bytes }) => {
                    let (_, mm, files) = reading.process.as_ref().ok_or(Errno::EBADMSG)?;
                    if address >= nameless::PAGES_START {
                        files.fill(address, bytes)?;
                        continue;
                    }
                    for (index, page) in bytes.chunks_exact(PAGE as usize).enumerate() {
                        mm.fill(address + index as u64 * PAGE, page)?;
                    }
                }
                Some(Piece::Link(_) | Piece::End) | None => {}
            }
        }
        reading.decoder.finish().map_err(refused)?;
        let (image, mm, files) = reading.process.ok_or(Errno::EBADMSG)?;
        self.revive(image, mm, &files, stdio)
    }

    /// An address space with the areas of the image and no pages of its own.
    fn empty_copy(&mut self, image: &ProcessImage, files: &Nameless) -> Result<AddressSpace, Stop> {
        let ids = image
            .threads
            .iter()
            .map(|thread| thread.tid)
            .chain([image.pid]);
        for id in ids {
            if !self.state.id_is_free(id) {
                tracing::warn!(id, "the restored process's id is in use on this card");
                return Err(Errno::EEXIST.into());
            }
        }
        let mut mm = AddressSpace::new(&self.kernel.memory, &*self.kernel.platform)?;
        for area in &image.areas {
            let backing = match &area.file {
                None => Backing::Anonymous,
                Some((file, offset)) => Backing::File {
                    inode: match file {
                        FileRef::Nameless { index, .. } => files.get(*index)?,
                        FileRef::Named(path) => {
                            self.state.vfs.inode(path).inspect_err(|errno| {
                                tracing::warn!(path, %errno, "a mapped file is not on this card");
                            })?
                        }
                    },
                    path: file.path().to_owned(),
                    offset: *offset,
                },
            };
            let AreaImage {
                start,
                end,
                prot,
                shared,
                traits,
                ..
            } = *area;
            if start % PAGE != 0 || end % PAGE != 0 {
                return Err(Errno::EBADMSG.into());
            }
            mm.add(
                start,
                Area {
                    end,
                    prot,
                    shared,
                    backing,
                    traits,
                },
            )?;
        }
        mm.brk = image.brk;
        Ok(mm)
    }

    /// The process again, with its threads running.
    fn revive(
        &mut self,
        image: ProcessImage,
        mm: AddressSpace,
        nameless: &Nameless,
        stdio: [i32; 3],
    ) -> SysResult {
        let first_is_there = image.threads.iter().any(|thread| thread.tid == image.pid);
        if !first_is_there || !image.threads.iter().all(ThreadImage::is_sound) {
            return Err(Errno::EBADMSG.into());
        }
        let own = self.process().files.clone();
        let stdio: [Arc<dyn File>; 3] = {
            let own = lock(&own);
            [
                own.get(stdio[0])?.file.clone(),
                own.get(stdio[1])?.file.clone(),
                own.get(stdio[2])?.file.clone(),
            ]
        };
        let files = self.with_cx(|vfs, cx| {
            rebuild::rebuild(vfs, cx, &image.fs, &image.files, nameless, &stdio).map_err(|error| {
                tracing::warn!(%error, "a restored process cannot have its files");
                Stop::from(error.errno)
            })
        })?;
        let process = Process {
            pid: image.pid,
            parent: self.pid,
            group: self.process().group,
            mm: Arc::new(Mutex::new(mm)),
            files: Arc::new(Mutex::new(files)),
            fs: Arc::new(Mutex::new(image.fs)),
            actions: Arc::new(Mutex::new(image.actions)),
            pending: image.pending,
            threads: Vec::new(),
            ending: Arc::default(),
            exit: None,
            children: Channel::new(),
            released: Channel::new(),
            is_released: true,
            exit_signal: libc::SIGCHLD,
            job: Job::default(),
            has_executed: true,
            credentials: image.credentials,
            settings: image.settings,
            stopped_by: None,
            marked: None,
            chain: None,
            timers: image.timers.rearmed(),
            limits: image.limits,
            ran: image.ran,
            children_ran: image.children_ran,
            exe: image.exe,
            argv: image.argv,
        };
        let pid = image.pid;
        let armed = process.timers.is_armed();
        self.state.processes.insert(pid, process);
        let kernel = self.kernel.clone();
        if armed {
            kernel.timer_armed(self.state);
        }
        for saved in image.threads {
            let mut thread = Thread::new(saved.tid, pid, saved.regs, saved.xstate);
            thread.name = saved.name;
            thread.mask = saved.mask;
            thread.pending = saved.pending;
            thread.alt_stack = saved.alt_stack;
            thread.clear_child_tid = saved.clear_child_tid;
            thread.robust_list = saved.robust_list;
            thread.deadline = saved.deadline.map(|left| super::now().saturating_add(left));
            thread.ran = saved.ran;
            thread.affinity = self.affinity_here(saved.affinity);
            thread.policy = saved.policy;
            thread.rseq = saved.rseq;
            kernel.start(self.state, thread);
        }
        Ok(pid as u64)
    }

    /// An image's set of cores, if this card has all of them.
    fn affinity_here(&self, set: Option<Vec<u8>>) -> Affinity {
        let set: [u8; SET_BYTES] = set?.try_into().ok()?;
        let there = self.cores();
        let fits = set
            .iter()
            .zip(there)
            .all(|(wanted, there)| wanted & !there == 0);
        (fits && set != [0; SET_BYTES]).then_some(set)
    }

    fn with_file<T>(
        &mut self,
        open: &Arc<Open>,
        f: impl FnOnce(&dyn File, &mut Cx) -> SysResult<T>,
    ) -> SysResult<T> {
        let (nonblock, append) = (open.nonblock(), open.flags() & libc::O_APPEND != 0);
        self.with_cx(|_, cx| {
            cx.nonblock = nonblock;
            cx.append = append;
            f(&*open.file, cx)
        })
    }

    fn with_cx<T>(&mut self, f: impl FnOnce(&mut Vfs, &mut Cx) -> SysResult<T>) -> SysResult<T> {
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
                now: super::now(),
            };
            f(&mut self.state.vfs, &mut cx)
        };
        for channel in woken {
            self.state.wake(channel);
        }
        result
    }
}

/// Whether an ioctl(2) request is one of the device's.
pub(super) fn is_request(request: u32) -> bool {
    [wire::CAPTURE, wire::MARK, wire::RESTORE].contains(&request)
}

/// The threads that `me` has stopped run on, if it has stopped any.
pub(super) fn let_others_go(state: &mut State, me: i32) {
    let pid = state.thread(me).pid;
    let process = state.process(pid);
    if process.stopped_by != Some(me) {
        return;
    }
    process.stopped_by = None;
    for tid in process.threads.clone() {
        if tid != me {
            state.thread(tid).poke();
        }
    }
}

impl ThreadImage {
    /// Whether a thread may start like this. (A running one may not be: user space has wrfsbase.)
    fn is_sound(&self) -> bool {
        xstate::check(&self.xstate).is_ok()
            && self.regs.rip < USER_END
            && self.regs.fs_base < USER_END
            && self.regs.gs_base < USER_END
    }
}

impl AreaImage {
    fn of(start: u64, area: &Area, vfs: &Vfs, nameless: &mut Nameless) -> Self {
        let file = match &area.backing {
            Backing::File {
                inode,
                path,
                offset,
            } if !is_own(area) => Some((nameless.refer(vfs, inode, path), *offset)),
            _ => None,
        };
        Self {
            start,
            end: area.end,
            prot: area.prot,
            shared: area.shared && file.is_some(),
            traits: area.traits,
            file,
        }
    }
}

/// Whether nobody else has what is in an area, shared or not: its pages are in the image, and it
/// comes back as private memory.
fn is_own(area: &Area) -> bool {
    match &area.backing {
        Backing::File { path, .. } => path.starts_with("/dev/zero"),
        Backing::Anonymous => true,
    }
}

/// Registers with which a thread that is stopped in a call makes it again, or returns from it if
/// it has already been woken or has moved some bytes, which are not to be moved twice.
fn restartable(thread: &Thread, woken: bool) -> Regs {
    match thread.call {
        None => thread.regs,
        Some(_) if woken => Regs {
            rax: 0,
            ..thread.regs
        },
        Some(_) if thread.progress > 0 => Regs {
            rax: thread.progress as u64,
            ..thread.regs
        },
        Some(number) => Regs {
            rax: number,
            rip: thread.regs.rip - SYSCALL_BYTES,
            ..thread.regs
        },
    }
}

impl Chain {
    /// Runs of its pages that are not among `pages`, which are in order.
    fn gone(&self, pages: &[((u64, u64), bool)]) -> Vec<(u64, u64)> {
        let mut left = pages.iter().map(|((va, _), _)| *va).peekable();
        let mut gone: Vec<(u64, u64)> = Vec::new();
        for &(va, _) in &self.pages {
            while left.next_if(|other| *other < va).is_some() {}
            if left.peek() == Some(&va) {
                continue;
            }
            match gone.last_mut() {
                Some((start, count)) if *start + *count * PAGE == va => *count += 1,
                _ => gone.push((va, 1)),
            }
        }
        gone
    }
}

/// Pages of the process's own memory, with whether one of zeros need not be in an image. Shared
/// file pages are not the process's: local store is saved as files (paper section 4.1), and so are
/// nameless files; but for those that have changed since.
fn own_pages(mm: &AddressSpace) -> Vec<((u64, u64), bool)> {
    let mut pages = Vec::new();
    for (start, area) in mm.areas().filter(|(_, area)| !area.shared || is_own(area)) {
        let sparse = is_own(area);
        let seen = |va, frame| pages.push(((va, frame), sparse));
        mm.present(start, area.end, seen);
    }
    pages
}

/// Pages in runs of neighbours.
fn runs(pages: Vec<((u64, u64), bool)>) -> VecDeque<Run> {
    let mut runs = VecDeque::new();
    for ((va, frame), sparse) in pages {
        match runs.back_mut() {
            Some(Run::Memory(first, frames, also))
                if *first + frames.len() as u64 * PAGE == va
                    && (frames.len() + 1) * PAGE as usize <= PAGES_MAX
                    && *also == sparse =>
            {
                frames.push_back(frame);
            }
            _ => runs.push_back(Run::Memory(va, [frame].into(), sparse)),
        }
    }
    runs
}

/// Pages of files that are mapped shared, but for the card's clock: address and frame.
fn shared_file_pages(mm: &AddressSpace) -> impl Iterator<Item = (u64, u64)> {
    let shared = mm.areas().filter(|(_, area)| {
        let is_clock = matches!(&area.backing, Backing::File { path, .. } if path == clock::PATH);
        area.shared && !is_own(area) && !is_clock
    });
    shared.flat_map(|(start, area)| {
        let mut pages = Vec::new();
        mm.present(start, area.end, |va, frame| pages.push((va, frame)));
        pages
    })
}

fn refused(error: crate::capture::stream::ImageError) -> Stop {
    tracing::warn!(%error, "a process image is refused");
    Errno::EBADMSG.into()
}
