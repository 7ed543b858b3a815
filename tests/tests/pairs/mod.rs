//! Pairs of C programs on a rig: one serves, one is its client, each on the host or on a card.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use snaprig_coi::{Engine, native};
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::{Rig, files::CardFiles, libraries};
use tempfile::TempDir;

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/scif");
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../host-stack/libscif/include");
/// Every step of a test is over within this time.
pub const BOUND: Duration = Duration::from_secs(60);

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// As a process of the host.
    Host,
    /// On this node.
    Card(u16),
}

impl Place {
    /// Its SCIF node.
    pub fn node(self) -> u16 {
        match self {
            Self::Host => 0,
            Self::Card(node) => node,
        }
    }
}

/// A rig of two cards, and programs that were compiled for it.
pub struct Bench {
    pub rig: Rig,
    pub directory: TempDir,
}

/// A program that runs.
pub struct Running {
    what: String,
    lines: Receiver<String>,
    said: Vec<String>,
    end: Option<JoinHandle<i32>>,
    /// On the host.
    pub process: Option<u32>,
}

/// A directory with these programs of `fixtures/scif`.
pub fn compiled(programs: &[&str]) -> TempDir {
    let directory = TempDir::new().expect("a directory");
    link_library(directory.path());
    for program in programs {
        compile(directory.path(), program);
    }
    directory
}

impl Bench {
    /// A rig with these programs of `fixtures/scif`.
    pub fn new(platform: &str, programs: &[&str]) -> Self {
        let directory = compiled(programs);
        let binaries: Vec<PathBuf> = programs.iter().map(|p| directory.path().join(p)).collect();
        let library = directory.path().join("libscif.so.0");
        let mut wanted = binaries.clone();
        wanted.push(library.clone());
        let mut files = libraries::needed(&wanted);
        files.retain(|file| !file.card.ends_with("libscif.so.0"));
        let at = |host: &Path, card: String| CardFiles {
            host: host.canonicalize().expect("it is there"),
            card,
        };
        files.push(at(&library, "/usr/lib/libscif.so.0".into()));
        for binary in &binaries {
            let name = binary.file_name().expect("it has one").to_string_lossy();
            files.push(at(binary, format!("/bin/{name}")));
        }
        let rig = Rig::builder()
            .exe(SNAPRIG)
            .cards(2)
            .memory_bytes(256 << 20)
            .platform(Some(platform.parse().expect("it is one")))
            .files(files)
            .start()
            .expect("a rig");
        Self { rig, directory }
    }

    /// Starts a program.
    pub fn start(&self, place: Place, program: &str, arguments: &[&str]) -> Running {
        let what = format!("{program} {arguments:?} on {place:?}");
        let (send, lines) = channel();
        match place {
            Place::Host => self.start_here(what, program, arguments, send, lines),
            Place::Card(node) => self.start_on_card(node, what, program, arguments, send, lines),
        }
    }

    fn start_here(
        &self,
        what: String,
        program: &str,
        arguments: &[&str],
        send: Sender<String>,
        lines: Receiver<String>,
    ) -> Running {
        let mut child = self
            .command(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let process = Some(child.id());
        let end = std::thread::spawn(move || {
            pass_on(child.stdout.take().expect("it is piped"), &send);
            status(&mut child)
        });
        Running {
            what,
            lines,
            said: Vec::new(),
            end: Some(end),
            process,
        }
    }

    /// A program of the host's, not started yet.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.directory.path().join(program));
        command
            .env("SNAPRIG_RIG", self.rig.dir())
            .env("LD_LIBRARY_PATH", self.directory.path())
            .stdin(Stdio::null());
        command
    }

    fn start_on_card(
        &self,
        node: u16,
        what: String,
        program: &str,
        arguments: &[&str],
        send: Sender<String>,
        lines: Receiver<String>,
    ) -> Running {
        let engine = Engine::get(self.rig.dir(), node - 1).expect("a card");
        let path = format!("/bin/{program}");
        let mut argv = vec![program.to_owned()];
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let environment = vec!["LD_LIBRARY_PATH=/usr/lib".into()];
        let end = std::thread::spawn(move || {
            let mut line = Vec::new();
            let output = |descriptor: u8, bytes: &[u8]| {
                if descriptor == 2 {
                    eprint!("{}", String::from_utf8_lossy(bytes));
                    return;
                }
                for byte in bytes {
                    match byte {
                        b'\n' => {
                            let text = String::from_utf8_lossy(&line).into_owned();
                            line.clear();
                            // Nobody listens any more.
                            let _ = send.send(text);
                        }
                        _ => line.push(*byte),
                    }
                }
            };
            let nothing = std::io::empty();
            match native::run_with(&engine, &path, argv, environment, nothing, output) {
                Ok(Exit::Code(code)) => code,
                Ok(Exit::Signal(signal)) => 128 + signal,
                Err(error) => {
                    eprintln!("{path}: {error}");
                    -1
                }
            }
        });
        Running {
            what,
            lines,
            said: Vec::new(),
            end: Some(end),
            process: None,
        }
    }

    /// Starts a server; the port it listens on.
    pub fn serve(&self, place: Place, program: &str, arguments: &[&str]) -> (Running, String) {
        let arguments = [&["server"], arguments].concat();
        let mut server = self.start(place, program, &arguments);
        let line = server.line();
        let port = line.strip_prefix("port ").unwrap_or_else(|| {
            panic!("{}: no port: {line}", server.what);
        });
        let port = port.to_owned();
        (server, port)
    }

    /// A server and its client, to their ends.
    pub fn pair(&self, program: &str, server: Place, client: Place) {
        let (serving, port) = self.serve(server, program, &[]);
        let node = server.node().to_string();
        let asking = self.start(client, program, &["client", &node, &port]);
        let (status, said) = asking.end();
        if status != 0 || said.last().is_none_or(|last| last != "client: fine") {
            let there = serving.lines.recv_timeout(Duration::from_secs(2));
            panic!(
                "{program}: server {server:?} said {there:?}, client {client:?}: {status} {said:?}"
            );
        }
        let (status, said) = serving.end();
        assert!(
            status == 0 && said.last().is_some_and(|last| last == "server: fine"),
            "{program}: server {server:?}, client {client:?}: {status} {said:?}"
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let (Some(process), Some(_)) = (self.process, &self.end) {
            let pid = rustix::process::Pid::from_raw(process as i32);
            // It may have ended by itself.
            let _ =
                pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
        }
    }
}

impl Running {
    /// Its next line.
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(BOUND) {
            Ok(line) => {
                self.said.push(line.clone());
                line
            }
            Err(error) => panic!("{}: {error} after {:?}", self.what, self.said),
        }
    }

    /// Waits for its end: its status, and all that it said.
    pub fn end(mut self) -> (i32, Vec<String>) {
        while let Ok(line) = self.lines.recv_timeout(BOUND) {
            self.said.push(line);
        }
        let end = self.end.take().expect("it has not ended before");
        assert!(
            end.is_finished() || self.lines.recv_timeout(BOUND).is_err(),
            "{} does not end: {:?}",
            self.what,
            self.said
        );
        (
            end.join().expect("no panic"),
            std::mem::take(&mut self.said),
        )
    }
}

fn status(child: &mut Child) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().expect("it was started");
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn pass_on(from: impl Read, to: &Sender<String>) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        // Nobody listens any more.
        let _ = to.send(line);
    }
}

/// The library under the names that gcc and programs ask for.
fn link_library(directory: &Path) {
    let near = Path::new(SNAPRIG).parent().expect("it has one");
    let library = near.join("deps/libsnaprig_libscif.so");
    for name in ["libscif.so", "libscif.so.0"] {
        symlink(&library, directory.join(name)).expect("a link");
    }
}

fn compile(directory: &Path, program: &str) {
    let source = format!("{SOURCES}/{program}.c");
    let output = directory.join(program);
    let built = Command::new("gcc")
        .args([
            "-O1", "-g", "-Wall", "-Werror", "-pthread", "-I", INCLUDE, "-o",
        ])
        .arg(&output)
        .arg(&source)
        .arg("-L")
        .arg(directory)
        .arg("-lscif")
        .output()
        .expect("gcc; ci/setup installs it");
    assert!(
        built.status.success(),
        "{source}: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    assert!(fs::exists(&output).expect("a directory"));
}
