//! `COIProcess_source.h`: libraries.

use std::{
    ffi::c_void,
    sync::{Arc, Mutex},
};

use snaprig_coi::{CoiError, Library, LibraryOptions, libraries::MemoryLibrary};

use crate::{
    arguments::{array, give, text},
    elf,
    environment::{find_library, read},
    handles::lock,
    process::{entry, living, origin},
    result::{Done, Failure, code, require},
    strings::{Text, Texts},
    trace::api,
    types::{FAT_BINARY, FILE_NAME_MAX, Handle, LOAD_LIBRARY_V1},
};

/// COIProcessRegisterLibraries'.
static REGISTERED: Mutex<Vec<MemoryLibrary>> = Mutex::new(Vec::new());

/// The libraries that the program has in its memory.
pub fn registered() -> Vec<MemoryLibrary> {
    lock(&REGISTERED).clone()
}

api! {
    fn COIProcessLoadLibraryFromMemory2(
        process: Handle,
        library: *const c_void,
        library_bytes: u64,
        name: Text,
        search_path: Text,
        origin: Text,
        origin_offset: u64,
        flags: u32,
        library_out: *mut Handle,
    ) {
        // SAFETY: COI's header has the program pass null, or a string that ends with a null byte,
        // for each; they are copied within this call.
        let (name, search_path, origin) =
            unsafe { (text(name), text(search_path), text(origin)) };
        let bytes = usize::try_from(library_bytes).map_err(|_| code::OUT_OF_RANGE)?;
        entry(process)?;
        require(library_bytes > 0, code::OUT_OF_RANGE)?;
        require(!library.is_null() && !library_out.is_null(), code::INVALID_POINTER)?;
        // SAFETY: COI's header has the program pass `library_bytes` bytes, or null, for which
        // `array` gives none; they are copied within this call.
        let bytes = unsafe { array(library.cast::<u8>(), bytes) }.to_vec();
        let load = Load { process, bytes, name, search_path, origin, origin_offset, flags };
        // SAFETY: COI's header has the program pass a place for a handle, which is all that `run`
        // asks for; `give` does nothing for null.
        unsafe { load.run(library_out) }
    }

    fn COIProcessLoadLibraryFromMemory(
        process: Handle,
        library: *const c_void,
        library_bytes: u64,
        name: Text,
        search_path: Text,
        origin: Text,
        origin_offset: u64,
        library_out: *mut Handle,
    ) {
        // SAFETY: the older function has the contract of the newer one, and the program's arguments
        // are passed on as they came.
        again(unsafe {
            COIProcessLoadLibraryFromMemory2(
                process, library, library_bytes, name, search_path, origin, origin_offset,
                LOAD_LIBRARY_V1, library_out,
            )
        })
    }

    fn COIProcessLoadLibraryFromFile2(
        process: Handle,
        file: Text,
        name: Text,
        search_path: Text,
        flags: u32,
        library_out: *mut Handle,
    ) {
        // SAFETY: COI's header has the program pass null, or a string that ends with a null byte,
        // for each; they are copied within this call.
        let (file, name, search_path) = unsafe { (text(file), text(name), text(search_path)) };
        let file = file.ok_or(code::INVALID_POINTER)?;
        let path = find_library(&file, search_path.as_deref())?;
        require(path.is_file(), code::INVALID_FILE)?;
        let bytes = read(&path)?;
        elf::library(&bytes)?;
        entry(process)?;
        require(!library_out.is_null(), code::INVALID_POINTER)?;
        let origin = Some(path.to_string_lossy().into_owned());
        let load = Load { process, bytes, name, search_path, origin, origin_offset: 0, flags };
        // SAFETY: COI's header has the program pass a place for a handle, which is all that `run`
        // asks for; `give` does nothing for null.
        unsafe { load.run(library_out) }
    }

    fn COIProcessLoadLibraryFromFile(
        process: Handle,
        file: Text,
        name: Text,
        search_path: Text,
        library_out: *mut Handle,
    ) {
        // SAFETY: the older function has the contract of the newer one, and the program's arguments
        // are passed on as they came.
        again(unsafe {
            COIProcessLoadLibraryFromFile2(
                process, file, name, search_path, LOAD_LIBRARY_V1, library_out,
            )
        })
    }

    fn COIProcessUnloadLibrary(process: Handle, library: Handle) {
        let process = living(process)?;
        let number = library.0 as u64;
        // The process may have loaded it itself (COIProcessLoadSinkLibraryFromFile).
        process.process.unload_library(Library(number))?;
        process.forget_functions()
    }

    fn COIProcessRegisterLibraries(
        count: u32,
        libraries: *const *const c_void,
        bytes: *const u64,
        origins: Texts,
        origin_offsets: *const u64,
    ) {
        require(count > 0, code::OUT_OF_RANGE)?;
        require(!libraries.is_null() && !bytes.is_null(), code::INVALID_POINTER)?;
        require(origins.0.is_null() == origin_offsets.is_null(), code::ARGUMENT_MISMATCH)?;
        let count = count as usize;
        // SAFETY: COI's header has the program pass three arrays of `count` entries each, which
        // stay during the call; `array` gives none for null.
        let (libraries, bytes, origins) =
            unsafe { (array(libraries, count), array(bytes, count), array(origins.0, count)) };
        let mut found = Vec::with_capacity(count);
        for (at, (library, bytes)) in libraries.iter().zip(bytes).enumerate() {
            require(!library.is_null(), code::INVALID_POINTER)?;
            let bytes = usize::try_from(*bytes).map_err(|_| code::OUT_OF_RANGE)?;
            // SAFETY: COI's header has the program pass as many bytes for each library as the array
            // of lengths says, which are copied within this call.
            let bytes = unsafe { array(library.cast::<u8>(), bytes) };
            let named = elf::library(bytes).ok().flatten().is_some();
            require(named, code::OUT_OF_RANGE)?;
            // SAFETY: COI's header has each origin be null, or a string that ends with a null byte,
            // which is copied within this call.
            let origin = origins.get(at).and_then(|origin| unsafe { text(*origin) });
            let bytes = Arc::new(bytes.to_vec());
            found.push(MemoryLibrary { bytes, origin: origin.map(Into::into) });
        }
        // Those that came later are looked at first.
        lock(&REGISTERED).splice(0..0, found);
        Ok(())
    }
}

/// The code of a call that was made of another, and has been told of.
fn again(code: u32) -> Done {
    require(code == code::SUCCESS, code)
}

/// The arguments of COIProcessLoadLibraryFromMemory.
struct Load {
    process: Handle,
    bytes: Vec<u8>,
    name: Option<String>,
    search_path: Option<String>,
    origin: Option<String>,
    origin_offset: u64,
    flags: u32,
}

impl Load {
    /// # Safety
    /// `library_out` is null, or a place for a handle.
    unsafe fn run(self, library_out: *mut Handle) -> Done {
        let soname = elf::library(&self.bytes)?;
        let name = self.name.clone().or(soname).ok_or_else(|| {
            Failure::new(
                code::ARGUMENT_MISMATCH,
                "the library has no name, and is given none",
            )
        })?;
        let astray = self.origin_offset > 0 && self.origin_offset != FAT_BINARY;
        require(!astray || self.origin.is_some(), code::ARGUMENT_MISMATCH)?;
        let process = living(self.process)?;
        require(name.len() < FILE_NAME_MAX, code::OUT_OF_RANGE)?;
        let bytes = self.bytes.len() as u64;
        let origin = origin(self.origin.as_deref(), self.origin_offset, bytes)?;
        let done = process.process.load_library(LibraryOptions {
            bytes: self.bytes,
            name: Some(name),
            origin,
            library_path: self.search_path,
            libraries: registered(),
            flags: self.flags.cast_signed(),
        });
        let library = match &done {
            Ok(library) => *library,
            Err(CoiError::LibraryLoaded(number)) => Library(*number),
            Err(_) => return Ok(done.map(|_| ())?),
        };
        // SAFETY: the caller says that `library_out` is null or a place for a handle, which `give`
        // writes and does not read.
        unsafe { give(library_out, Handle(library.0 as usize)) };
        Ok(done.map(|_| ())?)
    }
}
