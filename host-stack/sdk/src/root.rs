//! Where the files are that belong to a `snaprig` program.

use std::{
    ffi::OsString,
    fmt::Display,
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Contents, Library, Tree, cache, program};

/// The command by which a program says where the files are that it carries.
pub const COMMAND: &str = "sdk";

/// The root for a program. If cargo has left its `libraries` beside it, `tree` says what is to be there beside them, as links to
/// those; otherwise the program is asked, which carries all of it.
pub fn of(
    program: &Path,
    libraries: &[Library],
    tree: impl FnOnce(Vec<Contents>) -> Tree,
) -> io::Result<PathBuf> {
    let built = libraries.iter().map(|library| library.built_for(program));
    let built: Vec<Option<PathBuf>> = built.collect::<io::Result<_>>()?;
    if let Some(missing) = built.iter().position(Option::is_none) {
        if program::is_only_in_place(program) {
            return Err(libraries[missing].is_missing(program));
        }
        return ask(program, &libraries[missing]);
    }
    let tree = tree(built.into_iter().flatten().map(Contents::Link).collect());
    let beside = program.with_file_name("snaprig-sdk");
    if !cache::can_be_preloaded_from(&beside) {
        return tree.lay_out();
    }
    match tree.put(&beside) {
        Ok(()) => Ok(beside),
        Err(error) if is_not_ours(&error) => tree.lay_out(),
        Err(error) => Err(error),
    }
}

/// It is another user's, or its file system cannot be written to.
fn is_not_ours(error: &io::Error) -> bool {
    [
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::ReadOnlyFilesystem,
    ]
    .contains(&error.kind())
}

/// The root that the program makes, or has; if it is none that can be asked, `missing` is what should have been beside it.
fn ask(program: &Path, missing: &Library) -> io::Result<PathBuf> {
    let asked = Command::new(program)
        .arg(COMMAND)
        // What is preloaded into programs is not for this one.
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output();
    let no = |why: &dyn Display| {
        let why = format!("{}: `{COMMAND}`: {why}", missing.is_missing(program));
        io::Error::new(io::ErrorKind::NotFound, why)
    };
    let asked = asked.map_err(|error| no(&error))?;
    let said = String::from_utf8_lossy(&asked.stderr);
    let mut path = asked.stdout;
    match said.strip_prefix("error: ") {
        // It carries them, and says why they are not there.
        Some(why) if !asked.status.success() => Err(io::Error::other(why.trim_end())),
        _ if asked.status.success() && path.pop() == Some(b'\n') => {
            Ok(OsString::from_vec(path).into())
        }
        _ => Err(no(&format!("{}: {}", asked.status, said.trim_end()))),
    }
}
