//! What a stream of a file is: a head, and then parts.
//!
//! ```text
//! head:   "PPMRFILE"  version  entry
//! entry:  mode  length of the name  name
//! part:   0  length  bytes       what was written
//!         1  length              zeroes
//!         2  entry               what the file is called from now on
//! ```
//!
//! Numbers are little-endian: lengths of 8 bytes, that of a name of 2, the others of 4. The end of the stream is the end of the
//! file.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read, Write},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// Longest name of a file.
pub const NAME_MAX: usize = 255;
/// Bits of a mode that go along: who may read, write and execute.
const MODE: u32 = 0o777;

const MAGIC: [u8; 8] = *b"PPMRFILE";
const VERSION: u32 = 1;
const DATA: u8 = 0;
const HOLE: u8 = 1;
const ENTRY: u8 = 2;

/// What a file is called, and who may do what with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, which is one ([`is_name`]).
    pub name: OsString,
    /// Its permissions.
    pub mode: u32,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// So many bytes, which follow.
    Data(u64),
    /// So many zeroes, which do not.
    Hole(u64),
    /// The file has another name, or other permissions.
    Entry(Entry),
}

/// Why a stream cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// It has failed, or ends too early.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("not the stream of a file")]
    Magic,
    /// Another version.
    #[error("the stream of a file, of version {version}: version {VERSION} is read here")]
    Version {
        /// Which.
        version: u32,
    },
    /// A name that no file can have.
    #[error("a name that no file can have")]
    Name,
    /// A part of no kind that there is.
    #[error("a part of kind {kind}")]
    Kind {
        /// Which.
        kind: u8,
    },
}

/// Whether a file can be called so.
pub fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let is_good = |byte: &u8| *byte != b'/' && *byte != 0;
    (1..=NAME_MAX).contains(&bytes.len())
        && bytes.iter().all(is_good)
        && bytes != b"."
        && bytes != b".."
}

/// A stream begins.
pub fn write_head(to: &mut impl Write, entry: &Entry) -> io::Result<()> {
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    push_entry(&mut head, entry);
    to.write_all(&head)
}

/// A part begins.
pub fn write_part(to: &mut impl Write, part: &Part) -> io::Result<()> {
    let mut head = Vec::new();
    match part {
        Part::Data(bytes) => {
            head.push(DATA);
            head.extend(bytes.to_le_bytes());
        }
        Part::Hole(bytes) => {
            head.push(HOLE);
            head.extend(bytes.to_le_bytes());
        }
        Part::Entry(entry) => {
            head.push(ENTRY);
            push_entry(&mut head, entry);
        }
    }
    to.write_all(&head)
}

fn push_entry(to: &mut Vec<u8>, entry: &Entry) {
    let name = entry.name.as_bytes();
    to.extend((entry.mode & MODE).to_le_bytes());
    to.extend((name.len() as u16).to_le_bytes());
    to.extend(name);
}

/// What a stream begins with.
pub fn read_head(from: &mut impl Read) -> Result<Entry, LayoutError> {
    if read(from)? != MAGIC {
        return Err(LayoutError::Magic);
    }
    match u32::from_le_bytes(read(from)?) {
        VERSION => read_entry(from),
        version => Err(LayoutError::Version { version }),
    }
}

/// The next part; none: that was all.
pub fn read_part(from: &mut impl Read) -> Result<Option<Part>, LayoutError> {
    let mut kind = [0];
    if from.read(&mut kind)? == 0 {
        return Ok(None);
    }
    Ok(Some(match kind[0] {
        DATA => Part::Data(u64::from_le_bytes(read(from)?)),
        HOLE => Part::Hole(u64::from_le_bytes(read(from)?)),
        ENTRY => Part::Entry(read_entry(from)?),
        kind => return Err(LayoutError::Kind { kind }),
    }))
}

fn read_entry(from: &mut impl Read) -> Result<Entry, LayoutError> {
    let mode = u32::from_le_bytes(read(from)?) & MODE;
    let len = usize::from(u16::from_le_bytes(read(from)?));
    if len > NAME_MAX {
        return Err(LayoutError::Name);
    }
    let mut name = vec![0; len];
    from.read_exact(&mut name)?;
    let name = OsString::from_vec(name);
    match is_name(&name) {
        true => Ok(Entry { name, mode }),
        false => Err(LayoutError::Name),
    }
}

fn read<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Entry {
        Entry {
            name: name.into(),
            mode: 0o640,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let parts = [Part::Data(3), Part::Hole(u64::MAX), Part::Entry(entry("b"))];
        let mut bytes = Vec::new();
        write_head(&mut bytes, &entry("a")).unwrap();
        for part in &parts {
            write_part(&mut bytes, part).unwrap();
        }
        let mut from = &bytes[..];
        assert_eq!(read_head(&mut from).unwrap(), entry("a"));
        for part in parts {
            assert_eq!(read_part(&mut from).unwrap(), Some(part));
        }
        assert_eq!(read_part(&mut from).unwrap(), None);
    }

    #[test]
    fn what_is_none_is_refused() {
        let head = |entry: &Entry| {
            let mut bytes = Vec::new();
            write_head(&mut bytes, entry).unwrap();
            bytes
        };
        for name in ["", ".", "..", "a/b", "a\0", &"n".repeat(NAME_MAX + 1)] {
            let read = read_head(&mut &head(&entry(name))[..]);
            assert!(matches!(read, Err(LayoutError::Name)), "{name}");
        }
        assert!(read_head(&mut &head(&entry(&"n".repeat(NAME_MAX)))[..]).is_ok());
        let good = head(&entry("name"));
        for len in 0..good.len() {
            assert!(read_head(&mut &good[..len]).is_err(), "{len}");
        }
        let mut other = good.clone();
        other[8] = 7;
        let read = read_head(&mut &other[..]);
        assert!(matches!(read, Err(LayoutError::Version { version: 7 })));
        other[0] = b'X';
        assert!(matches!(
            read_head(&mut &other[..]),
            Err(LayoutError::Magic)
        ));
        let read = read_part(&mut &[3, 0, 0][..]);
        assert!(matches!(read, Err(LayoutError::Kind { kind: 3 })));
    }
}
