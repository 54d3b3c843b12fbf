//! A mutex whose holder inherits the priority of the thread that waits for it: a thread of real-time priority may take
//! it although slower threads do as well. A starved holder runs with the waiter's priority until it lets go.

use std::{
    cell::UnsafeCell,
    fmt,
    mem::MaybeUninit,
    ops::{Deref, DerefMut},
};

/// A mutex with `PTHREAD_PRIO_INHERIT`; a plain one on a kernel without `FUTEX_LOCK_PI`. A panic while it is held does
/// not poison it.
pub struct PiMutex<T> {
    // On the heap: a mutex of pthread must stay where it is.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the mutex has access to the value, and the mutex may be used by all.
unsafe impl<T: Send> Send for PiMutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for PiMutex<T> {}

/// Access to the value; gives the mutex back when dropped, on the thread that has taken it.
pub struct PiMutexGuard<'a, T> {
    mutex: &'a PiMutex<T>,
    // pthread has the thread that locks unlock: a raw pointer is not Send.
    _on_this_thread: std::marker::PhantomData<*const ()>,
}

impl<T> PiMutex<T> {
    /// A mutex that is free.
    pub fn new(value: T) -> Self {
        let raw = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the attributes are a local that is initialized first and destroyed last; the mutex is not in use yet.
        // Where a call fails, the mutex stays the valid plain one that it is already.
        unsafe {
            if libc::pthread_mutexattr_init(attributes.as_mut_ptr()) == 0 {
                let inherit = libc::PTHREAD_PRIO_INHERIT;
                if libc::pthread_mutexattr_setprotocol(attributes.as_mut_ptr(), inherit) == 0
                    && libc::pthread_mutex_init(raw.get(), attributes.as_ptr()) != 0
                {
                    *raw.get() = libc::PTHREAD_MUTEX_INITIALIZER;
                }
                libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
            }
        }
        Self {
            raw,
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the mutex; waits while another thread has it.
    ///
    /// # Panics
    /// The kernel refuses, which is a mistake in this module.
    pub fn lock(&self) -> PiMutexGuard<'_, T> {
        // SAFETY: the mutex is valid, and stays where it is for as long as it lives.
        let refused = unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        assert_eq!(refused, 0, "pthread_mutex_lock");
        PiMutexGuard {
            mutex: self,
            _on_this_thread: std::marker::PhantomData,
        }
    }
}

impl<T> Drop for PiMutex<T> {
    fn drop(&mut self) {
        // SAFETY: guards borrow the mutex, so that none is left.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

impl<T: Default> Default for PiMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for PiMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PiMutex").finish_non_exhaustive()
    }
}

impl<T> Deref for PiMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard has the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for PiMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard has the mutex, and is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for PiMutexGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this guard has the mutex, and was not sent to another thread.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::{Arc, mpsc},
        thread,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::rt::set_sched_fifo;

    const PRIORITY: i32 = 20;

    /// The priority that the kernel runs a thread with (field 18 of `stat`): -1 less that of SCHED_FIFO, or 20 with
    /// nice 0.
    fn priority_of(thread: i32) -> i64 {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let (_, after_name) = stat.rsplit_once(')').unwrap();
        let field = after_name.split_whitespace().nth(15).unwrap();
        field.parse().unwrap()
    }

    fn becomes(thread: i32, priority: i64) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            if priority_of(thread) == priority {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn threads_take_turns() {
        let sum = Arc::new(PiMutex::new(0_u64));
        let add = |sum: Arc<PiMutex<u64>>| move || (0..10_000).for_each(|n| *sum.lock() += n);
        let threads = [(); 4].map(|()| thread::spawn(add(Arc::clone(&sum))));
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*sum.lock(), 4 * (0..10_000).sum::<u64>());
    }

    #[test]
    fn the_holder_inherits_the_priority_of_the_waiter() {
        let mutex = Arc::new(PiMutex::new(()));
        let (says, said) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let held = Arc::clone(&mutex);
        let holder = thread::spawn(move || {
            let guard = held.lock();
            // SAFETY: no preconditions.
            says.send(unsafe { libc::gettid() }).unwrap();
            released.recv().unwrap();
            drop(guard);
            // Alive until its priority was looked at again.
            released.recv().unwrap();
        });
        let id = said.recv().unwrap();
        let before = priority_of(id);
        assert!(before >= 0, "the holder has normal priority");
        let (refusal, refused) = mpsc::channel();
        let waiter = thread::spawn(move || {
            refusal.send(set_sched_fifo(PRIORITY)).unwrap();
            drop(mutex.lock());
        });
        match refused.recv().unwrap() {
            // Without the right there is nothing to inherit.
            Err(error) => eprintln!("not tested: {error}"),
            Ok(()) => assert!(becomes(id, i64::from(-1 - PRIORITY)), "{}", priority_of(id)),
        }
        release.send(()).unwrap();
        waiter.join().unwrap();
        assert!(becomes(id, before), "it has its own priority again");
        release.send(()).unwrap();
        holder.join().unwrap();
    }
}
