//! What programs of the offload stack are compiled with and run with: headers, and the libraries under
//! the names that programs ask for.
//!
//! ```text
//!   snaprig-sdk/include/{common,sink,source}/*.h, intel-coi -> ., scif.h, snaprig_ckpt_plugin.h
//!   snaprig-sdk/lib/lib{scif,coi_host,coi_device,snaprig_ckpt_plugin}.so.0, and .so beside each
//! ```
//!
//! The directory is beside the `snaprig` program, or in the user's cache if nothing can be written
//! there. Headers and libcoi_device are inside the program; the other libraries are where cargo or an
//! installation left them. What must stay true: a file has its name only when it is whole, so that any
//! number of us may be making the directory at once.

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use crate::guest;

/// Names of the headers, and what is in them.
macro_rules! headers {
    ($root:literal: $($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../", $root, $name)))),*]
    };
}

const COMMON: [(&str, &str); 10] = headers!("guest-agent/include/":
    "common/COIEngine_common.h",
    "common/COIEvent_common.h",
    "common/COIMacros_common.h",
    "common/COIPerf_common.h",
    "common/COIResult_common.h",
    "common/COISysInfo_common.h",
    "common/COITypes_common.h",
    "sink/COIBuffer_sink.h",
    "sink/COIPipeline_sink.h",
    "sink/COIProcess_sink.h",
);
const SOURCE: [(&str, &str); 5] = headers!("host-stack/libcoi/include/":
    "source/COIBuffer_source.h",
    "source/COIEngine_source.h",
    "source/COIEvent_source.h",
    "source/COIPipeline_source.h",
    "source/COIProcess_source.h",
);
const SCIF: [(&str, &str); 1] = headers!("host-stack/libscif/include/": "scif.h");
const PLUGINS: [(&str, &str); 1] =
    headers!("host-stack/libckpt-plugin/include/": "snaprig_ckpt_plugin.h");
/// Some programs say `intel-coi/source/...` where others say `source/...`.
const PREFIX: &str = "intel-coi";

/// Libraries for programs of the host and of cards, the files that cargo makes of them, and the
/// packages that those are of.
pub const LIBRARIES: [(&str, &str, &str); 3] = [
    ("libscif.so.0", "libsnaprig_libscif.so", "snaprig-libscif"),
    ("libcoi_host.so.0", "libsnaprig_libcoi.so", "snaprig-libcoi"),
    (
        "libsnaprig_ckpt_plugin.so.0",
        "libsnaprig_libckpt_plugin.so",
        "snaprig-libckpt-plugin",
    ),
];
/// What names the directory of the libraries in the environment.
pub const LIBRARIES_ENV: &str = "SNAPRIG_LIBRARIES";

/// The directories.
#[derive(Clone, Debug)]
pub struct Sdk {
    include: PathBuf,
    lib: PathBuf,
}

impl Sdk {
    /// Makes what belongs to a `snaprig` program, as far as it is not there.
    pub fn of(program: &Path) -> io::Result<Self> {
        let program = program.canonicalize()?;
        let beside = program.with_file_name("snaprig-sdk");
        let root = match fs::create_dir_all(&beside).and_then(|()| is_writable(&beside)) {
            Ok(()) => beside,
            Err(_) => in_the_cache()?,
        };
        Self::make(&root, &program)
    }

    fn make(root: &Path, program: &Path) -> io::Result<Self> {
        let include = root.join("include");
        let lib = root.join("lib");
        for (name, text) in COMMON.iter().chain(&SOURCE).chain(&SCIF).chain(&PLUGINS) {
            let path = include.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            put(&path, text.as_bytes(), 0o644)?;
        }
        link(&include.join(PREFIX), Path::new("."))?;
        fs::create_dir_all(&lib)?;
        put(&lib.join(guest::COI_DEVICE_NAME), guest::COI_DEVICE, 0o755)?;
        link_name(&lib, guest::COI_DEVICE_NAME)?;
        for (name, file, package) in LIBRARIES {
            link(&lib.join(name), &find(program, file, package)?)?;
            link_name(&lib, name)?;
        }
        Ok(Self { include, lib })
    }

    /// For `gcc -I`.
    pub fn include(&self) -> &Path {
        &self.include
    }

    /// For `gcc -L`, and for the loader.
    pub fn lib(&self) -> &Path {
        &self.lib
    }

    /// What a program has in its environment to use this rig.
    pub fn environment(&self, rig: &Path) -> io::Result<Vec<(&'static str, OsString)>> {
        Ok(vec![
            ("SNAPRIG_RIG", rig.into()),
            (LIBRARIES_ENV, self.lib.clone().into()),
            ("LD_LIBRARY_PATH", self.library_path()?),
        ])
    }

    /// Our libraries before the user's.
    pub fn library_path(&self) -> io::Result<OsString> {
        let users = env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty());
        let users = users.iter().flat_map(env::split_paths);
        let users = users.filter(|path| *path != self.lib);
        env::join_paths(std::iter::once(self.lib.clone()).chain(users)).map_err(io::Error::other)
    }
}

/// A library as cargo or an installation leaves it: among the dependencies, which is where the newest
/// is, beside the program, or in the directory of libraries beside that.
pub fn find(program: &Path, file: &str, package: &str) -> io::Result<PathBuf> {
    let near = program.parent().unwrap_or(Path::new("."));
    let places = ["deps", ".", "../lib"];
    let found = places.map(|place| near.join(place).join(file));
    let found = found.iter().find(|path| path.is_file());
    let found = found.ok_or_else(|| {
        let near = near.display();
        let why = format!("no {file} in {near}; `cargo build -p {package}` makes it");
        io::Error::new(io::ErrorKind::NotFound, why)
    })?;
    found.canonicalize()
}

/// Whether files can be made there.
fn is_writable(directory: &Path) -> io::Result<()> {
    tempfile::tempfile_in(directory).map(|_| ())
}

fn in_the_cache() -> io::Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home).ok_or_else(|| {
        let why = "nowhere to put headers and libraries: set XDG_CACHE_HOME";
        io::Error::new(io::ErrorKind::NotFound, why)
    })?;
    let root = cache.join(concat!("snaprig/sdk-", env!("CARGO_PKG_VERSION")));
    fs::create_dir_all(&root)?;
    Ok(root)
}

/// A file with these bytes.
fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    io::Write::write_all(&mut new, bytes)?;
    fs::set_permissions(new.path(), fs::Permissions::from_mode(mode))?;
    new.persist(path)?;
    Ok(())
}

/// A symbolic link to `to`.
fn link(path: &Path, to: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|there| there == to) {
        return Ok(());
    }
    // Made beside and renamed: another of us may be doing the same.
    let directory = path.parent().unwrap_or(Path::new("."));
    let beside = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(directory)?;
    let new = beside.path().join("link");
    symlink(to, &new)?;
    fs::rename(&new, path)
}

/// `libNAME.so`, which linkers look for, beside `libNAME.so.0`.
fn link_name(lib: &Path, name: &str) -> io::Result<()> {
    link(&lib.join(name.trim_end_matches(".0")), Path::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with what cargo would have left beside a program.
    fn scene() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("snaprig");
        fs::write(&program, "").unwrap();
        fs::create_dir(directory.path().join("deps")).unwrap();
        for (_, file, _) in LIBRARIES {
            fs::write(directory.path().join("deps").join(file), file).unwrap();
        }
        (directory, program)
    }

    #[test]
    fn headers_and_libraries_have_the_names_that_programs_ask_for() {
        let (_directory, program) = scene();
        for _ in 0..2 {
            let sdk = Sdk::of(&program).unwrap();
            for header in [
                "intel-coi/source/COIBuffer_source.h",
                "sink/COIPipeline_sink.h",
                "scif.h",
                "snaprig_ckpt_plugin.h",
            ] {
                assert!(sdk.include().join(header).is_file(), "{header}");
            }
            for (name, file, _) in LIBRARIES {
                assert_eq!(fs::read_to_string(sdk.lib().join(name)).unwrap(), file);
            }
            for name in ["libscif.so", "libcoi_host.so", "libcoi_device.so"] {
                assert!(sdk.lib().join(name).is_file(), "{name}");
            }
        }
    }

    #[test]
    fn a_library_that_was_not_built_is_named_with_what_makes_it() {
        let (directory, program) = scene();
        fs::remove_file(directory.path().join("deps").join(LIBRARIES[1].1)).unwrap();
        let error = Sdk::of(&program).unwrap_err().to_string();
        assert!(
            error.contains("libsnaprig_libcoi.so")
                && error.contains("cargo build -p snaprig-libcoi"),
            "{error}"
        );
    }
}
