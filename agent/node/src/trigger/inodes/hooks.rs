//! Which tracepoints tell about the inodes of which filesystem.

use evictd_sys::fs::PathError;

use crate::{
    bpf::{
        object::{AttachPoint, BpfObject, ProgramSpec},
        tracefs,
    },
    trigger::hook::{self, CountHook, SelectedHook},
};

const EXT4_TYPED: &[ProgramSpec] = &[
    ProgramSpec {
        name: "inodes_ext4_made",
        attach_point: AttachPoint::BtfTracepoint("ext4_allocate_inode"),
    },
    ProgramSpec {
        name: "inodes_ext4_freed",
        attach_point: AttachPoint::BtfTracepoint("ext4_free_inode"),
    },
];

const BTRFS_TYPED: &[ProgramSpec] = &[
    ProgramSpec {
        name: "inodes_btrfs_made",
        attach_point: AttachPoint::BtfTracepoint("btrfs_inode_new"),
    },
    ProgramSpec {
        name: "inodes_btrfs_freed",
        attach_point: AttachPoint::BtfTracepoint("btrfs_inode_evict"),
    },
];

const EXT4: &[ProgramSpec] = &[
    ProgramSpec {
        name: "inodes_ext4_made_untyped",
        attach_point: AttachPoint::Tracepoint("ext4", "ext4_allocate_inode"),
    },
    ProgramSpec {
        name: "inodes_ext4_freed_untyped",
        attach_point: AttachPoint::Tracepoint("ext4", "ext4_free_inode"),
    },
];

const XFS: &[ProgramSpec] = &[
    ProgramSpec {
        name: "inodes_xfs_made",
        attach_point: AttachPoint::Tracepoint("xfs", "xfs_create"),
    },
    ProgramSpec {
        name: "inodes_xfs_linked",
        attach_point: AttachPoint::Tracepoint("xfs", "xfs_symlink"),
    },
    ProgramSpec {
        name: "inodes_xfs_unlinked",
        attach_point: AttachPoint::Tracepoint("xfs", "xfs_iunlink"),
    },
    ProgramSpec {
        name: "inodes_xfs_freed",
        attach_point: AttachPoint::Tracepoint("xfs", "xfs_iunlink_remove"),
    },
    ProgramSpec {
        name: "inodes_xfs_took",
        attach_point: AttachPoint::Tracepoint("xfs", "xfs_iget_miss"),
    },
    ProgramSpec {
        name: "inodes_xfs_names",
        attach_point: AttachPoint::Tracepoint("xfs", "xfs_link"),
    },
    ProgramSpec {
        name: "inodes_xfs_removes",
        attach_point: AttachPoint::Tracepoint("xfs", "xfs_remove"),
    },
    ProgramSpec {
        name: "inodes_xfs_renames",
        attach_point: AttachPoint::Tracepoint("xfs", "xfs_rename"),
    },
];

/// Programs of xfs with the tracepoint that they have now, and the one that told the same before 5.14 and 5.15.
const XFS_RENAMED: [(&str, &str, &str); 2] = [
    (
        "inodes_xfs_took_again",
        "xfs_iget_recycle",
        "xfs_iget_reclaim",
    ),
    (
        "inodes_xfs_tears_down",
        "xfs_inode_inactivating",
        "xfs_destroy_inode",
    ),
];

fn xfs() -> Vec<ProgramSpec> {
    let renamed = XFS_RENAMED.map(|(name, now, before)| {
        let is_new = tracefs::expect("xfs", now, &[]).is_ok();
        let tracepoint = if is_new { now } else { before };
        let attach_point = AttachPoint::Tracepoint("xfs", tracepoint);
        ProgramSpec { name, attach_point }
    });
    [XFS, &renamed].concat()
}

/// The programs of a hook for a type of filesystem; the reason when it has none.
fn programs(kind: &str, hook: CountHook) -> Result<Vec<ProgramSpec>, String> {
    match (kind, hook) {
        ("ext4", CountHook::Typed) => Ok(EXT4_TYPED.to_vec()),
        ("ext4", CountHook::Tracepoint) => Ok(EXT4.to_vec()),
        ("btrfs", CountHook::Typed) => Ok(BTRFS_TYPED.to_vec()),
        ("btrfs", CountHook::Tracepoint) => {
            Err("the records of btrfs do not say which device".to_owned())
        }
        // Its structs are private: what is common to all its records is the device.
        ("xfs", CountHook::Typed) => Err("xfs has no typed program".to_owned()),
        ("xfs", CountHook::Tracepoint) => Ok(xfs()),
        _ => Err(format!("{kind} has no inode tracepoints")),
    }
}

/// Attaches the programs of a hook, after a look at where their tracepoints keep the device.
fn attach(object: &mut BpfObject, programs: &[ProgramSpec]) -> Result<(), String> {
    for program in programs {
        if let AttachPoint::Tracepoint(category, name) = program.attach_point {
            tracefs::expect(category, name, &[("dev", 8)])?;
        }
    }
    object.attach_all(programs)
}

/// Takes the best of these hooks for one filesystem type; programs that are attached already serve another one of the
/// type.
pub(super) fn probe(
    kind: &str,
    object: &mut Result<&mut BpfObject, &str>,
    attached: &mut Vec<(String, CountHook)>,
    hooks: &[CountHook],
) -> SelectedHook<CountHook> {
    let (selected, _) = hook::probe_counted(hooks, |hook| match object {
        _ if attached.iter().any(|(k, h)| k == kind && *h == hook) => Ok(()),
        Err(reason) => Err((*reason).to_owned()),
        Ok(object) => programs(kind, hook).and_then(|programs| attach(object, &programs)),
    });
    attached.push((kind.to_owned(), selected.hook));
    selected
}

/// What there is for a filesystem whose superblock cannot be told: hooks know filesystems by it.
pub(super) fn without_hooks(error: &PathError, hooks: &[CountHook]) -> SelectedHook<CountHook> {
    let reason = format!("its superblock cannot be told: {error}");
    SelectedHook {
        hook: CountHook::Sampler,
        refused: hooks.iter().map(|hook| (*hook, reason.clone())).collect(),
    }
}
