//! Libraries as cargo leaves them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::program;

/// A library that programs are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    /// The name that programs ask for.
    pub name: &'static str,
    /// The name that cargo gives its file, without `.so`.
    pub stem: &'static str,
    /// The package that it is of.
    pub package: &'static str,
}

impl Library {
    /// Its file, if the program is where cargo has put it, or is a test of somebody's crate.
    pub fn built_for(&self, program: &Path) -> io::Result<Option<PathBuf>> {
        let near = program.parent().unwrap_or(Path::new("."));
        // What cargo leaves beside a program may be older than what it leaves among the dependencies. Tests are among
        // these, examples in a directory beside.
        for directory in ["deps", ".", "../deps"] {
            if let Some(file) = self.file_in(&near.join(directory)) {
                return file.canonicalize().map(Some);
            }
        }
        Ok(None)
    }

    /// Of a package with a path, cargo makes `STEM.so`; of one from a repository or a registry `STEM-HASH.so`, one for
    /// each version, profile and set of features that was ever built. The one that belongs to this program says so.
    fn file_in(&self, directory: &Path) -> Option<PathBuf> {
        let plain = directory.join(self.stem).with_extension("so");
        if plain.is_file() {
            return Some(plain);
        }
        let entries = fs::read_dir(directory).ok()?.flatten();
        let made = entries.filter(|entry| {
            let name = entry.file_name();
            let hash = name.to_str().and_then(|name| {
                name.strip_prefix(self.stem)?
                    .strip_prefix('-')?
                    .strip_suffix(".so")
            });
            hash.is_some_and(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
        });
        let mut made: Vec<PathBuf> = made.map(|entry| entry.path()).collect();
        if made.len() > 1 {
            // Its note has a name and the id (elf(5), NT_GNU_BUILD_ID).
            let id = u64::from_str_radix(program::build_of(self.stem)?, 16).ok()?;
            let note = [&b"GNU\0"[..], &id.to_be_bytes()].concat();
            made.retain(|path| {
                let bytes = fs::read(path).unwrap_or_default();
                bytes.windows(note.len()).any(|window| window == note)
            });
        }
        made.pop()
    }

    /// That it is not where cargo would have left it, and that the program does not carry it.
    pub fn is_missing(&self, program: &Path) -> io::Error {
        let why = format!(
            "no {}.so beside {}, which carries none; `cargo build -p {}` makes it, and a `snaprig` that was installed \
             (SNAPRIG_EXE names it) has its own",
            self.stem,
            program.display(),
            self.package
        );
        io::Error::new(io::ErrorKind::NotFound, why)
    }
}
