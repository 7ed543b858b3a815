//! What this process and all that it starts from now on do, as the kernel counts it (perf_event_open(2)): threads,
//! children, and cards with what runs on them.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{FromRawFd, RawFd},
};

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const HARDWARE_INSTRUCTIONS: u64 = 1;
const SOFTWARE_TASK_CLOCK: u64 = 1;
/// Whoever is started counts, too; else not what the kernel does for it.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;

/// `struct perf_event_attr` as it was at first (PERF_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample: [u64; 2],
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

/// A counter that only goes up.
pub struct Counter(File);

impl Counter {
    /// Nanoseconds on a processor.
    pub fn cpu_time() -> io::Result<Self> {
        Self::open(TYPE_SOFTWARE, SOFTWARE_TASK_CLOCK)
    }

    /// Retired instructions, where the processor tells them.
    pub fn instructions() -> io::Result<Self> {
        Self::open(TYPE_HARDWARE, HARDWARE_INSTRUCTIONS)
    }

    fn open(kind: u32, config: u64) -> io::Result<Self> {
        let open = |flags| {
            let attributes = Attributes {
                kind,
                size: size_of::<Attributes>() as u32,
                config,
                flags,
                ..Attributes::default()
            };
            // SAFETY: attributes as long as they say; of this thread, on any processor, in no group.
            match unsafe {
                libc::syscall(
                    libc::SYS_perf_event_open,
                    &raw const attributes,
                    0,
                    -1,
                    -1,
                    8,
                )
            } {
                // SAFETY: perf_event_open(2) has just returned it, so nobody else owns it.
                fd @ 0.. => Ok(Self(unsafe { File::from_raw_fd(fd as RawFd) })),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // What the kernel does is only shown to those who may see it (perf_event_paranoid).
        open(INHERIT).or_else(|_| open(INHERIT | EXCLUDE_KERNEL))
    }

    /// What it is at.
    pub fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        (&self.0).read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_a_child_of_a_thread_does_counts() {
        // Where the kernel does not let us count, there is nothing to see.
        let Ok(counter) = Counter::cpu_time() else {
            println!(
                "skipped: counters: perf_event_open(2) is not allowed here (perf_event_paranoid)"
            );
            return;
        };
        let before = counter.read().expect("it can be read");
        let busy = || {
            Command::new("sh")
                .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"])
                .status()
        };
        let status = std::thread::scope(|scope| scope.spawn(busy).join()).expect("no panic");
        assert!(status.expect("sh starts").success());
        let spent = counter.read().expect("it can be read") - before;
        assert!(spent > 1_000_000, "{spent} ns");
    }
}
