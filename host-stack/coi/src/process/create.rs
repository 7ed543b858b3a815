//! Making an offload process: its program and its libraries go along in one window, which the daemon
//! reads.

use std::{
    io::Write,
    mem::take,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use snaprig_offload_wire::coi::{
    BINARY_BYTES_MAX, FromDaemon, LIBRARIES_MAX, Library, Program, ToDaemon,
};
use snaprig_scif::{
    checkpoint,
    client::{Endpoint, SharedMemory},
    node::PROT_READ,
};
use snaprig_wire::frame;

use super::{Inner, Links, Place, Process};
use crate::{
    CoiError, Engine,
    gate::Gate,
    libraries::{self, File, MemoryLibrary, Search},
    ops,
};

/// Stacks and heap of a process that has just begun.
const STACKS_BYTES: u64 = 4 << 20;

/// Takes what a process writes: 1 standard output, 2 standard error.
pub type ProxySink = Arc<dyn Fn(u8, &[u8]) + Send + Sync>;

/// Is told that a process ended by a signal that nobody asked for: its name, and what is known.
pub type CrashSink = Arc<dyn Fn(&str, &CoiError) + Send + Sync>;

/// The program that a process is made of, and how.
#[derive(Clone, Default)]
pub struct ProcessOptions {
    /// Name of the program's file, and its argument 0.
    pub name: String,
    /// Its bytes.
    pub binary: Vec<u8>,
    /// The file that they are of: `$ORIGIN` is its directory.
    pub origin: Option<PathBuf>,
    /// Arguments behind the first.
    pub arguments: Vec<String>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// Where its output goes; `None`: nowhere.
    pub proxy: Option<ProxySink>,
    /// Who is told if it crashes; `None`: only those who wait for it.
    pub crash: Option<CrashSink>,
    /// Directories of libraries, `:` between them; `None`: SINK_LD_LIBRARY_PATH of the host process.
    pub library_path: Option<String>,
    /// Libraries to load before all others (SINK_LD_PRELOAD).
    pub preload: Vec<PathBuf>,
    /// Libraries in memory.
    pub libraries: Vec<MemoryLibrary>,
    /// Bytes of memory for buffers that it has from the first: if there is no room, there is no process.
    pub initial_buffer_space: u64,
    /// Where `libcoi_device.so.0` and `libscif.so.0` are; `None`: SNAPRIG_LIBRARIES, or beside the
    /// program or library that this code is part of.
    pub own_libraries: Option<PathBuf>,
}

/// Writes to this process's own standard output and error.
pub fn to_own_output() -> ProxySink {
    Arc::new(|descriptor, bytes| {
        // A closed output of ours is the program's loss, as in a pipe.
        if descriptor == 2 {
            drop(std::io::stderr().write_all(bytes));
        } else {
            let mut out = std::io::stdout();
            drop(out.write_all(bytes).and_then(|()| out.flush()));
        }
    })
}

/// Where else a library for a card is looked for.
pub(super) fn search(
    library_path: Option<&str>,
    memory: &[MemoryLibrary],
    own: Option<&Path>,
) -> Search {
    let named = own.map(Path::to_owned).or_else(|| {
        let variable = std::env::var_os("SNAPRIG_LIBRARIES");
        variable.map(PathBuf::from)
    });
    Search {
        memory: memory.to_vec(),
        own: named.or_else(own_directory).into_iter().collect(),
        path: Search::directories(library_path),
    }
}

/// The directory of the program or library that this code is part of (dladdr(3)).
fn own_directory() -> Option<PathBuf> {
    // SAFETY: all zeros are a valid `Dl_info`, which dladdr fills in for an address of ours; the name
    // is a C string that lives as long as this code.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let address = own_directory as *const libc::c_void;
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        std::ffi::CStr::from_ptr(info.dli_fname)
    };
    let path = std::fs::canonicalize(path.to_str().ok()?).ok()?;
    path.parent().map(Path::to_owned)
}

/// What the daemon says of the process, past what the process says first itself.
fn first_words(control: &Endpoint, proxy: Option<&ProxySink>) -> Result<FromDaemon, CoiError> {
    loop {
        match control.receive_message()? {
            FromDaemon::Output(descriptor, bytes) => {
                if let Some(proxy) = proxy {
                    proxy(descriptor, &bytes);
                }
            }
            FromDaemon::Flush(number) => control.send_message(&ToDaemon::Flushed(number))?,
            message => return Ok(message),
        }
    }
}

/// Files that a process brings along, and what its program must be told to find them.
fn shipped(options: &ProcessOptions) -> Result<Vec<File>, CoiError> {
    let search = search(
        options.library_path.as_deref(),
        &options.libraries,
        options.own_libraries.as_deref(),
    );
    let origin = options.origin.as_deref().and_then(Path::parent);
    libraries::resolve(
        &options.name,
        &options.binary,
        origin,
        &options.preload,
        &search,
    )
}

/// The libraries that a process would bring along (SINK_LD_TRACE_LOADED_OBJECTS).
pub fn dependencies(options: &ProcessOptions) -> Result<Vec<PathBuf>, CoiError> {
    let files = shipped(options)?.into_iter();
    Ok(files.map(|file| file.path.into()).collect())
}

/// Files in a window of a connection, behind one another on whole pages.
pub(crate) struct Cargo {
    window: i64,
    bytes: u64,
    /// Where each file is.
    pub places: Vec<i64>,
}

impl Cargo {
    pub fn load(endpoint: &Endpoint, files: &[&[u8]]) -> Result<Self, CoiError> {
        let pages = |file: &&[u8]| file.len().max(1).next_multiple_of(4096);
        let bytes: usize = files.iter().map(pages).sum();
        let memory = SharedMemory::new(bytes).map_err(|_| CoiError::NoMemory("a program"))?;
        let window = endpoint.register(&memory, 0, memory.len(), None, PROT_READ)?;
        let mut at = 0;
        let places = files.iter().map(|file| {
            memory.write(at, file);
            let place = window + at as i64;
            at += pages(file);
            place
        });
        Ok(Self {
            places: places.collect(),
            window,
            bytes: memory.len() as u64,
        })
    }

    pub fn unload(self, endpoint: &Endpoint) {
        // A connection that is lost has no windows either, and says so when it is used.
        let _ = endpoint.unregister(self.window, self.bytes);
    }
}

/// A file as the daemon is told of it.
pub(crate) fn announce(file: &File, window: i64) -> Library {
    Library {
        path: file.path.clone(),
        bytes: file.bytes.len() as u64,
        window,
        hash: xxhash_rust::xxh3::xxh3_64(&file.bytes),
    }
}

/// Has the card's loader load these first.
fn with_preload(mut env: Vec<String>, preload: &[PathBuf]) -> Vec<String> {
    let names: Vec<_> = preload.iter().filter_map(|path| path.to_str()).collect();
    if !names.is_empty() {
        env.push(format!("LD_PRELOAD={}", names.join(":")));
    }
    env
}

/// An endpoint that nobody connects to: what ends it is the end of the rig.
pub(super) fn watch(engine: &Engine) -> Result<Endpoint, CoiError> {
    let watch = Endpoint::open(&engine.rig())?;
    watch.bind(0)?;
    watch.listen(1)?;
    Ok(watch)
}

/// Memory of a card that a process takes at least: its files are in the card's file system, and mapped.
fn footprint(options: &ProcessOptions, files: &[File]) -> u64 {
    let libraries: usize = files.iter().map(|file| file.bytes.len()).sum();
    2 * (options.binary.len() + libraries) as u64 + STACKS_BYTES
}

impl Process {
    /// Makes a process of a program in memory (COIProcessCreateFromMemory).
    pub fn create(
        engine: &Engine,
        name: &str,
        binary: Vec<u8>,
        arguments: Vec<String>,
        env: Vec<String>,
    ) -> Result<Self, CoiError> {
        let mut options = ProcessOptions {
            name: name.into(),
            binary,
            arguments,
            env,
            ..ProcessOptions::default()
        };
        // The card says what is wrong with a program that is none.
        match options.binary.starts_with(b"\x7fELF") {
            true => Self::create_with(engine, options),
            false => Self::make(engine, &mut options, &mut Vec::new()),
        }
    }

    /// Makes a process, with the libraries that its program needs (COIProcessCreateFromMemory).
    pub fn create_with(engine: &Engine, mut options: ProcessOptions) -> Result<Self, CoiError> {
        let space = options.initial_buffer_space;
        let mut files = shipped(&options)?;
        let mut gate = Gate::new(None, footprint(&options, &files));
        let process = loop {
            gate.open(engine, "an offload process")?;
            match Self::make(engine, &mut options, &mut files) {
                Err(error) if error.is_out_of_memory() && gate.is_open() => {}
                made => break made?,
            }
        };
        drop(gate);
        if let Err(error) = process.keep_buffer_space(space, false, true) {
            // Who is told that there is no process finds no memory taken by one; if the card is lost, so is the process.
            let _ = process.destroy(Duration::ZERO);
            return Err(error);
        }
        Ok(process)
    }

    /// Makes one without memory for buffers. What it is made of is the process's then; if there is none, the caller's still.
    fn make(
        engine: &Engine,
        options: &mut ProcessOptions,
        files: &mut Vec<File>,
    ) -> Result<Self, CoiError> {
        let _inside = checkpoint::enter();
        if options.binary.len() as u64 > BINARY_BYTES_MAX || files.len() > LIBRARIES_MAX {
            return Err(CoiError::Exhausted(format!(
                "a program has at most {BINARY_BYTES_MAX} bytes and {LIBRARIES_MAX} libraries"
            )));
        }
        let control = engine.connect_daemon()?;
        let first = std::iter::once(options.name.clone());
        let argv = first.chain(options.arguments.iter().cloned()).collect();
        let mut contents = vec![&options.binary[..]];
        contents.extend(files.iter().map(|file| &file.bytes[..]));
        let cargo = Cargo::load(&control, &contents)?;
        let windows = &cargo.places;
        let libraries = files.iter().zip(&windows[1..]);
        let program = ToDaemon::Create(Program {
            name: options.name.clone(),
            bytes: options.binary.len() as u64,
            window: windows[0],
            argv,
            // Where the libraries are the daemon tells the loader.
            env: with_preload(options.env.clone(), &options.preload)
                .into_iter()
                .chain(crate::quiesce::switch())
                .collect(),
            libraries: libraries
                .map(|(file, window)| announce(file, *window))
                .collect(),
            proxy: options.proxy.is_some(),
        });
        if frame::encode(&program).len() > frame::MESSAGE_MAX {
            return Err(CoiError::Exhausted(
                "the program's arguments and environment are too long".into(),
            ));
        }
        control.send_message(&program)?;
        let node = engine.node();
        let created = first_words(&control, options.proxy.as_ref());
        cargo.unload(&control);
        let (pid, port, path) = match created? {
            FromDaemon::Created { pid, port, path } => (pid, port, path),
            FromDaemon::Failed { errno, why } => {
                return Err(CoiError::Refused { node, errno, why });
            }
            _ => {
                return Err(CoiError::Protocol {
                    node,
                    what: "create",
                });
            }
        };
        let links = Links::open(engine, port, || Ok(control), &[])?;
        let watch = watch(engine)?;
        let engine = engine.clone();
        let place = Place {
            engine,
            pid,
            port,
            path,
        };
        let inner = Inner::new(place, links, take(options), take(files), watch);
        ops::add_process(&inner);
        inner.listen();
        inner.watch_the_rig();
        Ok(Self(inner))
    }
}
