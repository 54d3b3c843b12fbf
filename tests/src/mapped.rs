//! Memory that a process maps and touches.

use std::{fs::File, hint::black_box, io};

use memmap2::{Mmap, MmapOptions};

const PAGE: usize = 4096;

/// Writes to each page.
pub fn touch(memory: &mut [u8]) {
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    black_box(memory);
}

/// Maps the beginning of a file and reads from each page.
pub fn read(file: &File, length: usize) -> io::Result<Mmap> {
    // SAFETY: a file of this process's own, which it does not change meanwhile.
    let mapped = unsafe { MmapOptions::new().len(length).map(file) }?;
    for byte in mapped.iter().step_by(PAGE) {
        black_box(*byte);
    }
    Ok(mapped)
}
