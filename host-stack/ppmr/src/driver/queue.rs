//! What waits for a thread of a connection: no more than a most, and memory for no more than there is.

use std::sync::{
    Arc, Mutex,
    mpsc::{Receiver, Sender, channel},
};

use super::lock;

/// Where things are left.
#[derive(Debug)]
pub struct Queue<T> {
    sends: Sender<T>,
    /// How many are not done.
    left: Arc<Mutex<usize>>,
    max: usize,
}

/// Where they are taken, by one thread.
#[derive(Debug)]
pub struct Taker<T> {
    comes: Receiver<T>,
    left: Arc<Mutex<usize>>,
    /// It has one that is not done yet.
    is_busy: bool,
}

/// A queue of at most so many.
pub fn queue<T>(max: usize) -> (Queue<T>, Taker<T>) {
    let (sends, comes) = channel();
    let left = Arc::<Mutex<usize>>::default();
    let taker = Taker {
        comes,
        left: left.clone(),
        is_busy: false,
    };
    (Queue { sends, left, max }, taker)
}

impl<T> Queue<T> {
    /// Whether it is left there; if not, there are too many, or nobody takes them any more.
    pub fn leave(&self, one: T) -> bool {
        let mut count = lock(&self.left);
        if *count >= self.max || self.sends.send(one).is_err() {
            return false;
        }
        *count += 1;
        true
    }
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self {
            sends: self.sends.clone(),
            left: self.left.clone(),
            max: self.max,
        }
    }
}

impl<T> Taker<T> {
    /// The last one is done. Waits for the next one; none: nobody leaves any more.
    pub fn take(&mut self) -> Option<T> {
        if std::mem::take(&mut self.is_busy) {
            *lock(&self.left) -= 1;
        }
        let one = self.comes.recv().ok()?;
        self.is_busy = true;
        Some(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_than_the_most() {
        let (queue, mut taker) = queue(2);
        assert!(queue.leave(1) && queue.leave(2) && !queue.leave(3));
        assert_eq!([taker.take(), taker.take()], [Some(1), Some(2)]);
        assert!(queue.leave(3) && !queue.leave(4));
        drop(queue);
        assert_eq!([taker.take(), taker.take()], [Some(3), None]);
    }
}
