//! Programs of `libcoi_host.so.0`, as they are, under `snaprig ckpt`: checkpointed in mid-run with their offload
//! processes, killed with cards and rig, and restarted on another rig.

mod host;
mod offload;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use host::on_each_platform;
use offload::{Program, SNAPRIG};
use snaprig_rig::{Rig, sdk::Sdk};
use snaprig_snapify::control::{Client, Command as Control};

const PATIENCE: Duration = Duration::from_secs(60);

/// A program under a supervisor; all of it ends with this.
struct Job {
    supervisor: Child,
}

impl Job {
    fn start(rig: &Rig, directory: &Path, arguments: &[&str]) -> Self {
        let sdk = Sdk::of(Path::new(SNAPRIG)).expect("libraries");
        let out = File::options()
            .append(true)
            .create(true)
            .open(directory.join("out"));
        let supervisor = Command::new(SNAPRIG)
            .arg("ckpt")
            .args(arguments)
            .current_dir(directory)
            .envs(sdk.environment(rig.dir()).expect("an environment"))
            .stdin(Stdio::null())
            .stdout(out.expect("a file"))
            .spawn()
            .expect("it starts");
        Self { supervisor }
    }

    fn ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.supervisor.try_wait().expect("a child") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it does not end");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut found = vec![self.supervisor.id() as i32];
        let mut at = 0;
        while let Some(pid) = found.get(at).copied() {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<i32>().ok()),
            );
            at += 1;
        }
        for pid in found {
            // SAFETY: kill(2) takes numbers alone; they are a child that has not been waited for, and its descendants.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.supervisor.wait();
    }
}

fn until<T>(what: &str, mut is_there: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = is_there() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn rig(platform: &str) -> Rig {
    let rig = Rig::builder().exe(SNAPRIG).cards(1);
    let platform = platform.parse().expect("a platform");
    rig.platform(Some(platform)).start().expect("a rig")
}

/// The number of the program under a supervisor.
fn program(checkpoints: &Path) -> Option<u32> {
    match snaprig_supervisor::ask(checkpoints, snaprig_supervisor::Request::Status) {
        Ok(snaprig_supervisor::Reply::Status(status)) => Some(status.processes.first()?.pid as u32),
        _ => None,
    }
}

fn outlives_everything(platform: &str, folder: &str, run_functions: u64) {
    let compiled = Program::compile(&format!("workloads/{folder}"), "", "-fopenmp");
    let golden: PathBuf = compiled.sources().join("golden");
    let golden = fs::read_to_string(golden).expect("a golden output");
    let [host, sink] = ["host", "sink"].map(|name| compiled.directory().join(name));
    let [host, sink] = [&host, &sink].map(|path| path.to_str().expect("a name"));
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path();
    let checkpoints = directory.join("checkpoints");
    let first = rig(platform);
    let launch = ["launch", "--dir", "checkpoints", "--", host, sink];
    let mut job = Job::start(&first, directory, &launch);
    let pid = until("a supervisor", || program(&checkpoints));
    let mut control = until("an offload process", || {
        Client::connect(first.dir(), pid).ok()
    });
    let hold = Control::BreakAtRunFunction(run_functions);
    control.run(&hold, PATIENCE).expect("it gets there");
    drop(control);
    let dump = snaprig_supervisor::Request::Dump {
        kill: true,
        full: true,
    };
    let dumped = snaprig_supervisor::ask(&checkpoints, dump).expect("a supervisor");
    let is_dumped = matches!(dumped, snaprig_supervisor::Reply::Dumped(_));
    assert!(is_dumped, "{platform}: {dumped:?}");
    assert_eq!(job.ended(), Some(137));
    drop(first);
    let second = rig(platform);
    let mut job = Job::start(&second, directory, &["restart", "checkpoints"]);
    let status = job.ended();
    let out = fs::read_to_string(directory.join("out")).expect("its output");
    assert_eq!(
        (status, out.as_str()),
        (Some(0), golden.as_str()),
        "{platform}"
    );
}

/// The program was started as any other; it is checkpointed twice, and is restarted at once on the rig where it was killed,
/// and from the first checkpoint on another.
fn started_by_itself(platform: &str) {
    let compiled = Program::compile("workloads/km", "", "-fopenmp");
    let golden = compiled.sources().join("golden");
    let golden = fs::read_to_string(golden).expect("a golden output");
    let [host, sink] = ["host", "sink"].map(|name| compiled.directory().join(name));
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path();
    let first = rig(platform);
    let sdk = Sdk::of(Path::new(SNAPRIG)).expect("libraries");
    let program = Command::new(&host)
        .arg(&sink)
        .current_dir(directory)
        .envs(sdk.environment(first.dir()).expect("an environment"))
        .stdin(Stdio::null())
        .stdout(File::create(directory.join("out")).expect("a file"))
        .spawn();
    let mut program = Job {
        supervisor: program.expect("it starts"),
    };
    let pid = program.supervisor.id();
    let snapify = |arguments: &[&str]| {
        let mut command = Command::new(SNAPRIG);
        command.arg("snapify").args(arguments).arg(pid.to_string());
        command.arg("--dir").arg(directory);
        command
    };
    let mut checkpointed = Vec::new();
    for (run_functions, more) in [
        (2, &["checkpoint", "--zstd"][..]),
        (3, &["checkpoint", "--live"]),
        (4, &["checkpoint", "--kill"]),
    ] {
        let mut control = until("an offload process", || {
            Client::connect(first.dir(), pid).ok()
        });
        let hold = Control::BreakAtRunFunction(run_functions);
        control.run(&hold, PATIENCE).expect("it gets there");
        drop(control);
        let output = snapify(more).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{platform}: {said}");
        checkpointed.push(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let is_one = |said: &String| said.contains(&format!("of program {pid}:"));
    assert!(checkpointed.iter().all(is_one), "{checkpointed:?}");
    assert_eq!(program.ended(), None, "killed");
    for (round, same) in [("3", Some(first)), ("2", None), ("1", None)] {
        let rig = same.unwrap_or_else(|| rig(platform));
        let mut restart = snapify(&["restart", "--round", round]);
        let out = File::create(directory.join("out")).expect("a file");
        restart.arg("--rig").arg(rig.dir());
        restart.envs(sdk.environment(rig.dir()).expect("an environment"));
        let supervisor = restart.stdin(Stdio::null()).stdout(out).spawn();
        let mut job = Job {
            supervisor: supervisor.expect("it starts"),
        };
        let status = job.ended();
        let out = fs::read_to_string(directory.join("out")).expect("its output");
        assert_eq!(
            (status, out.as_str()),
            (Some(0), golden.as_str()),
            "{platform}"
        );
    }
}

fn molecular_dynamics(platform: &str) {
    outlives_everything(platform, "md", 4);
}

fn k_means(platform: &str) {
    outlives_everything(platform, "km", 3);
}

fn matrix_multiplications(platform: &str) {
    outlives_everything(platform, "sg", 2);
}

on_each_platform! {
    started_by_itself
    molecular_dynamics
    k_means
    matrix_multiplications
}
