//! Programs that use HCAs, and that are checkpointed in the middle of their traffic.

#![allow(dead_code)] // each suite uses its part

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use rustix::process::Pid;
use snaprig_fixtures::mpi::{KERNELS, Kernel};

use crate::fabric::{
    Fabric, Running, SNAPRIG, TIMEOUT, assert_success, free_port, text, wait_until,
};

/// How long a program has worked before it is checkpointed: processor time of its processes, in clock ticks of 10 ms. Programs
/// that use HCAs never wait.
pub const WORKED_TICKS: u64 = 10;

/// How soon a program has ended that did so when it was to be checkpointed.
const ENDS_MAX: Duration = Duration::from_secs(2);
/// How often a program is to do more until it takes long enough.
const LONGER_MAX: u32 = 5;

/// What comes of an attempt with programs that do so many things, or more of them for as long as they have ended too soon for it
/// (none): how long they take depends on the machine, and on who else is at work on it.
pub fn long_enough<T>(count: u64, attempt: impl Fn(u64) -> Option<T>) -> T {
    let mut counts = (0..=LONGER_MAX).map(|longer| count << (2 * longer));
    counts
        .find_map(attempt)
        .expect("programs that take long enough")
}

/// Words in which COUNT is a number; N*COUNT is so many times as much.
pub fn with_count(words: &str, count: u64) -> String {
    let mut words = words.to_owned();
    for times in [4, 8] {
        words = words.replace(&format!("{times}*COUNT"), &(times * count).to_string());
    }
    words.replace("COUNT", &count.to_string())
}

/// Whether a program has ended, or does so now.
pub fn ends_soon(mut runs: impl FnMut() -> bool) -> bool {
    let by = Instant::now() + ENDS_MAX;
    while runs() {
        if Instant::now() >= by {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A server, and a client of it once it listens: at a port of TCP, or of the connection manager.
pub const PAIR: &str = "\
    $SERVER & server=$!
    until grep -qi \":$(printf %04X $PORT) [0-9A-F:]* 0A \" /proc/net/tcp /proc/net/tcp6 ||
        ls $SNAPRIG_FABRICS/*/cm-*-$PORT > /dev/null 2>&1
    do sleep 0.01; done
    $CLIENT; client=$?
    wait $server && exit $client";

/// A program that is to be checkpointed.
pub struct Checkpointed {
    pub directory: tempfile::TempDir,
    pub fabric: Fabric,
}

impl Checkpointed {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            fabric: Fabric::new(&[]),
        }
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.directory.path().join("checkpoints")
    }

    pub fn launch(&self, program: &[&str]) -> Running {
        self.launch_with(&[], program)
    }

    /// With options of `ckpt launch`.
    pub fn launch_with(&self, options: &[&str], program: &[&str]) -> Running {
        let directory = self.checkpoints();
        let directory = directory.to_str().expect("a name");
        let launch = [SNAPRIG, "ckpt", "launch", "--dir", directory, "--verbs"];
        self.fabric
            .start(&[&launch[..], options, &["--"], program].concat())
    }

    /// A server and a client; PORT in their words is one that is free.
    pub fn launch_pair(&self, server: &str, client: &str) -> Running {
        let port = free_port().to_string();
        let words = |words: &str| words.replace("PORT", &port);
        let variables = [
            format!("PORT={port}"),
            format!("SERVER={}", words(server)),
            format!("CLIENT={}", words(client)),
        ];
        let [port, server, client] = variables.each_ref().map(String::as_str);
        self.launch(&["env", port, server, client, "bash", "-c", PAIR])
    }

    /// `snaprig ckpt ...`.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(SNAPRIG);
        command.arg("ckpt").args(arguments);
        command.arg("--dir").arg(self.checkpoints());
        command
    }

    pub fn ckpt(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("snaprig starts")
    }

    /// Those that supervise it.
    pub fn supervisors(&self) -> Vec<i32> {
        self.fabric.processes("launch")
    }

    /// Processes of a name, as `ckpt status` has them.
    pub fn processes(&self, name: &str) -> Vec<u64> {
        let status = self.ckpt(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        let processes = status["processes"].as_array().into_iter().flatten();
        // A name of the kernel has 15 characters.
        let is_it = |process: &&serde_json::Value| {
            let found = process["name"].as_str().unwrap_or_default();
            !found.is_empty() && name.starts_with(found)
        };
        processes
            .filter(is_it)
            .filter_map(|process| process["pid"].as_u64())
            .collect()
    }

    /// Waits until so many processes of this name have worked for a while. False: it has ended before that.
    #[must_use]
    pub fn is_at_work(&self, running: &mut Running, name: &str, count: usize) -> bool {
        let mut runs = true;
        wait_until(&format!("{name} is at work"), || {
            runs = running.runs();
            let worked = self.processes(name).into_iter().map(ticks_of);
            !runs || worked.filter(|ticks| *ticks >= WORKED_TICKS).count() >= count
        });
        runs
    }

    /// Takes a checkpoint of what runs. False: it has ended before that.
    #[must_use]
    pub fn dump_or_over(&self, running: &mut Running, how: &str) -> bool {
        let dumped = self.ckpt(&["dump", how]);
        let failed = !dumped.status.success();
        if failed && !ends_soon(|| running.runs()) {
            assert_success("ckpt dump", &[dumped]);
        }
        !failed
    }

    /// Takes so many checkpoints of what runs, and kills it with the last one; what it had printed. None: it has ended before that.
    pub fn killed_or_over(&self, mut running: Running, checkpoints: u32) -> Option<Output> {
        for checkpoint in 1..=checkpoints {
            let how = ["--leave-running", "--kill"][usize::from(checkpoint == checkpoints)];
            self.dump_or_over(&mut running, how).then_some(())?;
        }
        Some(running.output())
    }

    /// The same once so many processes of this name have worked for a while.
    pub fn killed_at_work(
        &self,
        mut running: Running,
        (name, count): (&str, usize),
        checkpoints: u32,
    ) -> Option<Output> {
        self.is_at_work(&mut running, name, count).then_some(())?;
        self.killed_or_over(running, checkpoints)
    }

    /// The same; none, too, if it has said by then what it says at its end.
    pub fn killed_before(
        &self,
        end: &str,
        running: Running,
        at_work: (&str, usize),
        checkpoints: u32,
    ) -> Option<Output> {
        let killed = self.killed_at_work(running, at_work, checkpoints)?;
        (!text(&killed).contains(end)).then_some(killed)
    }

    pub fn dump(&self, how: &str) {
        assert_success("ckpt dump", &[self.ckpt(&["dump", how])]);
    }

    /// Takes so many checkpoints of what runs, and kills it with the last one; what it had printed.
    pub fn killed(&self, running: Running, checkpoints: u32) -> Output {
        for _ in 1..checkpoints {
            self.dump("--leave-running");
        }
        self.dump("--kill");
        running.output()
    }

    /// Restarts it in a fabric of these arguments, where it ends well; what it prints.
    pub fn goes_on(&self, what: &str, elsewhere: &[&str]) -> String {
        let ran = self.restart(elsewhere);
        assert_success(what, std::slice::from_ref(&ran));
        text(&ran)
    }

    /// Programs of tests/verbs/objects: `program` and its mode, launched with these options, outlive so many checkpoints. They work
    /// until there is a file, which is made once they are saved, and go on elsewhere.
    pub fn objects_go_on(&self, name: &str, program: &[&str], options: &[&str], checkpoints: u32) {
        let files = ["stop", "domain"].map(|file| self.directory.path().join(file));
        let files = files.each_ref().map(|path| path.to_str().expect("a name"));
        let running = self.launch_with(options, &[program, &files].concat());
        let killed = self.killed_at_work(running, (name, 1), checkpoints);
        killed.expect("it works until there is a file");
        fs::write(files[0], "").expect("a file");
        let text = self.goes_on(name, &["--model", "B"]);
        assert!(text.contains("all as it should be"), "{text}");
    }

    /// Restarts it in a fabric of these arguments; what it prints.
    pub fn restart(&self, arguments: &[&str]) -> Output {
        self.restart_of(arguments, &[])
    }

    /// The same, with options of `ckpt restart`.
    pub fn restart_of(&self, arguments: &[&str], options: &[&str]) -> Output {
        let fabric = Fabric::new(arguments);
        let directory = self.checkpoints();
        let directory = directory.to_str().expect("a name");
        let restart = [SNAPRIG, "ckpt", "restart", directory];
        let restart = [elsewhere(), &restart[..], options].concat();
        let ran = fabric.start(&restart).output();
        fabric.ended();
        ran
    }
}

/// Before a program that is to run where no port has been used, as on another machine: whom SIGKILL has ended leaves its ports in
/// use for a minute (TIME_WAIT). Who is not root waits.
fn elsewhere() -> &'static [&'static str] {
    const ELSEWHERE: [&str; 6] = [
        "unshare",
        "--net",
        "bash",
        "-c",
        r#"ip link set lo up && exec "$@""#,
        "bash",
    ];
    match rustix::process::geteuid().is_root() {
        true => &ELSEWHERE,
        false => &[],
    }
}

/// Processor time that a process has had (proc_pid_stat(5)).
pub fn ticks_of(pid: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let times = fields.split(' ').skip(11).take(2);
    times.filter_map(|time| time.parse::<u64>().ok()).sum()
}

/// Names a job in the environment of all of its processes: its directory.
const JOB_ENV: &str = "SNAPRIG_TEST_JOB";

/// `snaprig nodes COUNT --job DIR`, with these arguments.
pub fn nodes(count: &str, job: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(SNAPRIG);
    command.args(["nodes", count, "--job"]).arg(job);
    command.args(arguments).env(JOB_ENV, job);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What the fabric of a job on nodes is called.
const FABRIC: &str = "fabric";

/// A kernel of MPI jobs on nodes.
pub struct JobOnNodes {
    directory: tempfile::TempDir,
    /// The kernel.
    pub kernel: &'static Kernel,
    running: Option<Child>,
    /// What it prints.
    lines: Receiver<String>,
    /// What it had printed when it was killed.
    pub before: String,
}

impl JobOnNodes {
    /// Runs a kernel with so many ranks and these flags, until all of them are at work.
    pub fn launched(name: &str, (count, ranks): (&str, usize), flags: &[&str]) -> Self {
        Self::launched_on(name, (count, &[]), (ranks, &[]), flags)
    }

    /// The same on four nodes, two ranks on each; there is a fifth one.
    pub fn launched_beside_a_spare(name: &str, flags: &[&str]) -> Self {
        Self::launched_beside_spares(name, (4, 2, 1), flags)
    }

    /// The same, with these options of `snaprig nodes`.
    pub fn launched_over(name: &str, options: &[&str], flags: &[&str]) -> Self {
        let hosts = ["-host", "node1:2,node2:2,node3:2,node4:2"];
        Self::launched_on(name, ("5", options), (8, &hosts), flags)
    }

    /// The same on so many nodes, with so many ranks on each; so many nodes more have none.
    pub fn launched_beside_spares(
        name: &str,
        (used, ranks, spares): (usize, usize, usize),
        flags: &[&str],
    ) -> Self {
        let hosts = (1..=used).map(|node| format!("node{node}:{ranks}"));
        let hosts = hosts.collect::<Vec<_>>().join(",");
        let count = (used + spares).to_string();
        Self::launched_on(
            name,
            (&count, &[]),
            (used * ranks, &["-host", &hosts]),
            flags,
        )
    }

    fn launched_on(
        name: &str,
        (count, options): (&str, &[&str]),
        (ranks, hosts): (usize, &[&str]),
        flags: &[&str],
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let kernel = KERNELS.iter().find(|kernel| kernel.name == name);
        let kernel = kernel.expect("it is among them");
        let program = kernel
            .compile("mpicc", directory.path())
            .expect("it compiles");
        let program = program.to_str().expect("a name");
        let all = ranks.to_string();
        // A name by which it is found.
        let mpirun = ["--fabric", FABRIC, "--", "mpirun", "-n", &all];
        let mpirun = [&mpirun[..], &["--oversubscribe"]].concat();
        let ucx = ["--mca", "pml", "ucx", "--mca", "osc", "ucx"];
        let run = ["-x", "UCX_TLS=rc,self", program];
        let words = [options, &mpirun, hosts, &ucx, &run, flags].concat();
        let mut launch = nodes(count, &directory.path().join("job"), &words);
        launch.env("SNAPRIG_FABRICS", directory.path());
        let launched = launch.stderr(Stdio::inherit()).spawn();
        let mut running = launched.expect("snaprig starts");
        let lines = lines_of(running.stdout.take().expect("it is piped"));
        // They reduce a sum for the first thing they say: then all of them have met.
        let before = lines.recv_timeout(TIMEOUT).expect("all ranks are at work");
        Self {
            directory,
            kernel,
            running: Some(running),
            lines,
            before,
        }
    }

    /// The same on two nodes, killed with a checkpoint.
    pub fn checkpointed(name: &str, ranks: usize, flags: &[&str]) -> Self {
        let mut job = Self::launched(name, ("2", ranks), flags);
        job.dump("--kill");
        job.before = job.ended();
        job
    }

    /// Takes a checkpoint.
    pub fn dump(&self, how: &str) {
        assert_success("ckpt dump", &[self.ckpt(&["dump", how])]);
    }

    /// Has a member go on at another node, while all others stay.
    pub fn moves(&self, member: &str, to: &str) {
        let moved = self.ckpt(&["move", member, "--to", to]);
        assert_success("ckpt move", &[moved]);
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        let running = self.running.as_mut().expect("it was launched");
        running.try_wait().expect("it is ours").is_none()
    }

    /// What it has printed when it has ended.
    pub fn ended(&mut self) -> String {
        let mut running = self.running.take().expect("it was launched");
        running.wait().expect("it ends");
        self.before.extend(self.lines.iter());
        std::mem::take(&mut self.before)
    }

    /// Restarts it on so many nodes; what it had printed, and prints.
    pub fn restarted(&self, count: &str, arguments: &[&str]) -> String {
        let mut restart = nodes(count, &self.job(), &[arguments, &["--restart"]].concat());
        let after = restart.output().expect("snaprig starts");
        assert_success(self.kernel.name, std::slice::from_ref(&after));
        self.before.clone() + &String::from_utf8_lossy(&after.stdout)
    }

    /// `snaprig fabric ...`, where node N has the LID N; what it prints.
    pub fn fabric(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(SNAPRIG);
        command.args(["fabric", "--fabric", FABRIC]).args(arguments);
        command.env("SNAPRIG_FABRICS", self.directory.path());
        let told = command.output().expect("snaprig starts");
        assert_success(&format!("{arguments:?}"), std::slice::from_ref(&told));
        text(&told)
    }

    /// Who keeps its nodes.
    pub fn keeper(&self) -> Pid {
        Pid::from_child(self.running.as_ref().expect("it was launched"))
    }

    /// The job's directory.
    pub fn job(&self) -> PathBuf {
        self.directory.path().join("job")
    }

    fn ckpt(&self, arguments: &[&str]) -> Output {
        ckpt_of(&self.job(), arguments)
    }
}

impl Drop for JobOnNodes {
    /// A test has failed: programs of a job outlive who keeps its nodes.
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            kill_all_of(&self.job());
            let _ = running.wait();
        }
    }
}

/// SIGKILL of all processes of a job on nodes.
pub fn kill_all_of(job: &Path) {
    let ours = format!("{JOB_ENV}={}", job.display());
    let is_ours = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable == ours.as_bytes())
    };
    wait_until("all processes of a job end", || {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let left: Vec<i32> = pids.filter(is_ours).collect();
        for pid in &left {
            // SAFETY: kill(2) takes numbers alone; it is a process of this test's job.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
        left.is_empty()
    });
}

/// `snaprig ppmr migrate --json`: what a node has goes on at another one, as these options say.
pub fn migration(job: &Path, from: &str, how: &[&str]) -> Command {
    let mut command = Command::new(SNAPRIG);
    command.args(["ppmr", "migrate", "--json", "--from", from]);
    command.args(how).arg("--job").arg(job);
    command
}

/// What comes of one.
pub fn migrate(job: &Path, from: &str, how: &[&str]) -> Output {
    let migrated = migration(job, from, how).output();
    migrated.expect("snaprig starts")
}

/// Lines of a program as it prints them.
pub fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (says, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Whoever hears no more has failed already.
            let _ = says.send(line + "\n");
        }
    });
    said
}

/// `snaprig ckpt ... --job DIR`.
pub fn ckpt_of(job: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(SNAPRIG);
    command.arg("ckpt").args(arguments);
    let output = command.arg("--job").arg(job).output();
    output.expect("snaprig starts")
}

/// How many processes of a job have this name, and have worked for a while.
pub fn at_work(job: &Path, name: &str) -> usize {
    let status = ckpt_of(job, &["status", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
    let members = status["members"].as_array().into_iter().flatten();
    let processes = members.flat_map(|member| member["processes"].as_array());
    // A name of the kernel has 15 characters.
    let is_it = |process: &&serde_json::Value| {
        let found = process["name"].as_str().unwrap_or_default();
        !found.is_empty() && name.starts_with(found)
    };
    let found = processes.flatten().filter(is_it);
    let worked = found.filter_map(|rank| rank["pid"].as_u64().map(ticks_of));
    worked.filter(|ticks| *ticks >= WORKED_TICKS).count()
}
