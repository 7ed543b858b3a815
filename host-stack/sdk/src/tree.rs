//! Files to be put somewhere.

use std::{
    borrow::Cow,
    fs::{self, File as OpenFile},
    io::{self, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

use crate::cache;

/// What is in a file.
#[derive(Clone, Debug)]
pub enum Contents {
    /// Text, which all may read.
    Text(Cow<'static, [u8]>),
    /// A library, which all may run.
    Library(&'static [u8]),
    /// It is a symbolic link.
    Link(PathBuf),
}

/// A file, by its path below the root.
#[derive(Clone, Debug)]
pub struct File {
    /// The path.
    pub path: PathBuf,
    /// What is in it.
    pub contents: Contents,
}

/// The files of a root.
#[derive(Clone, Debug, Default)]
pub struct Tree(Vec<File>);

impl Tree {
    /// One more.
    pub fn add(&mut self, path: impl Into<PathBuf>, contents: Contents) {
        let path = path.into();
        self.0.push(File { path, contents });
    }

    /// A library, and `NAME.so`, which linkers look for, beside `NAME.so.0`.
    pub fn add_linkable(&mut self, directory: &str, name: &str, contents: Contents) {
        let directory = Path::new(directory);
        self.add(directory.join(name), contents);
        let short = name.split_inclusive(".so").next().unwrap_or(name);
        self.add(directory.join(short), Contents::Link(name.into()));
    }

    /// All of another one's.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// What tells it from every other tree, beside the version.
    pub fn id(&self) -> String {
        let mut hash = Xxh3::new();
        for File { path, contents } in &self.0 {
            let bytes = match contents {
                Contents::Text(bytes) => bytes,
                Contents::Library(bytes) => *bytes,
                Contents::Link(to) => to.as_os_str().as_encoded_bytes(),
            };
            for part in [path.as_os_str().as_encoded_bytes(), bytes] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hash.digest())
    }

    /// Puts what is not there already, each file whole.
    pub fn put(&self, root: &Path) -> io::Result<()> {
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        for File { path, contents } in &self.0 {
            let path = root.join(path);
            let directory = path.parent().unwrap_or(root);
            fs::create_dir_all(directory).map_err(|error| named(directory, error))?;
            let put = match contents {
                Contents::Text(bytes) => put(&path, bytes, 0o644),
                Contents::Library(bytes) => put(&path, bytes, 0o755),
                Contents::Link(to) => link(&path, to),
            };
            put.map_err(|error| named(&path, error))?;
        }
        Ok(())
    }

    /// Whether each file is there, with as many bytes as it should have.
    pub fn is_in(&self, root: &Path) -> bool {
        self.0.iter().all(|File { path, contents }| {
            let path = root.join(path);
            match contents {
                Contents::Text(bytes) => has_bytes(&path, bytes.len()),
                Contents::Library(bytes) => has_bytes(&path, bytes.len()),
                Contents::Link(to) => fs::read_link(path).is_ok_and(|there| there == *to),
            }
        })
    }

    /// Puts all of it into the user's cache, if it is not there: the root.
    pub fn lay_out(&self) -> io::Result<PathBuf> {
        cache::lay_out(&cache::directory()?, self)
    }
}

fn has_bytes(path: &Path, count: usize) -> bool {
    fs::metadata(path).is_ok_and(|there| there.len() == count as u64)
}

/// A file with these bytes. That it is on the disk before it has its name costs a little, once.
fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    new.write_all(bytes)?;
    fs::set_permissions(new.path(), fs::Permissions::from_mode(mode))?;
    new.as_file().sync_data()?;
    new.persist(path)?;
    Ok(())
}

/// A symbolic link to `to`.
fn link(path: &Path, to: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|there| there == to) {
        return Ok(());
    }
    // Made beside and renamed: another of us may be doing the same.
    let directory = path.parent().unwrap_or(Path::new("."));
    let beside = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(directory)?;
    let new = beside.path().join("link");
    symlink(to, &new)?;
    fs::rename(&new, path)
}

/// What is in a directory is on the disk (fsync(2)).
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    OpenFile::open(directory)?.sync_all()
}
