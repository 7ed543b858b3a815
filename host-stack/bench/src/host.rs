//! What the host itself does: programs that run on it, wake-ups between its threads.

use std::{
    ffi::OsStr,
    fs,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::PermissionsExt,
    },
    path::Path,
    process::Command,
    time::Instant,
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::{AnyError, baselines::pinned};

/// What a program prints that is written to a directory and started there, by other commands if there are any.
pub fn on_the_host(
    directory: &Path,
    program: &[u8],
    arguments: &[String],
    under: &[&str],
    pin: bool,
) -> Result<f64, AnyError> {
    let path = directory.join("program");
    fs::write(&path, program)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let path = path.as_os_str();
    let mut words = under.iter().map(OsStr::new).chain([path]);
    let mut command = Command::new(words.next().unwrap_or(path));
    if pin {
        pinned(&mut command, &[0]);
    }
    let output = command.args(words).args(arguments).output()?;
    one(&numbers(&output.stdout)?)
}

/// Microseconds from a write to an eventfd to what another thread answers on a second one.
pub fn eventfd_round_trip() -> Result<f64, AnyError> {
    const COUNT: u32 = 500;
    let (there, back) = (
        eventfd(0, EventfdFlags::CLOEXEC)?,
        eventfd(0, EventfdFlags::CLOEXEC)?,
    );
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            for _ in 0..COUNT {
                await_event(there.as_fd())?;
                rustix::io::write(&back, &1u64.to_ne_bytes())?;
            }
            Ok::<_, rustix::io::Errno>(())
        });
        let begun = Instant::now();
        for _ in 0..COUNT {
            rustix::io::write(&there, &1u64.to_ne_bytes())?;
            await_event(back.as_fd())?;
        }
        let took = begun.elapsed();
        answers.join().map_err(|_| "a thread panicked")??;
        Ok(took.as_secs_f64() / f64::from(COUNT) * 1e6)
    })
}

/// Waits until an eventfd has been written to, and takes its count.
pub fn await_event(event: BorrowedFd<'_>) -> rustix::io::Result<()> {
    poll(&mut [PollFd::new(&event, PollFlags::IN)], None)?;
    rustix::io::read(event, &mut [0; 8]).map(|_| ())
}

/// The numbers that a program has printed, one a line.
pub fn numbers(output: &[u8]) -> Result<Vec<f64>, AnyError> {
    let text = std::str::from_utf8(output)?;
    Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
}

/// The only number that a program has printed.
pub fn one(numbers: &[f64]) -> Result<f64, AnyError> {
    match numbers {
        [number] => Ok(*number),
        _ => Err("a program did not print one number".into()),
    }
}
