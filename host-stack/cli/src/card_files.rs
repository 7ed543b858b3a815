//! Files that cards have from their start, and what programs among them need.

use std::path::{Path, PathBuf};

use snaprig_rig::{files::CardFiles, libraries};

/// These, and the interpreters and libraries that programs and libraries among them need.
pub fn with_libraries(files: &[CardFiles]) -> Vec<CardFiles> {
    let mut found = Vec::new();
    for CardFiles { host, .. } in files {
        // The path itself may be a link; those in directories are links on the card.
        match host.is_file() {
            true => found.push(host.clone()),
            false => collect(host, &mut found),
        }
    }
    let mut all = files.to_vec();
    all.extend(libraries::needed(&found));
    all
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) {
    let Ok(about) = path.symlink_metadata() else {
        return;
    };
    if about.is_dir() {
        for entry in path.read_dir().into_iter().flatten().flatten() {
            collect(&entry.path(), found);
        }
    } else if about.is_file() {
        found.push(path.to_owned());
    }
}
