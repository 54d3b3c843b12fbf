//! The fast path: hard memory thresholds, from the wake-up to SIGKILL.

mod allocatable;
mod allocates_nothing;
mod chaos;
mod drawn;
mod evicts;
mod guard;
mod machine;
mod pace;
mod paced;
mod realtime;
mod scene;
mod standby;
