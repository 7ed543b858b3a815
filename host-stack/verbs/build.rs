//! Gives the library the name and the versions by which programs ask for it.

/// Functions of libc that the library stands before.
const INTERPOSED: [&str; 10] = [
    "open", "open64", "openat", "openat64", "fopen", "fopen64", "fstat", "fstat64", "write",
    "close",
];

fn main() {
    let map = format!("{}/../verbs-abi/libibverbs.map", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Beside rustc's own script, which lld takes and ld does not.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
    // Names of libc, for the library alone (src/interpose).
    let mut script = String::from("{ global: ");
    for name in INTERPOSED {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=snaprig_{name}");
        script += &format!("{name}; ");
    }
    script += "};\n";
    let path = format!(
        "{}/interposed.map",
        std::env::var("OUT_DIR").expect("cargo sets it")
    );
    std::fs::write(&path, script).expect("cargo's directory can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={path}");
    // Names in both scripts keep no version of their own, which ld.so takes for any.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--undefined-version,--no-warnings");
}
