//! The `libibverbs.so.1` that programs are given.

use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The library's file, as cargo leaves it beside or below the program.
pub const FILE: &str = "libsnaprig_verbs.so";
/// The name that programs ask for.
pub const NAME: &str = "libibverbs.so.1";

/// The library that belongs to a `snaprig` program.
pub fn find(program: &Path) -> io::Result<PathBuf> {
    find_file(program, FILE)
}

/// A library of ours that belongs to a `snaprig` program, by its file's name.
pub fn find_file(program: &Path, file: &str) -> io::Result<PathBuf> {
    let near = program.parent().unwrap_or(Path::new("."));
    // What cargo leaves beside the program may be older than what it leaves among the dependencies.
    let library = [
        near.join("deps").join(file),
        near.join(file),
        near.join("../lib").join(file),
    ];
    let library = library.iter().find(|path| path.is_file());
    let library = library.ok_or_else(|| {
        let why = format!(
            "no {file} in {}; `cargo build --workspace` makes it",
            near.display()
        );
        io::Error::new(io::ErrorKind::NotFound, why)
    })?;
    library.canonicalize()
}

/// A directory with the library under the name that programs ask for.
pub fn directory(program: &Path) -> io::Result<PathBuf> {
    let library = find(program)?;
    let directory = library.with_file_name("snaprig-lib");
    fs::create_dir_all(&directory)?;
    let link = directory.join(NAME);
    if fs::read_link(&link).is_ok_and(|there| there == library) {
        return Ok(directory);
    }
    // Made beside and renamed: another of us may be doing the same.
    let id = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(&directory)?;
    let new = id.path().join(NAME);
    symlink(&library, &new)?;
    fs::rename(&new, &link)?;
    Ok(directory)
}

/// The program of this name: a path, or looked for on the path of commands.
pub fn program(name: &Path) -> io::Result<PathBuf> {
    if name.components().count() > 1 {
        return name.canonicalize();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    let found = found.ok_or_else(|| {
        let why = format!("no `{}` on PATH", name.display());
        io::Error::new(io::ErrorKind::NotFound, why)
    })?;
    found.canonicalize()
}
