//! What most integration tests, fixtures and tools use.

pub use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

pub use anyhow::{Context as _, Error, Result, bail, ensure};
pub use evictd_engine::{
    Pod, QosClass, Signal,
    model::settings::{MemoryHook, Mode},
};
pub use evictd_node::{bpf::object::BpfObject, cgroup::memory::MemoryCgroup};
pub use evictd_store::{
    journal,
    record::{EvictionRecord, Record},
};
pub use evictd_sys::clock::monotonic_ns;
pub use parking_lot::{Mutex, MutexGuard};
pub use serde_json::{Value, json};

pub use crate::{
    agent::{self, Agent},
    apiserver::{ApiServer, Collection, InjectedFault, NODE},
    as_root,
    cgroup::{OomKills as _, TestCgroup, memory_root},
    cluster_node::ClusterNode,
    current_thread,
    disk::Disk,
    embedded::{Files, requests, set_soft},
    forker::Forker,
    hog::Hog,
    node::{MIB, Node},
    or_skip, records_of, scenes,
    scrape::{free_address, listen, metrics, shows, value},
    skip::{granted, in_guest, matrix, no_bpf, no_memory_cgroups, not_in_guest, not_root},
    skip_if,
    table::{rows, yaml},
    text::{begins, has},
    wait::{SOON, alone, sleep_from, until, wait_for},
    with_bpf,
};
