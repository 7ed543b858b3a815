//! `COIProcess_source.h`: processes and their functions.

use std::{
    collections::BTreeMap,
    ffi::c_void,
    fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use snaprig_coi::{
    CoiError, Process, ProcessOptions,
    ops::{self, Event},
    process,
};
use snaprig_offload_wire::coi::Exit;

use crate::{
    arguments::{Completion, array, both_or_neither, dependencies, give, text},
    control, elf,
    engine::engine,
    environment::{self, Affinity},
    fork,
    handles::{Table, lock},
    library::registered,
    notify::Registered,
    result::{Done, Failure, code, require},
    snapify::Snapshots,
    strings::{Environment, Text, Texts},
    trace::{self, api},
    types::{CoiEvent, FAT_BINARY, FILE_NAME_MAX, FUNCTION_NAME_MAX, Handle},
};

/// A process, and what is known of it here.
pub struct Entry {
    pub process: Process,
    pub snapshots: Snapshots,
    /// Functions that were asked for, by name.
    functions: Mutex<BTreeMap<String, u64>>,
    pub callbacks: Mutex<Vec<Registered>>,
    destroyed: AtomicBool,
}

static PROCESSES: Table<Arc<Entry>> = Table::new();

/// The process that it is a handle of.
pub fn entry(handle: Handle) -> Done<Arc<Entry>> {
    PROCESSES.get(handle)
}

/// The same, if it is alive.
pub fn living(handle: Handle) -> Done<Arc<Entry>> {
    let process = entry(handle)?;
    require(process.process.is_alive(), code::PROCESS_DIED)?;
    Ok(process)
}

impl Entry {
    pub fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    pub fn has_function(&self, address: u64) -> bool {
        lock(&self.functions)
            .values()
            .any(|known| *known == address)
    }

    /// A library is gone: which of the functions there still are.
    pub fn forget_functions(&self) -> Done {
        let mut functions = lock(&self.functions);
        let names: Vec<&str> = functions.keys().map(String::as_str).collect();
        if names.is_empty() {
            return Ok(());
        }
        let found = self.process.functions(&names)?;
        let mut found = found.into_iter();
        functions.retain(|_, address| {
            let now = found.next().flatten();
            now.is_some_and(|function| function.address() == *address)
        });
        Ok(())
    }
}

api! {
    fn COIProcessCreateFromFile(
        engine: Handle,
        name: Text,
        argument_count: i32,
        arguments: Texts,
        inherit_environment: u8,
        added_environment: Environment,
        proxy: u8,
        reserved: Text,
        buffer_bytes: u64,
        search_path: Text,
        process_out: *mut Handle,
    ) {
        // SAFETY: COI's header has the program pass null, which is refused, or a string that ends
        // with a null byte, which is copied within this call.
        let path = unsafe { text(name) }.ok_or(code::INVALID_POINTER)?;
        require(path.len() < FILE_NAME_MAX, code::OUT_OF_RANGE)?;
        let binary = program_file(Path::new(&path))?;
        let create = Create {
            engine,
            name: Some(path.clone()),
            binary: Some(binary),
            arguments: (argument_count, arguments),
            environment: (inherit_environment, added_environment),
            proxy,
            buffer_bytes,
            search_path,
            origin: Some(path),
            origin_offset: 0,
            process_out,
        };
        // SAFETY: COI's header has the program pass strings, arrays of them as long as it says, and
        // a place for the handle, all of which stay during the call: this is what `run` asks for.
        unsafe { create.run() }
    }

    fn COIProcessCreateFromMemory(
        engine: Handle,
        name: Text,
        binary: *const c_void,
        binary_bytes: u64,
        argument_count: i32,
        arguments: Texts,
        inherit_environment: u8,
        added_environment: Environment,
        proxy: u8,
        reserved: Text,
        buffer_bytes: u64,
        search_path: Text,
        origin: Text,
        origin_offset: u64,
        process_out: *mut Handle,
    ) {
        let bytes = usize::try_from(binary_bytes).map_err(|_| code::OUT_OF_RANGE)?;
        // SAFETY: COI's header has the program pass null, or a string that ends with a null byte,
        // for each name, and as many bytes as it says for the program; all are copied within this
        // call.
        let create = unsafe {
            Create {
                engine,
                name: text(name),
                binary: (!binary.is_null()).then(|| array(binary.cast::<u8>(), bytes).to_vec()),
                arguments: (argument_count, arguments),
                environment: (inherit_environment, added_environment),
                proxy,
                buffer_bytes,
                search_path,
                origin: text(origin),
                origin_offset,
                process_out,
            }
        };
        // SAFETY: COI's header has the program pass strings, arrays of them as long as it says, and
        // a place for the handle, all of which stay during the call: this is what `run` asks for.
        unsafe { create.run() }
    }

    fn COIProcessDestroy(
        process: Handle,
        timeout_milliseconds: i32,
        force: u8,
        returned_out: *mut i8,
        signal_out: *mut u32,
    ) {
        require(timeout_milliseconds >= -1, code::OUT_OF_RANGE)?;
        let for_ever = timeout_milliseconds == -1;
        require(!(for_ever && force != 0), code::ARGUMENT_MISMATCH)?;
        let entry = entry(process)?;
        let timeout = u64::try_from(timeout_milliseconds).ok().map(Duration::from_millis);
        let exit = entry.process.destroy_with(timeout, force != 0)?;
        entry.destroyed.store(true, Ordering::Release);
        // Whoever destroyed it at the same time has its answer too.
        PROCESSES.remove(process)?;
        control::gone(&entry.snapshots.controlled);
        let (returned, signal) = match exit {
            Exit::Code(status) => (status as i8, 0),
            Exit::Signal(number) => (-1, number.unsigned_abs()),
        };
        // SAFETY: COI's header has the program pass null or a place for each answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe {
            give(returned_out, returned);
            give(signal_out, signal);
        }
        Ok(())
    }

    fn COIProcessGetFunctionHandles(
        process: Handle,
        count: u32,
        names: Texts,
        functions_out: *mut usize,
    ) {
        let process = entry(process)?;
        require(!names.0.is_null() && !functions_out.is_null(), code::INVALID_POINTER)?;
        require(count > 0, code::OUT_OF_RANGE)?;
        // SAFETY: the pointer is not null, and COI's header has the program pass `count` strings,
        // or null pointers, which stay during the call.
        let names = unsafe { array(names.0, count as usize) }
            .iter()
            // SAFETY: COI's header has each be a string that ends with a null byte, which is copied
            // within this call; null is refused.
            .map(|name| unsafe { text(*name) }.ok_or(code::INVALID_POINTER.into()))
            .collect::<Done<Vec<String>>>()?;
        require(names.iter().all(|name| name.len() < FUNCTION_NAME_MAX), code::OUT_OF_RANGE)?;
        let words: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = process.process.functions(&words)?;
        let mut known = lock(&process.functions);
        let mut all = true;
        for (at, name) in names.into_iter().enumerate() {
            let address = found.get(at).copied().flatten().map(|function| function.address());
            all &= address.is_some();
            // SAFETY: the pointer is not null, and COI's header has the program pass room for as
            // many addresses as there are names, which is more than `at`.
            unsafe { functions_out.add(at).write(address.unwrap_or(0) as usize) };
            if let Some(address) = address {
                known.insert(name, address);
            }
        }
        require(all, code::DOES_NOT_EXIST)
    }

    fn COIProcessSetCacheSize(
        process: Handle,
        huge_bytes: u64,
        huge_flags: u32,
        small_bytes: u64,
        small_flags: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        both_or_neither(dependency_count as usize, dependencies)?;
        let process = entry(process)?;
        for flags in [huge_flags, small_flags] {
            let known = flags & !(CACHE_MODES | CACHE_ACTIONS) == 0;
            let one_of_each = (flags & CACHE_MODES).count_ones() <= 1
                && (flags & CACHE_ACTIONS).count_ones() <= 1;
            require(known && one_of_each, code::NOT_SUPPORTED)?;
        }
        require(process.process.is_alive(), code::PROCESS_DIED)?;
        // SAFETY: `both_or_neither` was asked above, and COI's header has the program pass as many
        // events as it says, which are copied within this call.
        let after = unsafe { self::dependencies(dependency_count, dependencies) };
        let pools = [(huge_bytes, huge_flags, true), (small_bytes, small_flags, false)];
        // The sizes are what is to be, from now on; that they are is what may take its time.
        let set = move |now: bool| {
            pools.iter().try_for_each(|(bytes, flags, huge)| {
                let now = now && flags & CACHE_GROW_NOW != 0;
                process.process.keep_buffer_space(*bytes, *huge, now)
            })
        };
        set(false)?;
        let event = after_all(after, Completion::of(completion_out), move || set(true))?;
        // SAFETY: COI's header has the program pass null, COI_EVENT_SYNC, COI_EVENT_ASYNC or a place for an event,
        // which `Completion` tells apart; it is written before this returns.
        unsafe { Completion::of(completion_out).deliver(Ok(event)) }
    }

    fn COIProcessConfigureDMA(channels: u64, mode: u32) {
        require(channels <= DMA_CHANNELS_MAX && mode <= DMA_ROUND_ROBIN, code::NOT_SUPPORTED)?;
        let fits = match mode {
            DMA_SINGLE => channels <= 1,
            _ => channels >= 2,
        };
        // A card's transfers are spread over its channels as they come.
        require(fits, code::ARGUMENT_MISMATCH)
    }
}

/// COI_CACHE_MODE_NOCHANGE, COI_CACHE_MODE_ONDEMAND_SYNC.
const CACHE_MODES: u32 = 0x3;
/// COI_CACHE_ACTION_NONE, COI_CACHE_ACTION_GROW_NOW.
const CACHE_ACTIONS: u32 = 0x3_0000;
const CACHE_GROW_NOW: u32 = 0x2_0000;
const DMA_CHANNELS_MAX: u64 = 4;
const DMA_SINGLE: u32 = 0;
const DMA_ROUND_ROBIN: u32 = 2;

/// An event of something that is done when all of these are signalled, and that fails if it does; it is
/// waited for, if that is wanted.
fn after_all(
    after: Vec<Event>,
    completion: Completion,
    work: impl FnOnce() -> Result<(), CoiError> + Send + 'static,
) -> Done<Event> {
    let event = ops::register_user_event(0);
    let wait = move || {
        let ready = match after.is_empty() {
            true => Ok(Vec::new()),
            false => ops::wait(&after, true, None),
        };
        let done = ready.and_then(|_| work());
        match &done {
            Ok(()) => ops::signal(event)?,
            Err(error) => ops::fail(event, error.clone())?,
        }
        done
    };
    match completion {
        Completion::Wait => wait()?,
        Completion::Forget | Completion::At(_) => {
            std::thread::spawn(wait);
        }
    }
    Ok(event)
}

/// A program's file.
fn program_file(path: &Path) -> Done<Vec<u8>> {
    let about =
        |error: std::io::Error, code| Failure::new(code, format!("{}: {error}", path.display()));
    let metadata = fs::metadata(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => about(error, code::DOES_NOT_EXIST),
        Some(libc::EACCES | libc::ENAMETOOLONG) => about(error, code::INVALID_FILE),
        _ => about(error, code::ERROR),
    })?;
    require(metadata.is_file() && metadata.len() > 0, code::INVALID_FILE)?;
    environment::read(path)
}

/// That a file of origin has what is said to be from there; its path.
pub fn origin(file: Option<&str>, offset: u64, bytes: u64) -> Done<Option<PathBuf>> {
    let Some(file) = file else {
        return Ok(None);
    };
    let metadata = fs::metadata(file)
        .map_err(|error| Failure::new(code::DOES_NOT_EXIST, format!("{file}: {error}")))?;
    if offset != FAT_BINARY {
        require(metadata.is_file() && metadata.len() > 0, code::INVALID_FILE)?;
        let end = offset.checked_add(bytes).ok_or(code::OUT_OF_RANGE)?;
        require(end <= metadata.len(), code::OUT_OF_RANGE)?;
    }
    // A terminal or the like says nothing of where libraries are.
    let odd = metadata.file_type().is_char_device() || metadata.file_type().is_fifo();
    Ok((!odd).then(|| PathBuf::from(file)))
}

/// The arguments of COIProcessCreateFromMemory.
struct Create {
    engine: Handle,
    name: Option<String>,
    binary: Option<Vec<u8>>,
    arguments: (i32, Texts),
    environment: (u8, Environment),
    proxy: u8,
    buffer_bytes: u64,
    search_path: Text,
    origin: Option<String>,
    origin_offset: u64,
    process_out: *mut Handle,
}

impl Create {
    /// # Safety
    /// Names are null or strings; the arrays are null or as long as is said, of strings; the
    /// environment's ends with a null pointer; `process_out` is null or a place for a handle. All
    /// stay during the call.
    unsafe fn run(self) -> Done {
        let card = engine(self.engine)?;
        let (Some(name), Some(binary), false) =
            (self.name, self.binary, self.process_out.is_null())
        else {
            return Err(code::INVALID_POINTER.into());
        };
        // SAFETY: the caller says that `process_out` is null or a place for a handle, which `give`
        // writes and does not read.
        unsafe { give(self.process_out, Handle::NULL) };
        require(name.len() < FILE_NAME_MAX, code::OUT_OF_RANGE)?;
        let count = usize::try_from(self.arguments.0).map_err(|_| code::OUT_OF_RANGE)?;
        require(!binary.is_empty(), code::OUT_OF_RANGE)?;
        both_or_neither(count, self.arguments.1.0)?;
        let astray = self.origin_offset > 0 && self.origin.is_none();
        require(!astray, code::ARGUMENT_MISMATCH)?;
        let affinity = Affinity::enter()?;
        elf::program(&binary)?;
        let bytes = binary.len() as u64;
        let origin = origin(self.origin.as_deref(), self.origin_offset, bytes)?;
        // SAFETY: the caller says that there are `count` arguments, or null, for which `array`
        // gives none; they stay during the call.
        let arguments = unsafe { array(self.arguments.1.0, count) }
            .iter()
            // SAFETY: the caller says that each is a string; it is copied within this call, and
            // null is refused.
            .map(|argument| unsafe { text(*argument) }.ok_or(code::INVALID_POINTER.into()))
            .collect::<Done<Vec<String>>>()?;
        // SAFETY: the caller says that the environment ends with a null pointer, and that the path
        // is null or a string; both are copied within this call.
        let (env, library_path) = unsafe {
            (
                environment::of_process(self.environment.0 != 0, self.environment.1),
                text(self.search_path),
            )
        };
        let options = ProcessOptions {
            name: name.rsplit('/').next().unwrap_or(&name).to_owned(),
            binary,
            origin,
            arguments,
            env,
            proxy: (self.proxy != 0).then(process::to_own_output),
            crash: Some(Arc::new(|name, error| {
                trace::tell(&format!("{name}: {error}"))
            })),
            library_path,
            preload: environment::preload()?,
            libraries: registered(),
            initial_buffer_space: self.buffer_bytes,
            own_libraries: None,
        };
        if environment::trace_libraries() {
            for path in process::dependencies(&options)? {
                println!("\t{}", path.display());
            }
            let why = "SINK_LD_TRACE_LOADED_OBJECTS is set";
            return Err(Failure::new(code::NOT_INITIALIZED, why));
        }
        fork::watch();
        snaprig_snapify::plugin::register();
        let process = Process::create_with(&card, options)?;
        drop(affinity);
        let snapshots = Snapshots::new(&process);
        let controlled = snapshots.controlled.clone();
        let handle = PROCESSES.insert(Arc::new(Entry {
            process,
            snapshots,
            functions: Mutex::default(),
            callbacks: Mutex::default(),
            destroyed: AtomicBool::new(false),
        }));
        // SAFETY: the caller says that `process_out` is null or a place for a handle, which `give`
        // writes and does not read.
        unsafe { give(self.process_out, handle) };
        control::offer(&controlled);
        Ok(())
    }
}
