//! Finding run functions by name in a static program, among its own dynamic symbols (elf(5)). It has
//! no dlsym(3), but linked with `-static-pie` and `-Wl,--export-dynamic-symbol=GLOB` it has them in
//! the table.

use std::{
    ffi::{CStr, c_char},
    sync::OnceLock,
};

const PT_DYNAMIC: u32 = 2;
const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_FUNC: u8 = 2;

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

#[derive(Clone, Copy, Default)]
struct Tables {
    base: usize,
    symbols: usize,
    strings: usize,
    hash: usize,
}

/// The address of an exported function.
pub fn find(name: &str) -> Option<usize> {
    functions()
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, address)| *address)
}

/// All exported functions of the program.
fn functions() -> &'static [(String, usize)] {
    static FUNCTIONS: OnceLock<Vec<(String, usize)>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let mut tables = Tables::default();
        // SAFETY: the callback gets the address of `tables`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(program), (&raw mut tables).cast()) };
        if tables.symbols == 0 || tables.strings == 0 || tables.hash == 0 {
            return Vec::new();
        }
        // SAFETY: the tables are those of this very program, as its dynamic section names them.
        unsafe { exported(&tables) }
    })
}

/// The first object that is reported is the program itself.
unsafe extern "C" fn program(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    tables: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: dl_iterate_phdr(3) passes a valid `info`, whose headers are in memory, and the
    // pointer that it was given.
    unsafe {
        let (info, tables) = (&*info, &mut *tables.cast::<Tables>());
        let base = info.dlpi_addr as usize;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        if let Some(dynamic) = headers.iter().find(|header| header.p_type == PT_DYNAMIC) {
            let mut entry = (base + dynamic.p_vaddr as usize) as *const (i64, usize);
            *tables = Tables {
                base,
                ..Tables::default()
            };
            while (*entry).0 != DT_NULL {
                // A static program relocates its own section only partly.
                let absolute = if (*entry).1 < base {
                    base + (*entry).1
                } else {
                    (*entry).1
                };
                match (*entry).0 {
                    DT_SYMTAB => tables.symbols = absolute,
                    DT_STRTAB => tables.strings = absolute,
                    DT_GNU_HASH => tables.hash = absolute,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
    }
    1
}

/// Every defined function, by way of the GNU hash table, which alone tells how many there are.
///
/// # Safety
/// The tables must be those of a loaded ELF object.
unsafe fn exported(tables: &Tables) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    // SAFETY: the layout is that of DT_GNU_HASH: counts, bloom filter of 8-byte words, buckets,
    // chains that end with an odd word.
    unsafe {
        let header = tables.hash as *const u32;
        let (buckets, first, bloom) = (*header, *header.add(1), *header.add(2));
        let bucket = header.add(4 + bloom as usize * 2);
        let chain = bucket.add(buckets as usize);
        for index in 0..buckets as usize {
            let mut symbol = *bucket.add(index);
            if symbol < first {
                continue;
            }
            loop {
                let entry = &*(tables.symbols as *const Symbol).add(symbol as usize);
                if entry.section != 0 && entry.info & 0xf == STT_FUNC {
                    let name = (tables.strings + entry.name as usize) as *const c_char;
                    let name = CStr::from_ptr(name).to_string_lossy().into_owned();
                    found.push((name, tables.base + entry.value as usize));
                }
                if *chain.add((symbol - first) as usize) & 1 == 1 {
                    break;
                }
                symbol += 1;
            }
        }
    }
    found
}
