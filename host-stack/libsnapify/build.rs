//! Gives the library the name and the version by which programs ask for it.

use snaprig_versioned_build::Library;

/// What it exports: table 1 of the Snapify paper, copies before a pause, how a call has ended, and the files of its section 6.
const VERSIONS: [(&str, &[&str]); 1] = [(
    "SNAPIFY_1.0",
    &[
        "snapify_copy",
        "snapify_pause",
        "snapify_capture",
        "snapify_wait",
        "snapify_resume",
        "snapify_restore",
        "snapify_result",
        "snapifyio_open",
        "snapifyio_finish",
    ],
)];

fn main() {
    let library = Library::new("libsnapify.so.0");
    library.exports(&VERSIONS);
}
