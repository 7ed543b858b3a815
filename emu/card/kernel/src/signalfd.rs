//! signalfd(2): signals that are read from a descriptor instead of being delivered.
//!
//! Which signals those are depends on who looks, so each call that asks for readiness first tells the
//! caller's descriptors what is pending for the caller.

use snaprig_card_driver::{
    errno::Errno,
    signals::{SIGSET_BYTES, SigSet},
    wait::{Stop, SysResult, Wait},
};
use snaprig_card_fs::{Open, files::signalfd::SignalFd};

use crate::{call::Call, signal::Info, state::lock};

/// Bytes of `struct signalfd_siginfo`.
const SIGINFO_BYTES: usize = 128;

impl Call<'_> {
    /// signalfd(2) and signalfd4(2): a new descriptor, or another mask for one.
    pub fn signalfd(&mut self, fd: i32, mask: u64, bytes: u64, flags: i32) -> SysResult {
        if bytes != SIGSET_BYTES || flags & !(libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let [mask] = self.read_words(mask)?;
        let limit = self.process().limits.nofile();
        let files = self.process().files.clone();
        let mut files = lock(&files);
        if fd != -1 {
            let open = files.get(fd)?;
            let signals = open.file.as_any().downcast_ref::<SignalFd>();
            let signals = signals.ok_or(Errno::EINVAL)?;
            signals.set_mask(SigSet(mask));
            return Ok(fd as u64);
        }
        let flags_of_open = libc::O_RDWR | flags & libc::SFD_NONBLOCK;
        let open = Open::new(SignalFd::new(SigSet(mask)), flags_of_open);
        let close = flags & libc::SFD_CLOEXEC != 0;
        Ok(files.insert(open, close, 0, limit)? as u64)
    }

    /// Tells the caller's signalfds what is pending for it.
    pub fn tell_signalfds(&mut self) {
        let pending = self.thread().pending.set().0 | self.process().pending.set().0;
        let files = self.process().files.clone();
        for open in lock(&files).files() {
            if let Some(signals) = open.file.as_any().downcast_ref::<SignalFd>() {
                signals.tell_pending(SigSet(pending));
            }
        }
    }

    /// read(2) of a signalfd; `None` if `fd` is none.
    pub fn read_signals(&mut self, fd: i32, to: u64, max: u64) -> Option<SysResult> {
        let files = self.process().files.clone();
        let open = lock(&files).get(fd).ok()?;
        let mask = open.file.as_any().downcast_ref::<SignalFd>()?.mask();
        Some(self.take_signals(mask, to, max as usize / SIGINFO_BYTES, open.nonblock()))
    }

    fn take_signals(&mut self, mask: SigSet, to: u64, room: usize, nonblock: bool) -> SysResult {
        if room == 0 {
            return Err(Errno::EINVAL.into());
        }
        let mut bytes = 0;
        for _ in 0..room {
            let own = self.thread().pending.take(mask);
            let Some(info) = own.or_else(|| self.process().pending.take(mask)) else {
                break;
            };
            self.write(to.wrapping_add(bytes), &siginfo(&info))?;
            bytes += SIGINFO_BYTES as u64;
        }
        match bytes {
            0 if nonblock => Err(Errno::EAGAIN.into()),
            // Whoever sends a signal makes every thread look again.
            0 => Err(Stop::Wait(Wait::default())),
            bytes => Ok(bytes),
        }
    }
}

/// `struct signalfd_siginfo`.
fn siginfo(info: &Info) -> [u8; SIGINFO_BYTES] {
    let mut bytes = [0; SIGINFO_BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &info.signal.to_le_bytes());
    put(8, &info.code.to_le_bytes());
    put(12, &info.pid.to_le_bytes());
    put(16, &info.uid.to_le_bytes());
    match info.signal {
        libc::SIGCHLD => {
            put(40, &(info.value as i32).to_le_bytes());
            put(56, &info.address.to_le_bytes());
        }
        _ => {
            put(44, &(info.value as i32).to_le_bytes());
            put(48, &info.value.to_le_bytes());
            put(72, &info.address.to_le_bytes());
        }
    }
    bytes
}
