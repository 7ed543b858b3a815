//! Reads what an image in a file is made of, and leaves its pages to be read straight into place.
//!
//! ```text
//! scanner -- Stored { space, address, offset, hash } --> pread into the target, or mmap --> verify
//! ```

use std::{fs::File, io, os::unix::fs::FileExt, path::Path, sync::Arc};

use snaprig_image::{
    PartError,
    decode::end_of,
    transport::{Direct, FileSource},
};

use super::{
    Hasher, Header, ImageError, Reader, Run, State, Summary, hash,
    reader::decompress,
    wire::{self, FORMAT, Kind},
};

/// What comes next in an image.
#[derive(Debug)]
pub enum Item<'a> {
    /// A section of state.
    State(State<'a>),
    /// Pages, and where they are in the file.
    Pages(Stored),
    /// Pages that are zero.
    Zeroes(Run),
    /// Pages that the parent has, or that were here before, and that are no more.
    Gone(Run),
}

/// Where the bytes of a run of pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Where the pages belong. At most [`CHUNK_MAX`](super::CHUNK_MAX) bytes.
    pub run: Run,
    /// Where they are in the file: a multiple of a page.
    pub offset: u64,
    /// How long they are there: a multiple of a page.
    pub bytes: u64,
    /// They are compressed: only [`Scanner::load`] reads them.
    pub zstd: bool,
    /// Checksum of the bytes in the file.
    pub hash: u64,
    batch: u64,
}

/// An image in a file: verified but for its pages, which are verified by whoever reads them.
pub struct Scanner {
    reader: Reader<FileSource>,
    summary: Summary,
    direct: Option<Arc<Direct>>,
}

impl Scanner {
    /// Opens the file and reads header and end.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let name = path.display().to_string();
        let io = |source| ImageError::Io {
            name: name.clone(),
            offset: 0,
            source,
        };
        let file = File::open(path).map_err(io)?;
        Self::new(file, name)
    }

    /// The same of a file that is open already.
    pub fn new(file: File, name: impl Into<String>) -> Result<Self, ImageError> {
        let direct = Direct::of(&file).map(Arc::new);
        let reader = Reader::of(FileSource::new(Arc::new(file)), name)?;
        let summary = end(&reader)?;
        Ok(Self {
            reader,
            summary,
            direct,
        })
    }

    /// The same image, from its beginning.
    pub fn again(&self) -> Result<Self, ImageError> {
        let source = FileSource::new(Arc::clone(self.file()));
        Ok(Self {
            reader: Reader::of(source, self.reader.name())?,
            summary: self.summary,
            direct: self.direct.clone(),
        })
    }

    /// Who made it where.
    pub fn header(&self) -> &Header {
        self.reader.header()
    }

    /// What the image is, as its end says. That this is so is known when [`Scanner::next`] has
    /// come to the end.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The file, to read pages from.
    pub fn file(&self) -> &Arc<File> {
        self.reader.source().file()
    }

    /// The next item; none: that was all, and it is what the end says.
    #[expect(
        clippy::should_implement_trait,
        reason = "an item borrows from the scanner"
    )]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, ImageError> {
        while let Some(chunk) = self.reader.chunk()? {
            return Ok(Some(match chunk.kind {
                Kind::Zeroes => Item::Zeroes(chunk.run),
                Kind::Gone => Item::Gone(chunk.run),
                Kind::Pages { zstd } => {
                    let offset = self.reader.pass(&chunk)?;
                    Item::Pages(Stored {
                        run: chunk.run,
                        offset,
                        bytes: chunk.stored,
                        zstd,
                        hash: chunk.hash,
                        batch: self.reader.batches() - 1,
                    })
                }
                Kind::State { .. } => match self.reader.part(&chunk)? {
                    None => continue,
                    Some(section) => Item::State(self.reader.state(section)),
                },
            }));
        }
        Ok(None)
    }

    /// Whether these are the bytes that were written there: those of the file, as they are in it.
    pub fn verify(&self, stored: &Stored, bytes: &[u8]) -> Result<(), ImageError> {
        match bytes.len() as u64 == stored.bytes && hash(bytes) == stored.hash {
            true => Ok(()),
            false => Err(self.differs(stored)),
        }
    }

    /// Reads pages into `to`, which is as long as they are, and verifies them. `scratch` is for
    /// what is compressed.
    pub fn load(
        &self,
        stored: &Stored,
        to: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<(), ImageError> {
        assert_eq!(to.len() as u64, stored.run.bytes, "room for all pages");
        if !stored.zstd {
            self.read(stored, 0, to)?;
            return self.verify(stored, to);
        }
        scratch.resize(stored.bytes as usize, 0);
        self.read(stored, 0, scratch)?;
        self.verify(stored, scratch)?;
        decompress(scratch, to).map_err(|what| self.damaged(stored, what))
    }

    /// Reads pages that are not compressed, and calls `each` with pieces of them and with where in the run they are.
    /// Whether they are what was written is known only when it returns. The buffer takes all of them, and begins with a
    /// page, so that those that are not in memory can be had from the disk at once.
    pub fn stream<E: From<ImageError>>(
        &self,
        stored: &Stored,
        (buffer, piece): (&mut [u8], usize),
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut hasher = Hasher::default();
        let all = &mut buffer[..stored.bytes as usize];
        let direct = self.direct.as_ref();
        let is_here = direct.is_some_and(|direct| direct.read(stored.offset, all));
        for (index, pages) in all.chunks_mut(piece).enumerate() {
            let at = (index * piece) as u64;
            if !is_here {
                self.read(stored, at, pages)?;
            }
            hasher.update(pages);
            each(at, pages)?;
        }
        match hasher.digest() == stored.hash {
            true => Ok(()),
            false => Err(self.differs(stored).into()),
        }
    }

    fn read(&self, stored: &Stored, skip: u64, to: &mut [u8]) -> Result<(), ImageError> {
        let (name, offset) = (self.reader.name().to_owned(), stored.offset + skip);
        let read = self.file().read_exact_at(to, offset);
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => ImageError::Truncated { name, offset },
            _ => ImageError::Io {
                name,
                offset,
                source,
            },
        })
    }

    fn differs(&self, stored: &Stored) -> ImageError {
        self.damaged(stored, "the checksum of a chunk differs")
    }

    fn damaged(&self, stored: &Stored, what: &'static str) -> ImageError {
        ImageError::Damaged {
            name: self.reader.name().to_owned(),
            offset: stored.offset,
            batch: Some(stored.batch),
            what,
        }
    }
}

/// The end of a file, which is as long as it says.
fn end(reader: &Reader<FileSource>) -> Result<Summary, ImageError> {
    let (name, file) = (reader.name(), reader.source().file());
    let io = |offset| {
        move |source| ImageError::Io {
            name: name.to_owned(),
            offset,
            source,
        }
    };
    let len = file.metadata().map_err(io(0))?.len();
    let truncated = || ImageError::Truncated {
        name: name.to_owned(),
        offset: len,
    };
    let mut bytes = vec![0; FORMAT.end_bytes()];
    let at = len.checked_sub(bytes.len() as u64).ok_or_else(truncated)?;
    file.read_exact_at(&mut bytes, at).map_err(io(at))?;
    let wrong = |wrong| ImageError::wrong(name, at, None, wrong);
    let end = end_of(&FORMAT, &bytes)
        .ok_or_else(truncated)?
        .map_err(wrong)?;
    let summary = wire::summary(&end);
    match summary.totals.file_bytes == len {
        true => Ok(summary),
        false => Err(wrong(PartError::Damaged(
            "a file of another length than its end says",
        ))),
    }
}
