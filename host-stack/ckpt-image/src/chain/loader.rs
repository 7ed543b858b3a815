//! Reads the pages that a chain has; several can at a time.

use super::{Chain, Part, Place};
use crate::image::{CHUNK_MAX, ImageError, PAGE};

/// Bytes that are read, verified and handed on at a time: what a processor's cache holds.
const PIECE: usize = 256 << 10;

/// Reads parts of a chain, one after the other.
pub struct Loader<'a> {
    chain: &'a Chain,
    /// Image and chunk whose pages these are, if it was read whole: its other parts are wanted next.
    loaded: Option<(usize, usize)>,
    /// Room for a chunk, from the first page in it on.
    pages: Vec<u8>,
    scratch: Vec<u8>,
}

impl Chain {
    /// A reader of its pages.
    pub fn loader(&self) -> Loader<'_> {
        Loader {
            chain: self,
            loaded: None,
            pages: vec![0; CHUNK_MAX + PAGE as usize],
            scratch: Vec::new(),
        }
    }
}

impl Loader<'_> {
    /// Calls `each` with the pages of a part and with where in it they are, piece by piece. Whether they are what was
    /// written is known only when it returns.
    pub fn load<E: From<ImageError>>(
        &mut self,
        part: &Part,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Place::Stored { image, chunk, skip } = part.place else {
            return zeroes(part.run.bytes, each);
        };
        let (scanner, stored) = {
            let image = &self.chain.images[image];
            (&image.scanner, &image.chunks[chunk])
        };
        let first = self.pages.as_ptr().align_offset(PAGE as usize);
        let pages = &mut self.pages[first..][..CHUNK_MAX];
        if stored.run.bytes == part.run.bytes && !stored.zstd {
            self.loaded = None;
            return scanner.stream(stored, (pages, PIECE), each);
        }
        let pages = &mut pages[..stored.run.bytes as usize];
        if self.loaded != Some((image, chunk)) {
            self.loaded = None;
            scanner.load(stored, pages, &mut self.scratch)?;
            self.loaded = Some((image, chunk));
        }
        each(0, &pages[skip as usize..][..part.run.bytes as usize])
    }
}

fn zeroes<E>(bytes: u64, mut each: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
    let zeroes = [0; 4096];
    (0..bytes)
        .step_by(zeroes.len())
        .try_for_each(|at| each(at, &zeroes))
}
