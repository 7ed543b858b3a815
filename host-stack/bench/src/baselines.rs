//! What verbs are compared with: UCX and libfabric over shared memory, and copying in one process.

use std::{
    env, fs, io,
    net::TcpListener,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Bytes that streaming goes through, with verbs and beside them.
pub const STREAM_BYTES: usize = 64 << 20;

/// Something else that does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// `ucx_perftest` put_lat: half a round trip, the median.
    UcxPut,
    /// `ucx_perftest` tag_lat: half a round trip, the median.
    UcxTag,
    /// `ucx_perftest` tag_bw with messages of so many bytes.
    UcxTagBandwidth(usize),
    /// `fi_pingpong`: half a round trip, the mean.
    Libfabric,
    /// Copies of so many bytes, through [`STREAM_BYTES`] or always the same.
    Memcpy(usize, bool),
}

impl Baseline {
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::UcxPut => "UCX put",
            Self::UcxTag | Self::UcxTagBandwidth(_) => "UCX tag",
            Self::Libfabric => "libfabric shm",
            Self::Memcpy(..) => "memcpy",
        }
    }

    /// The program that does it.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::UcxPut | Self::UcxTag | Self::UcxTagBandwidth(_) => Some("ucx_perftest"),
            Self::Libfabric => Some("fi_pingpong"),
            Self::Memcpy(..) => None,
        }
    }

    /// Whether it can be measured here.
    pub fn is_here(self) -> bool {
        let on_path = |program| {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).any(|directory| directory.join(program).is_file())
        };
        self.program().is_none_or(on_path)
    }

    /// Measures it: microseconds or GB/s. None: its program failed.
    pub fn measure(self, pin: bool, scale: f64) -> Option<f64> {
        let count = |usual: f64| ((usual * scale) as usize).max(100).to_string();
        match self {
            Self::UcxPut => {
                let arguments = ["-t", "put_lat", "-d", "memory", "-x", "posix", "-s", "8"];
                ucx_field(&ucx(&arguments, &count(200e3), pin)?, 1)
            }
            Self::UcxTag => ucx_field(&ucx(&["-t", "tag_lat", "-s", "8"], &count(200e3), pin)?, 1),
            Self::UcxTagBandwidth(bytes) => {
                let size = bytes.to_string();
                let count = count((1u64 << 30) as f64 / bytes as f64);
                let output = ucx(&["-t", "tag_bw", "-s", &size], &count, pin)?;
                // Its megabytes are of 2^20.
                Some(ucx_field(&output, 5)? * 1.048_576e-3)
            }
            Self::Libfabric => {
                let count = count(20e3);
                let run = ["-p", "shm", "-e", "rdm", "-S", "8", "-I", &count];
                let output = pair("fi_pingpong", ("-B", "-P"), &run, &run, pin)?;
                libfabric_field(&output)
            }
            Self::Memcpy(bytes, streams) => Some(memcpy(bytes, streams, pin, scale)),
        }
    }
}

fn ucx(arguments: &[&str], count: &str, pin: bool) -> Option<String> {
    let run = [arguments, &["-n", count, "-f", "-v"]].concat();
    pair("ucx_perftest", ("-p", "-p"), &[], &run, pin)
}

/// Runs a server, and a client of it; what the client prints.
fn pair(
    program: &str,
    port_options: (&str, &str),
    server: &[&str],
    client: &[&str],
    pin: bool,
) -> Option<String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.ok()?.port();
    let start = |core: usize, option: &str, arguments: &[&str]| {
        // So that nothing of it stays whatever happens: timeout(1) has an eye on it.
        let mut command = Command::new("timeout");
        command
            .args(["60", program, option, &port.to_string()])
            .args(arguments)
            .env("UCX_TLS", "posix,cma")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        if pin {
            pinned(&mut command, &[core]);
        }
        command
    };
    let mut command = start(0, port_options.0, server);
    let mut server = command.stdout(Stdio::null()).spawn().ok()?;
    let begun = Instant::now();
    while !listens(port) && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = start(1, port_options.1, client).arg("127.0.0.1").output();
    end(&mut server);
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// Gives a process the time to end; then it is made to.
pub fn end(server: &mut Child) {
    let begun = Instant::now();
    while matches!(server.try_wait(), Ok(None)) && begun.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(5));
    }
    if matches!(server.try_wait(), Ok(None)) {
        // SAFETY: kill(2) takes numbers alone; it is a child that nobody has waited for. timeout(1) passes the signal
        // on.
        unsafe { libc::kill(server.id() as i32, libc::SIGTERM) };
        let _ = server.wait();
    }
}

/// Whether somebody listens, found without connecting: the first to connect is the client.
fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.len() > 3 && fields[1].ends_with(&wanted) && fields[3] == "0A"
        })
    })
}

/// A column of what `ucx_perftest -f -v` prints last.
fn ucx_field(output: &str, column: usize) -> Option<f64> {
    let last = output.lines().rfind(|line| !line.trim().is_empty())?;
    last.split(',').nth(column)?.trim().parse().ok()
}

/// Microseconds a transfer, of what `fi_pingpong` prints last.
fn libfabric_field(output: &str) -> Option<f64> {
    let last = output.lines().rfind(|line| !line.trim().is_empty())?;
    last.split_whitespace().nth(6)?.parse().ok()
}

/// GB/s.
fn memcpy(bytes: usize, streams: bool, pin: bool, scale: f64) -> f64 {
    let measure = || {
        if pin {
            let _ = pin_to(&[0]);
        }
        let room = if streams { STREAM_BYTES } else { bytes };
        let (from, mut to) = (vec![1u8; room], vec![2u8; room]);
        let rounds = (((1u64 << 30) as f64 * scale) as usize).max(room) / room;
        let begun = Instant::now();
        for _ in 0..rounds {
            for (from, to) in from.chunks_exact(bytes).zip(to.chunks_exact_mut(bytes)) {
                to.copy_from_slice(std::hint::black_box(from));
                std::hint::black_box(to);
            }
        }
        (rounds * room) as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    // A thread of its own, so that no other is pinned.
    std::thread::scope(|scope| scope.spawn(measure).join()).unwrap_or(0.0)
}

/// Pins a program that is to be started.
pub fn pinned(command: &mut Command, cores: &[usize]) {
    let cores = cores.to_vec();
    // SAFETY: what runs in the child between fork and exec is one system call, with numbers that the closure owns; it
    // allocates nothing.
    unsafe { command.pre_exec(move || pin_to(&cores)) };
}

/// Pins this thread.
pub fn pin_to(cores: &[usize]) -> io::Result<()> {
    pin(0, cores)
}

/// Pins all threads of this process.
pub fn pin_all(cores: &[usize]) -> io::Result<()> {
    for task in fs::read_dir("/proc/self/task")? {
        let tid = task?.file_name().to_string_lossy().parse();
        match pin(tid.map_err(io::Error::other)?, cores) {
            // It has ended since.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            done => done?,
        }
    }
    Ok(())
}

fn pin(tid: libc::pid_t, cores: &[usize]) -> io::Result<()> {
    // SAFETY: the set has numbers alone, for which zero is a value; CPU_SET leaves a number that is not in it alone,
    // and sched_setaffinity(2) reads the set.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for core in cores {
            libc::CPU_SET(*core, &mut set);
        }
        libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The processors that this thread may use.
pub fn processors() -> io::Result<Vec<usize>> {
    // SAFETY: the set has numbers alone, for which zero is a value; sched_getaffinity(2) writes it, and CPU_ISSET is
    // asked for numbers below CPU_SETSIZE.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) {
            0 => {
                let all = 0..libc::CPU_SETSIZE as usize;
                Ok(all.filter(|core| libc::CPU_ISSET(*core, &set)).collect())
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_print_is_understood() {
        let ucx = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw\n\
                   20000,2.459,26.468,26.468,2361.36,2361.36,37782,37782\n";
        assert_eq!(ucx_field(ucx, 1), Some(2.459));
        assert_eq!(ucx_field(ucx, 5), Some(2361.36));
        let libfabric = "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\n\
                         8  50k  =50k  781k  1.29s  0.62  12.89  0.08\n";
        assert_eq!(libfabric_field(libfabric), Some(12.89));
        assert_eq!(ucx_field("", 1), None);
    }
}
