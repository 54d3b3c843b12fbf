//! Records of the kernel programs' ring buffers.

use aya::maps::{MapData, RingBuf};

/// The oldest record that was not read yet, of a ring buffer that holds nothing but records of this type. Does not
/// allocate.
pub(crate) fn next_record<T: aya::Pod>(ring: &mut RingBuf<MapData>) -> Option<T> {
    loop {
        let item = ring.next()?;
        if item.len() == size_of::<T>() {
            // SAFETY: `T: Pod`, so any bytes are a value; the record has exactly `size_of::<T>()` bytes.
            return Some(unsafe { std::ptr::read_unaligned(item.as_ptr().cast()) });
        }
    }
}
