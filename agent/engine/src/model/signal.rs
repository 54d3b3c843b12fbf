//! What is watched: the kubelet's eviction signals and what each of them stands for.

use std::{fmt, str::FromStr};

/// An eviction signal, under the kubelet's name. All of them fire when what is available falls below a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// `allocatableMemory.available`: what the pods' cgroup may still use, in bytes.
    AllocatableMemoryAvailable,
    /// `containerfs.available`: bytes where the writable layers live.
    ContainerFsAvailable,
    /// `containerfs.inodesFree`: inodes where the writable layers live.
    ContainerFsInodesFree,
    /// `imagefs.available`: bytes where the images live.
    ImageFsAvailable,
    /// `imagefs.inodesFree`: inodes where the images live.
    ImageFsInodesFree,
    /// `memory.available`: the node's capacity minus its working set, in bytes.
    MemoryAvailable,
    /// `nodefs.available`: bytes where volumes and logs live.
    NodeFsAvailable,
    /// `nodefs.inodesFree`: inodes where volumes and logs live.
    NodeFsInodesFree,
    /// `pid.available`: process ids that the kernel can still give out.
    PidAvailable,
}

/// The resource that runs short when a signal fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Bytes of memory.
    Memory,
    /// Bytes on a local disk.
    EphemeralStorage,
    /// Inodes on a local disk.
    Inodes,
    /// Process ids.
    Pids,
}

/// The node condition that a signal raises, in the order in which they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeCondition {
    /// `DiskPressure`.
    DiskPressure,
    /// `MemoryPressure`.
    MemoryPressure,
    /// `PIDPressure`.
    PidPressure,
}

/// A name that is none of the signals'.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported eviction signal")]
pub struct UnknownSignal;

impl Signal {
    /// All signals, sorted by name.
    pub const ALL: [Self; 9] = [
        Self::AllocatableMemoryAvailable,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::MemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::PidAvailable,
    ];

    /// The signals of memory: the node's, and that of its pods.
    pub const MEMORY: [Self; 2] = [Self::MemoryAvailable, Self::AllocatableMemoryAvailable];

    /// The signals of nodefs, imagefs and containerfs: bytes and inodes of each.
    pub const FILESYSTEMS: [(Self, Self); 3] = [
        (Self::NodeFsAvailable, Self::NodeFsInodesFree),
        (Self::ImageFsAvailable, Self::ImageFsInodesFree),
        (Self::ContainerFsAvailable, Self::ContainerFsInodesFree),
    ];

    /// The kubelet's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::MemoryAvailable => "memory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The resource that is short when the signal fires.
    pub fn resource(self) -> Resource {
        match self {
            Self::AllocatableMemoryAvailable | Self::MemoryAvailable => Resource::Memory,
            Self::ContainerFsAvailable | Self::ImageFsAvailable | Self::NodeFsAvailable => {
                Resource::EphemeralStorage
            }
            Self::ContainerFsInodesFree | Self::ImageFsInodesFree | Self::NodeFsInodesFree => {
                Resource::Inodes
            }
            Self::PidAvailable => Resource::Pids,
        }
    }

    /// The signal of the bytes of the filesystem whose inodes this one watches.
    pub fn bytes_beside(self) -> Option<Self> {
        let mut filesystems = Self::FILESYSTEMS.into_iter();
        let of_it = filesystems.find(|(_, inodes)| *inodes == self);
        of_it.map(|(bytes, _)| bytes)
    }

    /// The node condition that is true while the signal is below a threshold.
    pub fn node_condition(self) -> NodeCondition {
        match self.resource() {
            Resource::Memory => NodeCondition::MemoryPressure,
            Resource::EphemeralStorage | Resource::Inodes => NodeCondition::DiskPressure,
            Resource::Pids => NodeCondition::PidPressure,
        }
    }
}

impl Resource {
    /// All resources.
    pub const ALL: [Self; 4] = [
        Self::Memory,
        Self::EphemeralStorage,
        Self::Inodes,
        Self::Pids,
    ];

    /// The name that the kubelet's messages use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// Whether a pod holds it by files, which are walked in the background.
    pub fn is_of_files(self) -> bool {
        matches!(self, Self::EphemeralStorage | Self::Inodes)
    }

    /// Whether its amounts are bytes.
    pub fn is_of_bytes(self) -> bool {
        matches!(self, Self::Memory | Self::EphemeralStorage)
    }
}

impl NodeCondition {
    /// The condition's type in the node's status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DiskPressure => "DiskPressure",
            Self::MemoryPressure => "MemoryPressure",
            Self::PidPressure => "PIDPressure",
        }
    }
}

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(name: &str) -> Result<Self, UnknownSignal> {
        Self::ALL
            .into_iter()
            .find(|signal| signal.as_str() == name)
            .ok_or(UnknownSignal)
    }
}

macro_rules! display_as_str {
    ($($name:ty),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    )*};
}
display_as_str!(Signal, Resource, NodeCondition);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways_and_are_sorted() {
        // R1
        for signal in Signal::ALL {
            assert_eq!(signal.as_str().parse(), Ok(signal));
        }
        assert!(Signal::ALL.is_sorted_by_key(|signal| signal.as_str()));
        assert_eq!("nodefs".parse::<Signal>(), Err(UnknownSignal));
        assert_eq!("Memory.available".parse::<Signal>(), Err(UnknownSignal));
    }
}
