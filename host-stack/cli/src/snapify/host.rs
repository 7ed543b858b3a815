//! The program whose offload processes they are: found by its number, asked over its socket.

use std::{
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use snaprig_snapify::control::{Client, Command, ControlError, Described, programs};

use super::table::Row;
use crate::AnyError;

/// The longest that a command takes: a snapshot may be large, and its disk slow.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The longest that a program takes to say which offload processes it has.
const LIST_TIME_MAX: Duration = Duration::from_secs(10);

/// A program with offload processes.
pub struct Host {
    pid: u32,
    /// Its number as it knows it (pid_namespaces(7)).
    pub own_pid: u32,
    /// The directory of its rig.
    pub rig: PathBuf,
    client: Client,
}

impl Host {
    /// The program of this number; on its own rig, or the one that the user says.
    pub fn find(pid: u32, rig: Option<&Path>) -> Result<Self, AnyError> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let Ok(status) = fs::read_to_string(proc.join("status")) else {
            return Err(format!("there is no process {pid}").into());
        };
        let owner = fs::metadata(&proc)?.uid();
        let own = rustix::process::geteuid();
        if !own.is_root() && owner != own.as_raw() {
            let why = "is another user's";
            return Err(format!("process {pid} {why} (uid {owner}): ask that user").into());
        }
        let rig = match rig {
            Some(rig) => rig.to_owned(),
            None => rig_of(&proc).ok_or_else(|| {
                let why = "belongs to no rig: it was not started by `snaprig run`, and has no SNAPRIG_RIG";
                format!("process {pid} {why} (--rig DIR, if it has got one since)")
            })?,
        };
        if !rig.is_dir() {
            return Err(format!("process {pid}: its rig is gone ({})", rig.display()).into());
        }
        let own_pid = innermost(&status).unwrap_or(pid);
        let client = Client::connect(&rig, own_pid).map_err(|error| match error {
            ControlError::Connection(error) if is_absent(&error) => {
                format!("process {pid} is no COI program, or has not made an offload process yet")
            }
            other => format!("process {pid}: {other}"),
        })?;
        Ok(Self {
            pid,
            own_pid,
            rig,
            client,
        })
    }

    /// Its offload processes.
    pub fn processes(&mut self) -> Result<Vec<Described>, AnyError> {
        let report = self.client.run(&Command::List, LIST_TIME_MAX)?;
        Ok(report.processes)
    }

    /// The same for a table.
    pub fn rows(&mut self) -> Result<Vec<Row>, AnyError> {
        let host_pid = self.pid;
        let all = self.processes()?.into_iter();
        Ok(all.map(|process| Row { host_pid, process }).collect())
    }

    /// Tells it of a supervisor that is about to take a checkpoint of it; how many plugins it has.
    pub fn adopted(&mut self, supervisor: &Path) -> Result<u32, AnyError> {
        let command = Command::Adopted(supervisor.to_owned());
        Ok(self.client.run(&command, LIST_TIME_MAX)?.plugins)
    }

    /// Runs a command for one of them: how many bytes it moved, and how long it took.
    pub fn run(&mut self, process: u64, command: &Command) -> Result<(u64, Duration), AnyError> {
        let begun = Instant::now();
        let report = self.client.run_for(Some(process), command, TIME_MAX)?;
        Ok((report.bytes, begun.elapsed()))
    }
}

/// Offload processes of all programs of a rig.
pub fn all(rig: &Path) -> Result<Vec<Row>, AnyError> {
    let pids = programs(rig).map_err(|error| format!("{}: {error}", rig.display()))?;
    let mut rows = Vec::new();
    for host_pid in pids {
        // A program that has ended leaves its socket.
        let Ok(mut client) = Client::connect(rig, host_pid) else {
            continue;
        };
        let report = client.run(&Command::List, LIST_TIME_MAX)?;
        let processes = report.processes.into_iter();
        rows.extend(processes.map(|process| Row { host_pid, process }));
    }
    Ok(rows)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// The rig that a process was started with (proc(5), environ).
fn rig_of(proc: &Path) -> Option<PathBuf> {
    let environment = fs::read(proc.join("environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let rig = variables.find_map(|variable| variable.strip_prefix(b"SNAPRIG_RIG="))?;
    let rig = Path::new(std::ffi::OsStr::from_bytes(rig));
    Some(proc.join("cwd").join(rig))
}

/// A process's number in its own namespace, the last one of NSpid (proc(5)).
fn innermost(status: &str) -> Option<u32> {
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_by_its_innermost_number() {
        assert_eq!(
            innermost("Name:\tsh\nNSpid:\t4711\t7\nThreads:\t1\n"),
            Some(7)
        );
        assert_eq!(innermost("Name:\tsh\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(innermost("Name:\tsh\n"), None);
    }
}
