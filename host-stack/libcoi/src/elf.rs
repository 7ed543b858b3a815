//! What COI asks of a program or a library before it does anything with it.

use object::{
    Endianness,
    elf::{
        DT_NULL, DT_SONAME, DT_STRTAB, EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, FileType, Machine,
        PT_INTERP, PT_LOAD,
    },
    read::elf::{Dyn, FileHeader, ProgramHeader},
};

use crate::result::{Done, Failure, code};

type Header = FileHeader64<Endianness>;

/// A 64-bit ELF file.
struct Elf {
    kind: FileType,
    machine: Machine,
    interpreter: bool,
    soname: Option<String>,
}

/// That it is a program for cards.
pub fn program(bytes: &[u8]) -> Done {
    let elf = parse(bytes)?;
    match elf.kind {
        ET_EXEC => {}
        // One that may be anywhere has an interpreter, or the entry of a static one: a library has none.
        ET_DYN if elf.interpreter || elf.soname.is_none() => {}
        _ => return Err(Failure::new(code::INVALID_FILE, "it is no program")),
    }
    machine(&elf)
}

/// That it is a library for cards; its DT_SONAME.
pub fn library(bytes: &[u8]) -> Done<Option<String>> {
    let elf = parse(bytes)?;
    if elf.kind != ET_DYN {
        return Err(Failure::new(code::INVALID_FILE, "it is no library"));
    }
    machine(&elf)?;
    Ok(elf.soname)
}

fn machine(elf: &Elf) -> Done {
    match elf.machine {
        EM_X86_64 => Ok(()),
        other => {
            let why = format!("it is for machine {} of ELF, and cards are x86-64", other.0);
            Err(Failure::new(code::BINARY_AND_HARDWARE_MISMATCH, why))
        }
    }
}

fn parse(bytes: &[u8]) -> Done<Elf> {
    read(bytes).ok_or_else(|| Failure::new(code::INVALID_FILE, "it is no 64-bit ELF file"))
}

fn read(data: &[u8]) -> Option<Elf> {
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    Some(Elf {
        kind: header.e_type(endian),
        machine: header.e_machine(endian),
        interpreter: segments.iter().any(|s| s.p_type(endian) == PT_INTERP),
        soname: soname(data, endian, segments),
    })
}

type Segment = <Header as FileHeader>::ProgramHeader;

fn soname(data: &[u8], endian: Endianness, segments: &[Segment]) -> Option<String> {
    let entries = segments
        .iter()
        .find_map(|segment| segment.dynamic(endian, data).ok()?)?;
    let (mut strings, mut name) = (None, None);
    for entry in entries {
        let value = entry.d_val(endian);
        match entry.d_tag(endian) {
            DT_NULL => break,
            DT_STRTAB => strings = Some(value),
            DT_SONAME => name = Some(value),
            _ => {}
        }
    }
    let address = strings?.checked_add(name?)?;
    let inside = segments.iter().find_map(|segment| {
        let into = address.checked_sub(segment.p_vaddr(endian))?;
        let is = segment.p_type(endian) == PT_LOAD && into < segment.p_filesz(endian);
        is.then(|| segment.p_offset(endian).checked_add(into))?
    })?;
    let rest = data.get(usize::try_from(inside).ok()?..)?;
    let text = rest.split(|byte| *byte == 0).next()?;
    Some(std::str::from_utf8(text).ok()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_elf_file_is_no_program_and_no_library() {
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x02\x01\x01"] {
            assert_eq!(program(bytes).map_err(|f| f.code), Err(code::INVALID_FILE));
            assert_eq!(library(bytes).map_err(|f| f.code), Err(code::INVALID_FILE));
        }
    }

    #[test]
    fn the_test_itself_is_a_program() {
        let bytes = std::fs::read("/proc/self/exe").expect("it runs");
        assert_eq!(program(&bytes), Ok(()));
        assert_eq!(library(&bytes), Ok(None));
        let mut other = bytes.clone();
        // e_machine: EM_K1OM.
        other[18] = 181;
        let refused = program(&other).map_err(|f| f.code);
        assert_eq!(refused, Err(code::BINARY_AND_HARDWARE_MISMATCH));
    }
}
