//! What an offload program or a library for one brings along: as COI finds it on the host
//! (COIProcess_source.h, in_LibrarySearchPath), under the paths that it has there.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
};

use snaprig_offload_wire::coi::LIBRARIES;

use super::{Needs, UNWINDER, needs, parse, usual_directories};
use crate::CoiError;

/// The runtime of offload processes.
const RUNTIME: &str = "libcoi_device.so.0";

/// A library in memory (COIProcessRegisterLibraries).
#[derive(Clone, Debug)]
pub struct MemoryLibrary {
    /// Its bytes.
    pub bytes: Arc<Vec<u8>>,
    /// The file that they are of.
    pub origin: Option<PathBuf>,
}

/// A file for the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it will be.
    pub path: String,
    /// Its bytes.
    pub bytes: Arc<Vec<u8>>,
}

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Libraries in memory: they come before any file.
    pub memory: Vec<MemoryLibrary>,
    /// Directories for what is ours: `libcoi_device.so.0`, `libscif.so.0`.
    pub own: Vec<PathBuf>,
    /// in_LibrarySearchPath or SINK_LD_LIBRARY_PATH.
    pub path: Vec<PathBuf>,
}

impl Search {
    /// The directories of a `:`-separated list; `None`: of SINK_LD_LIBRARY_PATH.
    pub fn directories(list: Option<&str>) -> Vec<PathBuf> {
        let list = match list {
            Some(list) => list.into(),
            None => std::env::var_os("SINK_LD_LIBRARY_PATH").unwrap_or_default(),
        };
        std::env::split_paths(&list)
            .filter(|path| !path.as_os_str().is_empty())
            .collect()
    }

    /// Finds a library by name: its path on the card, its bytes, and what it needs.
    fn find(&self, name: &str, runpath: &[PathBuf]) -> Option<(File, Needs)> {
        for library in &self.memory {
            let origin = library.origin.as_deref().and_then(Path::parent);
            let parsed = parse(&library.bytes, origin.unwrap_or(Path::new("/")));
            if let Some(needs) = parsed.filter(|needs| needs.name.as_deref() == Some(name)) {
                let path = format!("{LIBRARIES}/{name}");
                let bytes = library.bytes.clone();
                return Some((File { path, bytes }, needs));
            }
        }
        if name.contains('/') {
            return load(Path::new(name));
        }
        let usual = usual_directories();
        let first = self.own.iter().chain(&self.path);
        let mut directories = first.chain(runpath).chain(&usual);
        directories.find_map(|directory| load(&directory.join(name)))
    }

    /// Finds a library's file as those that it needs are found (COIProcessLoadLibraryFromFile).
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let path = Path::new(name);
        if path.is_absolute() || path.is_file() {
            return path.is_file().then(|| path.to_owned());
        }
        let usual = usual_directories();
        let mut directories = self.path.iter().chain(&usual);
        directories.find_map(|directory| {
            let path = directory.join(name);
            path.is_file().then_some(path)
        })
    }
}

fn load(path: &Path) -> Option<(File, Needs)> {
    let path = std::path::absolute(path).ok()?;
    let needs = needs(&path)?;
    let bytes = Arc::new(std::fs::read(&path).ok()?);
    let path = path.to_str()?.to_owned();
    Some((File { path, bytes }, needs))
}

/// Everything that a program or library needs beside itself, each file once, in the order in which it
/// was found; `origin` is the directory that it is from, `preload` what else is to be there.
pub fn resolve(
    what: &str,
    bytes: &[u8],
    origin: Option<&Path>,
    preload: &[PathBuf],
    search: &Search,
) -> Result<Vec<File>, CoiError> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err(CoiError::InvalidFile(format!("{what} is no ELF file")));
    }
    let Some(first) = parse(bytes, origin.unwrap_or(Path::new("/"))) else {
        return Err(CoiError::WrongMachine(what.into()));
    };
    let mut found: Vec<File> = Vec::new();
    let dynamic = first.interpreter.is_some();
    let mut waiting = VecDeque::from([(what.to_owned(), first)]);
    for path in preload {
        let Some((file, needs)) = load(path) else {
            return Err(CoiError::Missing(format!(
                "{}, which is to be preloaded, is no library for the card",
                path.display()
            )));
        };
        found.push(file);
        waiting.push_back((path.display().to_string(), needs));
    }
    // The daemon has it loaded first, so that any program can be an offload process.
    if let Some((file, needs)) = search.find(RUNTIME, &[]).filter(|_| dynamic) {
        found.push(file);
        waiting.push_back((RUNTIME.into(), needs));
    }
    while let Some((whose, needs)) = waiting.pop_front() {
        let mut names = needs.libraries;
        if names.iter().any(|name| name.starts_with("libc.so")) {
            names.push(UNWINDER.into());
        }
        names.extend(needs.interpreter);
        for name in names {
            let Some((file, needs)) = search.find(&name, &needs.path) else {
                if name == UNWINDER {
                    continue;
                }
                return Err(CoiError::Missing(format!(
                    "{name}, which {whose} needs, is in no directory that was named \
                     (SINK_LD_LIBRARY_PATH, the call's search path)"
                )));
            };
            if !found.iter().any(|other| other.path == file.path) {
                found.push(file);
                waiting.push_back((name, needs));
            }
        }
    }
    Ok(found)
}

/// Whether it is a program that loads libraries.
pub fn is_dynamic(bytes: &[u8]) -> bool {
    parse(bytes, Path::new("/")).is_some_and(|needs| needs.interpreter.is_some())
}

/// The name under which a library is asked for: its DT_SONAME.
pub fn soname(bytes: &[u8]) -> Option<String> {
    parse(bytes, Path::new("/"))?.name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_brings_its_libraries_and_its_interpreter() {
        let bytes = std::fs::read("/proc/self/exe").expect("this program");
        let files = resolve("me", &bytes, None, &[], &Search::default()).expect("all found");
        let has = |name: &str| files.iter().any(|file| file.path.contains(name));
        assert!(has("ld-linux-x86-64.so.2") && has("libc.so.6"));
    }

    #[test]
    fn what_is_no_program_is_refused_by_name() {
        let refused = resolve("x", b"#!/bin/sh", None, &[], &Search::default());
        assert_eq!(refused.map_err(|error| error.code()), Err(24));
        let broken = resolve("x", b"\x7fELF", None, &[], &Search::default());
        assert_eq!(broken.map_err(|error| error.code()), Err(22));
    }
}
