//! What most of the commands use.

pub use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

pub use anyhow::{Context as _, Result, bail, ensure};
pub use serde_json::{Value, json};

pub use crate::shell::{cargo, output, run as sh, target_dir, workspace_root};
