//! SCIF on the host: endpoints of the node of the rig that `SNAPRIG_RIG` names.
//!
//! | module | what it is |
//! |---|---|
//! | `endpoint` | an endpoint's connections to the node, and calls on them |
//! | `direct` | messages to another program of this host |
//! | `fork` | what a child of fork(2) has of all this |
//! | `memory` | the own registered memory, and the peers', mapped |
//! | `rma` | copies between the two |
//! | `lease` | where the peer's memory is, for as long as that is known |
//! | `mapped` | scif_mmap |
//! | `wait` | scif_poll |
//! | `watch` | the end of the rig |

mod direct;
mod endpoint;
mod fork;
mod lease;
mod mapped;
mod memory;
mod rma;
mod wait;
mod watch;

use std::{
    collections::BTreeMap,
    ffi::c_int,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use snaprig_scif::host::protocol::{Answer, Call, SEND_MAX};
use snaprig_wire::scif::{NodeId, PORT_PRIVILEGED, PortId};

use crate::ffi::Result;
use endpoint::Endpoint;

pub(crate) use mapped::{map, unmapped};
pub(crate) use rma::{Local, copy};
pub(crate) use wait::poll;

/// Every endpoint of this process, by its descriptor.
static ENDPOINTS: RwLock<BTreeMap<RawFd, Arc<Endpoint>>> = RwLock::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer is not one to the call: node and library are of different versions.
const NONSENSE: c_int = libc::EPROTO;

fn find(epd: RawFd) -> Result<Arc<Endpoint>> {
    let endpoints = ENDPOINTS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(endpoint) = endpoints.get(&epd) {
        return Ok(endpoint.clone());
    }
    // As an ioctl of the driver's has it.
    // SAFETY: fcntl(2) with F_GETFD takes a number alone, touches no memory, and fails with EBADF
    // for what is no descriptor.
    match unsafe { libc::fcntl(epd, libc::F_GETFD) } {
        ..0 => Err(libc::EBADF),
        _ => Err(libc::ENOTTY),
    }
}

pub(crate) fn is_endpoint(epd: RawFd) -> bool {
    find(epd).is_ok()
}

fn insert(endpoint: Endpoint) -> RawFd {
    let epd = endpoint.descriptor().as_raw_fd();
    let mut endpoints = ENDPOINTS.write().unwrap_or_else(PoisonError::into_inner);
    // A program that closed its descriptor with close(2) has given up what it was of.
    let former = endpoints.insert(epd, Arc::new(endpoint));
    drop(endpoints);
    if let Some(former) = former {
        former.abandon_descriptor();
    }
    epd
}

pub(crate) fn open() -> Result<RawFd> {
    Endpoint::open().map(insert)
}

pub(crate) fn close(epd: RawFd) -> Result {
    find(epd)?;
    let mut endpoints = ENDPOINTS.write().unwrap_or_else(PoisonError::into_inner);
    let endpoint = endpoints.remove(&epd).ok_or(libc::EBADF)?;
    drop(endpoints);
    endpoint.close();
    Ok(())
}

pub(crate) fn bind(epd: RawFd, port: u16) -> Result<u16> {
    let endpoint = find(epd)?;
    if (1..PORT_PRIVILEGED).contains(&port) && !rustix::process::geteuid().is_root() {
        return Err(libc::EACCES);
    }
    match endpoint.call(Call::Bind(port))? {
        Answer::Port(port) => Ok(port),
        _ => Err(NONSENSE),
    }
}

pub(crate) fn listen(epd: RawFd, backlog: c_int) -> Result {
    let backlog = u32::try_from(backlog).unwrap_or(0);
    find(epd)?.call(Call::Listen(backlog)).map(drop)
}

pub(crate) fn connect(epd: RawFd, peer: PortId) -> Result<u16> {
    let endpoint = find(epd)?;
    // SAFETY: fcntl(2) with F_GETFL takes a number alone, touches no memory, and fails with EBADF
    // for what is no descriptor.
    let flags = unsafe { libc::fcntl(epd, libc::F_GETFL) };
    let call = match flags & libc::O_NONBLOCK {
        0 => Call::Connect(peer),
        _ => Call::ConnectAsync(peer),
    };
    match endpoint.call(call)? {
        Answer::Port(port) => Ok(port),
        _ => Err(NONSENSE),
    }
}

pub(crate) fn accept(epd: RawFd, wait: bool) -> Result<(RawFd, PortId)> {
    let call = if wait { Call::Accept } else { Call::AcceptNow };
    match find(epd)?.call_with(call, None, wait)? {
        (Answer::Accepted(peer), Some(socket)) => Ok((insert(Endpoint::over(socket)?), peer)),
        (Answer::Accepted(_), None) => Err(libc::EMFILE),
        _ => Err(NONSENSE),
    }
}

pub(crate) fn send(epd: RawFd, msg: usize, len: usize, block: bool) -> Result<usize> {
    let endpoint = find(epd)?;
    // One message after the other, whoever sends them.
    let _turn = lock(&endpoint.sending);
    if let Some(direct) = endpoint.direct()?.filter(|_| len > 0) {
        return direct.send(&endpoint, msg, len, block);
    }
    let mut sent = 0;
    while sent < len {
        let data = memory::read(msg + sent, (len - sent).min(SEND_MAX));
        let part = data.and_then(|data| {
            let part = data.len();
            match endpoint.call_with(Call::Write { data, block }, None, block)? {
                (Answer::Count(count), _) => Ok((count as usize, part)),
                _ => Err(NONSENSE),
            }
        });
        match part {
            Ok((count, part)) => {
                sent += count;
                if count < part || !block {
                    break;
                }
            }
            // scif_send(3).
            Err(libc::EBADF) if sent == 0 => return Err(libc::EINTR),
            Err(errno) if sent == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(sent)
}

pub(crate) fn recv(epd: RawFd, msg: usize, len: usize, block: bool) -> Result<usize> {
    let endpoint = find(epd)?;
    let _turn = lock(&endpoint.receiving);
    if let Some(direct) = endpoint.direct()?.filter(|_| len > 0) {
        return direct.recv(&endpoint, msg, len, block);
    }
    let mut received = 0;
    while received < len {
        let most = (len - received).min(SEND_MAX);
        // What has been received cannot be put back.
        let read = memory::check(msg + received, most, true).and_then(|()| {
            let max = most as u32;
            match endpoint.call_with(Call::Read { max, block }, None, block)? {
                (Answer::Bytes(bytes), _) if bytes.len() <= most => Ok(bytes),
                _ => Err(NONSENSE),
            }
        });
        match read {
            Ok(bytes) => {
                memory::write(msg + received, &bytes);
                received += bytes.len();
                if !block {
                    break;
                }
            }
            Err(errno) if received == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(received)
}

pub(crate) fn register(
    epd: RawFd,
    address: u64,
    len: u64,
    offset: Option<i64>,
    prot: u8,
) -> Result<i64> {
    let endpoint = find(epd)?;
    let pool = memory::pool()?;
    {
        let mut offered = lock(&endpoint.pool_offered);
        if !*offered {
            endpoint.call_with(Call::Pool, Some(pool.fd()), false)?;
            *offered = true;
        }
    }
    let pages = |len| Call::RegisterPages {
        address,
        len,
        offset,
        prot,
    };
    let shared = memory::share(address, len, prot);
    if shared == Err(libc::EAGAIN)
        && let Ok((file, at)) = memory::shared_file(address, len, prot)
    {
        let call = Call::RegisterFile {
            at,
            len,
            offset,
            prot,
        };
        let answer = endpoint.call_with(call, Some(file.as_fd()), false)?;
        let (Answer::Offset(offset), _) = answer else {
            return Err(NONSENSE);
        };
        endpoint.add_window(offset, memory::Shared::of_file(file, at, len, prot));
        return Ok(offset);
    }
    if let Err(errno) = shared {
        // Whether it is connected at all comes first.
        return match endpoint.call(pages(0)) {
            Err(libc::EINVAL) | Ok(_) => Err(errno),
            Err(other) => Err(other),
        };
    }
    match endpoint.call(pages(len)) {
        Ok(Answer::Offset(offset)) => {
            endpoint.add_window(offset, memory::Shared::new(address, len, prot));
            Ok(offset)
        }
        other => {
            pool.deregister(address, len);
            Err(other.err().unwrap_or(NONSENSE))
        }
    }
}

pub(crate) fn unregister(epd: RawFd, offset: i64, len: u64) -> Result {
    let endpoint = find(epd)?;
    match endpoint.call(Call::Unregister { offset, len })? {
        Answer::Gone { held } => {
            endpoint.remove_windows(offset, len, held);
            Ok(())
        }
        _ => Err(NONSENSE),
    }
}

/// Whether RMA can be done at all: else why not.
pub(crate) fn connected(epd: RawFd) -> Result {
    // A range that no window can have.
    let nowhere = Call::Plan {
        local: None,
        len: 0,
        remote: 0,
        write: false,
    };
    match find(epd)?.call(nowhere) {
        Err(libc::EINVAL) | Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

pub(crate) fn fence_mark(epd: RawFd, peer: bool) -> Result<c_int> {
    match find(epd)?.call_with(Call::FenceMark { peer }, None, true)? {
        (Answer::Mark(mark), _) => Ok(mark),
        _ => Err(NONSENSE),
    }
}

pub(crate) fn fence_wait(epd: RawFd, mark: c_int) -> Result {
    let waited = find(epd)?.call_with(Call::FenceWait(mark), None, true);
    waited.map(drop)
}

pub(crate) fn fence_signal(
    epd: RawFd,
    local: Option<(i64, u64)>,
    remote: Option<(i64, u64)>,
    peer: bool,
) -> Result {
    let call = Call::FenceSignal {
        local,
        remote,
        peer,
    };
    find(epd)?.call(call).map(drop)
}

pub(crate) fn node_ids() -> Result<(Vec<NodeId>, NodeId)> {
    match endpoint::ask_node(Call::NodeIds)? {
        Answer::Nodes { all, own } => Ok((all, own)),
        _ => Err(NONSENSE),
    }
}
