//! Pressure stall information (`Documentation/accounting/psi.rst`): the share of time in which tasks waited.

use std::{fs, path::Path};

use evictd_sys::fs::PathError;

/// A pressure file: `/proc/pressure/memory` or a v2 cgroup's `memory.pressure`. Shares of the last 10 seconds, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Psi {
    /// Share of the time in which at least one task waited.
    pub some: f64,
    /// All tasks waited; the CPU file of kernels before 5.13 has no such line.
    pub full: Option<f64>,
}

impl Psi {
    /// Reads and parses a pressure file.
    ///
    /// # Errors
    /// Not there (no `CONFIG_PSI`, or `psi=0`), or not in the kernel's form.
    pub fn read(path: &Path) -> Result<Self, PathError> {
        let text = fs::read_to_string(path).map_err(PathError::at(path))?;
        let malformed =
            || PathError::at(path)(crate::kernfile::malformed("not pressure stall information"));
        Self::parse(&text).ok_or_else(malformed)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = |kind: &str| text.lines().find_map(|l| l.strip_prefix(kind));
        let avg10 = |line: &str| {
            let mut fields = line.split_whitespace();
            fields.find_map(|f| f.strip_prefix("avg10="))?.parse().ok()
        };
        let full = match line("full ") {
            Some(rest) => Some(avg10(rest)?),
            None => None,
        };
        Some(Self {
            some: avg10(line("some ")?)?,
            full,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
        let text = "some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\n\
                    full avg10=0.50 avg60=0.00 avg300=0.00 total=99\n";
        let pressure = Psi::parse(text).unwrap();
        assert_eq!(pressure.some, 1.5);
        assert_eq!(pressure.full.unwrap(), 0.5);
    }

    #[test]
    fn a_missing_full_line_is_no_error_but_a_damaged_one_is() {
        assert!(
            Psi::parse("some avg10=0 avg60=0 avg300=0 total=0\n")
                .unwrap()
                .full
                .is_none()
        );
        assert!(Psi::parse("some avg10=0 avg60=0 avg300=0 total=0\nfull avg10=x\n").is_none());
        assert!(Psi::parse("").is_none());
    }
}
