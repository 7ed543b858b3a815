//! Reading ELF executables (elf(5)): enough to load them, with every field checked.

use snaprig_card_driver::errno::Errno;

/// A segment to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address relative to the load base.
    pub address: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes from the file.
    pub file_bytes: u64,
    /// Bytes in memory; what the file does not give is zero.
    pub memory_bytes: u64,
    /// `PROT_*` bits.
    pub prot: i32,
}

/// What an executable wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// It may be loaded anywhere (ET_DYN).
    pub relocatable: bool,
    /// Entry point, relative to the load base.
    pub entry: u64,
    /// Its segments, in ascending order.
    pub segments: Vec<Segment>,
    /// Address of its program headers in memory, how many, and the size of one.
    pub headers: (u64, u16, u16),
    /// The interpreter that loads it (ld.so).
    pub interpreter: Option<String>,
}

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const SEGMENTS_MAX: usize = 64;
const ADDRESS_MAX: u64 = 1 << 46;
const PATH_MAX: u64 = 4096;

const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;

/// [`read`], of a program in memory.
pub fn parse(file: &[u8]) -> Result<Executable, Errno> {
    read(file.len() as u64, |offset, len| {
        let start = usize::try_from(offset).map_or(file.len(), |offset| offset.min(file.len()));
        file[start..file.len().min(start.saturating_add(len))].to_vec()
    })
}

/// Reads the headers of an executable of `file_len` bytes, of which `part` gives so many from an
/// offset on, fewer at the end. Everything that is not an x86-64 executable is ENOEXEC.
pub fn read(file_len: u64, part: impl Fn(u64, usize) -> Vec<u8>) -> Result<Executable, Errno> {
    let exactly = |offset, len| {
        let bytes = part(offset, len);
        (bytes.len() == len).then_some(bytes).ok_or(Errno::ENOEXEC)
    };
    let header = exactly(0, HEADER_BYTES)?;
    let header = &header[..];
    // 64 bit, little-endian, version 1.
    if header[..7] != [0x7f, b'E', b'L', b'F', 2, 1, 1] {
        return Err(Errno::ENOEXEC);
    }
    let kind = u16_at(header, 16);
    if !matches!(kind, ET_EXEC | ET_DYN) || u16_at(header, 18) != EM_X86_64 {
        return Err(Errno::ENOEXEC);
    }
    let (table, count) = (u64_at(header, 32), u16_at(header, 56));
    if u16_at(header, 54) as usize != PROGRAM_HEADER_BYTES || usize::from(count) > SEGMENTS_MAX {
        return Err(Errno::ENOEXEC);
    }
    let bytes = usize::from(count) * PROGRAM_HEADER_BYTES;
    let table_bytes = exactly(table, bytes)?;
    let (mut segments, mut interpreter): (Vec<Segment>, _) = (Vec::new(), None);
    for header in table_bytes.chunks_exact(PROGRAM_HEADER_BYTES) {
        match u32_at(header, 0) {
            PT_LOAD => segments.extend(segment(header, file_len)?),
            PT_INTERP => interpreter = Some(path(header, exactly)?),
            _ => {}
        }
    }
    let ascending = segments
        .windows(2)
        .all(|w| w[0].address + w[0].memory_bytes <= w[1].address);
    if segments.is_empty() || !ascending {
        return Err(Errno::ENOEXEC);
    }
    let headers_at = segments
        .iter()
        .find(|s| (s.offset..s.offset + s.file_bytes).contains(&table))
        .map_or(0, |s| s.address + (table - s.offset));
    Ok(Executable {
        relocatable: kind == ET_DYN,
        entry: u64_at(header, 24),
        segments,
        headers: (headers_at, count, PROGRAM_HEADER_BYTES as u16),
        interpreter,
    })
}

fn segment(header: &[u8], file_len: u64) -> Result<Option<Segment>, Errno> {
    let flags = u32_at(header, 4);
    let segment = Segment {
        offset: u64_at(header, 8),
        address: u64_at(header, 16),
        file_bytes: u64_at(header, 32),
        memory_bytes: u64_at(header, 40),
        prot: (if flags & 4 != 0 { libc::PROT_READ } else { 0 })
            | (if flags & 2 != 0 { libc::PROT_WRITE } else { 0 })
            | (if flags & 1 != 0 { libc::PROT_EXEC } else { 0 }),
    };
    if segment.memory_bytes == 0 {
        return Ok(None);
    }
    let in_file = segment
        .offset
        .checked_add(segment.file_bytes)
        .is_some_and(|end| end <= file_len);
    let in_space = segment.address < ADDRESS_MAX && segment.memory_bytes < ADDRESS_MAX;
    let aligned = segment.address % 4096 == segment.offset % 4096;
    let sound = in_file && in_space && aligned && segment.file_bytes <= segment.memory_bytes;
    if sound {
        Ok(Some(segment))
    } else {
        Err(Errno::ENOEXEC)
    }
}

fn path(
    header: &[u8],
    exactly: impl Fn(u64, usize) -> Result<Vec<u8>, Errno>,
) -> Result<String, Errno> {
    let (offset, len) = (u64_at(header, 8), u64_at(header, 32));
    if len > PATH_MAX {
        return Err(Errno::ENOEXEC);
    }
    let bytes = exactly(offset, len as usize)?;
    let path = bytes.strip_suffix(&[0]).ok_or(Errno::ENOEXEC)?;
    String::from_utf8(path.to_vec()).map_err(|_| Errno::ENOEXEC)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_very_program_is_read() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let executable = parse(&program).unwrap();
        assert!(executable.segments.len() >= 2);
        assert_eq!(parse(b"#!/bin/sh\n"), Err(Errno::ENOEXEC));
    }

    proptest! {
        #[test]
        fn damaged_programs_never_panic(at in 0..4096usize, value: u64) {
            let mut program = std::fs::read("/proc/self/exe").unwrap();
            program.truncate(1 << 16);
            program[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let _ = parse(&program);
        }
    }
}
