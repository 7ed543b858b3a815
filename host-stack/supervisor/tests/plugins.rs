//! Plugins in C and Rust programs: order, refusals, lateness, what they own, children, death in the middle.

mod common;

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    sync::LazyLock,
    thread,
};

use common::{Job, PluginProgram, nobody, program, wait_until};

static PROGRAM: LazyLock<PluginProgram> =
    LazyLock::new(|| PluginProgram::compile(&program("plugin.c")));

/// A program with plugins, and the stranger that it is connected to.
struct Scene {
    job: Job,
}

impl Scene {
    fn new(options: &[&str]) -> Self {
        let job = Job::launch_prepared(None, listen, &[&[&PROGRAM.path, "log"], options].concat());
        job.wait_for("ready");
        Self { job }
    }

    /// What plugins were asked and told since the last time.
    fn log(&self) -> Vec<String> {
        let path = self.job.path("log");
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, "").unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// It ends well.
    fn ends(mut self) {
        self.job.tell("go");
        let status = self.job.ended();
        let output = self.job.output();
        assert!(
            status == 0 && output.ends_with("right\n") && !output.contains("wrong"),
            "{status}: {output}"
        );
    }
}

/// Answers every byte, whoever connects.
fn listen(directory: &Path) {
    let path: PathBuf = directory.join("stranger");
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut byte = [0];
                while client.read(&mut byte).is_ok_and(|count| count > 0) {
                    if client.write_all(&byte).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

const BEFORE: [&str; 3] = ["before early", "before device", "before late"];

fn with<'a>(events: &[&'a str]) -> Vec<&'a str> {
    [&BEFORE, events].concat()
}

#[test]
fn plugins_are_asked_ascending_and_told_descending() {
    let mut scene = Scene::new(&[]);
    scene.job.dump(false).unwrap();
    let resumed = with(&["resume late", "resume device", "resume early"]);
    assert_eq!(scene.log(), resumed);
    for _ in 0..3 {
        scene.job.over_again();
        let restarted = [
            "restart late",
            "restart device",
            "variable restart",
            "restart early",
        ];
        assert_eq!(scene.log(), with(&restarted));
        scene.job.dump(false).unwrap();
        assert_eq!(scene.log(), resumed);
    }
    scene.ends();
}

#[test]
fn a_program_with_threads_and_a_child_has_what_it_had() {
    for options in [&["threads"][..], &["fork"], &["threads", "fork"]] {
        let mut scene = Scene::new(options);
        if options.contains(&"fork") {
            scene.job.wait_for("child");
        }
        for _ in 0..5 {
            scene.job.dump(false).unwrap();
            scene.job.over_again();
        }
        let asked = scene.log();
        let of = |what: &str| asked.iter().filter(|line| *line == what).count();
        let each = if options.contains(&"fork") { 2 } else { 1 };
        let counts = (
            of("before device"),
            of("restart device"),
            of("resume device"),
        );
        assert_eq!(counts, (10 * each, 5 * each, 5 * each), "{options:?}");
        scene.ends();
    }
}

#[test]
fn an_ordinary_users_plugins() {
    let job = Job::launch_prepared(nobody(), listen, &[&PROGRAM.path, "log", "threads"]);
    job.wait_for("ready");
    let mut scene = Scene { job };
    scene.job.over_again();
    scene.ends();
}

#[test]
fn a_refusal_is_told_and_everybody_goes_on() {
    let mut scene = Scene::new(&["threads"]);
    scene.job.tell("refuse");
    let why = scene.job.dump(true).unwrap_err();
    assert!(
        why.contains("plugin late: the tape is not rewound"),
        "{why}"
    );
    assert_eq!(scene.log(), with(&["resume device", "resume early"]));
    assert!(!scene.job.path("job/0001").exists() && !scene.job.path("job/0001.tmp").exists());
    fs::remove_file(scene.job.path("refuse")).unwrap();
    scene.job.over_again();
    scene.ends();
}

#[test]
fn who_is_late_refuses_and_is_told_when_it_is_there() {
    let mut scene = Scene::new(&["threads"]);
    scene.job.tell("slow");
    let why = scene.job.dump(false).unwrap_err();
    assert!(
        why.contains("plugin late: it has not answered within 1s"),
        "{why}"
    );
    assert_eq!(scene.log(), with(&["resume device", "resume early"]));
    let why = scene.job.dump(false).unwrap_err();
    assert!(why.contains("plugin late: it is still at work"), "{why}");
    assert_eq!(scene.log(), [""; 0]);
    scene.job.tell("go-on");
    wait_until("it is told", || {
        fs::read_to_string(scene.job.path("log")).is_ok_and(|log| log.contains("resume late"))
    });
    assert_eq!(scene.log(), ["resume late"]);
    scene.job.over_again();
    assert_eq!(scene.log()[..3], BEFORE);
    scene.ends();
}

#[test]
fn a_restart_that_a_plugin_refuses_names_it() {
    let mut scene = Scene::new(&["threads"]);
    scene.job.dump(true).unwrap();
    assert_eq!(scene.job.ended(), 137);
    scene.job.tell("broken");
    scene.job.restart_in_vain();
    let output = scene.job.output();
    assert!(
        output.contains("plugin device: the device is broken"),
        "{output}"
    );
    // The checkpoint is what it was.
    fs::remove_file(scene.job.path("broken")).unwrap();
    scene.job.restart();
    scene.ends();
}

#[test]
fn a_dead_program_keeps_nobody_waiting() {
    let mut scene = Scene::new(&[]);
    scene.job.tell("slow");
    let program = scene.job.processes()[1];
    let directory = scene.job.path("job");
    let dump = thread::spawn(move || {
        snaprig_supervisor::ask(
            &directory,
            snaprig_supervisor::Request::Dump {
                kill: false,
                full: false,
            },
        )
    });
    wait_until("it is asked", || {
        fs::read_to_string(scene.job.path("log")).is_ok_and(|log| log.contains("before late"))
    });
    // SAFETY: kill(2) takes numbers alone; it is a child of a child that has not been waited for.
    unsafe { libc::kill(program, libc::SIGKILL) };
    assert_eq!(scene.job.ended(), 137);
    // There was nobody left to save.
    drop(dump.join().unwrap());
}

#[test]
fn without_its_supervisor_a_program_goes_on() {
    let mut scene = Scene::new(&["threads"]);
    scene.job.tell("slow");
    let directory = scene.job.path("job");
    let dump = thread::spawn(move || {
        snaprig_supervisor::ask(
            &directory,
            snaprig_supervisor::Request::Dump {
                kill: false,
                full: false,
            },
        )
    });
    wait_until("it is asked", || {
        fs::read_to_string(scene.job.path("log")).is_ok_and(|log| log.contains("before late"))
    });
    scene.job.kill_supervisor();
    assert!(dump.join().unwrap().is_err());
    scene.job.tell("go-on");
    // The program could end as soon as its device is there again, before the last plugin has resumed.
    wait_until("all have resumed", || {
        fs::read_to_string(scene.job.path("log")).is_ok_and(|log| log.contains("resume early"))
    });
    scene.job.tell("go");
    scene.job.wait_for("right");
    assert_eq!(
        scene.log(),
        with(&["resume late", "resume device", "resume early"])
    );
}

#[test]
fn a_plugin_in_rust_and_none_without_a_supervisor() {
    let driver = env!("CARGO_BIN_EXE_snaprig-ckpt-driver");
    let mut job = Job::launch_prepared(None, listen, &[driver, "plugin", "stranger"]);
    job.stays_what_it_was("ready\nright\n");
    let directory = tempfile::tempdir().unwrap();
    listen(directory.path());
    fs::write(directory.path().join("go"), "").unwrap();
    let mut alone = std::process::Command::new(driver);
    let alone = alone.args(["plugin", "stranger"]).current_dir(&directory);
    let output = alone.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\nright\n");
}

#[test]
fn a_preloaded_plugin_reaches_children_and_what_they_become() {
    let library = PluginProgram::compile_with(&program("preloaded.c"), &["-shared", "-fPIC"]);
    let python = "import os, sys, time\n\
        while not os.path.exists('go'): time.sleep(0.01)\n\
        os.kill(int(sys.argv[1]), 9)";
    let script = format!("sleep 1000 & echo ready; exec python3 -c \"{python}\" $!");
    let mut job = Job::launch_with(
        None,
        &[("PRELOAD", &library.path)],
        &["/bin/sh", "-c", &script],
    );
    job.wait_for("ready");
    wait_until("all have their plugins", || {
        let _ = fs::remove_file(job.path("log"));
        job.dump(false).unwrap();
        let mut log: Vec<String> = fs::read_to_string(job.path("log"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect();
        log.sort();
        log == ["save python3", "save sleep"]
    });
    fs::remove_file(job.path("log")).unwrap();
    job.over_again();
    let log = fs::read_to_string(job.path("log")).unwrap();
    for line in ["rebuild python3\n", "rebuild sleep\n"] {
        assert!(log.contains(line), "{log}");
    }
    job.tell("go");
    assert_eq!(job.ended(), 0, "{}", job.output());
}

#[test]
fn what_cannot_be_preloaded_is_an_error_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text.so");
    fs::write(&text, "not a library, and longer than its head").unwrap();
    let missing = directory.path().join("missing.so");
    for (library, why) in [(&text, "no shared library"), (&missing, "No such file")] {
        let mut driver = std::process::Command::new(env!("CARGO_BIN_EXE_snaprig-ckpt-driver"));
        driver.args(["launch", "job", "/bin/echo", "started"]);
        driver.env("PRELOAD", library).current_dir(&directory);
        let output = driver.output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(why), "{said}");
    }
}
