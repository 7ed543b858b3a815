//! What a dynamic program needs beside itself, as files for a card's image.

use std::path::PathBuf;

use crate::files::CardFiles;

/// The interpreters and libraries that `programs` need, each once, under the paths that they have on
/// the host ([`snaprig_coi::libraries::needed`]).
pub fn needed(programs: &[PathBuf]) -> Vec<CardFiles> {
    let files = snaprig_coi::libraries::needed(programs).into_iter();
    let same_path = files.filter_map(|host| {
        let card = host.to_str()?.to_owned();
        Some(CardFiles { host, card })
    });
    same_path.collect()
}
