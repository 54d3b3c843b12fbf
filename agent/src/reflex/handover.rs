//! Something new for the reflex, and the way back for what it replaces.

use std::fmt;

use crossbeam_utils::atomic::AtomicCell;

/// Two places for one thing each. Each step is one exchange of a pointer: in a queue whoever reads waits for a writer that
/// has begun and was interrupted, for ever if it was interrupted by the reader, who has real-time priority.
///
/// One thread hands over, and one at a time takes.
pub(super) struct Handover<T> {
    new: AtomicCell<Option<Box<T>>>,
    used: AtomicCell<Option<Box<T>>>,
}

impl<T> Default for Handover<T> {
    fn default() -> Self {
        const { assert!(AtomicCell::<Option<Box<T>>>::is_lock_free()) };
        Self {
            new: AtomicCell::new(None),
            used: AtomicCell::new(None),
        }
    }
}

impl<T> fmt::Debug for Handover<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").finish_non_exhaustive()
    }
}

impl<T> Handover<T> {
    /// What was not taken yet is replaced. Frees that, and what was given back.
    pub fn hand_over(&self, new: Box<T>) {
        // From here on nothing can be taken, so that nothing can be given back after the next line: one place is enough.
        drop(self.new.take());
        drop(self.used.take());
        self.new.store(Some(new));
    }

    /// The newest, once.
    pub fn take(&self) -> Option<Box<T>> {
        self.new.take()
    }

    /// Leaves what was taken, or what it has replaced, to be freed by the sender.
    pub fn give_back(&self, used: Box<T>) {
        self.used.store(Some(used));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
        thread::{self, ThreadId},
    };

    use super::*;

    static FREED: AtomicUsize = AtomicUsize::new(0);

    /// Knows who made it and how many there were before.
    struct Thing(ThreadId, usize);

    impl Drop for Thing {
        fn drop(&mut self) {
            assert_eq!(thread::current().id(), self.0, "freed by who took it");
            FREED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_was_handed_over_is_freed_by_the_sender() {
        const THINGS: usize = 200_000;
        let handover = Handover::<Thing>::default();
        let over = AtomicBool::new(false);
        let sender = thread::current().id();
        let current = thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let mut current = Box::new(Thing(sender, 0));
                let mut taken = 0;
                while !over.load(Ordering::Acquire) {
                    if let Some(new) = handover.take() {
                        assert!(new.1 > current.1, "never an older one");
                        handover.give_back(std::mem::replace(&mut current, new));
                        taken += 1;
                    }
                }
                (current, taken)
            });
            for number in 1..=THINGS {
                handover.hand_over(Box::new(Thing(sender, number)));
            }
            over.store(true, Ordering::Release);
            let (current, taken) = taker.join().unwrap();
            assert!(taken > 0);
            current
        });
        drop((current, handover));
        assert_eq!(FREED.load(Ordering::Relaxed), THINGS + 1);
    }
}
