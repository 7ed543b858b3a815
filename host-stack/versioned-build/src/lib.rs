//! For build scripts of libraries that stand in for public ones: the name and the versions by which programs ask for them.
//! What a library exports is defined with `snaprig-versioned`.
//!
//! ```no_run
//! use snaprig_versioned_build::Library;
//!
//! let library = Library::new("libanswer.so.0");
//! library.exports(&[("ANSWER_1.0", &["answer"])]);
//! library.stays_loaded();
//! ```

use std::{
    env,
    fmt::{Display, Write as _},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

/// A library that cargo builds (`crate-type = ["cdylib"]`).
#[derive(Debug)]
pub struct Library {
    out: PathBuf,
}

impl Library {
    /// With this name (SONAME).
    ///
    /// # Panics
    /// Outside of a build script.
    pub fn new(name: &str) -> Self {
        let library = Self {
            out: env::var_os("OUT_DIR").expect("cargo sets it").into(),
        };
        println!("cargo:rerun-if-changed=build.rs");
        // There is rustc's own version script beside ours, which lld takes and ld does not.
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
        library.link(format_args!("-soname,{name}"));
        library.identify();
        library
    }

    /// Gives its file a build id (ld(1), --build-id) that no other build in cargo's directory has, and tells build scripts of
    /// crates that depend on it: `DEP_..._BUILD_ID`, 16 hexadecimal digits. Cargo names `OUT_DIR` after the package's source,
    /// its version, features and profile.
    fn identify(&self) {
        let mut hasher = DefaultHasher::new();
        self.out.hash(&mut hasher);
        let id = hasher.finish();
        println!("cargo:build_id={id:016x}");
        self.link(format_args!("--build-id=0x{id:016x}"));
    }

    /// It is never unloaded: it has threads, or handlers of fork(2).
    pub fn stays_loaded(&self) {
        self.link("-z,nodelete");
    }

    /// An argument for the linker.
    pub fn link(&self, argument: impl Display) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }

    /// A file for the library's own source: `include!(concat!(env!("OUT_DIR"), "/NAME"))`.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.out.join(name);
        fs::write(&path, text).expect("cargo's directory can be written");
        path
    }

    /// A version script (ld(1), VERSION) that is a file already.
    pub fn version_script(&self, path: &Path) {
        println!("cargo:rerun-if-changed={}", path.display());
        self.link(format_args!("--version-script={}", path.display()));
    }

    /// What it exports, by version; each version builds on the one before. `exports.rs` has a line
    /// `export!(NAME, "NAME@@VERSION");` for each.
    pub fn exports(&self, versions: &[(&str, &[&str])]) {
        let (mut exports, mut script) = (String::new(), String::new());
        let mut before = "";
        for (version, names) in versions {
            let _ = write!(script, "{version} {{ ");
            if !names.is_empty() {
                let _ = write!(script, "global: ");
            }
            for name in *names {
                let _ = writeln!(exports, "export!({name}, \"{name}@@{version}\");");
                let _ = write!(script, "{name}; ");
            }
            let _ = writeln!(script, "}} {before};");
            before = version;
        }
        self.write("exports.rs", &exports);
        let script = self.write("versions.map", &script);
        self.link(format_args!("--version-script={}", script.display()));
    }
}
