//! Libraries that are preloaded into programs which do not know of them: plugins of checkpoints.
//!
//! ld.so(8) loads what `LD_PRELOAD` names into a program, and the environment takes that to what the program starts and
//! executes. A library that is not there, or is none, ld.so passes over with a line on standard error; here that is an
//! error before anything has started.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use snaprig_resources::error::{Error, Result};

/// What ld.so(8) reads.
pub const VARIABLE: &str = "LD_PRELOAD";

/// What the variable is to be: these libraries, and behind them what it is already. None: it stays what it is.
pub fn variable(libraries: &[PathBuf]) -> Result<Option<OsString>> {
    if libraries.is_empty() {
        return Ok(None);
    }
    let mut all = libraries
        .iter()
        .map(|library| library_at(library))
        .collect::<Result<Vec<_>>>()?;
    all.extend(std::env::var_os(VARIABLE).filter(|before| !before.is_empty()));
    let all: Vec<_> = all.into_iter().map(OsStringExt::into_vec).collect();
    Ok(Some(OsString::from_vec(all.join(&b':'))))
}

fn library_at(path: &Path) -> Result<OsString> {
    let wrong = |what: &str| Error::File {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    let whole = path
        .canonicalize()
        .map_err(|source| Error::io(path.display().to_string(), source))?;
    // What ld.so takes for the end of a name.
    if whole
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| b": \t\n".contains(byte))
    {
        return Err(wrong(
            "ld.so cannot preload a library with a colon or a space in its path",
        ));
    }
    let mut head = [0; 20];
    let read = std::fs::File::open(&whole)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
    read.map_err(|source| Error::io(path.display().to_string(), source))?;
    // The file header: magic number, 64 bits, little endian; e_type ET_DYN; e_machine EM_X86_64 (elf(5)).
    let is_library = head.starts_with(b"\x7fELF\x02\x01") && head[16..20] == [3, 0, 62, 0];
    match is_library {
        true => Ok(whole.into_os_string()),
        false => Err(wrong("it is no shared library for x86-64")),
    }
}
