//! System V objects of this process's IPC namespace (sysvipc(7)): which there are, what is in them, and new ones.

use std::{fs, io, ptr, slice};

use libc::{c_int, pid_t};

use procfs::process::Process;
use snaprig_tracee::remote::PAGE;

use crate::{error::Result, huge::pages, state::SysvObject};

/// Commands that libc has no names for: of all objects, also those that the caller may not read (linux/shm.h and its
/// likes).
const SHM_INFO: c_int = 14;
const SHM_STAT_ANY: c_int = 15;
const SEM_INFO: c_int = 19;
const SEM_STAT_ANY: c_int = 20;
const MSG_INFO: c_int = 12;
const MSG_STAT_ANY: c_int = 13;
/// msgrcv(2): the message of a number, which stays where it is.
const MSG_COPY: c_int = 0o40000;
/// The largest value of a semaphore (SEMVMX).
pub const VALUE_MAX: i32 = 32767;

/// Which kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Segment,
    Set,
    Queue,
}

impl Kind {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Segment => "System V shared memory",
            Self::Set => "the System V semaphores",
            Self::Queue => "the System V message queue",
        }
    }
}

/// What the kernel says of an object.
#[derive(Clone, Debug)]
pub struct Stat {
    pub kind: Kind,
    pub object: SysvObject,
    /// Bytes of a segment, semaphores of a set, bytes that a queue takes.
    pub size: u64,
    /// How often a segment is attached; bytes in a queue.
    pub used: u64,
    /// semop(2) has been called for a set.
    pub is_used: bool,
    /// Seconds since 1970 when it was changed last.
    pub changed: i64,
    /// Who has made or used it last: 0 is nobody.
    pub users: Vec<pid_t>,
}

/// All objects of a kind.
pub fn all(kind: Kind) -> Vec<Stat> {
    let (info, stat): (c_int, fn(c_int) -> io::Result<Stat>) = match kind {
        Kind::Segment => (SHM_INFO, segment),
        Kind::Set => (SEM_INFO, set),
        Kind::Queue => (MSG_INFO, queue),
    };
    let mut room = [0u64; 32];
    let at = room.as_mut_ptr();
    // SAFETY: the kernel writes a struct shm_info, seminfo or msginfo, none of which has more than 48 bytes, into room
    // for 256, aligned to eight.
    let highest = unsafe {
        match kind {
            Kind::Segment => libc::shmctl(0, info, at.cast()),
            Kind::Set => libc::semctl(0, 0, info, at),
            Kind::Queue => libc::msgctl(0, info, at.cast()),
        }
    };
    // Those that are gone by now, or that never were.
    (0..=highest).filter_map(|index| stat(index).ok()).collect()
}

fn object(id: c_int, perm: &libc::ipc_perm) -> SysvObject {
    SysvObject {
        id,
        key: perm.__key,
        mode: perm.mode.into(),
        owner: (perm.uid, perm.gid),
        creator: (perm.cuid, perm.cgid),
    }
}

fn segment(index: c_int) -> io::Result<Stat> {
    // SAFETY: the structure has numbers alone, for which zero is a value, and which the kernel fills.
    let (id, stat) = unsafe {
        let mut stat: libc::shmid_ds = std::mem::zeroed();
        let id = checked(libc::shmctl(index, SHM_STAT_ANY, &raw mut stat))?;
        (id, stat)
    };
    Ok(Stat {
        kind: Kind::Segment,
        object: object(id, &stat.shm_perm),
        size: stat.shm_segsz as u64,
        used: stat.shm_nattch,
        is_used: stat.shm_atime != 0,
        changed: stat.shm_atime.max(stat.shm_dtime).max(stat.shm_ctime),
        users: vec![stat.shm_cpid, stat.shm_lpid],
    })
}

fn set(index: c_int) -> io::Result<Stat> {
    // SAFETY: the structure has numbers alone, for which zero is a value, and which the kernel fills.
    let (id, stat) = unsafe {
        let mut stat: libc::semid_ds = std::mem::zeroed();
        let id = checked(libc::semctl(index, 0, SEM_STAT_ANY, &raw mut stat))?;
        (id, stat)
    };
    // Those that nobody but others may read are others'.
    let users = of_each(id, stat.sem_nsems, libc::GETPID).unwrap_or_default();
    Ok(Stat {
        kind: Kind::Set,
        object: object(id, &stat.sem_perm),
        size: stat.sem_nsems,
        used: 0,
        is_used: stat.sem_otime != 0,
        changed: stat.sem_otime.max(stat.sem_ctime),
        users,
    })
}

fn queue(index: c_int) -> io::Result<Stat> {
    // SAFETY: the structure has numbers alone, for which zero is a value, and which the kernel fills.
    let (id, stat) = unsafe {
        let mut stat: libc::msqid_ds = std::mem::zeroed();
        let id = checked(libc::msgctl(index, MSG_STAT_ANY, &raw mut stat))?;
        (id, stat)
    };
    Ok(Stat {
        kind: Kind::Queue,
        object: object(id, &stat.msg_perm),
        size: stat.msg_qbytes,
        used: stat.__msg_cbytes,
        is_used: stat.msg_stime != 0,
        changed: stat.msg_stime.max(stat.msg_rtime).max(stat.msg_ctime),
        users: vec![stat.msg_lspid, stat.msg_lrpid],
    })
}

fn checked(returned: c_int) -> io::Result<c_int> {
    match returned {
        returned if returned < 0 => Err(io::Error::last_os_error()),
        returned => Ok(returned),
    }
}

fn of_each(id: c_int, count: u64, what: c_int) -> io::Result<Vec<i32>> {
    let numbers = 0..count.min(c_int::MAX as u64) as c_int;
    // SAFETY: the callers ask for GETPID, GETVAL, GETNCNT or GETZCNT, which take no fourth argument and return a
    // number.
    numbers
        .map(|number| checked(unsafe { libc::semctl(id, number, what) }))
        .collect()
}

/// The values of a set.
pub fn values(id: i32, count: u64) -> io::Result<Vec<i32>> {
    of_each(id, count, libc::GETVAL)
}

/// How many wait for semaphores of a set.
pub fn waiting(id: i32, count: u64) -> io::Result<i32> {
    let (more, zero) = (
        of_each(id, count, libc::GETNCNT)?,
        of_each(id, count, libc::GETZCNT)?,
    );
    Ok(more.into_iter().chain(zero).sum())
}

/// The messages of a queue with so many bytes in it, the oldest first: types and bytes. They stay in it.
pub fn messages(id: i32, bytes: u64) -> io::Result<Vec<(i64, Vec<u8>)>> {
    const TYPE_BYTES: usize = size_of::<libc::c_long>();
    let most = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut buffer = vec![0u8; TYPE_BYTES + most];
    let mut messages = Vec::new();
    loop {
        // SAFETY: the buffer has room for a type and `most` bytes behind it, which is what msgrcv(2) writes at most.
        let read = unsafe {
            let (flags, number) = (MSG_COPY | libc::IPC_NOWAIT, messages.len() as libc::c_long);
            libc::msgrcv(id, buffer.as_mut_ptr().cast(), most, number, flags)
        };
        let Ok(read) = usize::try_from(read) else {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOMSG) => Ok(messages),
                _ => Err(error),
            };
        };
        let (kind, rest) = buffer.split_at(TYPE_BYTES);
        let kind = i64::from_ne_bytes(kind.try_into().expect("eight bytes"));
        messages.push((kind, rest[..read].to_vec()));
    }
}

/// A segment that this process has attached, until it is dropped.
#[derive(Debug)]
pub struct Attached {
    at: u64,
    bytes: u64,
}

impl Attached {
    /// A segment of so many bytes.
    pub fn attach(id: i32, bytes: u64, write: bool) -> io::Result<Self> {
        let flags = if write { 0 } else { libc::SHM_RDONLY };
        // SAFETY: without an address shmat(2) takes one that nothing is at, so no memory of ours changes.
        let at = unsafe { libc::shmat(id, ptr::null(), flags) };
        match at.addr() {
            usize::MAX => Err(io::Error::last_os_error()),
            _ => Ok(Self {
                at: at.expose_provenance() as u64,
                bytes: bytes.next_multiple_of(PAGE),
            }),
        }
    }

    /// Where it is.
    pub fn start(&self) -> u64 {
        self.at
    }

    /// The device that its memory is of.
    pub fn device(&self) -> Result<u64> {
        let maps = Process::myself()?.maps()?;
        let mut maps = maps.iter();
        let map = maps.find(|map| (map.address.0..map.address.1).contains(&self.at));
        let (major, minor) = map.map_or((0, 0), |map| map.dev);
        Ok(libc::makedev(major as u32, minor as u32))
    }

    /// All of its pages. Nobody writes to them meanwhile.
    pub fn pages(&self) -> &[u8] {
        // SAFETY: shmat(2) has mapped whole pages of `bytes` at `at`, readable, until this is dropped; a segment never
        // changes its size. Nobody writes to them while the tree is held, as the caller sees to.
        unsafe { slice::from_raw_parts(self.at as *const u8, self.bytes as usize) }
    }

    /// Where so many bytes of it are in this process; none: it is not so long.
    pub fn address(&self, offset: u64, bytes: u64) -> Option<u64> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then_some(self.at + offset)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: `at` is what shmat(2) returned, and no slice of it outlives this value.
        unsafe { libc::shmdt(self.at as *const libc::c_void) };
    }
}

/// A new object with the number, key and creator that it had: nobody else may use it yet. In another namespace the
/// number may be taken. `huge_bytes`: of the pages of a segment of huge ones.
pub fn make(kind: Kind, object: &SysvObject, size: u64, huge_bytes: u64) -> io::Result<()> {
    let name = match kind {
        Kind::Segment => "shm",
        Kind::Set => "sem",
        Kind::Queue => "msg",
    };
    let path = format!("/proc/sys/kernel/{name}_next_id");
    // Ordinary users may say it since Linux 5.19.
    fs::write(&path, object.id.to_string())
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    let count = c_int::try_from(size);
    let made = as_creator(object.creator, || {
        let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
        // SAFETY: each of the three takes numbers alone and no address, so the kernel reads and writes no memory of
        // this process.
        unsafe {
            match kind {
                Kind::Segment if huge_bytes != 0 => {
                    let huge = libc::SHM_HUGETLB | pages::size_flags(huge_bytes);
                    libc::shmget(object.key, size as usize, flags | huge)
                }
                Kind::Segment => libc::shmget(object.key, size as usize, flags),
                Kind::Set => libc::semget(object.key, count.unwrap_or(-1), flags),
                Kind::Queue => libc::msgget(object.key, flags),
            }
        }
    })?;
    match made == object.id {
        true => Ok(()),
        false => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

/// Makes something as another user, if that is another one.
fn as_creator(creator: (u32, u32), make: impl FnOnce() -> c_int) -> io::Result<c_int> {
    // SAFETY: the calls take numbers alone; those of libc set the user of all threads of this process, of which there
    // is one, and set it back.
    unsafe {
        let own = (libc::geteuid(), libc::getegid());
        if own == creator {
            return checked(make());
        }
        let dumpable = libc::prctl(libc::PR_GET_DUMPABLE);
        let become_one = |(user, group): (u32, u32)| {
            checked(libc::setegid(group)).and_then(|_| checked(libc::seteuid(user)))
        };
        let made = become_one(creator).and_then(|_| checked(make()));
        checked(libc::seteuid(own.0)).and_then(|_| checked(libc::setegid(own.1)))?;
        // It is lost with a change of user.
        libc::prctl(libc::PR_SET_DUMPABLE, dumpable);
        made
    }
}

/// The owner and the permissions that it had; of a queue, the bytes that it takes.
pub fn own(kind: Kind, object: &SysvObject, size: u64) -> io::Result<()> {
    // SAFETY: the structure has numbers alone, for which zero is a value; the kernel only reads it.
    unsafe {
        let mut perm: libc::ipc_perm = std::mem::zeroed();
        (perm.uid, perm.gid) = object.owner;
        perm.mode = (object.mode & 0o777) as u16;
        let set = match kind {
            Kind::Segment => {
                let mut stat: libc::shmid_ds = std::mem::zeroed();
                stat.shm_perm = perm;
                libc::shmctl(object.id, libc::IPC_SET, &raw mut stat)
            }
            Kind::Set => {
                let mut stat: libc::semid_ds = std::mem::zeroed();
                stat.sem_perm = perm;
                libc::semctl(object.id, 0, libc::IPC_SET, &raw mut stat)
            }
            Kind::Queue => {
                let mut stat: libc::msqid_ds = std::mem::zeroed();
                stat.msg_perm = perm;
                stat.msg_qbytes = size;
                libc::msgctl(object.id, libc::IPC_SET, &raw mut stat)
            }
        };
        checked(set).map(drop)
    }
}

/// Locks a segment in memory.
pub fn lock(id: i32) -> io::Result<()> {
    // SAFETY: with SHM_LOCK shmctl(2) does not look at the address.
    checked(unsafe { libc::shmctl(id, libc::SHM_LOCK, ptr::null_mut()) }).map(drop)
}

/// Has a segment go when nobody has attached it any more.
pub fn remove(id: i32) -> io::Result<()> {
    // SAFETY: with IPC_RMID shmctl(2) does not look at the address; what is attached stays mapped.
    checked(unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) }).map(drop)
}

/// The value of a semaphore of a new set.
pub fn set_value(id: i32, number: u16, value: i32) -> io::Result<()> {
    // SAFETY: the fourth argument of SETVAL is a number, which a union of C passes where an int is passed.
    checked(unsafe { libc::semctl(id, number.into(), libc::SETVAL, value) }).map(drop)
}

/// Makes a set, whose first semaphore has some value, one that semop(2) has been called for, which its time tells.
pub fn use_set(id: i32, value: i32) -> io::Result<()> {
    let mut operations = up_and_down(0, value, 1, (0, 0));
    // SAFETY: there are as many operations as is said, which semop(2) reads.
    checked(unsafe { libc::semop(id, operations.as_mut_ptr(), operations.len()) }).map(drop)
}

/// Operations on a semaphore of some value that leave it what it was: up and down by some amount, or down and up, with
/// flags for each. One of both ways is open to amounts of up to half the largest value.
pub fn up_and_down(number: u16, value: i32, amount: i16, flags: (i32, i32)) -> [libc::sembuf; 2] {
    let operation = |sem_op, flags: i32| libc::sembuf {
        sem_num: number,
        sem_op,
        sem_flg: (flags | libc::IPC_NOWAIT) as i16,
    };
    let (up, down) = (operation(amount, flags.0), operation(-amount, flags.1));
    match value + i32::from(amount) <= VALUE_MAX {
        true => [up, down],
        false => [down, up],
    }
}

/// Puts a message into a queue.
pub fn send(id: i32, kind: i64, bytes: &[u8]) -> io::Result<()> {
    let message = [&kind.to_ne_bytes(), bytes].concat();
    // SAFETY: the message is a type and `bytes.len()` bytes, which is what msgsnd(2) reads.
    let sent = unsafe { libc::msgsnd(id, message.as_ptr().cast(), bytes.len(), libc::IPC_NOWAIT) };
    checked(sent).map(drop)
}
