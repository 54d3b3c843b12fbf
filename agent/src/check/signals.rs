//! The hook that each signal gets here, and why it is not a better one.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use evictd_config::{Config, FilesystemPaths};
use evictd_engine::{Signal, model::settings::MemoryHook};
use evictd_node::{
    bpf::object::BpfObject,
    cgroup::memory::MemoryCgroup,
    pods::discovery::pods_root,
    proc::pids::Pids,
    trigger::{
        cgroups::CgroupEvents,
        hook::{CountHook, SelectedHook},
        inodes::InodeTrigger,
        pids::PidTrigger,
    },
};

use super::{NO_CGROUPS, Refused, SignalHook};
use crate::daemon::signals::{INODES, NOT_CONFIGURED, offer, wants};

fn hook<H: fmt::Display>(signal: &'static str, selected: &SelectedHook<H>) -> SignalHook {
    let refused = |(hook, reason): &(H, String)| Refused {
        hook: hook.to_string(),
        reason: reason.clone(),
    };
    let (unwanted, refusals): (Vec<_>, Vec<_>) =
        (selected.refused.iter()).partition(|(_, reason)| reason == NOT_CONFIGURED);
    SignalHook {
        signal,
        hook: Some(selected.hook.to_string()),
        detail: unwanted.first().map(|_| NOT_CONFIGURED.to_owned()),
        refused: refusals.into_iter().map(refused).collect(),
    }
}

fn none(signal: &'static str, why: impl Into<String>) -> SignalHook {
    SignalHook {
        signal,
        hook: None,
        detail: Some(why.into()),
        refused: Vec::new(),
    }
}

/// A detail, with a note behind it where there is one.
fn with_note(detail: String, note: Option<&str>) -> String {
    match note {
        Some(note) => format!("{detail}; {note}"),
        None => detail,
    }
}

/// The memory of the node, which is this cgroup, and that of its pods, which is watched by the same programs.
pub(super) fn memory(
    selected: Result<SelectedHook<MemoryHook>, String>,
    node: Option<&Path>,
    config: Option<&Config>,
) -> Vec<SignalHook> {
    let [signal, pods] = Signal::MEMORY.map(Signal::as_str);
    let [unwanted, unwanted_pods] = Signal::MEMORY.map(|signal| {
        let is_wanted = config.is_none_or(|config| wants(config, &[signal]));
        (!is_wanted).then_some(NOT_CONFIGURED)
    });
    let node = node.ok_or_else(|| NO_CGROUPS.to_owned());
    let (selected, node) = match selected.and_then(|selected| Ok((selected, node?))) {
        Ok(found) => found,
        Err(why) => return vec![none(signal, &*why), none(pods, why)],
    };
    let dir = pods_root(node);
    let limit = |dir: &PathBuf| MemoryCgroup::open(dir).and_then(|c| c.limit());
    let of_pods = match dir.as_ref().map(|dir| (dir, limit(dir))) {
        None => none(
            pods,
            format!("there is no kubepods cgroup below {}", node.display()),
        ),
        Some((dir, Ok(None))) => none(pods, format!("{} has no limit", dir.display())),
        Some((_, Err(error))) => none(pods, error.to_string()),
        Some((dir, Ok(Some(bytes)))) => SignalHook {
            detail: Some(with_note(
                format!("{} with {bytes} bytes", dir.display()),
                unwanted_pods,
            )),
            ..hook(pods, &selected)
        },
    };
    let of_node = SignalHook {
        detail: unwanted.map(str::to_owned),
        ..hook(signal, &selected)
    };
    vec![of_node, of_pods]
}

/// Finds the hooks of what is counted event by event, and of the bytes that nothing counts. With a configuration a
/// program is offered where a threshold asks for it, as the agent does.
pub(super) fn counted(config: Option<&Config>) -> Vec<SignalHook> {
    let mut object = BpfObject::load_counts().map_err(|error| error.to_string());
    let wants = |signals: &[Signal]| config.is_none_or(|config| wants(config, signals));
    let default = FilesystemPaths::default();
    let filesystems = config.map_or(&default, |config| &config.filesystems);
    let mut hooks = Vec::new();
    let pids = Pids::open(Path::new("/proc")).map_err(|e| e.to_string());
    let pids = pids.map(|pids| {
        let object = offer(&mut object, wants(&[Signal::PidAvailable]));
        PidTrigger::build(pids, object)
    });
    let signal = Signal::PidAvailable.as_str();
    hooks.push(match &pids {
        Ok(pids) => hook(signal, pids.selected_hook()),
        Err(reason) => none(signal, reason),
    });
    // Held until all programs are loaded: they refer to the maps that each trigger has taken out of the object.
    let offered = offer(&mut object, wants(&INODES));
    let _inodes = disks(filesystems, &mut hooks, offered);
    let cgroup_events = CgroupEvents::build(offer(&mut object, true));
    hooks.push(hook("pods", cgroup_events.selected_hook()));
    hooks
}

fn disks(
    filesystems: &FilesystemPaths,
    hooks: &mut Vec<SignalHook>,
    object: Result<&mut BpfObject, &str>,
) -> Option<InodeTrigger> {
    let names = Signal::FILESYSTEMS.map(|(bytes, inodes)| (bytes.as_str(), inodes.as_str()));
    let Some(paths) = filesystems.resolve() else {
        let why = "no kubelet directory here and filesystems.nodefs is not set";
        let each = names
            .iter()
            .flat_map(|(bytes, inodes)| [none(bytes, why), none(inodes, why)]);
        hooks.extend(each);
        return None;
    };
    let directories = paths.each_ref().map(PathBuf::as_path);
    let built = InodeTrigger::build(&directories, object).map_err(|e| e.to_string());
    for ((bytes, inodes), path) in names.into_iter().zip(directories) {
        let found = built.as_ref().map_err(String::as_str).and_then(|trigger| {
            let index = trigger.index_of(path);
            let selected = index.and_then(|index| trigger.selected_hook(index));
            selected.ok_or("the filesystem cannot be told")
        });
        match found {
            Err(why) => hooks.extend([none(bytes, why), none(inodes, why)]),
            Ok((kind, selected)) => {
                let place = format!("{kind} at {}", path.display());
                let inodes = hook(inodes, selected);
                let detail = with_note(place.clone(), inodes.detail.as_deref());
                hooks.push(SignalHook {
                    signal: bytes,
                    // statfs, as often as the distance asks for: no hook tells of bytes.
                    hook: Some(CountHook::Sampler.to_string()),
                    detail: Some(place),
                    refused: Vec::new(),
                });
                hooks.push(SignalHook {
                    detail: Some(detail),
                    ..inodes
                });
            }
        }
    }
    built.ok()
}
