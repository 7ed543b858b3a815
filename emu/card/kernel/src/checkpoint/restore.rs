//! Restore: a tree of processes from a stream.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use snaprig_card_driver::{
    clock::monotonic,
    errno::Errno,
    signals::is_signal,
    wait::{Channel, Stop, SysResult},
};
use snaprig_card_fs::{
    FileTable, FsContext, Open,
    files::pidfd::Ending,
    image::{
        rebuild::{self, RebuildError, Sources},
        stored::{FileRef, PAGES_START, Stored},
    },
};
use snaprig_card_image::stream::{Decoder, Piece};
use snaprig_card_memory::{PAGE, USER_END, memory::CardMemory};
use snaprig_image::{ImageId, Inbox};
use snaprig_wire::frame;

use super::{Preloaded, Service, Work, refused};
use crate::{
    call::Call,
    checkpoint::{
        image::{ProcessImage, SpaceImage, ThreadImage, TreeImage},
        pages::SPACE_BYTES,
    },
    mm::{AddressSpace, Area, Backing, Filling},
    sched::{Affinity, SET_BYTES},
    signal::Actions,
    start::start,
    state::{Process, Shared, THREADS_MAX, Thread, lock},
};

/// Bytes that are read at once.
const READ_MAX: usize = 256 << 10;

/// One part in so many of a card is left by what is made before it is needed.
const LEFT_PART: u64 = 4;

/// An image on its way in.
#[derive(Default)]
pub struct ImageReader {
    decoder: Decoder,
    inbox: Inbox,
    tree: Option<Tree>,
    /// The image's id, and that of the one that it stands for, at its end.
    ids: [Option<ImageId>; 2],
}

/// What there is of the processes.
pub(super) struct Tree {
    image: TreeImage,
    spaces: Vec<AddressSpace>,
    stored: Stored,
    filling: Filling,
}

impl Tree {
    /// Pages of files that are mapped shared, of which an image has none that are zero, are there before whoever comes back
    /// stands still for them: such memory is other nodes' to use, and all of it is made then.
    fn make_present(&self, memory: &CardMemory) {
        for (start, area) in self.spaces.iter().flat_map(AddressSpace::areas) {
            let (true, Backing::File { inode, offset, .. }) = (area.shared, &area.backing) else {
                continue;
            };
            let first = offset / PAGE;
            let end = (first + (area.end - start) / PAGE).min(inode.size().div_ceil(PAGE));
            for index in first..end {
                // Others need memory as well. Where there is too little, who comes back hears of that.
                if memory.free_bytes() < memory.bytes() / LEFT_PART || inode.frame(index).is_err() {
                    return;
                }
            }
        }
    }
}

impl Call<'_> {
    pub(super) fn restore(&mut self, service: &Service, argument: u64) -> SysResult {
        let [first, second] = self.read_words(argument)?;
        let fd = first as i32;
        let stdio = [(first >> 32) as i32, second as i32, (second >> 32) as i32];
        let reading = self.read_image(service, fd)?;
        let tree = reading.tree.ok_or(Errno::EBADMSG)?;
        if tree.image.live {
            tracing::warn!("an image of no moment is not restored without what builds on it");
            return Err(Errno::EBADMSG.into());
        }
        self.revive(tree, stdio)
    }

    /// Reads an image, and keeps it for the one that builds on it.
    pub(super) fn preload(&mut self, service: &Service, argument: u64) -> SysResult {
        let [fd] = self.read_words(argument)?;
        let reading = self.read_image(service, fd as i32)?;
        let mut tree = reading.tree.ok_or(Errno::EBADMSG)?;
        tree.filling.finish(&self.kernel.memory);
        tree.make_present(&self.kernel.memory);
        let ids = reading.ids;
        service.keep_preloaded(Preloaded { ids, tree });
        Ok(0)
    }

    /// A whole image, or the next of those that are preloaded. Where it fails, nothing is left of those.
    fn read_image(&mut self, service: &Service, fd: i32) -> Result<Box<ImageReader>, Stop> {
        let files = self.process().files.clone();
        let from = lock(&files).get(fd)?;
        from.check_readable()?;
        let mut reading = match service.take(self.tid) {
            Some(Work::Restore(reading)) => reading,
            _ => Box::default(),
        };
        while !reading.decoder.is_complete() {
            let ImageReader {
                decoder,
                inbox,
                tree,
                ids,
            } = &mut *reading;
            let Some(bytes) = inbox.take(decoder.wants()) else {
                let missing = decoder.certain() - inbox.len();
                let room = inbox.room(missing.min(READ_MAX));
                match self.with_file(&from, |file, cx| file.read_into(cx, room)) {
                    Ok(0) => break,
                    Ok(count) => inbox.filled(count),
                    Err(Stop::Wait(wait)) => {
                        service.keep(self.tid, Work::Restore(reading));
                        return Err(Stop::Wait(wait));
                    }
                    Err(error) => return Err(error),
                }
                continue;
            };
            match decoder.take(bytes).map_err(refused)? {
                Some(Piece::Parent(Some(parent))) => {
                    let preloaded = service.take_preloaded();
                    let preloaded = preloaded.filter(|last| last.ids.contains(&Some(parent)));
                    let Some(preloaded) = preloaded else {
                        tracing::warn!("an increment is not read without what it builds on");
                        return Err(Errno::EBADMSG.into());
                    };
                    *tree = Some(preloaded.tree);
                }
                Some(Piece::Process(bytes)) => *tree = Some(self.tree(tree.take(), bytes)?),
                Some(Piece::Gone(gone)) => {
                    let tree = tree.as_mut().ok_or(Errno::EBADMSG)?;
                    gone.iter()
                        .try_for_each(|(at, pages)| tree.empty(*at, *pages))?;
                }
                Some(Piece::Pages { address, bytes }) => {
                    let tree = tree.as_mut().ok_or(Errno::EBADMSG)?;
                    tree.fill(address, bytes).inspect_err(|errno| {
                        tracing::warn!(%errno, "a process image does not fit onto this card");
                    })?;
                }
                Some(Piece::End { id, stands_for }) => *ids = [Some(id), stands_for],
                Some(Piece::Parent(None)) | None => {}
            }
        }
        let left = reading.inbox.len();
        reading.decoder.finish(left).map_err(refused)?;
        Ok(reading)
    }

    /// The address spaces and files of an image, with no pages of their own, or with those of the one that it builds on.
    fn tree(&mut self, last: Option<Tree>, bytes: &[u8]) -> Result<Tree, Stop> {
        let mut image: TreeImage = frame::decode(bytes).map_err(|_| Errno::EBADMSG)?;
        if !image.is_sound() {
            tracing::warn!("a process image makes no sense");
            return Err(Errno::EBADMSG.into());
        }
        let files = std::mem::take(&mut image.files.stored);
        let (stored, last) = match last {
            None => (Stored::new(&self.kernel.memory, files)?, Vec::new()),
            Some(Tree {
                mut stored, spaces, ..
            }) => {
                stored.follow(&self.kernel.memory, files)?;
                (stored, spaces)
            }
        };
        let mut last = last.into_iter();
        let spaces = image.spaces.iter();
        let spaces = spaces.map(|space| self.space(last.next(), space, &stored));
        let spaces = spaces.collect::<Result<_, Stop>>()?;
        let filling = Filling::new(image.page_bytes);
        Ok(Tree {
            image,
            spaces,
            stored,
            filling,
        })
    }

    /// Whether the ids of an image are free here, and a card may have so many threads.
    fn check_room_for(&self, image: &TreeImage) -> Result<(), Errno> {
        if let Some(id) = image.ids().find(|id| !self.state.id_is_free(*id)) {
            tracing::warn!(id, "the restored process's id is in use on this card");
            return Err(Errno::EEXIST);
        }
        let threads = image.processes.iter().map(|process| process.threads.len());
        let most = THREADS_MAX.min(self.kernel.platform.cpus_max());
        match self.state.threads.len() + threads.sum::<usize>() > most {
            true => Err(Errno::EAGAIN),
            false => Ok(()),
        }
    }

    fn space(
        &mut self,
        last: Option<AddressSpace>,
        image: &SpaceImage,
        stored: &Stored,
    ) -> Result<AddressSpace, Stop> {
        let mut mm = match last {
            Some(mm) => mm,
            None => AddressSpace::new(&self.kernel.memory, &*self.kernel.platform)?,
        };
        let mut areas = Vec::with_capacity(image.areas.len());
        for area in &image.areas {
            let backing = match &area.file {
                None if area.shared => Backing::Gone,
                None => Backing::Anonymous,
                Some((file, offset)) => Backing::File {
                    inode: match file {
                        FileRef::Stored { index, .. } => stored.get(*index)?,
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
            let start = area.start;
            let area = Area {
                end: area.end,
                prot: area.prot,
                shared: area.shared,
                backing,
                traits: area.traits,
            };
            areas.push((start, area));
        }
        mm.set_areas(areas).map_err(|_| Errno::EBADMSG)?;
        mm.brk = image.brk;
        Ok(mm)
    }

    /// The processes again, with their threads running. Returns the first one's id.
    fn revive(&mut self, tree: Tree, stdio: [i32; 3]) -> SysResult {
        let Tree {
            image,
            mut spaces,
            mut stored,
            mut filling,
        } = tree;
        filling.finish(&self.kernel.memory);
        // Others may have come while the image was read.
        self.check_room_for(&image)?;
        let own = self.process().files.clone();
        let stdio: [Arc<Open>; 3] = {
            let own = lock(&own);
            [own.get(stdio[0])?, own.get(stdio[1])?, own.get(stdio[2])?]
        };
        for (old, new) in stored.settle(&self.state.vfs)? {
            spaces.iter_mut().for_each(|mm| mm.replace_file(&old, &new));
        }
        let pids = image.processes.iter().map(|process| process.pid);
        let endings: BTreeMap<i32, Arc<Ending>> = pids.map(|pid| (pid, Arc::default())).collect();
        let table_pid = |table: u32| {
            let process = image
                .processes
                .iter()
                .find(|process| process.table == table);
            process.map_or(0, |process| process.pid)
        };
        let pids: Vec<i32> = (0..image.files.tables.len() as u32)
            .map(table_pid)
            .collect();
        let sources = Sources {
            pids: &pids,
            stored: &stored,
            endings: &endings,
            stdio: &stdio,
        };
        let tables = self.with_cx(|vfs, sockets, cx| {
            let refused = |error: RebuildError| {
                tracing::warn!(%error, "a restored process cannot have its files");
                Stop::from(error.errno)
            };
            let rebuilt =
                rebuild::rebuild(vfs, sockets, cx, &image.files, &sources).map_err(refused)?;
            let tables = rebuilt.commit(vfs, sockets).map_err(refused)?;
            stored.name(vfs)?;
            Ok(tables)
        })?;
        let contexts = image.contexts.iter();
        let contexts = contexts.map(|fs| FsContext::restored(&mut self.state.vfs, fs));
        let contexts = contexts.collect();
        let parts = Parts {
            spaces: shared(spaces),
            tables: shared(tables),
            contexts: shared(contexts),
            actions: shared(image.actions),
        };
        let root = &image.processes[0];
        let (root, group) = (root.pid, root.group);
        let groups = Groups {
            leaders: endings.keys().copied().collect(),
            from: group,
            to: self.process().group,
        };
        let mut threads = Vec::new();
        for mut image in image.processes {
            let ending = endings[&image.pid].clone();
            if image.threads.is_empty() {
                ending.announce();
            }
            let saved = std::mem::take(&mut image.threads).into_iter();
            threads.extend(saved.map(|thread| self.thread_again(image.pid, thread)));
            let parent = match image.pid == root {
                true => self.pid,
                false => image.parent,
            };
            let process = parts.process(image, parent, &groups, ending);
            let is_armed = process.timers.is_armed();
            self.state.processes.insert(process.pid, process);
            if is_armed {
                self.kernel.clone().timer_armed(self.state);
            }
        }
        for thread in threads {
            start(self.kernel, self.state, thread);
        }
        Ok(root as u64)
    }

    fn thread_again(&self, pid: i32, image: ThreadImage) -> Thread {
        let mut thread = Thread::new(image.tid, pid, image.regs, image.xstate);
        thread.name = image.name;
        thread.mask = image.mask;
        thread.pending = image.pending;
        thread.alt_stack = image.alt_stack;
        thread.clear_child_tid = image.clear_child_tid;
        thread.robust_list = image.robust_list;
        let now = monotonic();
        thread.deadline = image.deadline.map(|left| now.saturating_add(left));
        thread.ran = image.ran;
        thread.affinity = self.affinity_here(image.affinity);
        thread.policy = image.policy;
        thread.rseq = image.rseq;
        thread.vfork_child = image.vfork_child;
        thread
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
}

impl TreeImage {
    /// Every process's id, and every thread's that is not its process's.
    fn ids(&self) -> impl Iterator<Item = i32> {
        self.processes.iter().flat_map(|process| {
            let threads = process.threads.iter().map(|thread| thread.tid);
            let others = threads.filter(|tid| *tid != process.pid);
            others.chain([process.pid])
        })
    }

    /// Whether it is a tree whose processes have what they need.
    fn is_sound(&self) -> bool {
        let count = self.ids().count();
        let ids: BTreeSet<i32> = self.ids().filter(|id| *id > 0).collect();
        let has = |index: u32, len: usize| (index as usize) < len;
        let process_is_sound = |(index, process): (usize, &ProcessImage)| {
            let has_ended = process.threads.is_empty();
            has(process.space, self.spaces.len())
                && has(process.table, self.files.tables.len())
                && has(process.context, self.contexts.len())
                && has(process.actions, self.actions.len())
                && has_ended <= process.exit.is_some()
                && match index {
                    0 => !has_ended,
                    // Parents come first: there is no circle.
                    _ => self.processes[..index]
                        .iter()
                        .any(|other| other.pid == process.parent),
                }
                && (process.exit_signal == 0 || is_signal(process.exit_signal))
                && process.pending.is_sound()
                && process.timers.is_sound()
                && process.threads.iter().all(ThreadImage::is_sound)
        };
        !self.processes.is_empty()
            && ids.len() == count
            && self.processes.len() <= THREADS_MAX
            && self.spaces.len() <= self.processes.len()
            && self.spaces.iter().all(SpaceImage::is_sound)
            && self.actions.iter().all(Actions::is_sound)
            && self.processes.iter().enumerate().all(process_is_sound)
    }
}

impl Tree {
    /// Puts pages of the stream where they belong.
    fn fill(&mut self, address: u64, pages: &[u8]) -> Result<(), Errno> {
        if address >= PAGES_START {
            return self.stored.fill(address, pages);
        }
        let space = self.spaces.get((address / SPACE_BYTES) as usize);
        let space = space.ok_or(Errno::EBADMSG)?;
        space.fill_run(address % SPACE_BYTES, pages, &mut self.filling)
    }

    /// Pages of the stream are no more.
    fn empty(&mut self, address: u64, pages: u64) -> Result<(), Errno> {
        let bytes = pages.checked_mul(PAGE).ok_or(Errno::EBADMSG)?;
        if address >= PAGES_START {
            return self.stored.empty(address, bytes);
        }
        // Of a space that is no more nothing is left.
        if let Some(space) = self.spaces.get_mut((address / SPACE_BYTES) as usize) {
            let start = address % SPACE_BYTES;
            space.empty(start, start.saturating_add(bytes).min(USER_END));
        }
        Ok(())
    }
}

fn shared<T>(all: Vec<T>) -> Vec<Shared<T>> {
    all.into_iter()
        .map(|one| Arc::new(Mutex::new(one)))
        .collect()
}

/// What processes may share.
struct Parts {
    spaces: Vec<Shared<AddressSpace>>,
    tables: Vec<Shared<FileTable>>,
    contexts: Vec<Shared<FsContext>>,
    actions: Vec<Shared<Actions>>,
}

/// Process groups and sessions: those that the first process was in without leading them become the
/// restorer's.
struct Groups {
    leaders: BTreeSet<i32>,
    from: (i32, i32),
    to: (i32, i32),
}

impl Groups {
    fn here(&self, (group, session): (i32, i32)) -> (i32, i32) {
        let here = |id, from, to| match id == from && !self.leaders.contains(&id) {
            true => to,
            false => id,
        };
        (
            here(group, self.from.0, self.to.0),
            here(session, self.from.1, self.to.1),
        )
    }
}

impl Parts {
    fn process(
        &self,
        image: ProcessImage,
        parent: i32,
        groups: &Groups,
        ending: Arc<Ending>,
    ) -> Process {
        Process {
            pid: image.pid,
            parent,
            group: groups.here(image.group),
            mm: self.spaces[image.space as usize].clone(),
            files: self.tables[image.table as usize].clone(),
            fs: self.contexts[image.context as usize].clone(),
            actions: self.actions[image.actions as usize].clone(),
            pending: image.pending,
            threads: Vec::new(),
            ending,
            exit: image.exit,
            children: Channel::new(),
            released: Channel::new(),
            is_released: image.is_released,
            exit_signal: image.exit_signal,
            stopped_by: None,
            marked: None,
            chain: None,
            timers: image.timers.rearmed(),
            limits: image.limits,
            credentials: image.credentials,
            settings: image.settings,
            job: image.job,
            has_executed: image.has_executed,
            ran: image.ran,
            children_ran: image.children_ran,
            last_id: image.pid,
            exe: image.exe,
            argv: image.argv,
        }
    }
}
