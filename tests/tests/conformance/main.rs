//! Decisions held against the kubelet's, and readings against recordings.

mod allocations;
mod beyond;
mod examples;
mod fastpath_victims;
mod judge;
mod parse;
mod properties;
mod rank;
mod recordings;
mod replay;
mod v1_pids;
mod victims;
