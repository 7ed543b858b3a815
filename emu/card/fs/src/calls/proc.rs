//! Opening texts of /proc and /sys.

use std::sync::Arc;

use snaprig_card_driver::{clock::host_clock, errno::Errno, file::File};

use crate::{call::FsCall, files::regular::RegularFile, inode::Inode, proc::ProcFile};

/// Opens a text: what it says now.
pub fn open(call: &FsCall, file: ProcFile, path: String) -> Result<Arc<dyn File>, Errno> {
    let topology = call.proc.topology();
    let text = match file {
        ProcFile::Exe => return Err(Errno::ELOOP),
        ProcFile::Maps => call.cx.memory.maps().into_bytes(),
        ProcFile::Status => call.proc.status().into_bytes(),
        ProcFile::Stat => call.proc.stat().into_bytes(),
        ProcFile::Cmdline => call.proc.cmdline(),
        ProcFile::Meminfo => meminfo(call).into_bytes(),
        ProcFile::Uptime => {
            let seconds = host_clock(libc::CLOCK_BOOTTIME).as_secs_f64();
            format!("{seconds:.2} 0.00\n").into_bytes()
        }
        ProcFile::Cpuinfo => topology.cpuinfo().into_bytes(),
        ProcFile::Mounts => b"card / ramfs rw 0 0\nproc /proc proc ro 0 0\n".to_vec(),
        ProcFile::Loadavg => b"0.00 0.00 0.00 1/1 1\n".to_vec(),
        ProcFile::Machine => machine(topology.processors()).into_bytes(),
        ProcFile::Online => format!("{}\n", topology.all()).into_bytes(),
        ProcFile::Last => format!("{}\n", topology.processors() - 1).into_bytes(),
        ProcFile::Processor(number, text) => {
            format!("{}\n", topology.text(number, text)).into_bytes()
        }
    };
    let inode = Inode::new(call.vfs.memory(), 0o444);
    inode.write_at(0, &text)?;
    Ok(RegularFile::new(inode, path, libc::O_RDONLY))
}

fn meminfo(call: &FsCall) -> String {
    let (total, free) = (
        call.vfs.memory().bytes() >> 10,
        call.vfs.memory().free_bytes() >> 10,
    );
    format!("MemTotal: {total:>12} kB\nMemFree: {free:>13} kB\nMemAvailable: {free:>8} kB\n")
}

/// /proc/stat: processors, and when the card's clock started.
fn machine(processors: usize) -> String {
    const TIMES: &str = "0 0 0 0 0 0 0 0 0 0";
    let processors: String = (0..processors)
        .map(|number| format!("cpu{number} {TIMES}\n"))
        .collect();
    let running = host_clock(libc::CLOCK_BOOTTIME);
    let start = host_clock(libc::CLOCK_REALTIME).saturating_sub(running);
    format!("cpu  {TIMES}\n{processors}btime {}\n", start.as_secs())
}
