//! The libraries that verbs programs are given: `libibverbs.so.1`, and the one that makes queue pairs a part of checkpoints.

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
/// The plugin of checkpoints.
pub const CKPT_IB: Library = Library {
    name: "libsnaprig_ckpt_ib.so.0",
    stem: "libsnaprig_libckpt_ib",
    package: "snaprig-libckpt-ib",
};
/// Both.
pub const LIBRARIES: [Library; 2] = [LIBRARY, CKPT_IB];
const DIRECTORY: &str = "verbs";

/// What of a root of files for programs is for verbs programs. One library for each of [`LIBRARIES`].
pub fn tree(libraries: impl IntoIterator<Item = Contents>) -> Tree {
    let mut tree = Tree::default();
    for (library, contents) in LIBRARIES.iter().zip(libraries) {
        tree.add(Path::new(DIRECTORY).join(library.name), contents);
    }
    tree
}

/// A directory with the libraries that belong to a `snaprig` program, under the names that programs ask for.
pub fn directory(program: &Path) -> io::Result<PathBuf> {
    Ok(root::of(program, &LIBRARIES, tree)?.join(DIRECTORY))
}
