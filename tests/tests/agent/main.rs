//! `evictd run` and its subcommands as processes.

mod bench_smoke;
mod broken_disks;
mod check_agrees;
mod cri_containerd;
mod cri_embedded;
mod cri_scripted;
mod hung_volume;
mod logs;
mod manager_embedded;
mod report_page;
mod run_embedded;
mod run_memory;
mod run_modes;
mod run_reload;
mod run_reserves;
mod run_restart;
mod run_stalled;
mod self_test;
mod telemetry_metrics;
mod telemetry_report;
mod threads;
mod top_live;
mod upgrade;

/// A hog that takes more than the threshold leaves of a scope of 256 MiB, and less than the scope.
const TOO_MUCH: [&str; 2] = ["--mib", "210"];
