//! Images of checkpointed processes. An input is short for an image, whose blocks are mostly zeroes: of
//! each block how many bytes follow (u16), and those.

use std::{fs, io::Write as _};

use snaprig_ckpt_image::{
    chain::{Chain, Place},
    image::{CHUNK_MAX, ImageError, PAGE, Piece, Reader, STATE_MAX},
};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::xxh3_64;

use crate::grammar;

const BLOCK: usize = PAGE as usize;
/// More blocks than this are left out.
const BLOCKS_MAX: usize = 64;

/// As they come, and with their checksums put right, which no mutation would.
pub fn ckpt_image(bytes: &[u8]) {
    let mut image = long(bytes);
    for _ in 0..2 {
        read(&image);
        chain(&image);
        seal(&mut image);
    }
}

/// The image that an input is short for.
fn long(mut bytes: &[u8]) -> Vec<u8> {
    let mut image = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        if image.len() == BLOCKS_MAX * BLOCK {
            break;
        }
        let len = usize::from(u16::from_le_bytes(*len))
            .min(BLOCK)
            .min(rest.len());
        let (block, later) = rest.split_at(len);
        image.extend_from_slice(block);
        image.resize(image.len().next_multiple_of(BLOCK), 0);
        bytes = later;
    }
    image
}

/// The input that is short for an image.
pub fn short(image: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in image.chunks(BLOCK) {
        let len = block
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |at| at + 1);
        bytes.extend_from_slice(&(len as u16).to_le_bytes());
        bytes.extend_from_slice(&block[..len]);
    }
    bytes
}

/// Reads an image to its end, or to what is wrong with it; whether it is whole.
pub fn read(image: &[u8]) -> bool {
    let Ok(mut reader) = Reader::new(image, "image") else {
        return false;
    };
    loop {
        match reader.next() {
            Err(error) => {
                assert!(error.to_string().contains("image"));
                return false;
            }
            Ok(None) => return true,
            Ok(Some(Piece::State(state))) => {
                assert!(state.bytes().len() <= STATE_MAX);
                let _ = state.decode::<(String, Vec<u64>)>();
            }
            Ok(Some(Piece::Pages { address, bytes, .. })) => {
                assert!((1..=CHUNK_MAX).contains(&bytes.len()));
                assert!((address | bytes.len() as u64).is_multiple_of(PAGE));
            }
            Ok(Some(Piece::Zeroes { address, bytes, .. } | Piece::Gone { address, bytes, .. })) => {
                assert!(bytes > 0 && address.checked_add(bytes).is_some());
                assert!((address | bytes).is_multiple_of(PAGE));
            }
        }
    }
}

/// The same in a file, alone in a chain: its parts are in order and can be read, or it is refused.
fn chain(image: &[u8]) {
    let mut file = NamedTempFile::with_prefix("snaprig-fuzz-").expect("a file");
    file.write_all(image).expect("it fits");
    let path = [file.path().to_owned()];
    if let Ok(chain) = Chain::open(&path) {
        let (mut last, mut loader) = ((0, 0), chain.loader());
        for part in chain.parts() {
            let run = part.run;
            assert!((run.space, run.address) >= last);
            last = (run.space, run.address + run.bytes);
            if part.place != Place::Zeroes {
                let _ = loader.load(&part, |_, _| -> Result<(), ImageError> { Ok(()) });
            }
        }
    }
    fs::remove_file(&path[0]).expect("it is there");
}

/// Puts the checksums of an image right. `image/mod.rs` draws batch and chunk.
pub fn seal(image: &mut [u8]) -> Option<()> {
    grammar::seal(image, BLOCK, |list, data| {
        let mut rest = data;
        for chunk in list.chunks_exact_mut(40) {
            let stored = u64::from_le_bytes(chunk[24..32].try_into().expect("8 bytes"));
            let Some((bytes, later)) = rest.split_at_checked(stored as usize) else {
                break;
            };
            if stored > 0 {
                chunk[32..].copy_from_slice(&xxh3_64(bytes).to_le_bytes());
            }
            rest = later;
        }
    })
}
