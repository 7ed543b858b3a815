//! What a dynamic program needs beside itself: its interpreter and its libraries, found on the host
//! the way its loader finds them (ld.so(8)) and brought along under the same paths.

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use object::{
    Endianness,
    elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME, FileHeader64, PT_INTERP},
    read::elf::{FileHeader, ProgramHeader},
};

mod resolve;

pub use self::resolve::{File, MemoryLibrary, Search, is_dynamic, resolve, soname};

type Elf = FileHeader64<Endianness>;

/// Where the loaders of the usual distributions look in the end.
const DEFAULT_DIRECTORIES: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
/// What ld.so(8) looks up before those.
const CACHE: &str = "/etc/ld.so.cache";
/// The C library loads it when a thread is cancelled or a C++ exception is thrown, and names it
/// nowhere.
const UNWINDER: &str = "libgcc_s.so.1";
/// Most bytes of a program or library that is looked into.
const BYTES_MAX: u64 = 1 << 30;

/// What one ELF file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    interpreter: Option<String>,
    libraries: Vec<String>,
    /// DT_RUNPATH or DT_RPATH, with `$ORIGIN` replaced.
    path: Vec<PathBuf>,
    /// DT_SONAME.
    name: Option<String>,
}

/// The interpreters and libraries that `programs` need, each once, as absolute paths. What is not
/// found is left to the loader on the card, which names it.
pub fn needed(programs: &[PathBuf]) -> Vec<PathBuf> {
    let usual = usual_directories();
    let mut found = BTreeSet::new();
    let mut waiting: VecDeque<PathBuf> = programs.to_vec().into();
    while let Some(file) = waiting.pop_front() {
        let needs = needs(&file).unwrap_or_default();
        let mut libraries = needs.libraries;
        if libraries.iter().any(|name| name.starts_with("libc.so")) {
            libraries.push(UNWINDER.into());
        }
        let libraries = libraries
            .iter()
            .filter_map(|name| match name.contains('/') {
                true => Some(PathBuf::from(name)),
                false => search(name, needs.path.iter().chain(&usual)),
            });
        for next in libraries.chain(needs.interpreter.map(PathBuf::from)) {
            if next.is_file() && found.insert(next.clone()) {
                waiting.push_back(next);
            }
        }
    }
    if !found.is_empty() && Path::new(CACHE).is_file() {
        found.insert(CACHE.into());
    }
    let absolute = |path| std::path::absolute(path).ok();
    found.into_iter().filter_map(absolute).collect()
}

fn search<'a>(name: &str, directories: impl Iterator<Item = &'a PathBuf>) -> Option<PathBuf> {
    let mut paths = directories.map(|directory| directory.join(name));
    // A directory may hold a library for another machine.
    paths.find(|path| needs(path).is_some())
}

/// The directories for every program: of LD_LIBRARY_PATH, of the configuration, of the loader.
fn usual_directories() -> Vec<PathBuf> {
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let variable = std::env::split_paths(&variable).filter(|path| path.is_absolute());
    let mut configured = Vec::new();
    let more = fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten();
    let mut files: Vec<_> = more.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.push("/etc/ld.so.conf".into());
    for text in files
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
    {
        let lines = text.lines().map(str::trim);
        configured.extend(
            lines
                .filter(|line| line.starts_with('/'))
                .map(PathBuf::from),
        );
    }
    variable
        .chain(configured)
        .chain(DEFAULT_DIRECTORIES.map(PathBuf::from))
        .collect()
}

/// What a script or an x86-64 ELF file asks for; `None` if it is neither.
fn needs(path: &Path) -> Option<Needs> {
    let mut file = fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.by_ref().take(256).read_to_end(&mut bytes).ok()?;
    if let Some(script) = bytes.strip_prefix(b"#!") {
        return script_needs(script);
    }
    if !bytes.starts_with(b"\x7fELF") || file.metadata().ok()?.len() > BYTES_MAX {
        return None;
    }
    file.read_to_end(&mut bytes).ok()?;
    parse(&bytes, fs::canonicalize(path).ok()?.parent()?)
}

/// The interpreter in a script's first line (execve(2)).
fn script_needs(script: &[u8]) -> Option<Needs> {
    let line = script.split(|byte| *byte == b'\n').next()?;
    let interpreter = std::str::from_utf8(line).ok()?.split_whitespace().next()?;
    Some(Needs {
        interpreter: Some(interpreter.to_owned()),
        ..Needs::default()
    })
}

fn parse(data: &[u8], origin: &Path) -> Option<Needs> {
    let header = Elf::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine.get(endian) != object::elf::EM_X86_64 {
        return None;
    }
    let mut needs = Needs::default();
    for segment in header.program_headers(endian, data).ok()? {
        if segment.p_type(endian) == PT_INTERP {
            let text = segment.data(endian, data).ok()?;
            let text = text.strip_suffix(&[0]).unwrap_or(text);
            needs.interpreter = Some(std::str::from_utf8(text).ok()?.to_owned());
        }
    }
    let sections = header.sections(endian, data).ok()?;
    let table = sections.dynamic_table(endian, data).ok()?;
    for entry in &table {
        let Some(text) = table
            .string(entry)
            .ok()
            .and_then(|text| std::str::from_utf8(text).ok())
        else {
            continue;
        };
        match entry.tag {
            DT_SONAME => needs.name = Some(text.to_owned()),
            DT_NEEDED => needs.libraries.push(text.to_owned()),
            DT_RPATH | DT_RUNPATH => {
                let origin = origin.to_string_lossy();
                let path = text
                    .replace("$ORIGIN", &origin)
                    .replace("${ORIGIN}", &origin);
                needs.path.extend(path.split(':').map(PathBuf::from));
            }
            _ => {}
        }
    }
    Some(needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_program_needs_its_loader_and_the_c_library() {
        let files = needed(&["/proc/self/exe".into()]);
        let has = |name: &str| {
            files
                .iter()
                .any(|file| file.to_string_lossy().contains(name))
        };
        assert!(has("ld-linux-x86-64.so.2") && has("libc.so.6") && has(UNWINDER));
    }

    #[test]
    fn what_is_no_program_needs_nothing() {
        assert_eq!(parse(b"\x7fELF and then nothing", Path::new("/")), None);
        assert!(needed(&["/etc/passwd".into(), "/nonexistent".into()]).is_empty());
    }
}
