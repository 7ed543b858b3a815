//! `snaprig ckpt --job`, as it is used: a server in one tree, clients in two others, a coordinator over TCP; checkpointed
//! under load, killed, restarted, with right results.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job in a directory; all that was started ends with it.
struct Job {
    dir: TempDir,
    started: Vec<Child>,
}

impl Drop for Job {
    fn drop(&mut self) {
        // Programs end by themselves when they are told to.
        let _ = fs::write(self.dir.path().join("stop"), "");
        let begun = Instant::now();
        for child in &mut self.started {
            while begun.elapsed() < PATIENCE && matches!(child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn program(name: &str) -> String {
    let programs = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../host-stack/supervisor/tests/programs"
    );
    format!("{programs}/{name}")
}

impl Job {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            dir,
            started: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ckpt(&self, arguments: &[&str]) -> Command {
        let mut ckpt = Command::new(env!("CARGO_BIN_EXE_snaprig-under-test"));
        ckpt.arg("ckpt")
            .args(arguments)
            .current_dir(self.dir.path());
        ckpt
    }

    fn start(&mut self, arguments: &[&str]) {
        let out = File::options()
            .append(true)
            .create(true)
            .open(self.path("out"))
            .unwrap();
        let mut command = self.ckpt(arguments);
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out);
        self.started.push(command.spawn().unwrap());
    }

    fn launch(&mut self, name: &str, arguments: &[&str]) {
        let mut all = vec![
            "launch",
            "--job",
            "job",
            "--name",
            name,
            "--",
            "/usr/bin/python3",
        ];
        all.extend(arguments);
        self.start(&all);
    }

    fn said(&self) -> String {
        fs::read_to_string(self.path("out")).unwrap_or_default()
    }

    fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{what}: {}", self.said());
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn run(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.ckpt(arguments).output().unwrap();
        succeeded(&output);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Exit statuses of what was started since.
    fn ended(&mut self, since: usize) -> Vec<Option<i32>> {
        let ended = self.started.drain(since..);
        ended
            .map(|mut child| child.wait().unwrap().code())
            .collect()
    }
}

fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_server_and_its_clients_go_on_together() {
    let mut job = Job::new();
    job.start(&["coordinator", "--job", "job", "--listen", "tcp:127.0.0.1:0"]);
    job.wait_for("a coordinator", || {
        job.path("job/coordinator.json").exists()
    });
    job.launch("server", &[&program("stream_server.py")]);
    for name in ["one", "two"] {
        job.launch(name, &[&program("stream_client.py"), name, "2"]);
    }
    for who in ["server", "client one", "client two"] {
        job.wait_for(who, || job.said().contains(&format!("{who} ready")));
    }
    let status = job.run(&["status", "--job", "job", "--json"]);
    let members = status["members"].as_array().unwrap();
    assert_eq!(members.len(), 3, "{status}");
    assert!(
        members
            .iter()
            .all(|one| one["processes"][0]["name"] == "python3"),
        "{status}"
    );
    let dumped = job.run(&["dump", "--job", "job", "--json"]);
    assert_eq!(
        (&dumped["round"], &dumped["members"]),
        (&1.into(), &3.into())
    );
    let mut dumped = job.run(&["dump", "--job", "job", "--kill", "--json"]);
    assert_eq!(job.ended(1), [Some(128 + 9); 3]);
    for _ in 0..3 {
        job.start(&["restart", "--job", "job"]);
        let last = format!("last checkpoint: {}", dumped["round"]);
        job.wait_for("a restart", || {
            let status = job.ckpt(&["status", "--job", "job"]).output().unwrap();
            let said = String::from_utf8_lossy(&status.stdout).into_owned();
            said.contains(&last) && said.matches("python3").count() == 3
        });
        dumped = job.run(&["dump", "--job", "job", "--kill", "--json"]);
        assert_eq!(job.ended(1), [Some(128 + 9)]);
    }
    job.start(&["restart", "--job", "job"]);
    fs::write(job.path("stop"), "").unwrap();
    assert_eq!(job.ended(1), [Some(0)], "{}", job.said());
    for who in ["server", "client one", "client two"] {
        assert!(
            job.said().contains(&format!("{who} right")),
            "{}",
            job.said()
        );
    }
    // SAFETY: kill(2) takes numbers alone; it is a child that has not been waited for.
    unsafe { libc::kill(job.started[0].id() as i32, libc::SIGTERM) };
    assert_eq!(job.ended(0), [Some(0)], "{}", job.said());
}
