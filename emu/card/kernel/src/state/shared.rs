//! What processes share that were cloned so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by processes that were cloned so.
pub type Shared<T> = Arc<Mutex<T>>;

/// Locks a shared object. It is only ever taken under the kernel lock, so it is never contended.
pub fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
