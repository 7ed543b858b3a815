//! What programs of the offload stack are compiled with and run with: headers, and the libraries under
//! the names that programs ask for. Where they are: [`snaprig_sdk`].

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
};

use snaprig_sdk::{Contents, Library, Tree, root};

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
const SNAPIFY: [(&str, &str); 2] =
    headers!("host-stack/libsnapify/include/": "snapify.h", "snapifyio.h");
const MICMGMT: [(&str, &str); 1] = headers!("host-stack/libmicmgmt/include/": "miclib.h");
const PLUGINS: [(&str, &str); 1] =
    headers!("host-stack/libckpt-plugin/include/": "snaprig_ckpt_plugin.h");
/// Some programs say `intel-coi/source/...` where others say `source/...`.
const PREFIX: &str = "intel-coi";

/// Libraries for programs of the host and of cards.
pub const LIBRARIES: [Library; 5] = [
    SCIF_LIBRARY,
    Library {
        name: "libcoi_host.so.0",
        stem: "libsnaprig_libcoi",
        package: "snaprig-libcoi",
    },
    Library {
        name: "libsnapify.so.0",
        stem: "libsnaprig_libsnapify",
        package: "snaprig-libsnapify",
    },
    Library {
        name: "libmicmgmt.so.0",
        stem: "libsnaprig_libmicmgmt",
        package: "snaprig-libmicmgmt",
    },
    Library {
        name: "libsnaprig_ckpt_plugin.so.0",
        stem: "libsnaprig_libckpt_plugin",
        package: "snaprig-libckpt-plugin",
    },
];
/// The one of SCIF.
pub const SCIF_LIBRARY: Library = Library {
    name: "libscif.so.0",
    stem: "libsnaprig_libscif",
    package: "snaprig-libscif",
};
/// What names the directory of the libraries in the environment.
pub const LIBRARIES_ENV: &str = "SNAPRIG_LIBRARIES";

/// What of a root of files for programs is for programs of the offload stack, and for plugins. One library for each of
/// [`LIBRARIES`].
pub fn tree(libraries: impl IntoIterator<Item = Contents>) -> Tree {
    tree_with("lib", libraries)
}

/// The same, with another name for the directory of libraries.
pub fn tree_with(lib: &str, libraries: impl IntoIterator<Item = Contents>) -> Tree {
    let mut tree = Tree::default();
    let own = SCIF.iter().chain(&SNAPIFY).chain(&MICMGMT).chain(&PLUGINS);
    for (name, text) in COMMON.iter().chain(&SOURCE).chain(own) {
        tree.add(
            Path::new("include").join(name),
            Contents::Text(text.as_bytes().into()),
        );
    }
    tree.add(
        Path::new("include").join(PREFIX),
        Contents::Link(".".into()),
    );
    tree.add_linkable(
        lib,
        guest::COI_DEVICE_NAME,
        Contents::Library(guest::COI_DEVICE),
    );
    for (library, contents) in LIBRARIES.iter().zip(libraries) {
        tree.add_linkable(lib, library.name, contents);
    }
    tree
}

/// The directories.
#[derive(Clone, Debug)]
pub struct Sdk {
    include: PathBuf,
    lib: PathBuf,
}

impl Sdk {
    /// Of a `snaprig` program: makes what is not there.
    pub fn of(program: &Path) -> io::Result<Self> {
        let program = program.canonicalize()?;
        let root = root::of(&program, &LIBRARIES, tree)?;
        Ok(Self {
            include: root.join("include"),
            lib: root.join("lib"),
        })
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
        self.library_path_before(env::var_os("LD_LIBRARY_PATH").as_deref())
    }

    /// Our libraries before those of this path.
    pub fn library_path_before(&self, users: Option<&OsStr>) -> io::Result<OsString> {
        let users = users.filter(|path| !path.is_empty());
        let users = users.into_iter().flat_map(env::split_paths);
        let users = users.filter(|path| *path != self.lib);
        env::join_paths(std::iter::once(self.lib.clone()).chain(users)).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A directory with what cargo would have left beside a program.
    fn scene() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("snaprig");
        fs::write(&program, "").unwrap();
        fs::create_dir(directory.path().join("deps")).unwrap();
        for library in LIBRARIES {
            let file = directory.path().join("deps").join(library.stem);
            fs::write(file.with_extension("so"), library.stem).unwrap();
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
                "snapify.h",
                "miclib.h",
                "snapifyio.h",
                "snaprig_ckpt_plugin.h",
            ] {
                assert!(sdk.include().join(header).is_file(), "{header}");
            }
            for library in LIBRARIES {
                let file = sdk.lib().join(library.name);
                assert_eq!(fs::read_to_string(file).unwrap(), library.stem);
            }
            for name in [
                "libscif.so",
                "libcoi_host.so",
                "libcoi_device.so",
                "libsnapify.so",
            ] {
                assert!(sdk.lib().join(name).is_file(), "{name}");
            }
        }
    }

    #[test]
    fn a_library_that_was_not_built_is_named_with_what_makes_it() {
        let (directory, program) = scene();
        fs::remove_file(directory.path().join("deps/libsnaprig_libcoi.so")).unwrap();
        let error = Sdk::of(&program).unwrap_err().to_string();
        assert!(
            error.contains("libsnaprig_libcoi.so")
                && error.contains("cargo build -p snaprig-libcoi"),
            "{error}"
        );
    }
}
