//! What waits for a thread of a connection: no more than a most, and memory for no more than there is.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use super::lock;

/// Where things are left.
#[derive(Debug)]
pub struct Queue<T> {
    sends: Sender<T>,
    left: Arc<Left>,
    max: usize,
}

/// Where they are taken, by one thread.
#[derive(Debug)]
pub struct Taker<T> {
    comes: Receiver<T>,
    left: Arc<Left>,
    /// It has one that is not done yet.
    is_busy: bool,
}

/// How many are not done.
#[derive(Debug, Default)]
struct Left {
    count: Mutex<usize>,
    is_none: Condvar,
}

/// A queue of at most so many.
pub fn queue<T>(max: usize) -> (Queue<T>, Taker<T>) {
    let (sends, comes) = channel();
    let left = Arc::<Left>::default();
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
        let mut count = lock(&self.left.count);
        if *count >= self.max || self.sends.send(one).is_err() {
            return false;
        }
        *count += 1;
        true
    }

    /// Waits until all is done, or nobody does it any more, for no longer than this.
    pub fn wait(&self, max: Duration) {
        let count = lock(&self.left.count);
        let is_none = &self.left.is_none;
        // How it has ended does not matter.
        drop(is_none.wait_timeout_while(count, max, |count| *count > 0));
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
            let mut count = lock(&self.left.count);
            *count -= 1;
            if *count == 0 {
                self.left.is_none.notify_all();
            }
        }
        let one = self.comes.recv().ok()?;
        self.is_busy = true;
        Some(one)
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        *lock(&self.left.count) = 0;
        self.left.is_none.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Instant};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn there_are_never_more_than_the_most() {
        let (queue, mut taker) = queue(2);
        assert!(queue.leave(1) && queue.leave(2) && !queue.leave(3));
        assert_eq!([taker.take(), taker.take()], [Some(1), Some(2)]);
        assert!(queue.leave(3) && !queue.leave(4));
        drop(queue);
        assert_eq!([taker.take(), taker.take()], [Some(3), None]);
    }

    #[test]
    fn it_is_known_when_all_is_done_or_will_not_be() {
        let start = Instant::now();
        let (some, mut taker) = queue(2);
        assert!(some.leave(1));
        let takes = thread::spawn(move || {
            taker.take();
            taker.take();
        });
        some.wait(LONG);
        drop(some);
        takes.join().unwrap();
        let (some, taker) = queue(2);
        assert!(some.leave(1));
        some.wait(Duration::from_millis(1));
        drop(taker);
        some.wait(LONG);
        assert!(!some.leave(1) && start.elapsed() < LONG);
    }
}
