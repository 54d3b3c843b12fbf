//! The same work on many items, a few of them at a time.

use std::{
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, ScopedJoinHandle},
};

/// The results of `work` on each item, in the items' order; so many threads work at a time.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    at_once: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let take = || {
            let mut results = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(index) else {
                    return results;
                };
                results.push((index, work(item)));
            }
        };
        let threads: Vec<_> = (0..at_once.max(1)).map(|_| scope.spawn(take)).collect();
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        // The work has panicked: so does its caller.
        joined
            .flat_map(|results| results.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
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
