//! The `libibverbs.so.1` that programs are given.

use std::{
    io,
    path::{Path, PathBuf},
};

use snaprig_sdk::{Contents, Library, Tree, root};

/// The library.
pub const LIBRARY: Library = Library {
    name: "libibverbs.so.1",
    stem: "libsnaprig_verbs",
    package: "snaprig-verbs",
};
const DIRECTORY: &str = "verbs";

/// What of a root of files for programs is for verbs programs.
pub fn tree(library: Contents) -> Tree {
    let mut tree = Tree::default();
    tree.add(Path::new(DIRECTORY).join(LIBRARY.name), library);
    tree
}

/// A directory with the library that belongs to a `snaprig` program, under the name that programs ask for.
pub fn directory(program: &Path) -> io::Result<PathBuf> {
    let root = root::of(program, &[LIBRARY], |found| {
        found.into_iter().map(tree).next().unwrap_or_default()
    })?;
    Ok(root.join(DIRECTORY))
}
