//! The table of mounts (proc_pid_mountinfo(5)).

use std::path::PathBuf;

/// The table of this process's mounts.
pub const MOUNTINFO: &str = "/proc/self/mountinfo";

/// The filesystem on which files below a directory are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// `s_dev` in the kernel's own encoding (`MKDEV`: major << 20 | minor), as tracepoints and structs have it.
    pub device: u32,
    /// Type of the filesystem: `ext4`, `xfs`, `btrfs`, `tmpfs`.
    pub kind: String,
}

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's number.
    pub id: u64,
    /// The directory of the filesystem that is mounted.
    pub root: PathBuf,
    /// Mount point.
    pub point: PathBuf,
    /// Superblock of the filesystem that is mounted.
    pub superblock: Superblock,
    /// The superblock's; what is escaped in them stays so.
    pub options: String,
}

impl Mount {
    /// The lines that can be understood.
    pub fn all(mountinfo: &str) -> impl DoubleEndedIterator<Item = Self> {
        mountinfo.lines().filter_map(Self::parse)
    }

    /// `36 35 98:0 /root /mount/point options [optional ...] - type source super-options`
    pub fn parse(line: &str) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let id = fields.next()?.parse().ok()?;
        let (major, minor) = fields.nth(1)?.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut fields = filesystem.splitn(3, ' ');
        let kind = fields.next()?.to_owned();
        Some(Self {
            id,
            root: unescape(root).into(),
            point: unescape(point).into(),
            superblock: Superblock {
                device: major << 20 | minor,
                kind,
            },
            options: fields.nth(1).unwrap_or_default().to_owned(),
        })
    }
}

/// A path with mountinfo's octal escapes undone.
pub fn unescape(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        match after.get(..3).and_then(|o| u8::from_str_radix(o, 8).ok()) {
            Some(byte) => {
                text.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                text.push('\\');
                rest = after;
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_line_with_and_without_optional_fields() {
        let line = r"36 35 254:3 / /var/lib rw,noatime shared:1 master:2 - ext4 /dev/vda3 rw,errors=remount-ro";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.id, mount.superblock.device), (36, 254 << 20 | 3));
        assert_eq!(mount.point, Path::new("/var/lib"));
        assert_eq!(mount.superblock.kind, "ext4");
        assert!(Mount::parse("36 35 0:41 / / rw - tmpfs none rw").is_some());
        assert!(Mount::parse("36 35 0:41 / / rw").is_none());
        assert!(Mount::parse("").is_none());
    }
}
