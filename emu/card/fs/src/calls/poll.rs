//! poll(2), select(2), epoll_wait(2): waiting for several files at once. (The signal masks of some
//! are the caller's business: `Call::poll_with_mask`.)

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use snaprig_card_driver::{
    errno::Errno,
    file::{Description, File},
    wait::{Channel, Stop, SysResult, Wait},
};

use crate::{
    call::{FsCall, only},
    files::epoll::Epoll,
    table::Open,
};

const FDS_MAX: u64 = 4096;
const EVENTS_MAX: usize = 4096;
const FD_SET_BYTES: usize = 128;

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    Some(match number as i64 {
        libc::SYS_poll => milliseconds(call, int(2)).and_then(|()| poll(call, a[0], a[1])),
        libc::SYS_ppoll => timespec(call, a[2]).and_then(|()| poll(call, a[0], a[1])),
        libc::SYS_select => timeval(call, a[4]).and_then(|()| select(call, int(0), a)),
        libc::SYS_pselect6 => timespec(call, a[4]).and_then(|()| select(call, int(0), a)),
        libc::SYS_epoll_create | libc::SYS_epoll_create1 => create(call, number, int(0)),
        libc::SYS_epoll_ctl => control(call, int(0), int(1), int(2), a[3]),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => {
            milliseconds(call, int(3)).and_then(|()| epoll_wait(call, int(0), a[1], int(2)))
        }
        libc::SYS_epoll_pwait2 => {
            timespec(call, a[3]).and_then(|()| epoll_wait(call, int(0), a[1], int(2)))
        }
        _ => return None,
    })
}

/// Whether a call asks files what is ready.
pub fn asks_for_readiness(number: u64) -> bool {
    matches!(
        number as i64,
        libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_epoll_ctl
            | libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
    )
}

/// Sets the deadline at the first attempt; negative: none.
fn milliseconds(call: &mut FsCall, timeout: i32) -> SysResult<()> {
    if let Ok(timeout) = u64::try_from(timeout) {
        set_deadline(call, Duration::from_millis(timeout));
    }
    Ok(())
}

fn timespec(call: &mut FsCall, at: u64) -> SysResult<()> {
    if at == 0 {
        return Ok(());
    }
    let (seconds, nanos) = (read_u64(call, at)?, read_u64(call, at.wrapping_add(8))?);
    if seconds > i64::MAX as u64 || nanos >= 1_000_000_000 {
        return Err(Errno::EINVAL.into());
    }
    set_deadline(call, Duration::new(seconds, nanos as u32));
    Ok(())
}

fn timeval(call: &mut FsCall, at: u64) -> SysResult<()> {
    if at == 0 {
        return Ok(());
    }
    let (seconds, micros) = (read_u64(call, at)?, read_u64(call, at.wrapping_add(8))?);
    // More than a second of microseconds is as good (Linux carries it over).
    if seconds > i64::MAX as u64 || micros > i64::MAX as u64 {
        return Err(Errno::EINVAL.into());
    }
    let timeout = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    set_deadline(call, timeout);
    Ok(())
}

fn set_deadline(call: &mut FsCall, timeout: Duration) {
    let end = call.cx.now.saturating_add(timeout);
    call.deadline.get_or_insert(end);
}

fn is_over(call: &FsCall) -> bool {
    call.deadline
        .is_some_and(|deadline| deadline <= call.cx.now)
}

fn wait_for(call: &FsCall, files: &[Arc<Open>]) -> Stop {
    // Each file once: an array may name an epoll of many files many times.
    let files: BTreeMap<_, _> = files.iter().map(|open| (Arc::as_ptr(open), open)).collect();
    let channels: BTreeSet<_> = files
        .values()
        .flat_map(|open| open.file.channels())
        .collect();
    let timers = files.values().filter_map(|open| open.file.deadline());
    Stop::Wait(Wait {
        channels: channels.into_iter().collect(),
        deadline: timers.chain(*call.deadline).min(),
    })
}

fn poll(call: &mut FsCall, fds: u64, count: u64) -> SysResult {
    if count > FDS_MAX {
        return Err(Errno::EINVAL.into());
    }
    let mut bytes = vec![0; count as usize * 8];
    call.cx.memory.read(fds, &mut bytes)?;
    let (mut ready, mut files) = (0, Vec::new());
    for entry in bytes.chunks_exact_mut(8) {
        let fd = i32::from_le_bytes(entry[..4].try_into().expect("4 bytes"));
        let wanted = i16::from_le_bytes([entry[4], entry[5]]);
        let got = match call.files.get(fd) {
            _ if fd < 0 => 0,
            Err(_) => libc::POLLNVAL,
            Ok(open) => {
                let always = libc::POLLERR | libc::POLLHUP;
                let got = open.file.poll() & (wanted | always);
                files.push(open);
                got
            }
        };
        entry[6..].copy_from_slice(&got.to_le_bytes());
        ready += u64::from(got != 0);
    }
    if ready == 0 && !is_over(call) {
        return Err(wait_for(call, &files));
    }
    call.cx.memory.write(fds, &bytes)?;
    Ok(ready)
}

fn select(call: &mut FsCall, count: i32, a: [u64; 6]) -> SysResult {
    let count = usize::try_from(count)
        .map_err(|_| Errno::EINVAL)?
        .min(FD_SET_BYTES * 8);
    let bytes = count.div_ceil(64) * 8;
    let interests = [
        (a[1], libc::POLLIN | libc::POLLHUP | libc::POLLERR),
        (a[2], libc::POLLOUT | libc::POLLERR),
        (a[3], libc::POLLPRI),
    ];
    let mut sets = [const { Vec::new() }; 3];
    for ((set, _), asked) in interests.iter().zip(&mut sets) {
        asked.resize(bytes, 0_u8);
        if *set != 0 {
            call.cx.memory.read(*set, asked)?;
        }
    }
    let (mut ready, mut files, mut results) = (0, Vec::new(), Vec::new());
    for ((set, wanted), asked) in interests.into_iter().zip(sets) {
        let mut got = vec![0_u8; bytes];
        for fd in (0..count).filter(|fd| asked[fd / 8] >> (fd % 8) & 1 == 1) {
            let open = call.files.get(fd as i32)?;
            if open.file.poll() & wanted != 0 {
                got[fd / 8] |= 1 << (fd % 8);
                ready += 1;
            }
            files.push(open);
        }
        results.push((set, got));
    }
    if ready == 0 && !is_over(call) {
        return Err(wait_for(call, &files));
    }
    for (set, got) in results.into_iter().filter(|(set, _)| *set != 0) {
        call.cx.memory.write(set, &got)?;
    }
    Ok(ready)
}

fn create(call: &mut FsCall, number: u64, flags: i32) -> SysResult {
    // What epoll_create(2) is given is a size, of no meaning but that there is one.
    let close = match number as i64 {
        libc::SYS_epoll_create1 => only(flags, libc::EPOLL_CLOEXEC)? != 0,
        _ if flags <= 0 => return Err(Errno::EINVAL.into()),
        _ => false,
    };
    call.insert(Open::new(Epoll::new(), libc::O_RDWR), close)
}

fn control(call: &mut FsCall, epfd: i32, op: i32, fd: i32, event: u64) -> SysResult {
    // struct epoll_event is packed: events at 0, data at 4.
    let mut bytes = [0; 12];
    if op != libc::EPOLL_CTL_DEL {
        call.cx.memory.read(event, &mut bytes)?;
    }
    let epoll = call.files.get(epfd)?;
    let open = call.files.get(fd)?;
    // What is always ready is not waited for (epoll_ctl(2)).
    if matches!(open.file.describe(), Description::Path { .. }) {
        return Err(Errno::EPERM.into());
    }
    let epoll = epoll.file.as_any().downcast_ref::<Epoll>();
    let epoll = epoll.ok_or(Errno::EINVAL)?;
    let own = open.file.as_any().downcast_ref::<Epoll>();
    if own.is_some_and(|own| std::ptr::eq(own, epoll)) {
        return Err(Errno::EINVAL.into());
    }
    let events = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
    let data = u64::from_le_bytes(bytes[4..].try_into().expect("8 bytes"));
    epoll.control(op, fd, &open, events, data)?;
    for channel in epoll_channels(epoll) {
        (call.cx.wake)(channel);
    }
    Ok(0)
}

fn epoll_channels(epoll: &Epoll) -> Vec<Channel> {
    File::channels(epoll)
}

fn epoll_wait(call: &mut FsCall, epfd: i32, events: u64, max: i32) -> SysResult {
    let open = call.files.get(epfd)?;
    let epoll = open
        .file
        .as_any()
        .downcast_ref::<Epoll>()
        .ok_or(Errno::EINVAL)?;
    let max = usize::try_from(max)
        .ok()
        .filter(|max| *max > 0)
        .ok_or(Errno::EINVAL)?;
    let ready = epoll.take_ready(max.min(EVENTS_MAX));
    if ready.is_empty() && !is_over(call) {
        return Err(wait_for(call, std::slice::from_ref(&open)));
    }
    let mut bytes = Vec::with_capacity(ready.len() * 12);
    for (events, data) in &ready {
        bytes.extend_from_slice(&events.to_le_bytes());
        bytes.extend_from_slice(&data.to_le_bytes());
    }
    call.cx.memory.write(events, &bytes)?;
    Ok(ready.len() as u64)
}

fn read_u64(call: &mut FsCall, at: u64) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    call.cx.memory.read(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
