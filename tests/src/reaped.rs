//! A child process that does not outlive its owner.

use std::{
    ops::{Deref, DerefMut},
    process::Child,
};

/// Killed and reaped when dropped.
pub struct Reaped(pub Child);

impl Deref for Reaped {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Reaped {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // Already gone is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
