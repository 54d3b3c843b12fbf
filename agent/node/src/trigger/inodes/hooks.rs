//! Which tracepoints tell about the inodes of which filesystem.

use crate::{
    bpf::{
        object::{Object, Place, ProgramAt},
        tracefs,
    },
    trigger::hook::{CountHook, Facts, Hook as _},
};

const EXT4_TYPED: &[ProgramAt] = &[
    ProgramAt {
        name: "inodes_ext4_made",
        place: Place::BtfTracepoint("ext4_allocate_inode"),
    },
    ProgramAt {
        name: "inodes_ext4_freed",
        place: Place::BtfTracepoint("ext4_free_inode"),
    },
];

const BTRFS_TYPED: &[ProgramAt] = &[
    ProgramAt {
        name: "inodes_btrfs_made",
        place: Place::BtfTracepoint("btrfs_inode_new"),
    },
    ProgramAt {
        name: "inodes_btrfs_freed",
        place: Place::BtfTracepoint("btrfs_inode_evict"),
    },
];

const EXT4: &[ProgramAt] = &[
    ProgramAt {
        name: "inodes_ext4_made_untyped",
        place: Place::Tracepoint("ext4", "ext4_allocate_inode"),
    },
    ProgramAt {
        name: "inodes_ext4_freed_untyped",
        place: Place::Tracepoint("ext4", "ext4_free_inode"),
    },
];

const XFS: &[ProgramAt] = &[
    ProgramAt {
        name: "inodes_xfs_made",
        place: Place::Tracepoint("xfs", "xfs_create"),
    },
    ProgramAt {
        name: "inodes_xfs_linked",
        place: Place::Tracepoint("xfs", "xfs_symlink"),
    },
    ProgramAt {
        name: "inodes_xfs_unlinked",
        place: Place::Tracepoint("xfs", "xfs_iunlink"),
    },
    ProgramAt {
        name: "inodes_xfs_freed",
        place: Place::Tracepoint("xfs", "xfs_iunlink_remove"),
    },
];

/// The programs of a rung for a type of filesystem; the reason when it has none.
fn programs(kind: &str, hook: CountHook) -> Result<&'static [ProgramAt], String> {
    match (kind, hook) {
        ("ext4", CountHook::Typed) => Ok(EXT4_TYPED),
        ("ext4", CountHook::Tracepoint) => Ok(EXT4),
        ("btrfs", CountHook::Typed) => Ok(BTRFS_TYPED),
        ("btrfs", CountHook::Tracepoint) => {
            Err("the records of btrfs do not say which device".to_owned())
        }
        // Its structs are private: what is common to all its records is the device.
        ("xfs", CountHook::Typed) => Err("xfs has no typed program".to_owned()),
        ("xfs", CountHook::Tracepoint) => Ok(XFS),
        _ => Err(format!("{kind} has no inode tracepoints")),
    }
}

/// Attaches the programs of a rung, after a look at where their tracepoints keep the device.
fn attach(object: &mut Object, programs: &[ProgramAt]) -> Result<(), String> {
    for program in programs {
        if let Place::Tracepoint(category, name) = program.place {
            tracefs::expect(category, name, &[("dev", 8)])?;
        }
    }
    object.attach_all(programs)
}

/// Tries the rungs of one filesystem type; programs that are attached already serve another one of the type.
pub(super) fn probe(
    kind: &str,
    object: &mut Result<&mut Object, &str>,
    attached: &mut Vec<(String, CountHook)>,
    forced: Option<CountHook>,
) -> Facts<CountHook> {
    let mut facts = Facts::default();
    for &hook in CountHook::RUNGS {
        if forced.is_some_and(|f| f != hook) {
            continue;
        }
        let tried = match object {
            _ if hook == CountHook::Sampler => Ok(()),
            _ if attached.iter().any(|(k, h)| k == kind && *h == hook) => Ok(()),
            Err(reason) => Err((*reason).to_owned()),
            Ok(object) => programs(kind, hook).and_then(|programs| attach(object, programs)),
        };
        let found = tried.is_ok();
        facts.note(hook, tried);
        if found {
            attached.push((kind.to_owned(), hook));
            break;
        }
    }
    facts
}
