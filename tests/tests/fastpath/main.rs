//! The fast path: hard memory thresholds, from the wake-up to SIGKILL.

mod allocatable;
mod allocates_nothing;
mod chaos;
mod drawn;
mod evicts;
mod guard;
mod machine;
mod pace;
mod realtime;
mod standby;
