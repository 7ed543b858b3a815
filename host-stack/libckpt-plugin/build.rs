//! Gives the library the name and the version by which programs ask for it.

use snaprig_versioned_build::Library;

/// What it exports, by version; each builds on the one before.
const VERSIONS: [(&str, &[&str]); 2] = [
    (
        "SNAPRIG_CKPT_1.0",
        &[
            "snaprig_ckpt_register",
            "snaprig_ckpt_unregister",
            "snaprig_ckpt_is_supervised",
            "snaprig_ckpt_own_descriptor",
            "snaprig_ckpt_own_region",
            "snaprig_ckpt_directory",
            "snaprig_ckpt_variable",
            "snaprig_ckpt_refuse",
        ],
    ),
    (
        "SNAPRIG_CKPT_1.1",
        &[
            "snaprig_ckpt_participants",
            "snaprig_ckpt_publish",
            "snaprig_ckpt_lookup",
            "snaprig_ckpt_collect",
            "snaprig_ckpt_barrier",
        ],
    ),
];

fn main() {
    let library = Library::new("libsnaprig_ckpt_plugin.so.0");
    library.exports(&VERSIONS);
    library.stays_loaded();
}
