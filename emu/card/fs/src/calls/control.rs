//! Control data of messages: descriptors on their way (unix(7), SCM_RIGHTS), and who sends.

use snaprig_card_driver::{errno::Errno, file::Identity};

use crate::{call::FsCall, passed::Passed};

/// Bytes of `struct cmsghdr`, and what its data is padded to.
const HEADER: usize = 16;
const ALIGN: usize = 8;
/// Bytes of `struct ucred`.
const UCRED_BYTES: usize = 12;
/// Most bytes of control data.
const CONTROL_MAX: u64 = 4096;

impl FsCall<'_> {
    /// The descriptors in the control data of a message that is sent (cmsg(3)), and who is said to
    /// send it.
    pub fn passed(
        &mut self,
        at: u64,
        bytes: u64,
    ) -> Result<(Option<Passed>, Option<Identity>), Errno> {
        if bytes > CONTROL_MAX {
            return Err(Errno::ENOBUFS);
        }
        let mut sender = None;
        let mut control = vec![0; bytes as usize];
        self.cx.memory.read(at, &mut control)?;
        let (mut files, mut rest) = (Vec::new(), &control[..]);
        while rest.len() >= HEADER {
            let int = |at: usize| i32::from_le_bytes(rest[at..at + 4].try_into().expect("4 bytes"));
            let len = u64::from_le_bytes(rest[..8].try_into().expect("8 bytes"));
            let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
            if len < HEADER || len > rest.len() {
                return Err(Errno::EINVAL);
            }
            match (int(8), int(12)) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for fd in rest[HEADER..len].chunks_exact(4) {
                        let fd = i32::from_le_bytes(fd.try_into().expect("4 bytes"));
                        files.push(self.files.get(fd)?);
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len == HEADER + UCRED_BYTES => {
                    sender = Some(Identity {
                        pid: int(HEADER),
                        uid: int(HEADER + 4) as u32,
                        gid: int(HEADER + 8) as u32,
                    });
                }
                _ => return Err(Errno::EINVAL),
            }
            rest = &rest[len.next_multiple_of(ALIGN).min(rest.len())..];
        }
        let passed = match files.is_empty() {
            true => None,
            false => Some(Passed::new(files, &self.sockets.in_flight)?),
        };
        Ok((passed, sender))
    }

    /// EPERM if the caller may not send as somebody else: only root may (unix(7)).
    pub fn check_sender(&self, sender: Identity) -> Result<(), Errno> {
        match sender == self.cx.identity || self.cx.identity.uid == 0 {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    /// Gives the caller what has arrived, and says so in the control data of its message: who has sent
    /// it, and descriptors. Returns the bytes of that, and whether there was room for all.
    pub fn deliver(
        &mut self,
        sender: Option<Identity>,
        passed: Vec<Passed>,
        (at, room): (u64, u64),
        close: bool,
    ) -> Result<(u64, bool), Errno> {
        let files: Vec<_> = passed.into_iter().flat_map(Passed::into_files).collect();
        let (mut done, mut all) = (0, true);
        if let Some(Identity { pid, uid, gid }) = sender {
            let data = [pid.to_le_bytes(), uid.to_le_bytes(), gid.to_le_bytes()].concat();
            (done, all) = self.put_control(libc::SCM_CREDENTIALS, &data, at, room)?;
        }
        if files.is_empty() {
            return Ok((done, all));
        }
        let left = room.saturating_sub(done);
        let mut numbers = Vec::new();
        for open in files {
            let fits = HEADER + numbers.len() + 4 <= left as usize && self.check_room(1).is_ok();
            let fd = match fits {
                true => self.files.insert(open, close, 0, self.limit_nofile)?,
                false => {
                    all = false;
                    crate::table::release(open, self.cx.wake);
                    continue;
                }
            };
            numbers.extend_from_slice(&fd.to_le_bytes());
        }
        if numbers.is_empty() {
            return Ok((done, false));
        }
        let (more, whole) =
            self.put_control(libc::SCM_RIGHTS, &numbers, at.wrapping_add(done), left)?;
        Ok((done + more, all && whole))
    }

    /// Writes a `struct cmsghdr` and as much of its data as there is room for. Returns the bytes that
    /// it takes, and whether that was all.
    fn put_control(
        &mut self,
        kind: i32,
        data: &[u8],
        at: u64,
        room: u64,
    ) -> Result<(u64, bool), Errno> {
        if room < HEADER as u64 {
            return Ok((0, false));
        }
        let part = &data[..data.len().min(room as usize - HEADER)];
        let len = HEADER + part.len();
        let mut control = (len as u64).to_le_bytes().to_vec();
        control.extend_from_slice(&libc::SOL_SOCKET.to_le_bytes());
        control.extend_from_slice(&kind.to_le_bytes());
        control.extend_from_slice(part);
        self.cx.memory.write(at, &control)?;
        let taken = (len.next_multiple_of(ALIGN) as u64).min(room);
        Ok((taken, part.len() == data.len()))
    }
}
