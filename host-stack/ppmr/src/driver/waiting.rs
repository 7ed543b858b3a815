//! Threads that wait for a stream. Each stream wakes its own: with many streams, most of what happens is nothing to all others.

use std::{
    collections::BTreeMap,
    thread::{self, Thread},
};

/// Those who wait, by what they wait for. It is kept under the lock of what they wait for.
#[derive(Debug)]
pub struct Waiting<K>(BTreeMap<K, Vec<Thread>>);

impl<K> Default for Waiting<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Waiting<K> {
    /// This thread is going to wait (park).
    pub fn add(&mut self, of: K) {
        self.0.entry(of).or_default().push(thread::current());
    }

    /// This thread does not wait any more, whoever has woken it.
    pub fn remove(&mut self, of: &K) {
        if let Some(threads) = self.0.get_mut(of) {
            let own = thread::current().id();
            threads.retain(|thread| thread.id() != own);
        }
    }

    /// Those who waited for this: they are to be woken (unparked).
    pub fn take(&mut self, of: &K) -> Vec<Thread> {
        self.0.remove(of).unwrap_or_default()
    }

    /// All who wait for anything.
    pub fn take_all(&mut self) -> Vec<Thread> {
        std::mem::take(&mut self.0)
            .into_values()
            .flatten()
            .collect()
    }
}
