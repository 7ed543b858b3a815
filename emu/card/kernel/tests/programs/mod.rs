//! Programs of the host, compiled and run on a card, which must have all its memory back then.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use snaprig_card_fs::{
    Topology,
    console::{Input, Output},
};
use snaprig_card_kernel::{Config, ExitStatus, Kernel, Spawn, checkpoint::CheckpointDevice};
use snaprig_card_memory::CardMemory;
use snaprig_card_platform::{self as platform, Kind};

/// Compiles a C program.
pub fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (input, output) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&input, source).unwrap();
    let status = Command::new("gcc")
        .args(["-O1", "-w", "-D_GNU_SOURCE", "-o"])
        .arg(&output)
        .arg(&input)
        .args(flags)
        .status()
        .expect("gcc is there");
    assert!(status.success());
    output
}

/// How a program ended, and what it said.
pub struct Ran {
    pub status: ExitStatus,
    pub out: String,
}

/// Runs a program on a card.
pub fn run(kind: Kind, program: &Path, args: &[&str]) -> Ran {
    run_with(kind, program, args, &[])
}

/// Runs a program on a card that has these files of the host's, under the same names.
pub fn run_with(kind: Kind, program: &Path, args: &[&str], files: &[PathBuf]) -> Ran {
    run_on(kind, program, args, |kernel, _| {
        for file in files {
            let bytes = std::fs::read(file).unwrap();
            let path = file.to_str().unwrap();
            kernel.write_file(path, &bytes, 0o755).unwrap();
        }
    })
}

/// Runs a program on a card that has been made ready.
pub fn run_on(
    kind: Kind,
    program: &Path,
    args: &[&str],
    make_ready: impl FnOnce(&Kernel, &Arc<CardMemory>),
) -> Ran {
    let memory = Arc::new(CardMemory::new(128 << 20).unwrap());
    let platform = platform::choose(Some(kind), &memory).unwrap();
    let free = memory.free_bytes();
    let kernel = Kernel::new(Config {
        memory: memory.clone(),
        platform,
        topology: Topology::of_cores(4),
        node: 1,
    })
    .unwrap();
    kernel.register_device("/dev/card/checkpoint", Arc::new(CheckpointDevice));
    kernel
        .write_file("/bin/program", &std::fs::read(program).unwrap(), 0o755)
        .unwrap();
    make_ready(&kernel, &memory);
    let out = Arc::new(Mutex::new(Vec::new()));
    let sink = |out: &Arc<Mutex<Vec<u8>>>| {
        let out = out.clone();
        Output::new(move |bytes: &[u8]| out.lock().unwrap().extend_from_slice(bytes))
    };
    let pid = kernel
        .spawn(Spawn {
            path: "/bin/program".into(),
            argv: std::iter::once(program.file_name().unwrap().to_str().unwrap())
                .chain(args.iter().copied())
                .map(str::to_owned)
                .collect(),
            env: vec!["GREETING=hello".into()],
            stdio: [Input::closed(), sink(&out), sink(&out)],
        })
        .unwrap();
    let status = kernel.wait_exit(pid);
    kernel.shutdown();
    drop(kernel);
    assert!(memory.free_bytes() + (1 << 20) > free, "frames leak");
    let out = String::from_utf8(out.lock().unwrap().clone()).unwrap();
    Ran { status, out }
}

/// Runs a program from source, which must say and end like this.
pub fn check(kind: Kind, source: &str, flags: &[&str], expected: &str, status: ExitStatus) {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "program", source, flags);
    let ran = run(kind, &program, &["one", "two"]);
    assert_eq!((ran.out.as_str(), ran.status), (expected, status));
}
