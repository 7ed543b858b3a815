//! Builds the libraries that programs are given, for embedding: a cargo of their own, since cargo makes no library of another
//! package before it compiles what would embed it. They are built as released ones, whatever this build is.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Features, the packages that belong to them, and the files that cargo makes of those.
const LIBRARIES: [(&str, &str, &str); 4] = [
    ("VERBS", "snaprig-verbs", "libsnaprig_verbs"),
    ("CARDS", "snaprig-libscif", "libsnaprig_libscif"),
    ("CARDS", "snaprig-libcoi", "libsnaprig_libcoi"),
    (
        "CKPT",
        "snaprig-libckpt-plugin",
        "libsnaprig_libckpt_plugin",
    ),
];

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let workspace = manifest_dir
        .join("../..")
        .canonicalize()
        .expect("the workspace is there");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let wanted: Vec<_> = LIBRARIES
        .iter()
        .filter(|(feature, ..)| has(feature))
        .collect();
    let target_dir = out.join("libraries");
    if !wanted.is_empty() {
        let packages: Vec<&str> = wanted.iter().map(|(_, package, _)| *package).collect();
        build(&workspace, &target_dir, &packages);
    }
    let (mut table, mut sources) = (String::from("&[\n"), BTreeSet::new());
    for (_, _, stem) in wanted {
        let library = target_dir.join("release").join(stem).with_extension("so");
        table += &format!("    ({stem:?}, include_bytes!({library:?})),\n");
        sources.append(&mut dependencies(&library.with_extension("d")));
    }
    fs::write(out.join("libraries.rs"), table + "]\n").expect("cargo's directory can be written");
    sources.extend([workspace.join("Cargo.lock"), manifest_dir.join("build.rs")]);
    for source in sources {
        println!("cargo:rerun-if-changed={}", source.display());
    }
}

fn build(workspace: &Path, target_dir: &Path, packages: &[&str]) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    // The outer cargo's choices (clippy as compiler, flags, profile, target directory) are not ours.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let ours = name.starts_with("CARGO") || name.starts_with("RUSTC") || name == "RUSTFLAGS";
        if ours && !["CARGO_HOME", "CARGO_NET_OFFLINE"].contains(&name.as_str()) {
            cargo.env_remove(name);
        }
    }
    cargo
        .current_dir(workspace)
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .args(["build", "--release", "--lib", "--target-dir"])
        .arg(target_dir);
    for package in packages {
        cargo.args(["--package", package]);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(
        status.success(),
        "the libraries for programs do not build: see above"
    );
}

/// The sources that a file was made of, as cargo says in `FILE.d`: "file: source source ...".
fn dependencies(file: &Path) -> BTreeSet<PathBuf> {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let sources = text.split_once(": ").map_or("", |(_, sources)| sources);
    // A space within a name is written with a backslash.
    let sources = sources.replace("\\ ", "\0");
    sources
        .split_whitespace()
        .map(|source| source.replace('\0', " ").into())
        .collect()
}
