//! Memory that a process maps and touches.

use std::{fs::File, io, os::fd::AsRawFd as _, ptr};

const PAGE: usize = 4096;

/// A mapping; gone when dropped.
pub struct Mapped {
    at: *mut libc::c_void,
    length: usize,
}

impl Mapped {
    /// Private memory, with these flags beside.
    pub fn anon(length: usize, flags: libc::c_int) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        Self::new(length, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// The beginning of a file, to read.
    pub fn file(file: &File, length: usize) -> io::Result<Self> {
        Self::new(length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn new(length: usize, protection: i32, flags: i32, fd: i32) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, fd, 0) };
        match at {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            at => Ok(Self { at, length }),
        }
    }

    /// A refusal changes nothing: the kernel has no such pages.
    pub fn advise(self, advice: libc::c_int) -> Self {
        // SAFETY: a mapping of this process's own.
        unsafe { libc::madvise(self.at, self.length, advice) };
        self
    }

    fn pages(&self) -> impl Iterator<Item = *mut u8> {
        let pages = (0..self.length).step_by(PAGE);
        pages.map(|offset| self.at.cast::<u8>().wrapping_add(offset))
    }

    /// Writes to each page, of private memory.
    pub fn touch(self) -> Self {
        for page in self.pages() {
            // SAFETY: inside the mapping, which can be written to.
            unsafe { page.write_volatile(1) };
        }
        self
    }

    /// Reads from each page.
    pub fn read(self) -> Self {
        for page in self.pages() {
            // SAFETY: inside the mapping.
            unsafe { page.read_volatile() };
        }
        self
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing else refers to the mapping.
        unsafe { libc::munmap(self.at, self.length) };
    }
}
