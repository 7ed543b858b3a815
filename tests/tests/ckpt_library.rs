//! [`snaprig::Ckpt`]: a program that a test checkpoints, kills and restarts.

use std::{error::Error, fs, path::Path};

use snaprig::Ckpt;

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");

/// What the program's child sleeps, in seconds: nobody else's does.
fn sleep_s() -> String {
    (1_000_000 + std::process::id()).to_string()
}

/// A shell that has begun, with a child.
fn begun(directory: &Path) -> Result<Ckpt, Box<dyn Error>> {
    let file = directory.join("begun");
    let script = format!("sleep {} & touch {}; wait", sleep_s(), file.display());
    let program = Ckpt::builder(directory.join("checkpoints"))
        .exe(SNAPRIG)
        .launch(["sh", "-c", &script])?;
    while !file.exists() || !child_runs()? {
        std::thread::yield_now();
    }
    fs::remove_file(file)?;
    Ok(program)
}

/// Whether it is there, whatever its number is.
fn child_runs() -> Result<bool, Box<dyn Error>> {
    let child = format!("sleep\0{}\0", sleep_s());
    let lines = fs::read_dir("/proc")?
        .map(|entry| Ok(fs::read_to_string(entry?.path().join("cmdline")).unwrap_or_default()));
    let lines: Vec<String> = lines.collect::<Result<_, std::io::Error>>()?;
    Ok(lines.contains(&child))
}

#[test]
fn nothing_is_left_of_what_was_killed() -> Result<(), Box<dyn Error>> {
    let scene = tempfile::tempdir()?;
    begun(scene.path())?.kill()?;
    assert!(!child_runs()?, "killed");
    let program = begun(scene.path())?;
    program.dump()?;
    drop(program);
    assert!(!child_runs()?, "dropped");
    let restarted = Ckpt::builder(scene.path().join("checkpoints"))
        .exe(SNAPRIG)
        .restart(None)?;
    assert!(child_runs()?);
    drop(restarted);
    assert!(!child_runs()?, "dropped after a restart");
    Ok(())
}
