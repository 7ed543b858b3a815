//! For build scripts that embed what other packages of this workspace make: cargo makes no library or program of another package
//! before it compiles what would embed it, so that these start a cargo of their own. What that makes is as released, whatever
//! the build around it is.
//!
//! ```no_run
//! let answers = snaprig_nested_build::build("answers", &["--package", "snaprig-answers"], |_| ());
//! let library = answers.take("libsnaprig_answers.so");
//! println!("cargo:rustc-env=ANSWERS={}", library.display());
//! ```

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What was made.
#[derive(Debug)]
pub struct Built {
    /// Where cargo leaves it.
    release: PathBuf,
    /// Where it is ours alone.
    out: PathBuf,
}

/// Builds what `arguments` of `cargo build` choose. Its target directory is called `name`, and is one for all build scripts of
/// the build around it: clippy has other `OUT_DIR`s than rustc, for the same work.
///
/// # Panics
/// Outside of a build script; if it does not build.
pub fn build(name: &str, arguments: &[&str], configure: impl FnOnce(&mut Command)) -> Built {
    let out = PathBuf::from(variable("OUT_DIR"));
    // TARGET/PROFILE/build/PACKAGE-HASH/out
    let shared = out.ancestors().nth(3).expect("cargo's directory is deep");
    let target_dir = shared.join(name);
    let mut cargo = Command::new(variable("CARGO"));
    // The outer cargo's choices (clippy as compiler, flags, profile, target directory) are not ours.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let ours = name.starts_with("CARGO") || name.starts_with("RUSTC") || name == "RUSTFLAGS";
        if ours && !["CARGO_HOME", "CARGO_NET_OFFLINE"].contains(&name.as_str()) {
            cargo.env_remove(name);
        }
    }
    cargo
        .current_dir(workspace())
        // They are embedded with everything that is in them.
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .args(["build", "--release", "--target-dir"])
        .arg(&target_dir)
        // Flags and all that is of this target are not for build scripts.
        .args(["--target", &variable("TARGET")])
        .args(arguments);
    configure(&mut cargo);
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "{name}: does not build: see above");
    rerun_if_changed(&workspace().join("Cargo.lock"));
    Built {
        release: target_dir.join(variable("TARGET")).join("release"),
        out: out.join(name),
    }
}

impl Built {
    /// A file that was made, in `OUT_DIR`: no other build changes it there. The build script is run again when a source of it
    /// changes.
    ///
    /// # Panics
    /// If it was not made, or cannot be copied.
    pub fn take(&self, file: &str) -> PathBuf {
        let (made, own) = (self.release.join(file), self.out.join(file));
        fs::create_dir_all(&self.out).expect("cargo's directory can be written");
        fs::copy(&made, &own).unwrap_or_else(|error| panic!("{}: {error}", made.display()));
        for source in sources(&made.with_extension("d")) {
            rerun_if_changed(&source);
        }
        own
    }
}

/// Where the workspace is, of a package two directories below it.
///
/// # Panics
/// Outside of a build script.
pub fn workspace() -> PathBuf {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let workspace = package.ancestors().nth(2).expect("it is in the workspace");
    workspace.to_path_buf()
}

/// What a file was made of, as cargo says in `FILE.d`: "file: source source ...".
fn sources(file: &Path) -> Vec<PathBuf> {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let sources = text.split_once(": ").map_or("", |(_, sources)| sources);
    // A space within a name is written with a backslash.
    let sources = sources.replace("\\ ", "\0");
    let sources = sources.split_whitespace();
    sources
        .map(|source| source.replace('\0', " ").into())
        .collect()
}

fn rerun_if_changed(file: &Path) {
    println!("cargo:rerun-if-changed={}", file.display());
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name}: cargo sets it for build scripts"))
}
