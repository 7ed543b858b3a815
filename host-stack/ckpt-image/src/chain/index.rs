//! Where the newest of each page is.

use std::collections::BTreeMap;

use crate::image::Run;

/// Where pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: they are zero.
    Zeroes,
    /// In a chunk of an image.
    Stored {
        /// Which image of the chain.
        image: usize,
        /// Which of its chunks of pages.
        chunk: usize,
        /// Bytes of the chunk's pages before these.
        skip: u64,
    },
}

impl Place {
    /// Whether both are of the same chunk, or both nowhere.
    pub fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Stored { image, chunk, .. },
                Self::Stored {
                    image: its_image,
                    chunk: its_chunk,
                    ..
                },
            ) => (image, chunk) == (its_image, its_chunk),
            (one, other) => one == other,
        }
    }

    fn after(self, bytes: u64) -> Self {
        match self {
            Self::Zeroes => Self::Zeroes,
            Self::Stored { image, chunk, skip } => Self::Stored {
                image,
                chunk,
                skip: skip + bytes,
            },
        }
    }
}

/// Pages, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The pages.
    pub run: Run,
    /// Where they are.
    pub place: Place,
}

/// Runs of pages that do not overlap, by space and address.
#[derive(Clone, Debug, Default)]
pub struct Index {
    runs: BTreeMap<(u32, u64), (u64, Place)>,
}

impl Index {
    /// How many runs there are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// All runs, ascending.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        let part = |(&(space, address), &(bytes, place))| Part {
            run: Run {
                space,
                address,
                bytes,
            },
            place,
        };
        self.runs.iter().map(part)
    }

    /// These pages are there now, wherever they were.
    pub fn insert(&mut self, run: Run, place: Place) {
        self.remove(run);
        self.runs
            .insert((run.space, run.address), (run.bytes, place));
    }

    /// Nothing is known of these pages any more.
    pub fn remove(&mut self, run: Run) {
        let (space, start, end) = (run.space, run.address, run.address + run.bytes);
        let before = self.runs.range_mut((space, 0)..(space, start)).next_back();
        if let Some((&(_, from), (bytes, place))) = before
            && from + *bytes > start
        {
            // It starts before: its front stays, and perhaps its end.
            let (to, place) = (from + *bytes, *place);
            *bytes = start - from;
            self.keep_end(space, from, to, end, place);
        }
        while let Some((&key, &(bytes, place))) =
            self.runs.range((space, start)..(space, end)).next()
        {
            self.runs.remove(&key);
            self.keep_end(space, key.1, key.1 + bytes, end, place);
        }
    }

    /// Of what was at `from..to`, what is past `end` stays.
    fn keep_end(&mut self, space: u32, from: u64, to: u64, end: u64, place: Place) {
        if to > end {
            let rest = (to - end, place.after(end - from));
            self.runs.insert((space, end), rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_page_is_where_it_was_put_last(
            steps in prop::collection::vec((0..2u32, 0..60u64, 1..20u64, any::<bool>()), 1..40),
        ) {
            let mut index = Index::default();
            let mut expected = BTreeMap::new();
            for (chunk, &(space, address, bytes, keep)) in steps.iter().enumerate() {
                let run = Run { space, address, bytes };
                for page in address..address + bytes {
                    match keep {
                        true => expected.insert((space, page), (chunk, page - address)),
                        false => expected.remove(&(space, page)),
                    };
                }
                match keep {
                    true => index.insert(run, Place::Stored { image: 0, chunk, skip: 0 }),
                    false => index.remove(run),
                }
            }
            let mut found = BTreeMap::new();
            for Part { run, place } in index.parts() {
                let Place::Stored { chunk, skip, .. } = place else { unreachable!() };
                for page in 0..run.bytes {
                    let twice = found.insert((run.space, run.address + page), (chunk, skip + page));
                    prop_assert!(twice.is_none());
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
