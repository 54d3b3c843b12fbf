//! The same work on many items, a few of them at a time.

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

/// The results of `work` on each item, in the items' order; so many threads work at a time.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    at_once: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let queue = Mutex::new(items.iter().zip(&mut results));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    // Panics when the work has.
    thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                while let Some((item, result)) = next() {
                    *result = Some(work(item));
                }
            });
        }
    });
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn results_of_parallel_work_keep_their_order() {
        let (both, doubled) = (Barrier::new(2), [0, 2, 4, 6]);
        let results = in_parallel(&[0, 1, 2, 3], 2, |item| {
            // Two of them are at it at the same time, or this would wait for ever.
            both.wait();
            item * 2
        });
        assert_eq!(results, doubled);
        assert_eq!(in_parallel(&[1], 3, |item| item + 1), [2]);
    }
}
