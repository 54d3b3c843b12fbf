//! Numbers out of small kernel files, without allocating.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use evictd_sys::fs::PathError;

/// Opens a file that will be read again and again, and reads it once.
///
/// The kernel keeps a buffer for the text with the open file. It takes it at the first read and charges it to the
/// reader's cgroup (`seq_read_iter`, `seq_buf_alloc`); at that cgroup's limit this is a long wait, or the end of the
/// reader. A thread that decides has nothing left to take.
///
/// # Errors
/// Not there, or not readable any more.
pub fn open_primed(path: &Path) -> Result<File, PathError> {
    let opened = File::open(path).and_then(|file| {
        // Whatever is asked for, the kernel makes the whole text.
        file.read_at(&mut [0], 0)?;
        Ok(file)
    });
    opened.map_err(PathError::at(path))
}

/// Reads a file of one record from its start into `buffer` and returns what was there; a longer file is cut.
///
/// One call: the kernel makes such a file whole before it copies any of it (`seq_read_iter`, `kernfs_seq_show`), so
/// that nothing is left to ask for.
pub fn pread<'a>(file: &File, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let length = file.read_at(buffer, 0)?;
    Ok(&buffer[..length])
}

/// A decimal number at the start of the bytes.
pub fn number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    bytes[..digits].iter().try_fold(0_u64, |sum, b| {
        sum.checked_mul(10)?.checked_add(u64::from(b - b'0'))
    })
}

/// Calls `each` for every line of a file, whatever its length, without allocating. A line longer than the buffer comes
/// in parts, and one without an end is left out: the kernel ends its lines.
pub fn for_each_line(file: &File, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = [0; 4096];
    let (mut offset, mut begun) = (0, 0);
    loop {
        if begun == buffer.len() {
            each(&buffer);
            begun = 0;
        }
        let read = file.read_at(&mut buffer[begun..], offset)?;
        if read == 0 {
            return Ok(());
        }
        offset += read as u64;
        let end = begun + read;
        let mut lines = buffer[..end].split(|byte| *byte == b'\n');
        // The last one goes on in the next part.
        let rest = lines.next_back().map_or(0, <[u8]>::len);
        lines.for_each(&mut *each);
        buffer.copy_within(end - rest..end, 0);
        begun = rest;
    }
}

/// The value of `key` in a file of `key value` lines.
pub fn value_of(bytes: &[u8], key: &str) -> Option<u64> {
    bytes.split(|b| *b == b'\n').find_map(|line| {
        let rest = line.strip_prefix(key.as_bytes())?.strip_prefix(b" ")?;
        number(rest)
    })
}

/// The values of several keys in a file of `key value` lines, in one pass; of a key that is there twice, the last.
pub fn values_of<const N: usize>(bytes: &[u8], keys: [&str; N]) -> [Option<u64>; N] {
    let mut values = [None; N];
    for line in bytes.split(|b| *b == b'\n') {
        let mut parts = line.splitn(2, |b| *b == b' ');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else {
            continue;
        };
        for (key, found) in keys.iter().zip(&mut values) {
            if key.as_bytes() == name {
                *found = number(value);
            }
        }
    }
    values
}

/// The error of a file that does not hold what the kernel writes there, for a thread that may allocate: it says what is
/// missing.
pub fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Builds the error for a thread that decides: an error number (EBADMSG) takes no memory, and reaches the log as a
/// number.
pub fn bad_message() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADMSG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_the_digits_do() {
        assert_eq!(number(b"18446744073709551615\n"), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!(number(b"max\n"), None);
    }

    #[test]
    fn a_key_is_not_found_inside_a_longer_one() {
        let stat = b"total_inactive_file 7\ninactive_file 5\n";
        assert_eq!(value_of(stat, "inactive_file"), Some(5));
        assert_eq!(value_of(stat, "active_file"), None);
        let found = values_of(
            stat,
            ["inactive_file", "active_file", "total_inactive_file"],
        );
        assert_eq!(found, [Some(5), None, Some(7)]);
    }
}
