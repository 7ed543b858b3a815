//! Writes an image to a sink, in buffers that the sink lends.
//!
//! ```text
//! Writer::start --> step --> step --> ... --(false)--> complete
//!                    |  fills one buffer with the next records, and gives it to the sink
//! ```
//! Whoever may be interrupted gives it an [`Outbox`](snaprig_image::transport::Outbox), and takes the next step when that
//! is empty.

use std::io;

use snaprig_card_memory::PAGE;
use snaprig_image::{ImageId, Pool, Sink};

use crate::stream::{Encoder, PAGES_AT, PAGES_MAX, TooLarge};

/// Bytes that are written at once, if there are so many.
const WRITE_MIN: usize = 256 << 10;
/// Bytes of a buffer: less than [`WRITE_MIN`], and then the longest record.
const BUFFER_BYTES: usize = (WRITE_MIN + PAGES_AT + PAGES_MAX).next_multiple_of(PAGE as usize);
/// Buffers that the sink may keep while the next one is filled.
const BUFFERS: usize = 2;

/// The pages of an image, in ascending order.
pub trait Pages {
    /// Why they cannot be had, or not be written.
    type Error: From<io::Error>;

    /// Address of the next page.
    fn next(&mut self) -> Result<Option<u64>, Self::Error>;

    /// Moves the page at `address` to `room`, if that is (still) the next one.
    fn take(&mut self, address: u64, room: &mut [u8]) -> Result<bool, Self::Error>;

    /// There are no more. The image that the one that is written says the same as, if there is one.
    fn end(&mut self) -> Result<Option<ImageId>, Self::Error> {
        Ok(None)
    }
}

/// An image on its way to a sink.
pub struct Writer<S> {
    sink: S,
    pool: Pool,
    encoder: Encoder,
    /// The beginning of the image, and how much of it has been written.
    start: Vec<u8>,
    start_at: usize,
    /// Once the image is complete.
    id: Option<ImageId>,
}

/// Why an image cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What is not memory does not fit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The sink has no buffers.
    #[error("no buffers for an image: {0}")]
    Memory(#[from] io::Error),
}

impl<S: Sink> Writer<S> {
    /// An image with what is not memory, on top of its parent, of whose pages these runs are no more.
    pub fn start(
        mut sink: S,
        process: &[u8],
        parent: Option<ImageId>,
        gone: &[(u64, u64)],
    ) -> Result<Self, StartError> {
        let (encoder, start) = Encoder::start(process, parent, gone)?;
        Ok(Self {
            pool: Pool::lent_by(&mut sink, BUFFERS, BUFFER_BYTES)?,
            sink,
            encoder,
            start,
            start_at: 0,
            id: None,
        })
    }

    /// Gives the sink a buffer with what comes next; false: the image is complete.
    pub fn step<P: Pages>(&mut self, pages: &mut P) -> Result<bool, P::Error> {
        if self.id.is_some() {
            return Ok(false);
        }
        let mut buffer = self.pool.take_of(&mut self.sink)?;
        let room = buffer.bytes_mut();
        let mut len = self.take_start(room);
        // What is left over fits the longest record.
        while len < WRITE_MIN && self.start_at == self.start.len() && self.id.is_none() {
            len += match pages.next()? {
                Some(address) => self.run(pages, address, &mut room[len..])?,
                None => self.end(pages.end()?, &mut room[len..]),
            };
        }
        self.sink.write(buffer.filled(0..len))?;
        if self.id.is_some() {
            self.sink.finish()?;
        }
        Ok(true)
    }

    /// Where the image goes.
    pub fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    /// The image's id, once it is complete.
    pub fn id(&self) -> Option<ImageId> {
        self.id
    }

    /// The sink again.
    pub fn into_sink(self) -> S {
        self.sink
    }

    fn take_start(&mut self, room: &mut [u8]) -> usize {
        let left = &self.start[self.start_at..];
        let now = left.len().min(room.len());
        room[..now].copy_from_slice(&left[..now]);
        self.start_at += now;
        now
    }

    /// Writes the pages from `address` on, as far as they are neighbours and one record takes them.
    fn run<P: Pages>(
        &mut self,
        pages: &mut P,
        address: u64,
        room: &mut [u8],
    ) -> Result<usize, P::Error> {
        let mut end = PAGES_AT;
        while end < PAGES_AT + PAGES_MAX {
            let next = end + PAGE as usize;
            // Page by page: an image that is small touches little memory.
            let at = address + (end - PAGES_AT) as u64;
            if !pages.take(at, &mut room[end..next])? {
                break;
            }
            end = next;
        }
        if end == PAGES_AT {
            // It was the next one, and is no more.
            return Ok(0);
        }
        self.encoder.pages(&mut room[..end], address);
        Ok(end)
    }

    fn end(&mut self, stands_for: Option<ImageId>, room: &mut [u8]) -> usize {
        let (end, id) = self.encoder.end(stands_for);
        room[..end.len()].copy_from_slice(&end);
        self.id = Some(id);
        end.len()
    }
}

#[cfg(test)]
mod tests {
    use snaprig_image::{
        Source,
        transport::{FileSink, Outbox},
    };

    use super::*;
    use crate::stream::{Decoder, Piece};

    /// Pages from an address on, each full of its number.
    struct Numbered {
        at: u64,
        end: u64,
    }

    impl Pages for Numbered {
        type Error = io::Error;

        fn next(&mut self) -> io::Result<Option<u64>> {
            Ok((self.at < self.end).then_some(self.at))
        }

        fn take(&mut self, address: u64, room: &mut [u8]) -> io::Result<bool> {
            if self.next()? != Some(address) {
                return Ok(false);
            }
            room.fill((address / PAGE) as u8);
            self.at += PAGE;
            Ok(true)
        }
    }

    /// How many pages an image has, whose pages say their number.
    fn count(mut image: &[u8]) -> u64 {
        let (mut decoder, mut pages) = (Decoder::default(), 0);
        while !decoder.is_complete() {
            let bytes = image.lend(decoder.wants()).unwrap();
            if let Some(Piece::Pages { address, bytes }) = decoder.take(bytes).unwrap() {
                for (page, bytes) in (address / PAGE..).zip(bytes.chunks(PAGE as usize)) {
                    assert!(bytes.iter().all(|byte| *byte == page as u8));
                    pages += 1;
                }
            }
        }
        assert!(image.is_empty());
        pages
    }

    #[test]
    fn an_image_is_the_same_whatever_it_goes_to() {
        // More than a buffer has room for, of what is not memory too.
        let process = vec![7; 3 * BUFFER_BYTES];
        let pages = 3 * PAGES_MAX as u64 / PAGE + 5;
        let numbered = || Numbered {
            at: 16 * PAGE,
            end: (16 + pages) * PAGE,
        };
        let write = |mut writer: Writer<Vec<u8>>| {
            let mut pages = numbered();
            while writer.step(&mut pages).unwrap() {}
            writer.into_sink()
        };
        let image = write(Writer::start(Vec::new(), &process, None, &[]).unwrap());
        assert_eq!(count(&image), pages);

        // A file that would be written past the page cache, if the image were of whole blocks.
        let path = std::env::temp_dir().join(format!("snaprig-card-image-{}", std::process::id()));
        let sink = FileSink::new(std::fs::File::create(&path).unwrap()).unwrap();
        let mut writer = Writer::start(sink, &process, None, &[]).unwrap();
        let mut numbered = numbered();
        while writer.step(&mut numbered).unwrap() {}
        let written = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(written == image);
    }

    #[test]
    fn who_does_not_empty_an_outbox_is_told() {
        let mut writer = Writer::start(Outbox::default(), b"process", None, &[]).unwrap();
        let mut pages = Numbered {
            at: 0,
            end: 16 * PAGES_MAX as u64,
        };
        let mut refused = None;
        for _ in 0..=BUFFERS {
            refused = writer.step(&mut pages).err();
        }
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
        while let Some(front) = writer.sink().front() {
            let len = front.len();
            writer.sink().took(len);
        }
        assert!(writer.step(&mut pages).unwrap());
    }
}
