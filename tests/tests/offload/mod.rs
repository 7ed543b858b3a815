//! Programs of the offload stack, compiled and run as a user would: gcc with what `snaprig include`
//! prints, `snaprig build-sink`, `snaprig run`.
#![allow(dead_code, reason = "each test program uses its part")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

pub const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures");
const FLAGS: &str = "-O2 -Wall -Wextra -Werror -ffp-contract=off";
/// When a program counts as hung.
const SECONDS_MAX: &str = "240";

/// The host and sink sides of one program, in a directory of their own.
pub struct Program {
    directory: TempDir,
    sources: PathBuf,
}

impl Program {
    /// Compiles `host.c`, a library of each `lib*.c`, and a sink of all else. `shell` is run before the
    /// sink is made, in the new directory, with the sources in `$from`; the sink is linked with `more`.
    pub fn compile(folder: &str, shell: &str, more: &str) -> Self {
        Self::compile_with("--host", folder, shell, more)
    }

    /// The same, with `host.c` compiled with what this option of `snaprig include` prints.
    pub fn compile_with(include: &str, folder: &str, shell: &str, more: &str) -> Self {
        let sources = Path::new(FIXTURES).join(folder);
        let directory = tempfile::tempdir().expect("a directory");
        let host = "gcc $flags $from/host.c $($snaprig include $include) -o host";
        let sink = "$snaprig build-sink $flags $sink $more -o sink";
        let script = format!("set -e; {host}; {shell}\n{sink}");
        let sink = fs::read_dir(&sources).expect("sources");
        let sink = sink.filter_map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name()?.to_str()?;
            let is_sink = name.ends_with(".c") && name != "host.c" && !name.starts_with("lib");
            is_sink.then(|| path.to_str().map(str::to_owned))?
        });
        let compiled = Command::new("sh")
            .args(["-c", &script])
            .current_dir(directory.path())
            .envs([
                ("flags", FLAGS),
                ("snaprig", SNAPRIG),
                ("include", include),
                ("more", more),
                ("sink", &sink.collect::<Vec<_>>().join(" ")),
            ])
            .env("from", &sources)
            .output()
            .expect("a shell");
        assert!(compiled.status.success(), "{folder}: {}", text(&compiled));
        Self { directory, sources }
    }

    /// Runs it with these options of `snaprig run` and arguments after the sink.
    pub fn run(&self, options: &[&str], arguments: &[&str]) -> Output {
        let path = |name| self.directory.path().join(name);
        Command::new("timeout")
            .args([SECONDS_MAX, SNAPRIG, "run"])
            .args(options)
            .arg("--")
            .args([path("host"), path("sink")])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("it starts")
    }

    /// Runs it, and compares what it prints with the golden output of that name.
    pub fn check(&self, golden: &str, options: &[&str], arguments: &[&str]) {
        let golden = fs::read_to_string(self.sources.join(golden)).expect("a golden output");
        let output = self.run(options, arguments);
        let what = format!("{} {options:?}", self.sources.display());
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        for (number, (line, expected)) in printed.lines().zip(golden.lines()).enumerate() {
            assert_eq!(line, expected, "{what}: line {}; {errors}", number + 1);
        }
        assert_eq!(printed, golden, "{what}: {errors}");
        assert!(
            output.status.success(),
            "{what}: {}: {errors}",
            output.status
        );
    }

    /// Where its sources are.
    pub fn sources(&self) -> &Path {
        &self.sources
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// What a command printed, both ways.
pub fn text(output: &Output) -> String {
    format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
