//! A queue whose places are used again: what was in one stays there, with the memory that it has, until something is put there.
//! So a log that has been as long as it gets allocates nothing.

/// A queue.
#[derive(Clone, Debug)]
pub struct Ring<T> {
    /// As many as a power of two, or none; those in use follow each other, from `first` on, and around the end.
    places: Vec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            first: 0,
            len: 0,
        }
    }
}

impl<T> Ring<T> {
    /// How many are in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn place(&self, index: usize) -> usize {
        (self.first + index) & self.places.len().wrapping_sub(1)
    }

    /// One of them, counted from the first.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        let place = self.place(index);
        self.places
            .get(place)
            .filter(|_| index < self.len)?
            .as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let (place, is_in) = (self.place(index), index < self.len);
        self.places.get_mut(place).filter(|_| is_in)?.as_mut()
    }

    /// In order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        (0..self.len).filter_map(|index| self.get(index))
    }

    /// A place behind all others, with what was there before, if anything was: the caller puts something there, or changes it.
    #[inline]
    pub fn push(&mut self) -> &mut Option<T> {
        if self.len == self.places.len() {
            self.grow();
        }
        let place = self.place(self.len);
        self.len += 1;
        &mut self.places[place]
    }

    #[cold]
    fn grow(&mut self) {
        self.places.rotate_left(self.first);
        self.first = 0;
        let places = (self.len * 2).max(4);
        self.places.resize_with(places, || None);
    }

    /// The last one, which is in it no more.
    pub fn pop(&mut self) -> Option<&mut T> {
        self.len = self.len.checked_sub(1)?;
        let place = self.place(self.len);
        self.places.get_mut(place)?.as_mut()
    }

    /// The first ones are in it no more.
    #[inline]
    pub fn skip(&mut self, count: usize) {
        debug_assert!(count <= self.len);
        self.len -= count;
        // One that is empty begins again, where the processor's caches have it.
        self.first = match self.len {
            0 => 0,
            _ => self.place(count),
        };
    }

    /// Two of them change places.
    pub fn swap(&mut self, one: usize, other: usize) {
        debug_assert!(one < self.len && other < self.len);
        let (one, other) = (self.place(one), self.place(other));
        self.places.swap(one, other);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It is a queue.
        #[test]
        fn it_is_a_queue(steps in proptest::collection::vec((0..5u8, 0..9usize), 0..200)) {
            let (mut ring, mut queue) = (Ring::default(), VecDeque::new());
            for (number, (step, count)) in steps.into_iter().enumerate() {
                match step {
                    0 => prop_assert_eq!(ring.pop().copied(), queue.pop_back()),
                    1 => {
                        let count = count.min(queue.len());
                        ring.skip(count);
                        queue.drain(..count);
                    }
                    2 if queue.len() > 1 => {
                        ring.swap(0, queue.len() - 1);
                        queue.swap(0, queue.len() - 1);
                    }
                    _ => {
                        *ring.push() = Some(number);
                        queue.push_back(number);
                    }
                }
                prop_assert_eq!(ring.len(), queue.len());
                prop_assert!(ring.iter().eq(queue.iter()) && ring.iter().rev().eq(queue.iter().rev()));
                prop_assert_eq!(ring.get(count), queue.get(count));
                prop_assert_eq!(ring.get_mut(count), queue.get_mut(count));
            }
        }
    }

    #[test]
    fn what_was_in_a_place_is_there_again() {
        let mut ring = Ring::default();
        *ring.push() = Some(Vec::from(*b"long"));
        ring.skip(1);
        assert_eq!(ring.push().as_deref(), Some(b"long".as_slice()));
    }
}
