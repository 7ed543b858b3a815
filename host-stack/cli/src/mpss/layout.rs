//! A directory that looks to projects as an installation of MPSS does.
//!
//! ```text
//!   DIR/include/intel-coi, scif.h, ...      DIR/bin/icc, x86_64-k1om-linux-gcc, ...   links to this program
//!   DIR/lib64/libscif.so.0, ...             DIR/lib64/pkgconfig/scif.pc, ...
//!   DIR/lib -> lib64, DIR/sbin -> bin       DIR/environment-setup-k1om-mpss-linux     for a shell to read
//! ```

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use snaprig_rig::sdk;
use snaprig_sdk::{Contents, Tree};

use super::names;
use crate::{AnyError, programs::exports};

/// Of which program the files are. Who has it is a directory of ours.
const ID: &str = "ID";

/// A library, as pkg-config knows it.
struct Package {
    name: &'static str,
    description: &'static str,
    requires: &'static str,
    libraries: &'static str,
}

const PACKAGES: [Package; 5] = [
    Package {
        name: "scif",
        description: "Symmetric Communications Interface, on the host and on cards",
        requires: "",
        libraries: "-lscif",
    },
    Package {
        name: "coi_host",
        description: "Coprocessor Offload Infrastructure, for programs of the host",
        requires: "",
        libraries: "-lcoi_host -lpthread",
    },
    Package {
        name: "coi_device",
        description: "Coprocessor Offload Infrastructure, for sinks",
        requires: "",
        libraries: "-rdynamic -lcoi_device -lpthread",
    },
    Package {
        name: "snapify",
        description: "Snapshots of offload processes",
        requires: "coi_host",
        libraries: "-lsnapify",
    },
    Package {
        name: "micmgmt",
        description: "What cards are made of, and in what state they are",
        requires: "",
        libraries: "-lmicmgmt",
    },
];

impl Package {
    /// Where it is follows from where this file is, so that the directory can be moved.
    fn text(&self) -> String {
        let Self {
            name,
            description,
            requires,
            libraries,
        } = self;
        format!(
            "prefix=${{pcfiledir}}/../..\nlibdir=${{prefix}}/lib64\nincludedir=${{prefix}}/include\n\n\
             Name: {name}\nDescription: {description}\nVersion: {}\nRequires: {requires}\n\
             Cflags: -I${{includedir}} -I${{includedir}}/intel-coi\nLibs: -L${{libdir}} {libraries}\n",
            env!("CARGO_PKG_VERSION")
        )
    }
}

/// Puts it there, with libraries that have these bytes and tools that this program is.
pub fn put(directory: &Path, libraries: Vec<Contents>) -> Result<PathBuf, AnyError> {
    let directory = std::path::absolute(directory)?;
    require_ours(&directory)?;
    let mut tree = sdk::tree_with("lib64", libraries);
    for package in &PACKAGES {
        let path = format!("lib64/pkgconfig/{}.pc", package.name);
        tree.add(path, text(package.text()));
    }
    let program = std::env::current_exe()?;
    for name in names() {
        let path = Path::new("bin").join(name);
        tree.add(path, Contents::Link(program.clone()));
    }
    for (link, to) in [("lib", "lib64"), ("sbin", "bin")] {
        tree.add(link, Contents::Link(to.into()));
    }
    tree.add(
        "environment-setup-k1om-mpss-linux",
        text(environment(&directory)),
    );
    // What is half there is ours as well.
    let mut id = Tree::default();
    id.add(ID, text(tree.id()));
    id.put(&directory)?;
    tree.put(&directory)?;
    Ok(directory)
}

fn text(text: String) -> Contents {
    Contents::Text(text.into_bytes().into())
}

/// That nothing of others is overwritten there.
fn require_ours(directory: &Path) -> Result<(), AnyError> {
    let is_empty = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(format!("{}: {error}", directory.display()).into()),
    };
    if is_empty || directory.join(ID).is_file() {
        return Ok(());
    }
    let why = "has files of others; name a directory that is empty, or is not there";
    Err(format!("{}: it {why}", directory.display()).into())
}

/// What MPSS has a shell read to compile for cards.
fn environment(directory: &Path) -> String {
    let before = |variable: &str, below: &str| {
        let value = directory.join(below).into_os_string();
        let line = exports(&[("NEW", value)]);
        let line = line
            .trim_end()
            .replacen("export NEW=", &format!("export {variable}="), 1);
        format!("{line}${{{variable}:+:${variable}}}\n")
    };
    let mut script = before("PATH", "bin");
    script += &before("PKG_CONFIG_PATH", "lib64/pkgconfig");
    script += &before("CMAKE_PREFIX_PATH", "");
    for (variable, tool) in [
        ("CC", "gcc"),
        ("CXX", "g++"),
        ("CPP", "cpp"),
        ("LD", "ld"),
        ("AR", "ar"),
        ("NM", "nm"),
        ("RANLIB", "ranlib"),
        ("STRIP", "strip"),
        ("OBJCOPY", "objcopy"),
        ("OBJDUMP", "objdump"),
    ] {
        script += &format!("export {variable}=k1om-mpss-linux-{tool}\n");
    }
    script + "export CROSS_COMPILE=k1om-mpss-linux-\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_are_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("mpss");
        assert!(require_ours(&directory).is_ok());
        fs::create_dir(&directory).unwrap();
        assert!(require_ours(&directory).is_ok());
        fs::write(directory.join("icc"), "theirs").unwrap();
        let error = require_ours(&directory).unwrap_err().to_string();
        assert!(error.contains("files of others"), "{error}");
        fs::write(directory.join(ID), "").unwrap();
        assert!(require_ours(&directory).is_ok());
        let file = directory.join("icc");
        let error = require_ours(&file).unwrap_err().to_string();
        assert!(error.contains("icc: Not a directory"), "{error}");
    }

    #[test]
    fn the_environment_is_that_of_a_directory_of_any_name() {
        let script = environment(Path::new("/an/'odd' one"));
        assert!(
            script.starts_with("export PATH='/an/'\\''odd'\\'' one/bin'${PATH:+:$PATH}\n"),
            "{script}"
        );
    }
}
