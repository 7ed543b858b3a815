//! Reads an image from bytes as they come.

use snaprig_card_memory::PAGE;
use snaprig_image::{self as grammar, END, Head, ImageId, decode::Part, hash};

use super::{
    FORMAT, GONE, GONE_MAX, ImageError, PAGES, PAGES_MAX, PAGES_PAYLOAD, PROCESS, PROCESS_MAX,
};

/// What a decoder found next.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The image that this one builds on; none: it is whole.
    Parent(Option<ImageId>),
    /// What is not memory.
    Process(&'a [u8]),
    /// Pages of the parent's that are no more: address of the first, and how many; ascending.
    Gone(Vec<(u64, u64)>),
    /// Pages and where they belong.
    Pages {
        /// Page-aligned address of the first.
        address: u64,
        /// Their contents.
        bytes: &'a [u8],
    },
    /// The image is complete.
    End {
        /// Its id.
        id: ImageId,
        /// The image that it says the same as.
        stands_for: Option<ImageId>,
    },
}

/// Which records may come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Process,
    /// Only an increment's pages can be gone.
    Gone,
    Pages,
}

/// Reads an image from bytes as they come, wherever they are. It copies none of them.
pub struct Decoder {
    grammar: grammar::Decoder,
    stage: Stage,
    is_increment: bool,
    /// Address and checksum of the pages of the last record.
    pages: (u64, u64),
    page_bytes: u64,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            grammar: grammar::Decoder::new(&FORMAT),
            stage: Stage::Process,
            is_increment: false,
            pages: (0, 0),
            page_bytes: 0,
        }
    }
}

impl Decoder {
    /// How many bytes [`Decoder::take`] takes next.
    pub fn wants(&self) -> usize {
        // Lengths have been checked.
        self.grammar.wants() as usize
    }

    /// How many bytes of the image are certain to follow. Who reads ahead reads so many at most: what follows the image
    /// is not the decoder's.
    pub fn certain(&self) -> usize {
        self.grammar.certain() as usize
    }

    /// Whether the end has been taken.
    pub fn is_complete(&self) -> bool {
        self.grammar.is_complete()
    }

    /// The stream ends, behind `left` bytes that were not enough for [`Decoder::take`]: an error unless the image is
    /// complete.
    pub fn finish(&self, left: usize) -> Result<(), ImageError> {
        match self.is_complete() {
            true => Ok(()),
            false => Err(ImageError::Truncated {
                offset: self.grammar.offset() + left as u64,
            }),
        }
    }

    /// Takes the next bytes of the stream, as many as [`Decoder::wants`] says; a piece if they complete one.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<Piece<'a>>, ImageError> {
        let taken = self.grammar.take(bytes);
        let offset = self.grammar.part_at();
        let damaged = |what| ImageError::Damaged { offset, what };
        match taken.map_err(|wrong| ImageError::of(wrong, offset))? {
            Part::Begun => Ok(None),
            Part::Header { parent, .. } => {
                self.is_increment = parent.is_some();
                Ok(Some(Piece::Parent(parent)))
            }
            Part::Head(head) => {
                check(&head, self.stage).map_err(damaged)?;
                Ok(None)
            }
            Part::Record(head, payload) => self.record(&head, payload).map_err(damaged),
            Part::Body(bytes) => {
                let (address, sum) = self.pages;
                match hash(bytes) == sum {
                    true => Ok(Some(Piece::Pages { address, bytes })),
                    false => Err(damaged("the checksum of its pages differs")),
                }
            }
            Part::End(end) => match end.totals == [self.page_bytes] {
                true => Ok(Some(Piece::End {
                    id: end.id,
                    stands_for: end.stands_for,
                })),
                false => Err(damaged("pages are missing")),
            },
        }
    }

    fn record<'a>(
        &mut self,
        head: &Head,
        payload: &'a [u8],
    ) -> Result<Option<Piece<'a>>, &'static str> {
        match head.kind {
            PROCESS => {
                self.stage = match self.is_increment {
                    true => Stage::Gone,
                    false => Stage::Pages,
                };
                Ok(Some(Piece::Process(payload)))
            }
            GONE => {
                self.stage = Stage::Pages;
                Ok(Some(Piece::Gone(gone(payload)?)))
            }
            _ => {
                self.stage = Stage::Pages;
                self.pages = (word(payload, 0), word(payload, 8));
                self.page_bytes += head.body;
                match self.pages.0.is_multiple_of(PAGE) {
                    true => Ok(None),
                    false => Err("pages at an odd address"),
                }
            }
        }
    }
}

/// Checks a length before there is room for what is that long: it bounds what we hold.
fn check(head: &Head, stage: Stage) -> Result<(), &'static str> {
    let (payload, body) = (head.payload, head.body);
    let sound = match (head.kind, stage) {
        (PROCESS, Stage::Process) => payload <= PROCESS_MAX && body == 0,
        (GONE, Stage::Gone) => {
            let is_list = payload.is_multiple_of(16);
            is_list && (1..=GONE_MAX).contains(&(payload / 16)) && body == 0
        }
        (PAGES, Stage::Gone | Stage::Pages) => {
            let is_run = (1..=PAGES_MAX as u64).contains(&body) && body.is_multiple_of(PAGE);
            is_run && payload == PAGES_PAYLOAD
        }
        // The grammar has looked at it.
        (END, Stage::Gone | Stage::Pages) => true,
        _ => return Err("a record that does not belong here"),
    };
    match sound {
        true => Ok(()),
        false => Err("a record of an impossible length"),
    }
}

fn gone(payload: &[u8]) -> Result<Vec<(u64, u64)>, &'static str> {
    let pairs = payload.chunks_exact(16);
    let gone: Vec<_> = pairs.map(|pair| (word(pair, 0), word(pair, 8))).collect();
    let mut from = 0;
    for &(address, pages) in &gone {
        let end = pages
            .checked_mul(PAGE)
            .and_then(|bytes| address.checked_add(bytes));
        from = match end {
            Some(end) if address >= from && address.is_multiple_of(PAGE) => end,
            _ => return Err("what is gone is not in order"),
        };
    }
    Ok(gone)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
