//! Gives the library the name and the versions by which programs ask for it.

fn main() {
    let map = format!("{}/../verbs-abi/libibverbs.map", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Beside rustc's own script, which lld takes and ld does not.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
    // Names in both scripts keep no version of their own, which ld.so takes for any.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--undefined-version,--no-warnings");
}
