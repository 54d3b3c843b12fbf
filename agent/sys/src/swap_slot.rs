//! Hands a boxed value to a real-time thread and takes the replaced one back to be freed, by pointer exchanges alone.

use std::fmt;

use crossbeam_utils::atomic::AtomicCell;

/// A place for the new value and two for used ones. A queue would not do: its reader can wait for a writer that it has
/// preempted.
///
/// One thread publishes, and one at a time takes.
pub struct SwapSlot<T> {
    new: AtomicCell<Option<Box<T>>>,
    used: [AtomicCell<Option<Box<T>>>; 2],
}

impl<T> Default for SwapSlot<T> {
    fn default() -> Self {
        const { assert!(AtomicCell::<Option<Box<T>>>::is_lock_free()) };
        Self {
            new: AtomicCell::new(None),
            used: [const { AtomicCell::new(None) }; 2],
        }
    }
}

impl<T> fmt::Debug for SwapSlot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapSlot").finish_non_exhaustive()
    }
}

impl<T> SwapSlot<T> {
    /// Replaces what was not taken yet. Frees that, and the used boxes.
    pub fn publish(&self, new: Box<T>) {
        // `new` is empty now. The reader can still retire one box, the one that its last take replaced. The box stored
        // below can be taken and retire one more. So two places suffice until the next `publish`.
        drop(self.new.take());
        self.free_used();
        self.new.store(Some(new));
    }

    /// Frees the used boxes. For the thread that publishes.
    pub fn free_used(&self) {
        for used in &self.used {
            drop(used.take());
        }
    }

    /// The newest, once.
    pub fn take(&self) -> Option<Box<T>> {
        self.new.take()
    }

    /// Leaves a box for the publisher to free.
    pub fn retire(&self, used: Box<T>) {
        let [latest, earlier] = &self.used;
        if let Some(used) = latest.swap(Some(used)) {
            earlier.store(Some(used));
        }
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

    /// Knows which thread made it and how many there were before.
    struct Thing(ThreadId, usize);

    impl Drop for Thing {
        fn drop(&mut self) {
            assert_eq!(
                thread::current().id(),
                self.0,
                "freed by the thread that took it"
            );
            FREED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_was_handed_over_is_freed_by_the_sender() {
        const TAKEN: usize = 5_000;
        let slot = SwapSlot::<Thing>::default();
        let over = AtomicBool::new(false);
        let sender = thread::current().id();
        let (current, sent) = thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let mut current = Box::new(Thing(sender, 0));
                for _ in 0..TAKEN {
                    let new = loop {
                        match slot.take() {
                            Some(new) => break new,
                            None => thread::yield_now(),
                        }
                    };
                    assert!(new.1 > current.1, "never an older one");
                    slot.retire(std::mem::replace(&mut current, new));
                }
                over.store(true, Ordering::Release);
                current
            });
            // Until enough is taken, however long the scheduler keeps one of the two away.
            let mut sent = 0;
            while !over.load(Ordering::Acquire) && !taker.is_finished() {
                sent += 1;
                slot.publish(Box::new(Thing(sender, sent)));
                if sent.is_multiple_of(100) {
                    thread::yield_now();
                    slot.free_used();
                }
            }
            (taker.join().unwrap(), sent)
        });
        drop((current, slot));
        assert_eq!(FREED.load(Ordering::Relaxed), sent + 1);
    }
}
