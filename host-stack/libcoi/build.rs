//! Gives the library the name and the versions by which programs ask for it.

use snaprig_versioned_build::Library;

/// The versions of COI, and what libsnapify.so.0 calls. Symbols say themselves of which they are (`src/exports.rs`).
const VERSIONS: [(&str, &[&str]); 3] =
    [("COI_1.0", &[]), ("COI_2.0", &[]), ("SNAPRIG_PRIVATE", &[])];

fn main() {
    let library = Library::new("libcoi_host.so.0");
    library.exports(&VERSIONS);
    library.stays_loaded();
    library.link("--no-warnings");
}
