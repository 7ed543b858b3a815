//! Memory of processes: pools are mapped, a window at a time; the rest is reached by
//! process_vm_readv(2), or, where processes have other numbers for each other (pid_namespaces(7)), by the file that each has
//! of its own (`/proc/self/mem`, proc(5)).
//!
//! Windows stay mapped: a page's place in its pool never changes. All access to registered memory
//! goes through them, one's own too, so that a program that unmaps what it registered hurts nobody.

use std::{
    collections::HashMap,
    ffi::c_void,
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    ptr, slice,
    sync::{
        Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
    process::{Pid, test_kill_process},
};
use snaprig_hca::{Atomic, Memory, Segment, key::NOBODY, memory::PROCESSES_MAX};
use snaprig_pages::maps::Mapping;

use super::ordered::{copy_in_order, tail_bytes};

/// Bytes of a window.
pub(crate) const WINDOW: u64 = 1 << 30;
/// Bytes that are moved at a time between two processes neither of whose pages can be mapped.
const BOUNCE_BYTES: usize = 64 << 10;

/// Whether a mapping of a pool is made of windows; what a program has of it begins elsewhere, or is
/// of other lengths.
pub(crate) fn is_window(mapping: &Mapping) -> bool {
    let bytes = mapping.range.end - mapping.range.start;
    bytes.is_multiple_of(WINDOW)
        && mapping.offset.is_multiple_of(WINDOW)
        && mapping.offset != mapping.range.start
}

/// Gets files of other processes from the daemon.
pub trait Pools {
    /// The pool of the process in this slot.
    fn pool_of(&self, process: u32) -> io::Result<File>;

    /// All memory of the process in this slot.
    fn memory_of(&self, process: u32) -> io::Result<File>;
}

/// Who is in a slot, as far as is known here, and which windows of its pool are mapped.
#[derive(Debug, Default)]
struct Peer {
    id: u32,
    pool: Option<File>,
    memory: Option<File>,
    windows: HashMap<u64, usize>,
}

impl Peer {
    /// The process with this number: if another one had the slot, nothing is known yet. Its windows stay mapped: somebody may be
    /// using them.
    fn of(&mut self, id: u32) -> &mut Self {
        if self.id != id {
            *self = Self {
                id,
                ..Self::default()
            };
        }
        self
    }
}

/// Memory of all processes of a fabric.
#[derive(Debug)]
pub struct Peers {
    known: RwLock<HashMap<u32, Peer>>,
    /// Windows used last: what they are of (slot, id and number), and where they are.
    recent: [(AtomicU64, AtomicU64); RECENT],
    /// Held by who changes `recent`: two at a time could leave one's key with the other's place.
    changing: Mutex<()>,
    /// Processes have the numbers that the daemon knows them by.
    are_numbered: bool,
}

const RECENT: usize = 256;

/// Who is meant by a key in `recent`; a process's number and a window's.
fn recent_key(id: u32, window: u64) -> u64 {
    u64::from(id) << 20 | window & 0xf_ffff | 1 << 63
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            recent: std::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(0))),
            changing: Mutex::default(),
            are_numbered: true,
        }
    }
}

/// What tells a PID namespace from others: 0 if that cannot be known, which is as of the first one.
pub fn own_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

impl Peers {
    /// Of a fabric whose daemon is in this PID namespace.
    pub fn of_daemon_in(namespace: u64) -> Self {
        Self {
            are_numbered: namespace == own_namespace(),
            ..Self::default()
        }
    }

    /// Where a pooled byte is mapped, and how many follow it there.
    fn find<P: Pools>(&self, memory: &Memory, pools: &P, at: Segment) -> Option<(*mut u8, u64)> {
        if at.process >= PROCESSES_MAX {
            return None;
        }
        let id = memory.header().processes[at.process as usize].get();
        let (window, offset) = (at.address / WINDOW, at.address % WINDOW);
        let (key, value) = &self.recent[(window as usize ^ (id as usize * 31)) % RECENT];
        let wanted = recent_key(id, window);
        let mut base = value.load(Ordering::Acquire);
        if key.load(Ordering::Acquire) != wanted
            || value.load(Ordering::Acquire) != base
            || base == 0
        {
            base = self.map(pools, at.process, id, window)? as u64;
            let _changing = self.changing.lock().ok()?;
            // Nobody may see this key with another's place: the place goes first.
            key.store(0, Ordering::Release);
            value.store(base, Ordering::Release);
            key.store(wanted, Ordering::Release);
        }
        let pointer = ptr::with_exposed_provenance_mut::<u8>(base as usize);
        Some((pointer.wrapping_add(offset as usize), WINDOW - offset))
    }

    /// Where windows are mapped. The files that they are of are closed: whoever needs another window asks for them again.
    pub fn windows(&self) -> Vec<usize> {
        let Ok(mut known) = self.known.write() else {
            return Vec::new();
        };
        let peers = known.values_mut();
        peers
            .flat_map(|peer| {
                (peer.pool, peer.memory) = (None, None);
                peer.windows.values().copied()
            })
            .collect()
    }

    /// What was mapped is not there any more, and nobody looks for it.
    pub fn forget(&self) {
        let Ok(mut known) = self.known.write() else {
            return;
        };
        for (key, _) in &self.recent {
            key.store(0, Ordering::Release);
        }
        for window in known
            .drain()
            .flat_map(|(_, peer)| peer.windows.into_values())
        {
            let at = ptr::with_exposed_provenance_mut::<c_void>(window);
            // SAFETY: it was mapped by `map`, nobody uses it any more, and it is forgotten.
            let _ = unsafe { munmap(at, WINDOW as usize) };
        }
    }

    fn map<P: Pools>(&self, pools: &P, process: u32, id: u32, window: u64) -> Option<usize> {
        if id == 0 {
            return None;
        }
        let known = self.known.read().ok()?;
        if let Some(base) = known
            .get(&process)
            .filter(|p| p.id == id)
            .and_then(|p| p.windows.get(&window))
        {
            return Some(*base);
        }
        drop(known);
        let mut known = self.known.write().ok()?;
        let peer = known.entry(process).or_default().of(id);
        if peer.pool.is_none() {
            peer.pool = Some(pools.pool_of(process).ok()?);
        }
        let at = window.checked_mul(WINDOW)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the address is null and the flags have no MAP_FIXED, so that the kernel chooses a
        // place where nothing else is. The pool's file is sealed against shrinking, and the mapping
        // is never unmapped.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                WINDOW as usize,
                both,
                flags,
                peer.pool.as_ref()?,
                at,
            )
        };
        let base = base.ok()?.expose_provenance();
        peer.windows.insert(window, base);
        Some(base)
    }

    /// Goes over a pooled segment, piece by piece: pointer, offset in the segment, bytes.
    fn each<P: Pools>(
        &self,
        memory: &Memory,
        pools: &P,
        segment: Segment,
        mut visit: impl FnMut(*mut u8, u64, u64) -> bool,
    ) -> bool {
        let mut done = 0;
        while done < segment.length {
            let part = segment.part(done, u64::MAX);
            let Some((pointer, room)) = self.find(memory, pools, part) else {
                return false;
            };
            let bytes = room.min(part.length);
            if !visit(pointer, done, bytes) {
                return false;
            }
            done += bytes;
        }
        true
    }

    /// Reads.
    pub fn read<P: Pools>(
        &self,
        memory: &Memory,
        pools: &P,
        from: Segment,
        into: &mut [u8],
    ) -> bool {
        if from.length != into.len() as u64 {
            return false;
        }
        if from.process == NOBODY {
            into.fill(0);
            return true;
        }
        if !from.pooled {
            return self.vm(memory, pools, from, into.as_mut_ptr().cast(), false);
        }
        self.each(memory, pools, from, |pointer, at, bytes| {
            // SAFETY: `find` says that `bytes` are mapped at `pointer`, and windows are never
            // unmapped; the slice is indexed with `at`, and has `bytes` from there on, for `each`
            // stays within the segment, which is as long as it. Other processes may write the
            // source meanwhile, as a device may: what is read then is theirs to care for.
            unsafe {
                ptr::copy_nonoverlapping(pointer, into[at as usize..].as_mut_ptr(), bytes as usize)
            };
            true
        })
    }

    /// Writes.
    pub fn write<P: Pools>(&self, memory: &Memory, pools: &P, bytes: &[u8], to: Segment) -> bool {
        if to.length != bytes.len() as u64 {
            return false;
        }
        if to.process == NOBODY {
            return true;
        }
        if !to.pooled {
            return self.vm(memory, pools, to, bytes.as_ptr().cast_mut().cast(), true);
        }
        self.each(memory, pools, to, |pointer, at, count| {
            // SAFETY: `find` says that `count` bytes are mapped at `pointer`, and windows are never
            // unmapped; the slice is indexed with `at`, and has `count` from there on, for `each`
            // stays within the segment, which is as long as it. Other processes may use the target
            // meanwhile, as with a device.
            unsafe { copy_in_order(bytes[at as usize..].as_ptr(), pointer, count as usize) };
            true
        })
    }

    /// Copies.
    pub fn copy<P: Pools>(&self, memory: &Memory, pools: &P, from: Segment, to: Segment) -> bool {
        if from.length != to.length {
            return false;
        }
        if to.process == NOBODY {
            return true;
        }
        if from.process != NOBODY && from.pooled {
            return self.each(memory, pools, from, |source, at, bytes| {
                let to = to.part(at, bytes);
                if !to.pooled {
                    return self.vm(memory, pools, to, source.cast(), true);
                }
                self.each(memory, pools, to, |target, at, bytes| {
                    // SAFETY: the outer `find` says that its `bytes` are mapped at `source`, the
                    // inner one that its own are at `target`, and windows are never unmapped; `at`
                    // and `bytes` stay within the part that both are of. The ranges may overlap.
                    // Other processes may use both meanwhile, as with a device.
                    unsafe {
                        copy_in_order(source.wrapping_add(at as usize), target, bytes as usize)
                    };
                    true
                })
            });
        }
        if from.process != NOBODY && to.pooled {
            return self.each(memory, pools, to, |target, at, bytes| {
                self.vm(memory, pools, from.part(at, bytes), target.cast(), false)
            });
        }
        let mut bounce = vec![0; BOUNCE_BYTES.min(from.length as usize)];
        let mut done = 0;
        while done < from.length {
            let part = from.part(done, BOUNCE_BYTES as u64);
            let bytes = &mut bounce[..part.length as usize];
            let moved = self.read(memory, pools, part, bytes)
                && self.write(memory, pools, bytes, to.part(done, part.length));
            if !moved {
                return false;
            }
            done += part.length;
        }
        true
    }

    /// Does an atomic operation.
    pub fn atomic<P: Pools>(
        &self,
        memory: &Memory,
        pools: &P,
        (me, at): (u32, Segment),
        operation: Atomic,
    ) -> Option<u64> {
        if at.process == NOBODY {
            return Some(0);
        }
        if at.pooled {
            let (pointer, room) = self.find(memory, pools, at)?;
            if room < 8 || !pointer.addr().is_multiple_of(8) {
                return None;
            }
            // SAFETY: `find` says that at least 8 bytes are mapped at `pointer`, and windows are
            // never unmapped; it was checked to be aligned. Nobody has a plain reference to them
            // here: pools are used by pointers and by atomics alone.
            let word = unsafe { AtomicU64::from_ptr(pointer.cast()) };
            return Some(match operation {
                Atomic::FetchAdd(by) => word.fetch_add(by, Ordering::AcqRel),
                Atomic::CompareSwap(old, new) => {
                    let done = word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
                    done.unwrap_or_else(|there| there)
                }
            });
        }
        // Atomic among atomics (IBV_ATOMIC_HCA): one at a time in the whole fabric.
        let lock = &memory.header().atomics;
        let _held = lock.take(me, |process| self.is_gone(memory, pools, process));
        let mut bytes = [0; 8];
        if !self.read(memory, pools, at, &mut bytes) {
            return None;
        }
        let before = u64::from_ne_bytes(bytes);
        let after = match operation {
            Atomic::FetchAdd(by) => before.wrapping_add(by),
            Atomic::CompareSwap(old, new) if before == old => new,
            Atomic::CompareSwap(..) => return Some(before),
        };
        self.write(memory, pools, &after.to_ne_bytes(), at)
            .then_some(before)
    }

    /// Reads or writes memory of a process that is not in its pool.
    fn vm<P: Pools>(
        &self,
        memory: &Memory,
        pools: &P,
        there: Segment,
        here: *mut c_void,
        writes: bool,
    ) -> bool {
        match self.are_numbered {
            true => vm(memory, there, here, writes),
            false => {
                let move_all = |file: &File| by_file(file, there, here, writes);
                self.with_memory(memory, pools, there.process, move_all)
                    .unwrap_or(false)
            }
        }
    }

    /// Does something with the memory of a process.
    fn with_memory<P: Pools, T>(
        &self,
        memory: &Memory,
        pools: &P,
        process: u32,
        with: impl Fn(&File) -> T,
    ) -> Option<T> {
        let id = memory.header().processes.get(process as usize)?.get();
        let known = self.known.read().ok()?;
        let peer = known.get(&process).filter(|peer| peer.id == id);
        if let Some(file) = peer.and_then(|peer| peer.memory.as_ref()) {
            return Some(with(file));
        }
        drop(known);
        let mut known = self.known.write().ok()?;
        let peer = known.entry(process).or_default().of(id);
        let file = pools.memory_of(process).ok()?;
        Some(with(peer.memory.insert(file)))
    }

    /// Whether the process in a slot has ended.
    pub fn is_gone<P: Pools>(&self, memory: &Memory, pools: &P, process: u32) -> bool {
        if self.are_numbered {
            return is_gone(memory, process);
        }
        // Nothing is mapped at 0, which is an error; but of a process that has ended nothing can be read.
        let has_ended = |file: &File| matches!(file.read_at(&mut [0], 0), Ok(0));
        self.with_memory(memory, pools, process, has_ended)
            .unwrap_or(false)
    }
}

/// Moves bytes by a file of a process's memory, where addresses are offsets; the last bytes last.
fn by_file(file: &File, there: Segment, here: *mut c_void, writes: bool) -> bool {
    let (here, bytes) = (here.cast::<u8>(), there.length as usize);
    let target = match writes {
        true => there.address as usize,
        false => here.addr(),
    };
    let head = bytes - tail_bytes(target.wrapping_add(bytes), bytes);
    let moved = |(at, bytes): (usize, usize)| {
        let (here, there) = (here.wrapping_add(at), there.address + at as u64);
        // SAFETY: as for `vm`: the callers pass `here` with as many bytes as the segment has, readable, and writable and nobody
        // else's if they are read into.
        unsafe {
            match writes {
                true => file.write_all_at(slice::from_raw_parts(here, bytes), there),
                false => file.read_exact_at(slice::from_raw_parts_mut(here, bytes), there),
            }
        }
    };
    let parts = [(0, head), (head, bytes - head)];
    parts.into_iter().all(|part| moved(part).is_ok())
}

/// Whether the process in a slot has ended, with all of its threads; one that nobody has waited for yet, too
/// (proc_pid_stat(5)).
fn is_gone(memory: &Memory, process: u32) -> bool {
    let pid = memory.header().pids.get(process as usize);
    let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.get() as i32)) else {
        return true;
    };
    // Not by /proc alone, which may not be there, or hide others' processes.
    if test_kill_process(pid) == Err(Errno::SRCH) {
        return true;
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    // Its first thread may have ended, and others go on.
    matches!(fields.next(), Some("Z" | "X")) && matches!(fields.nth(16), Some("0" | "1"))
}

/// Reads or writes memory of a process that is not in its pool.
fn vm(memory: &Memory, there: Segment, here: *mut c_void, writes: bool) -> bool {
    let Some(pid) = memory
        .header()
        .pids
        .get(there.process as usize)
        .map(|pid| pid.get())
    else {
        return false;
    };
    let target = if writes {
        there.address as usize
    } else {
        here.addr()
    };
    let bytes = there.length as usize;
    let head = bytes - tail_bytes(target.wrapping_add(bytes), bytes);
    let mut done = 0;
    while done < bytes {
        // The kernel copies one piece after the other: what is seen last is one of its own.
        let middle = head.max(done);
        let pieces = [(done, middle - done), (middle, bytes - middle)];
        let local = pieces.map(|(at, bytes)| libc::iovec {
            iov_base: here.wrapping_byte_add(at),
            iov_len: bytes,
        });
        let remote = pieces.map(|(at, bytes)| libc::iovec {
            iov_base: ptr::without_provenance_mut((there.address as usize).wrapping_add(at)),
            iov_len: bytes,
        });
        // SAFETY: `each` and the callers pass `here` with as many bytes as the segment has, in which
        // both pieces are: readable, and writable if they are read into. The remote addresses are
        // not used in this process: the kernel checks them, and fails the call.
        let moved = unsafe {
            let (local, remote) = (local.as_ptr(), remote.as_ptr());
            if writes {
                libc::process_vm_writev(pid as i32, local, 2, remote, 2, 0)
            } else {
                libc::process_vm_readv(pid as i32, local, 2, remote, 2, 0)
            }
        };
        if moved <= 0 {
            return false;
        }
        done += moved as usize;
    }
    true
}
