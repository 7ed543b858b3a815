//! Libraries that a process loads later (COIProcessLoadLibrary): they and what they need go along in
//! a window of the connection for RDMA.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use snaprig_offload_wire::coi::{Answer, Command, LIBRARIES, USUAL_DIRECTORIES};

use super::{
    Process,
    create::{Cargo, announce, search},
    lock,
};
use crate::{
    CoiError,
    libraries::{self, File, MemoryLibrary},
    machine::Region,
};

/// A library that a process has loaded, by the number that the process has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Library(pub u64);

/// A library to load.
#[derive(Clone, Debug, Default)]
pub struct LibraryOptions {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The name that it is to have, without its directories; `None`: its DT_SONAME.
    pub name: Option<String>,
    /// The file that it is of.
    pub origin: Option<PathBuf>,
    /// Directories for what it needs, `:` between them; `None`: SINK_LD_LIBRARY_PATH.
    pub library_path: Option<String>,
    /// Libraries in memory that it may need.
    pub libraries: Vec<MemoryLibrary>,
    /// dlopen(3)'s flags.
    pub flags: i32,
}

impl LibraryOptions {
    /// A library in a file, which is searched for as those that it needs are.
    pub fn from_file(file: &str, library_path: Option<String>) -> Result<Self, CoiError> {
        let found = search(library_path.as_deref(), &[], None).file(file);
        let path = found.ok_or_else(|| CoiError::DoesNotExist(format!("{file} is not there")))?;
        let unreadable = |error| CoiError::InvalidFile(format!("{}: {error}", path.display()));
        Ok(Self {
            bytes: std::fs::read(&path).map_err(unreadable)?,
            origin: Some(path),
            library_path,
            ..Self::default()
        })
    }
}

/// The name of the file alone: by that, the process's loader finds what a library needs.
fn base_name(name: &str) -> Result<String, CoiError> {
    let name_only = Path::new(name).file_name().and_then(|name| name.to_str());
    let nameless = || CoiError::Mismatch(format!("`{name}` is no name for a library"));
    name_only.map(str::to_owned).ok_or_else(nameless)
}

/// Puts a library where the process's loader looks: it reads LD_LIBRARY_PATH once, at its start.
fn make_found(file: &mut File) {
    let path = Path::new(&file.path);
    let is_usual = |parent: &Path| {
        USUAL_DIRECTORIES
            .iter()
            .any(|usual| parent == Path::new(usual))
    };
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
        && !is_usual(parent)
    {
        file.path = format!("{LIBRARIES}/{}", name.to_string_lossy());
    }
}

impl Process {
    /// Loads a library. One that is loaded already is [`CoiError::LibraryLoaded`], and so is another one of its
    /// name: the process's loader would take the first for it.
    pub fn load_library(&self, options: LibraryOptions) -> Result<Library, CoiError> {
        let soname = libraries::soname(&options.bytes);
        let name = options.name.clone().or(soname).ok_or_else(|| {
            CoiError::Mismatch("the library has no DT_SONAME and was given no name".into())
        });
        let name = name.and_then(|name| base_name(&name));
        let loaded = lock(&self.0.libraries)
            .iter()
            .find_map(|(number, other)| (Ok(other) == name.as_ref()).then_some(*number));
        if let Some(number) = loaded {
            return Err(CoiError::LibraryLoaded(number));
        }
        // That it is none at all is the better error.
        let what = name.clone().unwrap_or_else(|_| "the library".into());
        let search = search(options.library_path.as_deref(), &options.libraries, None);
        let origin = options.origin.as_deref().and_then(Path::parent);
        let mut files = libraries::resolve(&what, &options.bytes, origin, &[], &search)?;
        let name = name?;
        let same = |file: &File| Path::new(&file.path).file_name() == Some(name.as_ref());
        if options.name.is_some() && files.iter().any(same) {
            return Err(CoiError::Mismatch(format!(
                "{name} is what a library is called that it needs"
            )));
        }
        for file in &mut files {
            make_found(file);
        }
        files.push(File {
            path: format!("{LIBRARIES}/{name}"),
            bytes: Arc::new(options.bytes),
        });
        let _pass = self.0.enter(Region::Lifecycle)?;
        let contents: Vec<_> = files.iter().map(|file| &file.bytes[..]).collect();
        let dma = self.0.dma();
        let cargo = Cargo::load(&dma, &contents)?;
        let windows = files.iter().zip(&cargo.places);
        let command = Command::LoadLibrary {
            files: windows
                .map(|(file, window)| announce(file, *window))
                .collect(),
            flags: options.flags,
        };
        let answer = self.0.command(command);
        cargo.unload(&dma);
        let Answer::Library(number) = answer? else {
            return Err(self.0.protocol("load library"));
        };
        let mut brought = lock(&self.0.files);
        for file in files {
            brought.retain(|other| other.path != file.path);
            brought.push(file);
        }
        match lock(&self.0.libraries).insert(number, name) {
            None => Ok(Library(number)),
            Some(_) => Err(CoiError::LibraryLoaded(number)),
        }
    }

    /// Unloads a library.
    pub fn unload_library(&self, library: Library) -> Result<(), CoiError> {
        if lock(&self.0.libraries).remove(&library.0).is_none() {
            return Err(CoiError::InvalidHandle("no such library is loaded".into()));
        }
        let _pass = self.0.enter(Region::Lifecycle)?;
        let library = library.0;
        match self.0.command(Command::UnloadLibrary { library })? {
            Answer::Done => Ok(()),
            _ => Err(self.0.protocol("unload library")),
        }
    }
}
