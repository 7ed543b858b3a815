//! The engine: regions, queues, and the thread that works the queues off.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};

use crate::{
    mover::{Mover, Ring, Threads, Wake},
    region::{Region, RegionError, Shared as SharedMemory},
    schedule::{Active, Checked, Chunk, IN_FLIGHT_MAX, NOW_BYTES, Step},
};

/// What moves long copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// io_uring with kernel workers.
    IoUring,
    /// Threads that call pread(2); io_uring is missing or forbidden on this host.
    Threads,
}

/// Names a region of one engine. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(u64);

/// One copy: region and offset to read from, region and offset to write to, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Read from here.
    pub src: (RegionId, u64),
    /// Write to here.
    pub dst: (RegionId, u64),
    /// Bytes.
    pub len: u64,
}

/// A copy failed. Those before it in its call are done, none after it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("copy {index} failed with errno {errno}")]
pub struct CopyError {
    /// Which copy of the call.
    pub index: usize,
    /// `EFAULT` for a range outside its region or a region that is gone, `ENXIO` if its file has become
    /// shorter, `ECANCELED` if the engine stopped first, or what the kernel said.
    pub errno: i32,
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The thread or its wake-up could not be made.
    #[error("cannot start the DMA engine: {0}; raise the limits on threads and descriptors")]
    Start(#[from] io::Error),
}

/// Told once how a call went. Runs on the engine's thread: it must not block, and must not call
/// [`Engine::remove_region`].
pub type Done = Box<dyn FnOnce(Result<(), CopyError>) + Send>;

/// A copy engine. Dropping it cancels what has not begun and waits for the rest.
pub struct Engine {
    shared: Arc<Shared>,
    wake: Wake,
    backend: Backend,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when a job has let go of its regions, if somebody waits for that.
    released: Condvar,
}

struct State {
    regions: BTreeMap<RegionId, Arc<Region>>,
    next_region: u64,
    queues: Vec<Queue>,
    stop: bool,
    /// Threads that wait for regions to be let go of.
    waiting: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// A job of this queue is being worked on, by the thread or by `try_now`.
    busy: bool,
}

struct Job {
    work: Active,
    done: Done,
}

impl Engine {
    /// An engine with `queues` queues; io_uring if the host has it.
    pub fn new(queues: usize) -> Result<Self, EngineError> {
        Self::with_backend(queues, Backend::IoUring)
            .or_else(|_| Self::with_backend(queues, Backend::Threads))
    }

    /// An engine with this backend or none.
    pub fn with_backend(queues: usize, backend: Backend) -> Result<Self, EngineError> {
        let (mover, wake): (Box<dyn Mover>, Wake) = match backend {
            Backend::IoUring => Ring::new().map(|(ring, wake)| (Box::new(ring) as _, wake))?,
            Backend::Threads => Threads::new().map(|(pool, wake)| (Box::new(pool) as _, wake))?,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                regions: BTreeMap::new(),
                next_region: 0,
                queues: (0..queues).map(|_| Queue::default()).collect(),
                stop: false,
                waiting: 0,
            }),
            released: Condvar::new(),
        });
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let worker = Worker {
            shared: shared.clone(),
            mover,
            active: (0..queues).map(|_| None).collect(),
            chunks: Vec::new(),
            // The thread itself copies, too.
            in_flight_max: cores.saturating_sub(1).clamp(1, IN_FLIGHT_MAX),
        };
        let thread = thread::Builder::new()
            .name("dma".into())
            .spawn(move || worker.run())?;
        Ok(Self {
            shared,
            wake,
            backend,
            thread: Some(thread),
        })
    }

    /// What moves long copies.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Makes `len` bytes at `offset` (a multiple of 4 KiB) of a file a region. Only memfds that are sealed against
    /// shrinking are copied at full speed; copies of others are made on the engine's thread.
    pub fn add_region(&self, fd: OwnedFd, offset: u64, len: u64) -> Result<RegionId, RegionError> {
        let region = Arc::new(Region::new(fd, offset, len)?);
        let mut state = self.shared.lock();
        let id = RegionId(state.next_region);
        state.next_region += 1;
        state.regions.insert(id, region);
        Ok(id)
    }

    /// Forgets a region, after every copy that was submitted with it. Not to be called from a
    /// [`Done`].
    pub fn remove_region(&self, id: RegionId) {
        let mut state = self.shared.lock();
        let Some(region) = state.regions.remove(&id) else {
            return;
        };
        state.waiting += 1;
        while Arc::strong_count(&region) > 1 {
            state = self.shared.wait(state);
        }
        state.waiting -= 1;
    }

    /// The memory of a region, if it is mapped, which stays when the region is forgotten.
    pub fn memory(&self, id: RegionId) -> Option<SharedMemory> {
        self.shared
            .lock()
            .regions
            .get(&id)
            .and_then(|region| region.share())
    }

    /// Reads bytes of a mapped region now; false if they are not inside of one.
    pub fn read(&self, (id, at): (RegionId, u64), to: &mut [u8]) -> bool {
        let state = self.shared.lock();
        let region = state.regions.get(&id);
        let region = region.filter(|region| region.contains(at, to.len() as u64));
        let Some(from) = region.and_then(|region| region.pointer(at)) else {
            return false;
        };
        // SAFETY: the range is inside the region, which stays mapped while the lock is held; `to` is
        // private memory, so they are disjoint.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        true
    }

    /// Queues copies. They run one after the other, after all that were queued before in the same
    /// queue. `done` is called on the engine's thread, never on the caller's.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn submit(&self, queue: usize, copies: &[Copy], done: Done) {
        let mut state = self.shared.lock();
        let (checked, refused) = state.check(copies);
        state.queues[queue].waiting.push_back(Job {
            work: Active::new(checked, refused),
            done,
        });
        drop(state);
        (self.wake)();
    }

    /// Makes short copies on the calling thread, if that takes no longer than queueing them would:
    /// `None` if they are longer than 1 MiB together, not all of mapped memory, or the queue is not idle.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn try_now(&self, queue: usize, copies: &[Copy]) -> Option<Result<(), CopyError>> {
        let total = copies
            .iter()
            .try_fold(0u64, |sum, copy| sum.checked_add(copy.len))?;
        let mut state = self.shared.lock();
        let slot = &state.queues[queue];
        if total > NOW_BYTES || slot.busy || !slot.waiting.is_empty() {
            return None;
        }
        let (checked, refused) = state.check(copies);
        if !checked.iter().all(Checked::is_mapped) {
            return None;
        }
        state.queues[queue].busy = true;
        drop(state);
        let stored = checked.iter().try_for_each(Checked::store);
        stored.expect("no call is made for mapped memory");
        drop(checked);
        let mut state = self.shared.lock();
        let slot = &mut state.queues[queue];
        slot.busy = false;
        let more = !slot.waiting.is_empty();
        self.shared.let_go(&state);
        drop(state);
        if more {
            (self.wake)();
        }
        Some(refused.map_or(Ok(()), Err))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        (self.wake)();
        if let Some(thread) = self.thread.take() {
            // The last owner may be a `Done`; a thread cannot wait for itself.
            if thread.thread().id() != thread::current().id() {
                thread.join().expect("the DMA thread does not panic");
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no state is left half-changed")
    }

    /// A job has let go of its regions. To wake nobody is a system call, too.
    fn let_go(&self, state: &State) {
        if state.waiting > 0 {
            self.released.notify_all();
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.released
            .wait(state)
            .expect("no state is left half-changed")
    }
}

impl State {
    /// The copies up to the first that is out of range, and what is wrong with that one.
    fn check(&self, copies: &[Copy]) -> (Vec<Checked>, Option<CopyError>) {
        let mut checked = Vec::with_capacity(copies.len());
        for (index, copy) in copies.iter().enumerate() {
            let find = |(id, at): (RegionId, u64)| {
                let region = self.regions.get(&id)?;
                region.contains(at, copy.len).then(|| region.clone())
            };
            let (Some(src), Some(dst)) = (find(copy.src), find(copy.dst)) else {
                let errno = libc::EFAULT;
                return (checked, Some(CopyError { index, errno }));
            };
            checked.push(Checked {
                src,
                src_at: copy.src.1,
                dst,
                dst_at: copy.dst.1,
                len: copy.len,
            });
        }
        (checked, None)
    }
}

/// The thread's side.
struct Worker {
    shared: Arc<Shared>,
    mover: Box<dyn Mover>,
    /// The job of each queue.
    active: Vec<Option<Job>>,
    /// Chunks in flight, by token, with their queue.
    chunks: Vec<Option<(usize, Chunk)>>,
    /// How many of a queue there may be.
    in_flight_max: usize,
}

impl Worker {
    fn run(mut self) {
        loop {
            let mut yielded = false;
            for queue in 0..self.active.len() {
                yielded |= self.advance(queue);
            }
            if self.shared.lock().stop && self.active.iter().all(Option::is_none) {
                return;
            }
            let results = self.mover.results(!yielded).unwrap_or_else(|e| {
                // Chunks are in the kernel's hands and can neither be waited for nor given back.
                eprintln!("the DMA engine cannot go on: {e}");
                std::process::abort()
            });
            for (token, result) in results {
                let (queue, chunk) = self.chunks[token as usize]
                    .take()
                    .expect("a chunk completes once");
                let job = self.active[queue].as_mut();
                job.expect("a job outlives its chunks")
                    .work
                    .moved(chunk, result);
            }
        }
    }

    /// Works on `queue` until it has to wait or is empty (false), or it is the others' turn (true).
    fn advance(&mut self, queue: usize) -> bool {
        while let Some(mut job) = self.active[queue].take().or_else(|| self.take(queue)) {
            match job.work.step(self.in_flight_max) {
                Step::Move(chunk) => {
                    self.active[queue] = Some(job);
                    self.start(queue, chunk);
                }
                wait_or_yield @ (Step::Wait | Step::Yield) => {
                    self.active[queue] = Some(job);
                    return matches!(wait_or_yield, Step::Yield);
                }
                Step::Finished(result) => self.finish(queue, job, result),
            }
        }
        false
    }

    fn start(&mut self, queue: usize, chunk: Chunk) {
        let free = self.chunks.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() - 1
        });
        let started = self.mover.start(slot as u64, &chunk);
        if let Err(e) = started {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            let job = self.active[queue].as_mut();
            job.expect("the caller put it there")
                .work
                .moved(chunk, -errno);
        } else {
            self.chunks[slot] = Some((queue, chunk));
        }
    }

    fn take(&self, queue: usize) -> Option<Job> {
        let mut state = self.shared.lock();
        let stop = state.stop;
        let slot = &mut state.queues[queue];
        if slot.busy {
            return None;
        }
        let mut job = slot.waiting.pop_front()?;
        slot.busy = true;
        if stop {
            let errno = libc::ECANCELED;
            job.work = Active::new(Vec::new(), Some(CopyError { index: 0, errno }));
        }
        Some(job)
    }

    fn finish(&self, queue: usize, job: Job, result: Result<(), CopyError>) {
        let Job { work, done } = job;
        drop(work);
        let mut state = self.shared.lock();
        state.queues[queue].busy = false;
        self.shared.let_go(&state);
        drop(state);
        done(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::CHUNK_BYTES;
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::{os::unix::fs::FileExt, sync::mpsc};

    const BYTES: u64 = 9 << 20;

    fn memfd(seals: SealFlags) -> std::fs::File {
        let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, BYTES).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd.into()
    }

    /// An engine with a region of pseudo-random bytes and one of zeros.
    struct Bench {
        engine: Engine,
        files: [std::fs::File; 2],
        regions: [RegionId; 2],
    }

    impl Bench {
        fn new(backend: Backend) -> Self {
            let engine = Engine::with_backend(2, backend).unwrap();
            let files = [memfd(SealFlags::SHRINK), memfd(SealFlags::SHRINK)];
            files[0].write_all_at(&pattern(0, BYTES), 0).unwrap();
            let regions = [0, 1].map(|i| {
                let fd = files[i].try_clone().unwrap().into();
                engine.add_region(fd, 0, BYTES).unwrap()
            });
            Self {
                engine,
                files,
                regions,
            }
        }

        fn copy(&self, src: u64, dst: u64, len: u64) -> Copy {
            Copy {
                src: (self.regions[0], src),
                dst: (self.regions[1], dst),
                len,
            }
        }

        fn run(&self, queue: usize, copies: &[Copy]) -> Result<(), CopyError> {
            let (send, receive) = mpsc::channel();
            self.engine
                .submit(queue, copies, Box::new(move |r| send.send(r).unwrap()));
            receive.recv().unwrap()
        }

        fn read(&self, at: u64, len: u64) -> Vec<u8> {
            let mut bytes = vec![0; len as usize];
            self.files[1].read_exact_at(&mut bytes, at).unwrap();
            bytes
        }
    }

    fn pattern(at: u64, len: u64) -> Vec<u8> {
        let byte = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        (at..at + len).map(byte).collect()
    }

    #[test]
    fn copies_of_all_lengths_arrive_on_both_backends() {
        for backend in [Backend::IoUring, Backend::Threads] {
            let bench = Bench::new(backend);
            for len in [1, 63, 4096, CHUNK_BYTES, CHUNK_BYTES + 1, 8 << 20] {
                let (src, dst) = (3, 5);
                bench.run(0, &[bench.copy(src, dst, len)]).unwrap();
                assert!(
                    bench.read(dst, len) == pattern(src, len),
                    "{backend:?} {len}"
                );
            }
        }
    }

    #[test]
    fn an_out_of_range_copy_stops_its_call_and_touches_nothing() {
        let bench = Bench::new(Backend::IoUring);
        let bad = [(BYTES - 1, 0, 2), (0, u64::MAX, 8), (0, 0, u64::MAX)];
        for (src, dst, len) in bad {
            let copies = [
                bench.copy(0, 0, 8),
                bench.copy(src, dst, len),
                bench.copy(0, 4096, 8),
            ];
            let error = CopyError {
                index: 1,
                errno: libc::EFAULT,
            };
            assert_eq!(bench.run(0, &copies), Err(error));
            assert_eq!(bench.read(0, 8), pattern(0, 8));
            assert_eq!(bench.read(4096, 8), [0; 8]);
        }
        assert_eq!(bench.engine.try_now(0, &[bench.copy(0, 0, u64::MAX)]), None);
    }

    #[test]
    fn what_is_no_memory_or_not_inside_is_no_region() {
        let engine = Engine::new(1).unwrap();
        let add = |fd: std::fs::File, offset, len| engine.add_region(fd.into(), offset, len);
        let pipe = rustix::pipe::pipe().unwrap().0.into();
        assert!(matches!(add(pipe, 0, 4096), Err(RegionError::Kind)));
        for (offset, len) in [(0, BYTES + 1), (1, 4096), (0, 0), (u64::MAX - 4095, 4096)] {
            let range = add(memfd(SealFlags::SHRINK), offset, len);
            assert!(matches!(range, Err(RegionError::Range { .. })));
        }
    }

    #[test]
    fn files_that_become_shorter_are_an_error_and_no_signal() {
        let bench = Bench::new(Backend::IoUring);
        let len = 2 * CHUNK_BYTES + 5;
        let short = [memfd(SealFlags::GROW), memfd(SealFlags::empty())];
        let [near, far] = [0, 1].map(|i| {
            let fd = short[i].try_clone().unwrap().into();
            bench.engine.add_region(fd, 4096, BYTES - 4096).unwrap()
        });
        assert!(bench.engine.memory(near).is_none());
        assert!(!bench.engine.read((near, 0), &mut [0; 8]));
        let [from, to] = bench.regions;
        let copy = |src, dst, len| Copy { src, dst, len };
        let there_and_back = |len| {
            [
                copy((from, 7), (near, 100), len),
                copy((near, 100), (far, 0), len),
                copy((far, 0), (to, 9), len),
            ]
        };
        bench.run(0, &there_and_back(len)).unwrap();
        assert!(bench.read(9, len) == pattern(7, len));
        assert_eq!(bench.engine.try_now(0, &there_and_back(5)), None);

        short[1].set_len(8192).unwrap();
        let errno = libc::ENXIO;
        for (index, copies) in [
            (1, there_and_back(len)),
            (0, [copy((far, 4097), (to, 9), 5); 3]),
            (0, [copy((from, 9), (far, 4096), 5); 3]),
        ] {
            let error = CopyError { index, errno };
            assert_eq!(bench.run(0, &copies), Err(error));
        }
        assert_eq!(short[1].metadata().unwrap().len(), 8192);
    }

    #[test]
    fn a_removed_region_was_waited_for_and_is_gone() {
        let bench = Bench::new(Backend::IoUring);
        let (send, receive) = mpsc::channel();
        for _ in 0..4 {
            let send = send.clone();
            let done: Done = Box::new(move |r| send.send(r).unwrap());
            bench.engine.submit(1, &[bench.copy(0, 0, 8 << 20)], done);
        }
        bench.engine.remove_region(bench.regions[1]);
        assert!(bench.read(0, 8 << 20) == pattern(0, 8 << 20));
        (0..4).for_each(|_| receive.recv().unwrap().unwrap());
        assert_eq!(
            bench.run(0, &[bench.copy(0, 0, 1)]).unwrap_err().errno,
            libc::EFAULT
        );
    }

    #[test]
    fn a_dropped_engine_answers_every_call() {
        let bench = Bench::new(Backend::IoUring);
        let (send, receive) = mpsc::channel();
        for _ in 0..32 {
            let send = send.clone();
            let done: Done = Box::new(move |r| send.send(r).unwrap());
            bench.engine.submit(0, &[bench.copy(0, 0, 1 << 20)], done);
        }
        drop((bench, send));
        let results: Vec<_> = receive.iter().collect();
        assert_eq!(results.len(), 32);
        let canceled = |r: &Result<(), CopyError>| r.is_err_and(|e| e.errno == libc::ECANCELED);
        assert!(results.iter().all(|r| r.is_ok() || canceled(r)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Later copies of a queue overwrite earlier ones, whatever their lengths.
        #[test]
        fn a_queue_is_in_order(
            copies in prop::collection::vec((0..1u64 << 20, 0..1u64 << 20, 1..600_000u64), 1..12)
        ) {
            let bench = Bench::new(Backend::IoUring);
            let mut expected = vec![0; BYTES as usize];
            let mut jobs = Vec::new();
            for &(src, dst, len) in &copies {
                expected[dst as usize..(dst + len) as usize].copy_from_slice(&pattern(src, len));
                jobs.push(bench.copy(src, dst, len));
            }
            let (first, last) = jobs.split_at(jobs.len() / 2);
            bench.engine.submit(0, first, Box::new(|r| r.unwrap()));
            bench.run(0, last).unwrap();
            prop_assert!(bench.read(0, BYTES) == expected);
        }
    }
}
