//! A fabric of a test's own, and programs of others in it.

#![allow(dead_code)] // each suite uses its part

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The `snaprig` program.
pub const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
/// No program here takes longer, however busy the machine is.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Jobs of UCX take huge pages, of which machines have few, and need as many where they are restarted: one at a time of all tests,
/// whoever's process they are in, for as long as this is held.
pub fn one_job() -> File {
    let path = std::env::temp_dir().join("snaprig-huge-pages.lock");
    let mut open = File::options();
    let file = open.create(true).append(true).open(path);
    let file = file.expect("a file to lock");
    file.lock().expect("a lock");
    file
}

/// Where the fabrics of one test are.
pub struct Fabric {
    directory: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Fabric {
    /// One that starts with these arguments of `snaprig verbs`.
    pub fn new(arguments: &[&str]) -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            arguments: arguments.iter().map(ToString::to_string).collect(),
        }
    }

    fn snaprig(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(SNAPRIG);
        command
            .args(arguments)
            .env("SNAPRIG_FABRICS", self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a program in it.
    pub fn start(&self, program: &[&str]) -> Running {
        let mut command = self.snaprig(&["verbs"]);
        command.args(&self.arguments).arg("--").args(program);
        Running(Some(command.spawn().expect("snaprig starts")))
    }

    /// Runs a server, and its client once the server listens.
    pub fn pair(&self, port: u16, program: &[&str]) -> [Output; 2] {
        let port_text = port.to_string();
        let server: Vec<_> = [program, &["-p", &port_text]].concat();
        let client: Vec<_> = [&server[..], &["127.0.0.1"]].concat();
        let server = self.start(&server);
        wait_for_listener(port);
        let client = self.start(&client).output();
        [server.output(), client]
    }

    /// `snaprig fabric ...`.
    pub fn tell(&self, arguments: &[&str]) -> Output {
        self.snaprig(&[&["fabric"], arguments].concat())
            .output()
            .expect("snaprig starts")
    }

    /// Waits until somebody listens at a port of the connection manager.
    pub fn wait_for_listener(&self, port: u16) {
        let fabric = self.directory.path().join("default");
        wait_until(&format!("port {port} is listened at"), || {
            fs::read_dir(&fabric).is_ok_and(|files| {
                files.flatten().any(|file| {
                    let name = file.file_name().to_string_lossy().into_owned();
                    name.starts_with("cm-") && name.ends_with(&format!("-{port}"))
                })
            })
        });
    }

    /// Process identifiers of its control daemon: none once the last user is gone.
    pub fn daemons(&self) -> Vec<i32> {
        self.processes("fabric-process")
    }

    /// Those of its processes that have such a word among their arguments.
    pub fn processes(&self, word: &str) -> Vec<i32> {
        let ours = format!("SNAPRIG_FABRICS={}", self.directory.path().display());
        let processes = fs::read_dir("/proc").expect("/proc");
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &i32| {
            let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&file("cmdline")).into_owned();
            arguments.contains(word)
                && String::from_utf8_lossy(&file("environ"))
                    .split('\0')
                    .any(|word| word == ours)
        })
        .collect()
    }

    /// SIGKILL of all of its processes, which end before this does.
    pub fn kill_all(&self) {
        wait_until("all processes end", || {
            let left = self.processes("");
            for pid in &left {
                // SAFETY: kill(2) takes numbers alone; it is a process of this test's directory.
                unsafe { libc::kill(*pid, libc::SIGKILL) };
            }
            left.is_empty()
        });
    }

    /// Waits until nothing of it is left: no daemon, no file.
    pub fn ended(&self) {
        wait_until("the fabric ends", || {
            let left = fs::read_dir(self.directory.path()).expect("a directory");
            self.daemons().is_empty() && left.count() == 0
        });
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for daemon in self.daemons() {
            // SAFETY: kill(2) takes numbers alone; it is a daemon of this test's directory.
            unsafe { libc::kill(daemon, libc::SIGKILL) };
        }
    }
}

/// A program that runs; killed if it is dropped.
pub struct Running(Option<Child>);

impl Running {
    /// Its process.
    pub fn pid(&self) -> i32 {
        self.0.as_ref().expect("it runs").id() as i32
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.0
            .as_mut()
            .expect("it runs")
            .kill()
            .expect("it is ours");
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.0
            .as_mut()
            .expect("it runs")
            .try_wait()
            .expect("it is ours")
            .is_none()
    }

    /// What it printed and how it ended; fails if that takes too long.
    pub fn output(mut self) -> Output {
        let mut child = self.0.take().expect("it runs");
        let pipes = (child.stdout.take(), child.stderr.take());
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(mut pipe) = pipe {
                    let _ = pipe.read_to_end(&mut bytes);
                }
                bytes
            })
        };
        let stdout = read(pipes.0.map(|pipe| Box::new(pipe) as _));
        let stderr = read(pipes.1.map(|pipe| Box::new(pipe) as _));
        let status = wait(&mut child);
        let [stdout, stderr] = [stdout, stderr].map(|thread| thread.join().expect("no panic"));
        Output {
            status,
            stdout,
            stderr,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    let mut status = None;
    let start = Instant::now();
    while status.is_none() && start.elapsed() < TIMEOUT {
        status = child.try_wait().expect("it is ours");
        thread::sleep(Duration::from_millis(2));
    }
    status.unwrap_or_else(|| {
        let _ = child.kill();
        panic!("a program did not end in {TIMEOUT:?}")
    })
}

/// Waits until it is so; fails if that takes too long.
pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < TIMEOUT, "not in {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until somebody listens on a TCP port (proc_net_tcp(5)).
pub fn wait_for_listener(port: u16) {
    /// `TCP_LISTEN`.
    const LISTENS: &str = "0A";
    let suffix = format!(":{port:04X}");
    wait_until(&format!("port {port} is listened on"), || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
            let table = fs::read_to_string(table).unwrap_or_default();
            table.lines().any(|line| {
                let mut words = line.split_ascii_whitespace().skip(1);
                words.next().is_some_and(|local| local.ends_with(&suffix))
                    && words.nth(1) == Some(LISTENS)
            })
        })
    });
}

/// A TCP port that nobody has.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// What a program printed, both ways.
pub fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Fails with what both printed, unless both ended well.
pub fn assert_success(what: &str, outputs: &[Output]) {
    let all: String = outputs
        .iter()
        .map(|output| format!("{}\n{}", output.status, text(output)))
        .collect();
    assert!(
        outputs.iter().all(|output| output.status.success()),
        "{what}:\n{all}"
    );
}

/// Runs a server that listens at a TCP port, and its client; both must end well.
pub fn serve(fabric: &Fabric, port: u16, server: &[&str], client: &[&str]) -> [Output; 2] {
    let server_runs = fabric.start(server);
    wait_for_listener(port);
    let client = fabric.start(client).output();
    if !client.status.success() {
        // Its server may wait for ever.
        assert_success(&server.join(" "), std::slice::from_ref(&client));
    }
    let outputs = [server_runs.output(), client];
    assert_success(&server.join(" "), &outputs);
    outputs
}

/// What a C program needs that uses the connection manager.
pub const RDMA_CMA_H: &str = "/usr/include/rdma/rdma_cma.h";

/// The C compiler's program from these sources.
pub fn compile(sources: &Path, to: &Path) {
    let sources = fs::read_dir(sources).expect("sources");
    let sources = sources.map(|entry| entry.expect("an entry").path());
    let status = Command::new("gcc")
        .args(["-O1", "-o"])
        .arg(to)
        .args(sources.filter(|path| path.extension().is_some_and(|e| e == "c")))
        .args(["-Wl,--as-needed", "-libverbs", "-lpthread"])
        .args(Path::new(RDMA_CMA_H).is_file().then_some("-lrdmacm"))
        .status()
        .expect("gcc");
    assert!(status.success());
}
