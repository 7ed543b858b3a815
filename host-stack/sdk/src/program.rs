//! Which program is `snaprig`, that is: which one becomes a fabric's control daemon, a card, a supervisor.
//!
//! A test of somebody's crate is that itself: the crate `snaprig` looks at the arguments before `main`, and says so here.

use std::{
    env,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Names the `snaprig` program for all who start one.
pub const EXE_ENV: &str = "SNAPRIG_EXE";
/// What the program that is started in another one's place is called (its first argument), for who lists processes.
pub const NAME: &str = "snaprig";

static OWN: OnceLock<&'static str> = OnceLock::new();

/// This process's program is `snaprig` when it is started as such, and came with these libraries: `STEM=BUILD_ID,...`, build ids
/// in hexadecimal digits.
pub fn is_this(builds: &'static str) {
    // Said once, before `main`; a second time says the same.
    let _ = OWN.set(builds);
}

/// Whether this process's program is `snaprig`, too, without carrying any library.
pub(crate) fn is_only_in_place(program: &Path) -> bool {
    OWN.get().is_some() && env::current_exe().is_ok_and(|own| own == program)
}

/// The build id of a library that was built with this program.
pub(crate) fn build_of(stem: &str) -> Option<&'static str> {
    let mut builds = OWN.get()?.split(',');
    builds.find_map(|build| build.strip_prefix(stem)?.strip_prefix('='))
}

/// The program of those who name none: `$SNAPRIG_EXE`, or this one if it is `snaprig` as well, or `snaprig` on the path of
/// commands.
pub fn default() -> PathBuf {
    let named = env::var_os(EXE_ENV).filter(|named| !named.is_empty());
    let own = || OWN.get().and_then(|_| env::current_exe().ok());
    named
        .map(PathBuf::from)
        .or_else(own)
        .unwrap_or_else(|| NAME.into())
}

/// The program of this name: a path, or looked for on the path of commands.
pub fn find(name: &Path) -> io::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    find_on(&path, name)
}

fn find_on(path: &OsStr, name: &Path) -> io::Result<PathBuf> {
    if name.components().count() > 1 {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", name.display()));
        return name.canonicalize().map_err(named);
    }
    let found = env::split_paths(path)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    let found = found.ok_or_else(|| {
        let mut why = format!("no `{}` on PATH", name.display());
        if name == Path::new(NAME) {
            why += &format!("; install it (README.md), or name it: {EXE_ENV}=FILE");
        }
        io::Error::new(io::ErrorKind::NotFound, why)
    })?;
    found.canonicalize()
}
