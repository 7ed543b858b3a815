//! Programs that load libibverbs themselves (dlopen(3), dlsym(3)) are given what those have that are linked with it.
//!
//! | function | what it does |
//! |---|---|
//! | `dlsym`, `dlvsym` | a function of the libibverbs below is answered with the one that stands before it |
//! | `dlopen` | leaves RTLD_DEEPBIND out, with which a library would find the libibverbs below before what is preloaded |
//!
//! What must stay true: the C library sees who has called, for on that depend RTLD_NEXT and where libraries are looked for
//! (RUNPATH): its functions are jumped to. Allocators call these functions before they can allocate: nothing is allocated here
//! but for names of libibverbs.

use std::{
    arch::naked_asm,
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::real::library;

// OURS: the functions that stand before those of libibverbs, by name, in order.
include!(concat!(env!("OUT_DIR"), "/interposed.rs"));

/// A function of the C library's loader, which dlsym(3) cannot be asked for: it is one of them.
struct OfLoader {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

static DLOPEN: OfLoader = OfLoader::new(c"dlopen");
static DLSYM: OfLoader = OfLoader::new(c"dlsym");
static DLVSYM: OfLoader = OfLoader::new(c"dlvsym");

impl OfLoader {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its address, which is never null.
    fn get(&self) -> *mut c_void {
        let mut at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            at = next_of(self.name);
            if at.is_null() {
                // Nothing can be gone on with without it.
                std::process::abort();
            }
            self.at.store(at, Ordering::Relaxed);
        }
        at
    }
}

/// What is looked for among the objects of this process.
struct Search {
    name: &'static CStr,
    /// This library has been passed.
    is_behind: bool,
    before: *mut c_void,
    behind: *mut c_void,
}

/// The function of this name of the first object behind this library that has one; of one before it if none has.
fn next_of(name: &'static CStr) -> *mut c_void {
    let mut search = Search {
        name,
        is_behind: false,
        before: ptr::null_mut(),
        behind: ptr::null_mut(),
    };
    // SAFETY: `look_into` gets what this is told to give it, which it has for itself meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(look_into), ptr::from_mut(&mut search).cast()) };
    match search.behind.is_null() {
        true => search.before,
        false => search.behind,
    }
}

unsafe extern "C" fn look_into(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr(3) gives information that is good for this call, with so many program headers; `next_of` passes its
    // search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let is_in = |header: &libc::Elf64_Phdr, address: usize| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        header.p_type == libc::PT_LOAD && (address as u64).wrapping_sub(start) < header.p_memsz
    };
    let own = next_of as *const () as usize;
    if headers.iter().any(|header| is_in(header, own)) {
        search.is_behind = true;
        return 0;
    }
    let dynamic = headers
        .iter()
        .find(|header| header.p_type == libc::PT_DYNAMIC);
    let Some(dynamic) = dynamic else { return 0 };
    // SAFETY: the object is loaded, and stays so for this call.
    let found = unsafe {
        Symbols::of(info.dlpi_addr as usize, dynamic.p_vaddr as usize)
            .map_or(ptr::null_mut(), |symbols| symbols.find(search.name))
    };
    match search.is_behind {
        true => search.behind = found,
        false if search.before.is_null() => search.before = found,
        false => {}
    }
    c_int::from(!search.behind.is_null())
}

/// An object's symbols (elf(5)), with the hash table of GNU.
struct Symbols {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    hash: *const u32,
}

impl Symbols {
    /// # Safety
    /// A loaded object's base, and where its dynamic section is from there.
    unsafe fn of(base: usize, dynamic: usize) -> Option<Self> {
        const DT_NULL: u64 = 0;
        const DT_STRTAB: u64 = 5;
        const DT_SYMTAB: u64 = 6;
        const DT_GNU_HASH: u64 = 0x6fff_fef5;
        let (mut symbols, mut strings, mut hash) = (0, 0, 0);
        let mut entry = ptr::with_exposed_provenance::<[u64; 2]>(base.wrapping_add(dynamic));
        loop {
            // SAFETY: a dynamic section ends with an entry of DT_NULL.
            let [tag, value] = unsafe { entry.read() };
            match tag {
                DT_NULL => break,
                DT_STRTAB => strings = value as usize,
                DT_SYMTAB => symbols = value as usize,
                DT_GNU_HASH => hash = value as usize,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        // The loader has made addresses of them, but for the kernel's own object.
        let address = |value: usize| match value < base {
            true => value.wrapping_add(base),
            false => value,
        };
        let has_all = symbols != 0 && strings != 0 && hash != 0;
        has_all.then(|| Self {
            base,
            symbols: ptr::with_exposed_provenance(address(symbols)),
            strings: ptr::with_exposed_provenance(address(strings)),
            hash: ptr::with_exposed_provenance(address(hash)),
        })
    }

    /// The function of a name that is defined here, or null.
    ///
    /// # Safety
    /// The object is still loaded.
    unsafe fn find(&self, name: &CStr) -> *mut c_void {
        /// Of the header, and of a word of the filter behind it.
        const HEADER: usize = 4;
        const FILTER_WORDS: usize = 2;
        let hash = name.to_bytes().iter().fold(5381u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
        });
        // SAFETY: the table is as the linker has made it: buckets, of which each is empty or the first symbol of a chain, and
        // chains, whose last word is odd.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| *self.hash.add(at));
            let bucket = self.hash.add(HEADER + filter as usize * FILTER_WORDS);
            let chain = bucket.add(buckets as usize);
            let mut at = match buckets {
                0 => 0,
                _ => *bucket.add((hash % buckets) as usize),
            };
            if at < first || at == 0 {
                return ptr::null_mut();
            }
            loop {
                let word = *chain.add((at - first) as usize);
                let symbol = &*self.symbols.add(at as usize);
                if word | 1 == hash | 1
                    && symbol.st_shndx != 0
                    && CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name
                {
                    let address = self.base.wrapping_add(symbol.st_value as usize);
                    return ptr::with_exposed_provenance_mut(address);
                }
                if word & 1 == 1 {
                    return ptr::null_mut();
                }
                at += 1;
            }
        }
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// dlsym(3) of the C library.
///
/// # Safety
/// As for that.
unsafe fn real_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the function of this name has this type; the caller says the rest.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(DLSYM.get())(handle, name) }
}

/// dlvsym(3) of the C library.
///
/// # Safety
/// As for that.
pub unsafe fn real_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    // SAFETY: as above.
    unsafe { std::mem::transmute::<*mut c_void, Dlvsym>(DLVSYM.get())(handle, name, version) }
}

/// What to say to who asks for a function: ours, or nothing, and whom to ask then.
#[repr(C)]
struct Answer {
    ours: *const c_void,
    next: *mut c_void,
}

/// Ours, if `find` finds what it stands before.
///
/// # Safety
/// The name is a string.
unsafe fn ours(
    handle: *mut c_void,
    name: *const c_char,
    find: impl FnOnce() -> *mut c_void,
) -> *const c_void {
    // Whoever wants the next one knows what he does.
    if name.is_null() || handle == libc::RTLD_NEXT {
        return ptr::null();
    }
    // SAFETY: the caller says so.
    let name = unsafe { CStr::from_ptr(name) };
    let Ok(at) = OURS.binary_search_by(|(ours, _)| (*ours).cmp(name)) else {
        return ptr::null();
    };
    let found = find();
    if found.is_null() {
        return ptr::null();
    }
    let stands_before = library().is_some_and(|library| {
        // SAFETY: the library stays loaded.
        found == unsafe { real_dlsym(library, name.as_ptr()) }
    });
    match stands_before {
        true => OURS[at].1 as *const c_void,
        false => ptr::null(),
    }
}

unsafe extern "C" fn answer_dlsym(handle: *mut c_void, name: *const c_char) -> Answer {
    Answer {
        // SAFETY: dlsym(3) asks the program for a handle and a string.
        ours: unsafe { ours(handle, name, || real_dlsym(handle, name)) },
        next: DLSYM.get(),
    }
}

unsafe extern "C" fn answer_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> Answer {
    Answer {
        // SAFETY: dlvsym(3) asks the program for a handle and strings.
        ours: unsafe { ours(handle, name, || real_dlvsym(handle, name, version)) },
        next: DLVSYM.get(),
    }
}

extern "C" fn next_dlopen() -> *mut c_void {
    DLOPEN.get()
}

/// Jumps to the C library's, with the same arguments but for a flag.
#[unsafe(naked)]
#[unsafe(export_name = "snaprig_ckpt_ib_dlopen")]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, {flags}",
        "jmp rax",
        next = sym next_dlopen,
        flags = const !libc::RTLD_DEEPBIND,
    )
}

/// Returns what is ours, or jumps to the C library's.
#[unsafe(naked)]
#[unsafe(export_name = "snaprig_ckpt_ib_dlsym")]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp rdx",
        "2: ret",
        answer = sym answer_dlsym,
    )
}

/// Returns what is ours, or jumps to the C library's.
#[unsafe(naked)]
#[unsafe(export_name = "snaprig_ckpt_ib_dlvsym")]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {answer}",
        "mov r11, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp r11",
        "2: ret",
        answer = sym answer_dlvsym,
    )
}
