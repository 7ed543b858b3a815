//! Gives the library the name and the versions by which programs ask for it.

use std::{fs, path::Path};

use snaprig_versioned_build::Library;

/// What it offers to plugins of checkpoints (src/ffi/checkpoint).
const CHECKPOINT: [&str; 2] = ["snaprig_verbs_owned", "snaprig_verbs_restarted"];

/// Functions of libc that the library stands before.
const INTERPOSED: [&str; 15] = [
    "open", "open64", "openat", "openat64", "fopen", "fopen64", "stat", "stat64", "lstat",
    "lstat64", "access", "fstat", "fstat64", "write", "close",
];

fn main() {
    let library = Library::new("libibverbs.so.1");
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs-abi/libibverbs.map");
    let text = fs::read_to_string(&map).expect("the map is there");
    library.write("exports.rs", &exports(&text));
    // One map for the versions that symbols name themselves, and another for names of libc, which are the library's alone
    // (src/interpose) and have no version of their own: ld.so takes that for any.
    library.version_script(&map);
    let mut script = String::from("{ global: ");
    for name in INTERPOSED {
        library.link(format_args!("--defsym={name}=snaprig_{name}"));
        script += &format!("{name}; ");
    }
    for name in CHECKPOINT {
        script += &format!("{name}; ");
    }
    script += "};\n";
    let script = library.write("interposed.map", &script);
    library.link(format_args!("--version-script={}", script.display()));
    // The map also names what only libibverbs of old had.
    library.link("--undefined-version,--no-warnings");
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
