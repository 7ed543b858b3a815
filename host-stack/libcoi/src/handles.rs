//! Handles. One is a number that looks like a pointer, is never followed, and never given out twice: it
//! is found in the table of its kind, or it is not valid.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    result::{Done, code},
    types::Handle,
};

/// Where handles begin: in no address space is anything there.
const FIRST: usize = 0xc01_0000_0000_0000;
const STEP: usize = 0x40;
static NEXT: AtomicUsize = AtomicUsize::new(FIRST);

/// All handles of a kind.
pub struct Table<T>(Mutex<BTreeMap<Handle, T>>);

impl<T: Clone> Table<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// A handle for this.
    pub fn insert(&self, value: T) -> Handle {
        self.insert_with(|_| value)
    }

    /// A handle for what is made of it.
    pub fn insert_with(&self, value: impl FnOnce(Handle) -> T) -> Handle {
        let handle = Handle(NEXT.fetch_add(STEP, Ordering::Relaxed));
        let value = value(handle);
        self.lock().insert(handle, value);
        handle
    }

    /// What it is a handle of.
    pub fn get(&self, handle: Handle) -> Done<T> {
        let found = self.lock().get(&handle).cloned();
        found.ok_or_else(|| code::INVALID_HANDLE.into())
    }

    /// It is no handle any more.
    pub fn remove(&self, handle: Handle) -> Done<T> {
        let found = self.lock().remove(&handle);
        found.ok_or_else(|| code::INVALID_HANDLE.into())
    }

    /// The first of which this is so.
    pub fn find(&self, is: impl Fn(&T) -> bool) -> Option<(Handle, T)> {
        let table = self.lock();
        let found = table.iter().find(|(_, value)| is(value));
        found.map(|(handle, value)| (*handle, value.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Handle, T>> {
        lock(&self.0)
    }
}

/// Nothing that is guarded here is ever left half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_of_its_table_only_and_not_for_ever() {
        let (these, those) = (Table::new(), Table::<u8>::new());
        let handle = these.insert(1);
        assert_eq!(these.get(handle), Ok(1));
        assert!(those.get(handle).is_err());
        assert_eq!(these.remove(handle), Ok(1));
        assert_eq!(
            these.get(handle).map_err(|f| f.code),
            Err(code::INVALID_HANDLE)
        );
        assert_ne!(these.insert(2), handle);
    }
}
