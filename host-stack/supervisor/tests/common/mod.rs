//! Programs under a supervisor: launched, checkpointed, killed, restarted.
//!
//! Each has a directory: `job` is the supervisor's, `out` what it prints. Everything of it ends with its `Job`.

#![allow(dead_code)] // Each test program uses a part.

use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use snaprig_ckpt_image::store::Store;
use snaprig_supervisor::{Dumped, Reply, Request, Target};
use tempfile::TempDir;

/// Nobody's numbers.
pub const NOBODY: u32 = 65534;
/// In an environment: capabilities that root does not have, as setpriv(1) takes them away.
pub const WITHOUT: &str = "SNAPRIG_TEST_WITHOUT";
/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(100);

/// A program under a supervisor.
pub struct Job {
    pub directory: Directory,
    supervisor: Child,
    /// Processes that have lost it.
    orphans: Vec<i32>,
    user: Option<u32>,
    /// What its supervisors are told (see the driver).
    environment: Vec<(String, String)>,
    /// The step at which its supervisor kills itself (`faults::PLAN_ENV`).
    dies_at: Option<String>,
}

/// Where a job is: its own, or another's.
pub enum Directory {
    Own(TempDir),
    Anothers(PathBuf),
}

impl Directory {
    fn new(user: Option<u32>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), user, user).unwrap();
        Self::Own(directory)
    }

    pub fn path(&self) -> &Path {
        match self {
            Self::Own(directory) => directory.path(),
            Self::Anothers(directory) => directory,
        }
    }
}

impl Job {
    /// Launches a program; its arguments are of its directory's programs, or as they are.
    pub fn launch(program: &[&str]) -> Self {
        Self::launch_with(None, &[], program)
    }

    /// The same, in a directory that somebody has prepared.
    pub fn launch_prepared(
        user: Option<u32>,
        prepare: impl FnOnce(&Path),
        program: &[&str],
    ) -> Self {
        let directory = Directory::new(user);
        prepare(directory.path());
        Self::begin(directory, user, &[], None, program)
    }

    /// As an ordinary user; none if the test is one itself.
    pub fn launch_as_nobody(program: &[&str]) -> Self {
        Self::launch_with(nobody(), &[], program)
    }

    /// In a directory that has something in it.
    pub fn launch_among(directory: TempDir, program: &[&str]) -> Self {
        Self::begin(Directory::Own(directory), None, &[], None, program)
    }

    /// With a supervisor that kills itself at a step.
    pub fn launch_to_die(user: Option<u32>, at: &str, program: &[&str]) -> Self {
        let directory = Directory::new(user);
        Self::begin(directory, user, &[], Some(at.to_owned()), program)
    }

    /// In a directory that is another's.
    pub fn launch_at(directory: &Path, program: &[&str]) -> Self {
        let directory = Directory::Anothers(directory.to_owned());
        Self::begin(directory, None, &[], None, program)
    }

    /// Among others, and with a supervisor that kills itself at a step.
    pub fn launch_among_to_die(directory: TempDir, at: &str, program: &[&str]) -> Self {
        let at = Some(at.to_owned());
        Self::begin(Directory::Own(directory), None, &[], at, program)
    }

    /// With an environment: what the supervisor is told (see the driver).
    pub fn launch_with(user: Option<u32>, environment: &[(&str, &str)], program: &[&str]) -> Self {
        Self::begin(Directory::new(user), user, environment, None, program)
    }

    /// Waits for a program that migrates: `at` is where, as the driver is told.
    pub fn receive(user: Option<u32>, at: &[&str]) -> Self {
        Self::receive_with(user, None, at)
    }

    /// The same, with a supervisor that kills itself at a step.
    pub fn receive_to_die(step: &str, at: &[&str]) -> Self {
        Self::receive_with(None, Some(step.to_owned()), at)
    }

    fn receive_with(user: Option<u32>, dies_at: Option<String>, at: &[&str]) -> Self {
        let directory = Directory::new(user);
        let arguments = [&["receive", "job"], at].concat();
        let supervisor = start(directory.path(), user, &[], dies_at.as_deref(), &arguments);
        Self {
            directory,
            supervisor,
            orphans: Vec::new(),
            user,
            environment: Vec::new(),
            dies_at,
        }
    }

    /// Waits for a program where one has come, or should have, before.
    pub fn receive_again(&mut self, at: &[&str]) {
        let arguments = [&["receive", "job"], at].concat();
        self.dies_at = None;
        self.supervisor = start(self.directory.path(), self.user, &[], None, &arguments);
    }

    /// Whether there is a supervisor that answers.
    pub fn answers(&self) -> bool {
        snaprig_supervisor::ask(&self.path("job"), Request::Status).is_ok()
    }

    /// Where another is, whose supervisor is dead, and as its user.
    pub fn launch_in(other: &Self, program: &[&str]) -> Self {
        let directory = Directory::Anothers(other.directory.path().to_owned());
        Self::begin(directory, other.user, &[], None, program)
    }

    fn begin(
        directory: Directory,
        user: Option<u32>,
        environment: &[(&str, &str)],
        dies_at: Option<String>,
        program: &[&str],
    ) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment: Vec<_> = environment.iter().map(own).collect();
        let arguments = [&["launch", "job"], program].concat();
        let dies = dies_at.as_deref();
        let supervisor = start(directory.path(), user, &environment, dies, &arguments);
        let job = Self {
            directory,
            supervisor,
            orphans: Vec::new(),
            user,
            environment,
            dies_at,
        };
        job.wait_for_control();
        job
    }

    fn wait_for_control(&self) {
        wait_until("a supervisor answers", || {
            snaprig_supervisor::ask(&self.path("job"), Request::Status).is_ok()
        });
    }

    /// A path in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What it has printed.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("out")).unwrap_or_default()).into_owned()
    }

    /// Waits until it has printed something.
    pub fn wait_for(&self, text: &str) {
        wait_until_or(
            || self.output().contains(text),
            || format!("{text:?} in {}", self.output()),
        );
    }

    /// Tells it to go on: a file that it looks for.
    pub fn tell(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    /// A checkpoint.
    pub fn dump(&self, kill: bool) -> Result<(), String> {
        self.dumped(kill, false).map(drop)
    }

    /// A checkpoint, and what is said of it.
    pub fn dumped(&self, kill: bool, full: bool) -> Result<Dumped, String> {
        match snaprig_supervisor::ask(&self.path("job"), Request::Dump { kill, full }) {
            Ok(Reply::Dumped(dumped)) => Ok(dumped),
            Ok(Reply::Failed(why)) => Err(why),
            other => panic!("{other:?}; {}", self.output()),
        }
    }

    /// A checkpoint, the end of all processes, and a restart.
    pub fn over_again(&mut self) {
        self.dump(true)
            .unwrap_or_else(|why| panic!("{why}; {}", self.output()));
        self.ended();
        self.restart();
    }

    /// It says that it is ready, runs on after a checkpoint, is restarted twice, and is told to look at what it has: it
    /// ends well, and says nothing else.
    pub fn stays_what_it_was(&mut self, says: &str) {
        self.wait_for("ready");
        self.dump(false).unwrap();
        for _ in 0..2 {
            self.over_again();
        }
        self.tell("go");
        let status = self.ended();
        assert_eq!((status, self.output().as_str()), (0, says));
    }

    pub fn restart(&mut self) {
        self.restart_from(&[]);
    }

    /// A restart, and of which checkpoint.
    pub fn restart_from(&mut self, round: &[&str]) {
        self.begin_restart(None, round);
        wait_until_or(
            || snaprig_supervisor::ask(&self.path("job"), Request::Status).is_ok(),
            || format!("a restarted supervisor answers; {}", self.output()),
        );
    }

    /// Has a supervisor restart it that kills itself at a step.
    pub fn restart_to_die(&mut self, at: &str) {
        self.begin_restart(Some(at.to_owned()), &[]);
    }

    fn begin_restart(&mut self, dies_at: Option<String>, round: &[&str]) {
        self.dies_at = dies_at;
        let (directory, at) = (self.directory.path(), self.dies_at.as_deref());
        let arguments = [&["restart", "job"], round].concat();
        self.supervisor = start(directory, self.user, &self.environment, at, &arguments);
    }

    /// The supervisor and all processes end, as they are.
    pub fn kill(&mut self) {
        let processes = self.processes();
        for pid in &processes {
            // SAFETY: kill(2) touches no memory; they are descendants of a child that has not been waited for.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
        let _ = self.supervisor.wait();
        // Those of a PID namespace are not this one's to wait for.
        wait_until("all have ended", || {
            processes
                .iter()
                .all(|pid| snaprig_tracee::trace::has_ended(*pid))
        });
    }

    /// Its supervisor, as the test sees it.
    pub fn supervisor(&self) -> i32 {
        self.supervisor.id() as i32
    }

    /// A restart that fails; what it says.
    pub fn refuses_to_restart(&mut self) -> String {
        let before = self.output().len();
        self.begin_restart(None, &[]);
        let (status, output) = (self.ended(), self.output());
        assert_ne!(status, 0, "{output}");
        output[before..].to_owned()
    }

    /// A restart that fails.
    pub fn restart_in_vain(&mut self) {
        self.begin_restart(None, &[]);
        assert_ne!(self.ended(), 0);
    }

    /// SIGKILL; the program lives on.
    pub fn kill_supervisor(&mut self) {
        self.orphans = self.processes().split_off(1);
        self.supervisor.kill().unwrap();
        self.supervisor.wait().unwrap();
    }

    /// Its exit status, when it has ended.
    pub fn ended(&mut self) -> i32 {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.supervisor.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "it does not end; {}",
                self.output()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Numbers of its processes, as the test sees them.
    pub fn processes(&self) -> Vec<i32> {
        tree_of(self.supervisor.id() as i32)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let orphans = std::mem::take(&mut self.orphans);
        for pid in orphans {
            // They were descendants of a child, and live until they are killed.
            send(pid, libc::SIGKILL);
        }
        self.kill();
    }
}

/// Sends a signal to a process; one that has ended already gets none.
fn send(pid: i32, signal: i32) {
    // SAFETY: kill(2) takes numbers alone, so the kernel reads and writes no memory of this process.
    unsafe { libc::kill(pid, signal) };
}

/// Whether a process is of the driver.
fn is_driver(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.contains("snaprig-ckpt-driver"))
}

/// A process and its descendants.
fn tree_of(pid: i32) -> Vec<i32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .map(|pid| pid.parse::<i32>().unwrap()),
            );
        }
        at += 1;
    }
    found
}

/// Nobody; none if the test is no root.
pub fn nobody() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

fn start(
    directory: &Path,
    user: Option<u32>,
    environment: &[(String, String)],
    dies_at: Option<&str>,
    arguments: &[&str],
) -> Child {
    let out = File::options()
        .append(true)
        .create(true)
        .open(directory.join("out"))
        .unwrap();
    let driver = env!("CARGO_BIN_EXE_snaprig-ckpt-driver");
    let mut command = match environment.iter().find(|(name, _)| name == WITHOUT) {
        Some((_, capabilities)) => {
            let mut setpriv = Command::new("setpriv");
            setpriv.args(["--bounding-set", capabilities, driver]);
            setpriv
        }
        None => Command::new(driver),
    };
    command.args(arguments).current_dir(directory);
    command.env("SNAPRIG_TEST", arguments[0]);
    command.stdin(Stdio::null());
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.envs(dies_at.map(|step| (snaprig_supervisor::faults::PLAN_ENV, step)));
    command.stdout(out.try_clone().unwrap()).stderr(out);
    // As shells do it. What the tests run in may be a container whose group is that of its first process.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    if let Some(user) = user {
        std::os::unix::process::CommandExt::uid(&mut command, user);
        std::os::unix::process::CommandExt::gid(&mut command, user);
    }
    command.spawn().unwrap()
}

/// A program of tests/programs.
pub fn program(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Compiles a program of tests/programs into a directory that everybody may read.
pub fn compiled(name: &str, options: &[&str]) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.path(), mode).unwrap();
    let out = directory.path().join("program");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-g", "-Wall", "-Werror", "-pthread", "-o"])
        .arg(&out);
    assert!(
        gcc.arg(program(name))
            .args(options)
            .status()
            .unwrap()
            .success()
    );
    let out = out.to_str().unwrap().to_owned();
    (directory, out)
}

/// A C program with plugins, beside the library that it needs, in a directory that everybody may read.
pub struct PluginProgram {
    /// Where it is.
    pub path: String,
    _directory: TempDir,
}

impl PluginProgram {
    /// Compiles it.
    pub fn compile(source: &str) -> Self {
        Self::compile_with(source, &[])
    }

    /// The same, with options.
    pub fn compile_with(source: &str, options: &[&str]) -> Self {
        let tests = std::env::current_exe().unwrap();
        let library = tests.with_file_name("libsnaprig_libckpt_plugin.so");
        let directory = tempfile::tempdir().unwrap();
        let readable = || std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(directory.path(), readable()).unwrap();
        let own = directory.path().join("libsnaprig_ckpt_plugin.so.0");
        fs::copy(&library, &own).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
        fs::set_permissions(&own, readable()).unwrap();
        let include = concat!(
            "-I",
            env!("CARGO_MANIFEST_DIR"),
            "/../libckpt-plugin/include"
        );
        let path = directory.path().join("program");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-g", "-Wall", "-Werror", "-pthread", include, "-o"]);
        gcc.arg(&path).args(options).arg(source).arg(&own);
        gcc.arg(format!("-Wl,-rpath,{}", directory.path().display()));
        assert!(gcc.status().unwrap().success());
        Self {
            path: path.to_str().unwrap().to_owned(),
            _directory: directory,
        }
    }
}

/// Trees of a job, in one directory: `job` is the job's, `out` what all of them print.
pub struct Trees {
    pub directory: TempDir,
    user: Option<u32>,
    environment: Vec<(String, String)>,
    supervisors: Vec<Child>,
}

impl Trees {
    pub fn new() -> Self {
        Self::of(None)
    }

    /// Checkpointed as the driver's environment says.
    pub fn with(environment: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
        let mut trees = Self::new();
        trees.environment = environment.iter().map(owned).collect();
        trees
    }

    /// Of an ordinary user; of the test's, if that is one.
    pub fn of_nobody() -> Self {
        Self::of(nobody())
    }

    fn of(user: Option<u32>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), user, user).unwrap();
        Self {
            directory,
            user,
            environment: Vec::new(),
            supervisors: Vec::new(),
        }
    }

    /// Launches a tree, and waits until it has joined.
    pub fn launch(&mut self, name: &str, program: &[&str]) {
        self.launch_to_die(name, None, program);
    }

    /// The same; its supervisor kills itself at a step.
    pub fn launch_to_die(&mut self, name: &str, at: Option<&str>, program: &[&str]) {
        self.begin_launch(name, at, program);
        let directory = self.directory.path().join("job/members").join(name);
        wait_until_or(
            || snaprig_supervisor::ask(&directory, Request::Status).is_ok(),
            || format!("{name} answers; {}", self.output()),
        );
    }

    /// The same, without waiting for it.
    pub fn begin_launch(&mut self, name: &str, at: Option<&str>, program: &[&str]) {
        let mut arguments = vec!["launch-in", "job", name];
        arguments.extend(program);
        self.start(&[], at, &arguments);
    }

    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.directory.path().join("out")).unwrap_or_default())
            .into_owned()
    }

    pub fn wait_for(&self, text: &str) {
        self.wait_until(text, || self.output().contains(text));
    }

    /// Until it has been printed so many times.
    pub fn wait_for_times(&self, times: usize, text: &str) {
        self.wait_until(text, || self.output().matches(text).count() == times);
    }

    fn wait_until(&self, text: &str, is_so: impl FnMut() -> bool) {
        wait_until_or(is_so, || format!("{text:?} in {}", self.output()));
    }

    pub fn tell(&self, name: &str) {
        fs::write(self.directory.path().join(name), "").unwrap();
    }

    /// Whether they have told us something: a file of this name.
    pub fn has(&self, name: &str) -> bool {
        self.directory.path().join(name).exists()
    }

    /// The driver, as who the trees are.
    pub fn driver(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_snaprig-ckpt-driver"));
        command.current_dir(self.directory.path());
        if let Some(user) = self.user {
            std::os::unix::process::CommandExt::uid(&mut command, user);
            std::os::unix::process::CommandExt::gid(&mut command, user);
        }
        command
    }

    /// Its checkpoints.
    pub fn store(&self) -> Store {
        Store::open(self.directory.path().join("job/checkpoints")).unwrap()
    }

    /// A checkpoint of all; what is said if there is none.
    pub fn dump(&self, kill: bool) -> Result<(), String> {
        self.dump_with(if kill { &["kill"] } else { &[] })
    }

    /// The same, with words for the driver.
    pub fn dump_with(&self, words: &[&str]) -> Result<(), String> {
        let mut command = self.driver();
        command.args(["dump-job", "job"]).args(words);
        let output = command.output().unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "{}{}",
                String::from_utf8_lossy(&output.stderr),
                self.output()
            )),
        }
    }

    /// Restarts all, and waits until they run.
    pub fn restart(&mut self) {
        self.begin_restart(None);
        self.wait_for_all();
    }

    /// The same, of this checkpoint.
    pub fn restart_from(&mut self, round: u64) {
        let round = round.to_string();
        self.start(&[("ROUND", &round)], None, &["restart-job", "job"]);
        self.wait_for_all();
    }

    fn wait_for_all(&self) {
        let members = fs::read_dir(self.directory.path().join("job/members")).unwrap();
        for member in members {
            let member = member.unwrap().path();
            wait_until_or(
                || snaprig_supervisor::ask(&member, Request::Status).is_ok(),
                || format!("{} answers; {}", member.display(), self.output()),
            );
        }
    }

    /// Has all restart, or one.
    pub fn begin_restart(&mut self, only: Option<&str>) {
        let mut arguments = vec!["restart-job", "job"];
        arguments.extend(only);
        self.start(&[], None, &arguments);
    }

    fn start(&mut self, environment: &[(&str, &str)], at: Option<&str>, arguments: &[&str]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment: Vec<_> = environment.iter().map(owned).collect();
        let environment = [&self.environment[..], &environment].concat();
        let directory = self.directory.path();
        let supervisor = start(directory, self.user, &environment, at, arguments);
        self.supervisors.push(supervisor);
    }

    /// Has a member go on at another supervisor, which kills itself at a step.
    pub fn begin_move(&mut self, member: &str, at: Option<&str>) {
        self.start(&[], at, &["move", "job", member]);
    }

    /// The same, by a way that its image takes.
    pub fn begin_move_by(&mut self, member: &str, strategy: &str, at: Option<&str>) {
        self.start(&[], at, &["move", "job", member, strategy]);
    }

    /// The exit status of the one that was started last, when it has ended.
    pub fn last_ended(&mut self) -> i32 {
        let mut others = std::mem::take(&mut self.supervisors);
        self.supervisors.extend(others.pop());
        let status = self.ended()[0];
        self.supervisors = others;
        status
    }

    /// A member that is connected to the test, until the test hangs up; and its name.
    pub fn meet_a_stranger(&mut self) -> (TcpStream, String) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let name = format!("knows-{port}");
        let code = format!(
            "import socket\ns = socket.create_connection(('127.0.0.1', {port}))\ns.recv(1)\n\
             print('{name} has parted', flush=True)"
        );
        self.launch(&name, &["/usr/bin/python3", "-c", &code]);
        (listener.accept().unwrap().0, name)
    }

    /// Waits until a tree that has ended is no member of the job any more.
    pub fn left(&self, name: &str) {
        let members = self.directory.path().join("job/members.json");
        wait_until(name, || {
            fs::read_to_string(&members).is_ok_and(|members| !members.contains(name))
        });
        let _ = fs::remove_dir_all(self.directory.path().join("job/members").join(name));
    }

    /// SIGKILL for a tree: for its supervisor first.
    pub fn kill_tree(&mut self, number: usize) {
        let supervisor = &mut self.supervisors[number];
        for pid in tree_of(supervisor.id() as i32) {
            // They are descendants of a child that has not been waited for.
            send(pid, libc::SIGKILL);
        }
        let _ = supervisor.wait();
    }

    /// SIGKILL for a supervisor alone.
    pub fn kill_supervisor(&mut self, number: usize) {
        let _ = self.supervisors[number].kill();
    }

    /// The same for a process of a supervisor's own, one of those that there are, if there are any. Whether it is between the
    /// supervisor and a tree that it restores.
    pub fn kill_helper(&mut self, number: usize, which: usize) -> bool {
        let supervisor = self.supervisors[number].id() as i32;
        let mut processes = tree_of(supervisor).split_off(1);
        processes.retain(|pid| is_driver(*pid));
        let Some(last) = processes.len().checked_sub(1) else {
            return false;
        };
        let victim = processes[which % (last + 1)];
        let is_between = tree_of(victim).len() > 1;
        // It is a descendant of a child that has not been waited for.
        send(victim, libc::SIGKILL);
        is_between
    }

    /// Which of the first three that were started have not ended.
    pub fn live(&mut self) -> [bool; 3] {
        let mut live = self.supervisors.iter_mut();
        let mut next = || {
            live.next()
                .is_some_and(|one| matches!(one.try_wait(), Ok(None)))
        };
        [next(), next(), next()]
    }

    /// Whether one of these has been printed.
    pub fn has_said(&self, any: &[&str]) -> bool {
        let output = self.output();
        any.iter().any(|said| output.contains(said))
    }

    /// SIGKILL for programs that have lost their supervisors, and the end of them.
    pub fn kill_orphans(&self) {
        let directory = self.directory.path();
        wait_until("no orphan is left", || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let is_here = |entry: &fs::DirEntry| {
                fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == directory)
            };
            let pids = processes.filter(is_here);
            let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let left: Vec<i32> = pids.collect();
            left.iter().for_each(|pid| send(*pid, libc::SIGKILL));
            left.is_empty()
        });
    }

    /// The exit statuses of all that were started, when they have ended.
    pub fn ended(&mut self) -> Vec<i32> {
        let mut statuses = Vec::new();
        for mut supervisor in std::mem::take(&mut self.supervisors) {
            let begun = Instant::now();
            let status = loop {
                if let Some(status) = supervisor.try_wait().unwrap() {
                    break status;
                }
                if begun.elapsed() > PATIENCE {
                    self.supervisors.push(supervisor);
                    panic!("they do not end; {}", self.output());
                }
                thread::sleep(Duration::from_millis(1));
            };
            statuses.push(status.code().unwrap_or(-1));
        }
        statuses
    }

    /// The coordinator's process, as the job's directory says.
    pub fn coordinator(&self) -> Option<i32> {
        let file = fs::read(self.directory.path().join("job/coordinator.json")).ok()?;
        let file: serde_json::Value = serde_json::from_slice(&file).ok()?;
        file.get("pid")?.as_i64().map(|pid| pid as i32)
    }

    pub fn kill_coordinator(&self) {
        if let Some(pid) = self.coordinator()
            && is_driver(pid)
        {
            send(pid, libc::SIGKILL);
        }
    }

    /// SIGKILL for everything of the job, at once.
    pub fn kill_all(&mut self) {
        self.kill_coordinator();
        let lives = |one: &mut Child| !matches!(one.try_wait(), Ok(Some(_)));
        let supervisors = std::mem::take(&mut self.supervisors);
        let mut living: Vec<_> = supervisors
            .into_iter()
            .filter_map(|mut one| lives(&mut one).then_some(one))
            .collect();
        let trees = living.iter().flat_map(|one| tree_of(one.id() as i32));
        let pids: Vec<_> = trees.collect();
        // Nobody is to see another one's end, and to close what it has.
        for signal in [libc::SIGSTOP, libc::SIGKILL] {
            for pid in &pids {
                // They are descendants of children that have not been waited for.
                send(*pid, signal);
            }
        }
        for supervisor in &mut living {
            let _ = supervisor.wait();
        }
        // Those of a PID namespace are not this one's to wait for.
        wait_until("all have ended", || {
            pids.iter()
                .all(|pid| snaprig_tracee::trace::has_ended(*pid))
        });
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Objects that a program has made where it was launched, which stay there when it is killed: kinds and numbers.
pub struct Objects(pub Vec<(char, i32)>);

impl Objects {
    pub fn of(job: &Job) -> Self {
        let text = fs::read_to_string(job.path("objects")).unwrap();
        let words = text.split(' ').map(|word| word.split_at(1));
        let parsed = words.map(|(kind, id)| (kind.chars().next().unwrap(), id.parse().unwrap()));
        Self(parsed.collect())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for (kind, id) in self.0.iter().copied() {
            // SAFETY: with IPC_RMID none of these looks at the address.
            unsafe {
                match kind {
                    'm' => libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()),
                    's' => libc::semctl(id, 0, libc::IPC_RMID),
                    _ => libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()),
                };
            }
        }
    }
}

/// Huge pages of a size, which are not there for long: for one test at a time, whatever program it is of.
pub struct HugePages {
    kib: u64,
    before: u64,
    _alone: File,
}

impl HugePages {
    /// So many more than there are, for root; none, and why, if they are not to be had: how much memory is free in pieces
    /// of that size is known only when it is asked for.
    pub fn reserve(kib: u64, count: u64) -> Option<Self> {
        let path = std::env::temp_dir().join("snaprig-huge-pages.lock");
        let alone = File::options().append(true).create(true).open(path);
        let alone = alone.expect("a file that tests lock");
        alone.lock().expect("nobody interrupts");
        let mut pages = Self {
            kib,
            before: 0,
            _alone: alone,
        };
        pages.before = pages.number("nr_hugepages");
        pages.set(count);
        let there = pages.number("nr_hugepages");
        if there < pages.before + count {
            println!("skipped: {there} huge pages of {kib} kB can be had, and not {count}");
            return None;
        }
        Some(pages)
    }

    /// So many more than there were.
    pub fn set(&self, count: u64) {
        let _ = fs::write(self.path("nr_hugepages"), (self.before + count).to_string());
    }

    /// Those that nobody has.
    pub fn free(&self) -> u64 {
        self.number("free_hugepages")
    }

    fn path(&self, name: &str) -> PathBuf {
        format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", self.kib).into()
    }

    fn number(&self, name: &str) -> u64 {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Moves an ordinary user's program so often: where the file is that it waits for, and all that it has been.
pub fn migrate_of_nobody(source: Job, times: usize) -> (PathBuf, Vec<Job>) {
    let (go, mut jobs) = (source.path("go"), vec![source]);
    for _ in 0..times {
        let target = Job::receive(nobody(), &["socket"]);
        let socket = target.path("socket");
        wait_until("it listens", || socket.exists());
        let to = Target::unix(socket);
        let source = jobs.last_mut().unwrap();
        match snaprig_supervisor::ask(&source.path("job"), Request::Migrate { to }) {
            Ok(Reply::Migrated(_)) => {}
            other => panic!("{other:?}; {}", source.output()),
        }
        assert_eq!(source.ended(), 128 + libc::SIGKILL);
        wait_until("it is supervised", || target.answers());
        jobs.push(target);
    }
    (go, jobs)
}

/// A program that is told to look at what it has ends well.
pub fn ends_well(go: &Path, job: &mut Job) {
    fs::write(go, "").unwrap();
    let (status, output) = (job.ended(), job.output());
    assert!(
        status == 0 && output.ends_with("right\n") && !output.contains("wrong"),
        "{status}: {output}"
    );
}

/// A server with its processes, and clients that move money from account to account: none is lost.
pub fn postgresql(settings: &[&str]) {
    let script = program("postgres.sh");
    let mut job = Job::launch_as_nobody(&[&["bash", &script], settings].concat());
    job.wait_for("ready");
    for round in 0..rounds(10) {
        thread::sleep(Duration::from_micros(round * 7919 % 200_011));
        job.dump(false).unwrap();
        job.over_again();
    }
    ends_well(&job.path("stop"), &mut job);
}

/// How often something is done; SNAPRIG_CKPT_ROUNDS says otherwise.
pub fn rounds(usual: u64) -> u64 {
    number("SNAPRIG_CKPT_ROUNDS", usual)
}

/// A number that a variable says, or the usual one.
pub fn number(variable: &str, usual: u64) -> u64 {
    let said = std::env::var(variable);
    said.map_or(usual, |number| number.parse().unwrap())
}

/// What a seed draws for a round (SplitMix64).
pub fn draw(seed: u64, round: u64) -> u64 {
    let mut z = seed.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_until_or(is_so, || what.into());
}

fn wait_until_or(mut is_so: impl FnMut() -> bool, what: impl Fn() -> String) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {}", what());
        thread::sleep(Duration::from_millis(1));
    }
}
