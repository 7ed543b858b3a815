//! What fstat(2) tells of an open file.

use snaprig_card_driver::file::Description;

use crate::{files::regular::RegularFile, stat::Stat, table::Open, tree::Vfs};

/// What an open file knows of itself beyond `File`: for fstat(2).
pub fn stat_of(open: &Open, vfs: &Vfs) -> Stat {
    if let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() {
        return file.inode().stat();
    }
    if let Some(meta) = open.attributes() {
        return vfs
            .stat(meta.number)
            .unwrap_or_else(|_| Stat::of(meta, type_of(open)));
    }
    let mode = match open.file.describe() {
        Description::Pipe { .. } => 0o600,
        Description::Socket => 0o777,
        Description::Console | Description::Device { .. } => 0o620,
        _ => 0o600,
    };
    Stat {
        ino: 1,
        mode: type_of(open) | mode,
        nlink: 1,
        ..Stat::default()
    }
}

/// The type of what has no name, or has none any more.
fn type_of(open: &Open) -> u32 {
    match open.file.describe() {
        Description::Pipe { .. } => libc::S_IFIFO,
        Description::Socket => libc::S_IFSOCK,
        Description::Console | Description::Device { .. } => libc::S_IFCHR,
        _ => 0,
    }
}
