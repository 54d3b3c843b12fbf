//! The findings of `evictd check`: which hooks this kernel has, what is degraded, and whether evictd is usable here.

mod machine;
mod signals;
mod start;
mod thresholds;

use std::path::Path;

use evictd_config::{Config, PinnedGuardConfig};
use evictd_engine::{Signal, model::settings::MemoryHook};
use evictd_node::{
    bpf::{object::BpfObject, pin::require_bpffs},
    cgroup::{
        memory::{MemoryCgroup, Version, memory_root},
        protection::{Protection, set_on},
    },
    memory_scope::Scope,
    pods::discovery::pods_below,
    proc::machine::memory_total,
    trigger::{
        memory::{self, Built},
        oom::OomReader,
    },
};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::daemon::{CGROUP_MOUNT, memory_thresholds, node_scope};

/// Why memory has no hook where there is no place to look.
const NO_CGROUPS: &str = "no memory cgroups that can be watched";

/// State of one thing that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// The thing is as it should be.
    Ok,
    /// evictd works, but less well or without this.
    Degraded,
    /// evictd is not usable without this.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of what was looked at.
    pub topic: &'static str,
    /// State of what was looked at.
    pub state: State,
    /// Description of what was found, and what follows.
    pub detail: String,
}

impl Finding {
    fn new(topic: &'static str, state: State, detail: impl Into<String>) -> Self {
        Self {
            topic,
            state,
            detail: detail.into(),
        }
    }
}

/// A hook that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// The hook.
    pub hook: String,
    /// The kernel's reason.
    pub reason: String,
}

/// The hook that a signal gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SignalHook {
    /// The signal, under the kubelet's name, or `pods` for the cgroups that come and go.
    pub signal: &'static str,
    /// The hook that is used; `None` when the signal cannot be watched. Shown under its former name too.
    #[serde(flatten, serialize_with = "with_former_name")]
    pub hook: Option<String>,
    /// Details of the hook, such as a filesystem's type and directory, or why there is no hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Better hooks and why they are refused.
    pub refused: Vec<Refused>,
}

fn with_former_name<S: Serializer>(hook: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
    let mut fields = to.serialize_map(Some(2))?;
    fields.serialize_entry("hook", hook)?;
    fields.serialize_entry("rung", hook)?;
    fields.end()
}

/// All that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Whether evictd is usable here.
    pub usable: bool,
    /// `uname -r`.
    pub kernel: String,
    /// The hooks.
    pub signals: Vec<SignalHook>,
    /// Everything else.
    pub findings: Vec<Finding>,
}

impl Check {
    /// Looks at the running machine; programs are loaded and attached for a moment. With a configuration the
    /// thresholds are held against the machine's size too.
    pub fn of_this_machine(config: Option<&Config>) -> Self {
        let proc = Path::new("/proc");
        let root = memory_root(Path::new(CGROUP_MOUNT));
        let mut findings = machine::findings(proc, Path::new("/sys"));
        findings.push(cgroups(
            root.as_ref()
                .map(|(path, version)| (path.as_path(), *version)),
        ));
        let forced = config.and_then(|config| config.memory_hook);
        let (memory, evidence) = match &root {
            Some((path, _)) => memory_hook(path, forced),
            None => (Err(NO_CGROUPS.to_owned()), Vec::new()),
        };
        findings.extend(evidence);
        let scope = node_scope(config);
        let capacity = scope.as_ref().map_or(0, Scope::capacity);
        findings.push(pinned_guard(config, capacity, memory.as_ref().ok()));
        findings
            .extend(scope.and_then(|scope| protection(scope.cgroup().path(), scope.is_limited())));
        let node = config.and_then(|config| config.scope.cgroup.clone());
        let node_capacity = match node {
            // The kubelet does not see the limit of a container that is a node.
            None => memory_total(proc).ok(),
            Some(_) => Some(capacity).filter(|capacity| *capacity > 0),
        };
        let mut hooks = signals::memory(
            memory.map(|built| built.selected_hook),
            node.or(root.map(|(root, _)| root)).as_deref(),
            config,
        );
        let usable = hooks
            .iter()
            .all(|hook| hook.signal != Signal::MemoryAvailable.as_str() || hook.hook.is_some());
        hooks.extend(signals::counted(config));
        if let (Some(config), Some(capacity)) = (config, node_capacity) {
            findings.push(thresholds::sizing(capacity, &config.eviction));
        }
        findings.extend(config.and_then(thresholds::amounts));
        findings.extend(config.into_iter().flat_map(thresholds::findings));
        findings.extend(config.into_iter().flat_map(start::findings));
        Self {
            usable: usable && findings.iter().all(|f| f.state != State::Missing),
            kernel: machine::release(proc),
            signals: hooks,
            findings,
        }
    }
}

/// Page cache that the kernel will not take back.
fn protection(root: &Path, is_limited: bool) -> Option<Finding> {
    let pods = pods_below(root).found;
    let memory = pods.iter().flat_map(|pod| MemoryCgroup::open(&pod.path));
    let memory: Vec<_> = memory.collect();
    let set = set_on(&memory);
    (set > 0).then(|| {
        let bytes = Protection::below(root, is_limited).cache_of(memory.iter());
        let detail = format!(
            "set on {set} of {} pods: {} MiB of their page cache count as available and cannot be reclaimed now; \
            growth that leaves nothing else is urgent",
            memory.len(),
            bytes >> 20
        );
        Finding::new("memory.min", State::Ok, detail)
    })
}

fn cgroups(root: Option<(&Path, Version)>) -> Finding {
    const TOPIC: &str = "memory cgroups";
    match root {
        Some((path, version)) => {
            let version = match version {
                Version::V1 => "v1",
                Version::V2 => "v2",
            };
            Finding::new(TOPIC, State::Ok, format!("{version} at {}", path.display()))
        }
        None => Finding::new(
            TOPIC,
            State::Missing,
            "neither v1's memory hierarchy nor v2 with the memory controller is mounted at /sys/fs/cgroup",
        ),
    }
}

/// Builds the trigger as the agent would, and the evidence of the OOM killer beside it.
fn memory_hook(root: &Path, forced: Option<MemoryHook>) -> (Result<Built, String>, Vec<Finding>) {
    let Ok(scope) = MemoryCgroup::open(root) else {
        return (Err(NO_CGROUPS.to_owned()), Vec::new());
    };
    let (mut object, built) = memory::load(BpfObject::load(), &[&scope], forced);
    let built = built.map_err(|error| error.to_string());
    let mut findings = vec![match &object {
        Ok(_) => Finding::new("eBPF", State::Ok, "the object loads, offsets come from BTF"),
        Err(reason) => Finding::new("eBPF", State::Degraded, reason.to_string()),
    }];
    if let Ok(object) = &mut object {
        findings.push(evidence(object));
    }
    if let Err(reason) = &built {
        findings.push(Finding::new("memory hook", State::Missing, reason));
    }
    (built, findings)
}

const PINNED_GUARD: &str = "pinned guard";

/// Whether a guard can outlive the agent; nothing is pinned for that.
fn pinned_guard(config: Option<&Config>, capacity: u64, memory: Option<&Built>) -> Finding {
    let guard = config.map_or_else(PinnedGuardConfig::default, |c| c.pinned_guard.clone());
    if !guard.enabled {
        return Finding::new(PINNED_GUARD, State::Ok, "pinnedGuard.enabled is false");
    }
    if config.is_some_and(|config| config.shadow) {
        return Finding::new(PINNED_GUARD, State::Ok, "shadow mode: none is pinned");
    }
    let degraded = |reason: String| {
        let detail = format!("{reason}: the kubelet and the OOM killer decide while no agent runs");
        Finding::new(PINNED_GUARD, State::Degraded, detail)
    };
    let is_hard = |config: &Config| {
        let amounts = |signal| memory_thresholds(config, signal, capacity);
        Signal::MEMORY
            .into_iter()
            .any(|signal| amounts(signal).threshold > 0)
    };
    if config.is_some_and(|config| !is_hard(config)) {
        return degraded("without a hard threshold on memory it ends no pod".to_owned());
    }
    if let Err(error) = require_bpffs(&guard.directory) {
        return degraded(error.to_string());
    }
    let Some(trigger) = memory.map(|built| &built.trigger) else {
        return degraded("memory is not watched".to_owned());
    };
    match trigger.why_not_pinned() {
        Some(reason) => degraded(reason),
        None => pinned_at(&guard.directory, trigger.unseen_without_agent()),
    }
}

/// A guard that can be pinned there, and what it will not see.
fn pinned_at(directory: &Path, unseen: &[String]) -> Finding {
    let goes_to = format!("goes to {}", directory.display());
    let (state, detail) = match unseen {
        [] => (State::Ok, goes_to),
        _ => (
            State::Degraded,
            format!(
                "{goes_to}; without an agent it sees growth by a task's own memory alone: {}",
                unseen.join("; ")
            ),
        ),
    };
    Finding::new(PINNED_GUARD, state, detail)
}

fn evidence(object: &mut BpfObject) -> Finding {
    const TOPIC: &str = "OOM evidence";
    match OomReader::attach(object) {
        Ok((_, refused)) if refused.is_empty() => Finding::new(
            TOPIC,
            State::Ok,
            "victims are seen, and whose limit each was killed for",
        ),
        Ok((_, refused)) => {
            let reasons: Vec<_> = refused.iter().map(|(p, r)| format!("{p}: {r}")).collect();
            Finding::new(TOPIC, State::Degraded, reasons.join("; "))
        }
        Err(error) => Finding::new(TOPIC, State::Degraded, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_whose_cache_is_protected_are_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, min: &str| {
            let group = dir.path().join(name);
            std::fs::create_dir_all(&group).unwrap();
            for (file, text) in [
                ("min", min),
                ("current", "100000000"),
                (
                    "stat",
                    "anon 0\nfile 100000000\ninactive_file 100000000\nactive_file 0\n",
                ),
            ] {
                std::fs::write(group.join(format!("memory.{file}")), text).unwrap();
            }
        };
        let pods = [
            "pod00000000-0000-0000-0000-000000000001",
            "pod00000000-0000-0000-0000-000000000002",
        ];
        make("kubepods", "0");
        for pod in pods {
            make(&format!("kubepods/{pod}"), "0");
        }
        assert_eq!(protection(dir.path(), false), None);
        make("kubepods", "52428800");
        make(&format!("kubepods/{}", pods[1]), "52428800");
        let said = |is_limited| protection(dir.path(), is_limited).unwrap().detail;
        let told = said(false);
        assert!(told.starts_with("set on 1 of 2 pods: 50 MiB of"), "{told}");
        // What counts as the node is a cgroup, which limits what is protected unless it is itself at a limit.
        std::fs::write(dir.path().join("memory.min"), "0").unwrap();
        let (free, limited) = (said(false), said(true));
        assert!(free.starts_with("set on 1 of 2 pods: 0 MiB"), "{free}");
        assert!(
            limited.starts_with("set on 1 of 2 pods: 50 MiB"),
            "{limited}"
        );
    }

    #[test]
    fn a_guard_that_sees_less_is_degraded_and_says_why() {
        let directory = Path::new("/sys/fs/bpf/evictd");
        let all = pinned_at(directory, &[]);
        assert_eq!(
            (all.state, &*all.detail),
            (State::Ok, "goes to /sys/fs/bpf/evictd")
        );
        let refused = ["memory_reclaim_of_cgroup: unknown BTF type".to_owned()];
        let less = pinned_at(directory, &refused);
        assert_eq!(less.state, State::Degraded);
        assert!(less.detail.ends_with(&refused[0]), "{}", less.detail);
    }
}
