//! What a thread does that made a forbidden call: says which, and ends the process.

use std::{
    fmt::{self, Write},
    io,
};

use snaprig_card_kernel::syscalls;

/// Exit status of a process that made a forbidden call (Firecracker's, too).
pub const FORBIDDEN: i32 = 148;

/// `siginfo_t` of SIGSYS (sigaction(2)).
#[repr(C)]
struct Info {
    head: [i32; 4],
    address: *const libc::c_void,
    call: i32,
    architecture: u32,
}

/// Makes SIGSYS, which the filters send, a report and an exit.
pub(super) fn install() -> io::Result<()> {
    let handler: extern "C" fn(i32, *mut Info, *mut libc::ucontext_t) = report;
    // SAFETY: a zeroed sigaction is valid; the handler makes async-signal-safe calls only.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut())
    };
    match installed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn report(_signal: i32, info: *mut Info, context: *mut libc::ucontext_t) {
    let mut line = Line::default();
    // SAFETY: the kernel gives a handler with SA_SIGINFO both, filled in, for as long as it runs. prctl(2)
    // writes 16 bytes at most.
    unsafe {
        let mut name = [0u8; 16];
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = std::str::from_utf8(name).unwrap_or("?");
        let (call, at) = ((*info).call, (*info).address);
        let known = syscalls::find(call as u64).map_or("unknown", |call| call.name);
        let register = |index: i32| (*context).uc_mcontext.gregs[index as usize];
        let _ = writeln!(
            line,
            "thread {name} made the forbidden system call {known} ({call}) at {at:p}, arguments {:#x} {:#x} {:#x} {:#x}",
            register(libc::REG_RDI),
            register(libc::REG_RSI),
            register(libc::REG_RDX),
            register(libc::REG_R10),
        );
        libc::write(2, line.bytes.as_ptr().cast(), line.len);
        libc::_exit(FORBIDDEN);
    }
}

/// A line of text, as no memory may be allocated.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            bytes: [0; 256],
            len: 0,
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
