//! The workloads: programs of the paper's table 5, from `fixtures/workloads`, compiled where they run.

use std::{
    ops::RangeInclusive,
    path::Path,
    process::{Command, Stdio},
};

use crate::{AnyError, compile::Programs};

/// A workload: its folder, its name, what it is told, how much of that goes with the scale, and what it is told
/// to be large.
pub struct Workload {
    folder: &'static str,
    /// As the paper has it.
    pub name: &'static str,
    arguments: &'static [&'static str],
    scaled: (&'static str, u32),
    /// So much memory that a snapshot has something to do: at the least, where the scale is small, and usually.
    size: (&'static str, RangeInclusive<u32>),
    /// Work that does not end before it.
    large: &'static [&'static str],
}

impl Workload {
    fn path(&self, name: &str) -> String {
        format!("workloads/{}/{name}", self.folder)
    }

    /// A run of it that takes this share of what is usual.
    pub fn short(&self, programs: &Programs, rig: &Path, scale: f64) -> Result<Command, AnyError> {
        let (name, usual) = self.scaled;
        let steps = (f64::from(usual) * scale).ceil();
        let mut command = self.command(programs, rig)?;
        command
            .args(self.arguments)
            .args([name, &steps.to_string()]);
        Ok(command)
    }

    /// A run of which snapshots are taken, with this share of what is usual in memory.
    pub fn large(&self, programs: &Programs, rig: &Path, scale: f64) -> Result<Command, AnyError> {
        let (name, sizes) = &self.size;
        let size = (f64::from(*sizes.end()) * scale).ceil();
        let size = size.max((*sizes.start()).into());
        let mut command = self.command(programs, rig)?;
        command.args([name, &*size.to_string()]).args(self.large);
        Ok(command)
    }

    fn command(&self, programs: &Programs, rig: &Path) -> Result<Command, AnyError> {
        let mut command = programs.command(&programs.path(self.path("host")), rig)?;
        command
            .arg(programs.path(self.path("sink")))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        Ok(command)
    }
}

/// About a quarter of a second each, in several steps: what Snapify costs, it costs at each of them.
pub const WORKLOADS: [Workload; 8] = [
    Workload {
        folder: "md",
        name: "MD",
        arguments: &["--particles", "2000"],
        scaled: ("--steps", 50),
        size: ("--particles", 8000..=8000),
        large: &["--steps", "10000"],
    },
    Workload {
        folder: "mc",
        name: "MC",
        arguments: &["--paths", "20000"],
        scaled: ("--steps", 10000),
        size: ("--paths", 8 << 20..=32 << 20),
        large: &["--steps", "2000"],
    },
    Workload {
        folder: "sg",
        name: "SG",
        arguments: &["--size", "512"],
        scaled: ("--iterations", 15),
        size: ("--size", 1 << 10..=4 << 10),
        large: &["--iterations", "10000"],
    },
    Workload {
        folder: "ss",
        name: "SS",
        arguments: &["--documents", "8192"],
        scaled: ("--queries", 4800),
        size: ("--documents", 64 << 10..=512 << 10),
        large: &["--queries", "512K"],
    },
    Workload {
        folder: "km",
        name: "KM",
        arguments: &["--points", "100000"],
        scaled: ("--iterations", 80),
        size: ("--points", 300_000..=300_000),
        large: &["--iterations", "10000"],
    },
    multi_zone(
        "LU-MZ",
        &["--solver", "0", "--grid", "36"],
        2,
        &["--solver", "0", "--iterations", "10000"],
    ),
    multi_zone(
        "SP-MZ",
        &["--solver", "1", "--grid", "36"],
        20,
        &["--solver", "1", "--iterations", "10000"],
    ),
    multi_zone(
        "BT-MZ",
        &["--solver", "2", "--grid", "36"],
        10,
        &["--solver", "2", "--iterations", "10000"],
    ),
];

/// One that solves many zones.
const fn multi_zone(
    name: &'static str,
    arguments: &'static [&'static str],
    iterations: u32,
    large: &'static [&'static str],
) -> Workload {
    Workload {
        folder: "mz",
        name,
        arguments,
        scaled: ("--iterations", iterations),
        size: ("--grid", 48..=48),
        large,
    }
}

macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../../../../fixtures/", $path)))),*]
    };
}

const SOURCES: [(&str, &str); 19] = sources![
    "coi/host.h",
    "coi/sink.h",
    "workloads/workload.h",
    "workloads/md/host.c",
    "workloads/md/sink.c",
    "workloads/mc/host.c",
    "workloads/mc/sink.c",
    "workloads/sg/host.c",
    "workloads/sg/sink.c",
    "workloads/ss/host.c",
    "workloads/ss/sink.c",
    "workloads/km/host.c",
    "workloads/km/sink.c",
    "workloads/mz/host.c",
    "workloads/mz/sink.c",
    "workloads/mz/zone.h",
    "workloads/mz/bt.c",
    "workloads/mz/lu.c",
    "workloads/mz/sp.c",
];

/// Hosts and sinks.
pub fn compile() -> Result<Programs, AnyError> {
    let programs = Programs::new()?;
    for (path, text) in SOURCES {
        programs.write(path, text)?;
    }
    let mut done = Vec::new();
    for workload in &WORKLOADS {
        let folder = workload.folder;
        if done.contains(&folder) {
            continue;
        }
        done.push(folder);
        let is_sink = |path: &&str| {
            let name = path.strip_prefix(&format!("workloads/{folder}/"));
            name.is_some_and(|name| name.ends_with(".c") && name != "host.c")
        };
        let paths = SOURCES.iter().map(|(path, _)| *path);
        let sink: Vec<_> = paths
            .filter(is_sink)
            .map(|path| programs.path(path))
            .collect();
        let to = |name| programs.path(workload.path(name));
        let more = ["-lcoi_host", "-lpthread"];
        programs.gcc(&to("host"), &[to("host.c")], &more)?;
        let more = ["-fopenmp", "-rdynamic", "-lcoi_device", "-lm"];
        programs.gcc(&to("sink"), &sink, &more)?;
    }
    Ok(programs)
}
