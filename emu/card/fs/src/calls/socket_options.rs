//! Calls on options of sockets: setsockopt(2), getsockopt(2).

use std::time::Duration;

use snaprig_card_driver::{errno::Errno, file::Identity, wait::SysResult};

use super::socket_of::with;
use crate::{
    call::FsCall,
    files::{
        socket::Socket,
        socket_options::{Kind, number},
    },
};

/// The least and the most bytes of a buffer that one may ask for, half of what is told then.
const BUFFER_MAX: i32 = 212_992;
const SEND_BUFFER_MIN: i32 = 4608;
const RECEIVE_BUFFER_MIN: i32 = 2304;
/// Who may go beyond the most for what is sent (socket(7), SO_SNDBUFFORCE) has no more than this.
const FORCED_BUFFER_MAX: i32 = 1 << 20;
/// Bytes of `struct timeval` and `struct linger`.
const TIMEVAL_BYTES: u32 = 16;
const LINGER_BYTES: u32 = 8;

/// Whether a socket knows anything of a level.
fn check_level(socket: &Socket, level: i32) -> Result<(), Errno> {
    match level == libc::SOL_SOCKET || socket.is_internet() {
        true => Ok(()),
        false => Err(Errno::EOPNOTSUPP),
    }
}

/// setsockopt(2).
pub fn set(call: &mut FsCall, fd: i32, a: [u64; 4]) -> SysResult {
    let (level, option, at, len) = (a[0] as i32, a[1] as i32, a[2], a[3] as i32);
    with(call, fd, |call, socket| {
        let len = u32::try_from(len).map_err(|_| Errno::EINVAL)?;
        check_level(socket, level)?;
        let whole = level == libc::SOL_SOCKET || level == libc::IPPROTO_TCP;
        if whole && len < 4 {
            return Err(Errno::EINVAL.into());
        }
        let mut bytes = [0; TIMEVAL_BYTES as usize];
        let part = len
            .min(4)
            .max(if level == libc::SOL_SOCKET { 4 } else { 1 }) as usize;
        call.cx.memory.read(at, &mut bytes[..part])?;
        let value = i32::from_le_bytes(*bytes.first_chunk().expect("4 bytes"));
        let mut options = socket.options();
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                if len < TIMEVAL_BYTES {
                    return Err(Errno::EINVAL.into());
                }
                call.cx.memory.read(at, &mut bytes)?;
                let direction = usize::from(option == libc::SO_SNDTIMEO);
                options.timeouts[direction] = timeout(&bytes)?;
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                if len < LINGER_BYTES {
                    return Err(Errno::EINVAL.into());
                }
                call.cx
                    .memory
                    .read(at, &mut bytes[..LINGER_BYTES as usize])?;
                let seconds = i32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
                options.linger = (
                    i32::from(value != 0),
                    if value == 0 {
                        options.linger.1
                    } else {
                        seconds
                    },
                );
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE) => {
                if call.cx.identity.uid != 0 {
                    return Err(Errno::EPERM.into());
                }
                let bytes = value
                    .clamp(SEND_BUFFER_MIN / 2, FORCED_BUFFER_MAX)
                    .saturating_mul(2);
                options
                    .values
                    .insert((libc::SOL_SOCKET, libc::SO_SNDBUF), bytes);
            }
            _ => {
                let (_, kind) = number((socket.domain, socket.kind), level, option)
                    .ok_or(Errno::ENOPROTOOPT)?;
                let value = match (option, kind) {
                    _ if level == libc::SOL_SOCKET && option == libc::SO_SNDBUF => value
                        .clamp(0, BUFFER_MAX)
                        .saturating_mul(2)
                        .max(SEND_BUFFER_MIN),
                    _ if level == libc::SOL_SOCKET && option == libc::SO_RCVBUF => value
                        .clamp(0, BUFFER_MAX)
                        .saturating_mul(2)
                        .max(RECEIVE_BUFFER_MIN),
                    (_, Kind::Flag) => i32::from(value != 0),
                    (_, Kind::Number(least, most)) if (least..=most).contains(&value) => value,
                    _ => return Err(Errno::EINVAL.into()),
                };
                options.values.insert((level, option), value);
            }
        }
        drop(options);
        socket.options_changed();
        Ok(0)
    })
}

fn timeout(bytes: &[u8; TIMEVAL_BYTES as usize]) -> Result<Option<Duration>, Errno> {
    let word = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (seconds, micros) = (word(0), word(8));
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    // A time in the past is no time to wait, which is next to none (socket(7)).
    let timeout = match u64::try_from(seconds) {
        Ok(seconds) => Duration::new(seconds, micros as u32 * 1000),
        Err(_) => return Ok(Some(Duration::from_nanos(1))),
    };
    Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
}

/// getsockopt(2): as much of an option as there is room for.
pub fn get(call: &mut FsCall, fd: i32, a: [u64; 4]) -> SysResult {
    let (level, option, to, len) = (a[0] as i32, a[1] as i32, a[2], a[3]);
    with(call, fd, |call, socket| {
        check_level(socket, level)?;
        let mut room = [0; 4];
        call.cx.memory.read(len, &mut room)?;
        let room = usize::try_from(i32::from_le_bytes(room)).map_err(|_| Errno::EINVAL)?;
        let bytes = value(socket, level, option).ok_or(Errno::ENOPROTOOPT)?;
        let part = &bytes[..room.min(bytes.len())];
        call.cx.memory.write(to, part)?;
        let told = (part.len() as u32).to_le_bytes();
        call.cx.memory.write(len, &told)?;
        Ok(0)
    })
}

fn value(socket: &Socket, level: i32, option: i32) -> Option<Vec<u8>> {
    let options = socket.options();
    let int = |value: i32| Some(value.to_le_bytes().to_vec());
    if level == libc::SOL_SOCKET {
        match option {
            libc::SO_TYPE => return int(socket.kind),
            libc::SO_DOMAIN => return int(socket.domain),
            libc::SO_PROTOCOL => return int(socket.protocol()),
            libc::SO_ACCEPTCONN => return int(socket.listens().into()),
            libc::SO_SNDLOWAT => return int(1),
            libc::SO_ERROR => {
                drop(options);
                return int(socket.take_error().map_or(0, |errno| errno.0));
            }
            libc::SO_PEERCRED => return Some(credentials(socket.peer_identity())),
            libc::SO_LINGER => {
                let (on, seconds) = options.linger;
                return Some([on.to_le_bytes(), seconds.to_le_bytes()].concat());
            }
            libc::SO_RCVTIMEO | libc::SO_SNDTIMEO => {
                let direction = usize::from(option == libc::SO_SNDTIMEO);
                let timeout = options.timeouts[direction].unwrap_or_default();
                let words = [timeout.as_secs(), timeout.subsec_micros().into()];
                return Some(words.iter().flat_map(|word| word.to_le_bytes()).collect());
            }
            _ => {}
        }
    }
    let (initial, _) = number((socket.domain, socket.kind), level, option)?;
    int(options
        .values
        .get(&(level, option))
        .copied()
        .unwrap_or(initial))
}

/// `struct ucred`; of nobody, if there is no peer.
fn credentials(peer: Option<Identity>) -> Vec<u8> {
    let Identity { pid, uid, gid } = peer.unwrap_or(Identity::NOBODY);
    [pid.to_le_bytes(), uid.to_le_bytes(), gid.to_le_bytes()].concat()
}
