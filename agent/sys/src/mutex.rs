//! Mutexes whose content a panic leaves whole.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whether or not a thread has panicked with it: what it holds is still the last that was known.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
