//! What waits for a thread of a connection: no more than a most, and memory for no more than there is.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc::{Receiver, Sender, channel},
};

/// Where things are left.
#[derive(Debug)]
pub struct Queue<T> {
    sends: Sender<T>,
    waiting: Arc<AtomicUsize>,
    max: usize,
}

/// Where they are taken, by one thread.
#[derive(Debug)]
pub struct Taker<T> {
    comes: Receiver<T>,
    waiting: Arc<AtomicUsize>,
}

/// A queue of at most so many.
pub fn queue<T>(max: usize) -> (Queue<T>, Taker<T>) {
    let (sends, comes) = channel();
    let waiting = Arc::<AtomicUsize>::default();
    let taker = Taker {
        comes,
        waiting: waiting.clone(),
    };
    let queue = Queue {
        sends,
        waiting,
        max,
    };
    (queue, taker)
}

impl<T> Queue<T> {
    /// Whether it is left there; if not, there are too many, or nobody takes them any more.
    pub fn leave(&self, one: T) -> bool {
        self.waiting.fetch_add(1, Ordering::Relaxed) < self.max && self.sends.send(one).is_ok()
    }
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self {
            sends: self.sends.clone(),
            waiting: self.waiting.clone(),
            max: self.max,
        }
    }
}

impl<T> Taker<T> {
    /// Waits for the next one; none: nobody leaves any more.
    pub fn take(&self) -> Option<T> {
        let one = self.comes.recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_than_the_most() {
        let (queue, taker) = queue(2);
        assert!(queue.leave(1) && queue.leave(2));
        assert_eq!(taker.take(), Some(1));
        assert!(queue.leave(3) && !queue.leave(4));
        drop(queue);
        assert_eq!(
            [taker.take(), taker.take(), taker.take()],
            [Some(2), Some(3), None]
        );
    }
}
