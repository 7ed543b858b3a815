//! Gives the library the name and the versions by which programs ask for it.

use std::{env, fs, path::Path};

/// Functions of libc that the library stands before.
const INTERPOSED: [&str; 15] = [
    "open", "open64", "openat", "openat64", "fopen", "fopen64", "stat", "stat64", "lstat",
    "lstat64", "access", "fstat", "fstat64", "write", "close",
];

fn main() {
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let write = |name, text| {
        let path = Path::new(&out).join(name);
        fs::write(&path, text).expect("cargo's directory can be written");
        path
    };
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs-abi/libibverbs.map");
    println!("cargo:rerun-if-changed={}", map.display());
    write(
        "exports.rs",
        exports(&fs::read_to_string(&map).expect("the map is there")),
    );
    link("-soname,libibverbs.so.1");
    // Beside rustc's own script, which lld takes and ld does not: the map for the versions that
    // symbols name themselves, and another for names of libc, which are the library's alone
    // (src/interpose) and have no version of their own: ld.so takes that for any.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    link(&format!("--version-script={}", map.display()));
    let mut script = String::from("{ global: ");
    for name in INTERPOSED {
        link(&format!("--defsym={name}=snaprig_{name}"));
        script += &format!("{name}; ");
    }
    script += "};\n";
    let script = write("interposed.map", script);
    link(&format!("--version-script={}", script.display()));
    // The map also names what only libibverbs of old had.
    link("--undefined-version,--no-warnings");
}

/// An argument for the linker.
fn link(argument: &str) {
    println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
}

/// `export!(NAME, "NAME@@NODE");` for each name of the map (src/ffi/exports.rs); without those of
/// libibverbs 1.0, whose structures were others.
fn exports(map: &str) -> String {
    let mut node = "";
    let mut lines = String::new();
    for line in map.lines() {
        if let Some(name) = line.strip_suffix(" {") {
            node = name;
        } else if let Some((name, rest)) = line.trim().split_once(';')
            && line.starts_with("\t\t")
        {
            let at = match (rest.contains("old"), node) {
                (false, _) => "@@",
                (true, "IBVERBS_1.0") => continue,
                (true, _) => "@",
            };
            lines += &format!("export!({name}, \"{name}{at}{node}\");\n");
        }
    }
    lines
}
