//! The rounds: everything that the reflex is not there for.
//!
//! The reflex answers hard memory pressure within microseconds and does nothing else. The other signals (process ids,
//! inodes, bytes on disk), the soft thresholds, pods above their own limits on local storage, and what the node says of
//! all that are the work of this thread: it sleeps until a wire is crossed or the nearest threshold could have been
//! reached, looks at everything, asks the engine's [`evictd_engine::Manager`], and kills or asks. It may allocate, and it
//! does what takes time; what waits for a network is done elsewhere.

mod demands;
mod graduate;
mod handle;
mod places;
mod post;
mod reclaim;
mod sensors;
mod tell;
mod thread;
mod usage;
mod walker;
pub mod work;

pub use graduate::Graduated;
pub use handle::{Rounds, Setup, Status};
pub use places::{POD_LOGS, Places, of_kubelet_pod};
pub use post::{
    Decided, Inbox, Letter, Members, Note, ReclaimDemand, Reclaimed, Reclaimer, SoftChoice,
    SoftDemand,
};
pub use reclaim::Reclaiming;
pub use sensors::{Disk, Disks, Sensors};
pub use walker::{Errand, Finder, Walker, fixed};
