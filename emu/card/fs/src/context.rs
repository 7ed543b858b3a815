//! A process's view of the file system.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{meta::Meta, tree::Vfs};

/// A process's view of the file system.
#[derive(Clone)]
pub struct FsContext {
    /// Working directory.
    pub cwd: Arc<Meta>,
    /// Permission bits that new files do not get.
    pub umask: u32,
}

/// What a snapshot says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsImage {
    /// Path of the working directory; `None`: it was removed.
    cwd: Option<String>,
    umask: u32,
}

impl FsContext {
    /// At the root.
    pub fn new(vfs: &Vfs) -> Self {
        Self {
            cwd: vfs.root().clone(),
            umask: 0o022,
        }
    }

    /// What a snapshot says of it.
    pub fn image(&self, vfs: &Vfs) -> FsImage {
        let exists = self.cwd.lock().nlink > 0;
        FsImage {
            cwd: exists.then(|| vfs.path_of(self.cwd.number, "")),
            umask: self.umask,
        }
    }

    /// The same again. A directory that is not on this card is one that was removed.
    pub fn restored(vfs: &mut Vfs, image: &FsImage) -> Self {
        let path = image.cwd.as_deref().unwrap_or_default();
        let node = vfs.lookup(vfs.root(), path, true);
        let node = node.and_then(|node| vfs.directory(node).map(|_| node));
        let cwd = match node.and_then(|node| vfs.meta(node).cloned()) {
            Ok(cwd) => cwd,
            Err(_) => vfs.removed_directory(),
        };
        Self {
            cwd,
            umask: image.umask & 0o777,
        }
    }
}
