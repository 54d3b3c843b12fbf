//! The kernel programs of the agent: they are loaded at the start, and stay attached for as long as their objects live.

use evictd_common::drops::DropCounter;
use evictd_config::Config;
use evictd_engine::model::settings::MemoryHook;
use evictd_node::{
    bpf::{
        kernel_log::{self, KernelLog},
        object::BpfObject,
    },
    memory_scope::Scope,
    trigger::{
        memory::{self, TriggerSet},
        oom::OomReader,
    },
};

use super::RunError;

/// The objects, and what reads their records.
pub struct Programs {
    /// Programs that watch memory and report kills of the OOM killer.
    pub memory: Option<BpfObject>,
    /// Programs that count.
    pub counters: Option<BpfObject>,
    pub kernel_log: Option<KernelLog>,
    pub oom: Option<OomReader>,
}

impl Programs {
    pub fn drop_btf(&mut self) {
        for object in self.memory.iter_mut().chain(&mut self.counters) {
            object.drop_btf();
        }
    }

    /// Number of records that the programs could not deliver since they were loaded.
    pub fn drops(&self, which: DropCounter) -> u64 {
        let objects = self.memory.iter().chain(&self.counters);
        objects.filter_map(|object| object.drops(which).ok()).sum()
    }
}

/// Programs that are loaded, and the trigger of the memory scopes with its hook.
pub struct LoadedPrograms {
    pub programs: Programs,
    pub trigger: Box<dyn TriggerSet>,
    pub hook: MemoryHook,
}

/// Loads the programs that watch memory, and attaches those that report kills of the OOM killer.
///
/// # Errors
/// The hook that the configuration asks for is not to be had.
pub fn load(config: &Config, scopes: &[Scope]) -> Result<LoadedPrograms, RunError> {
    let cgroups: Vec<_> = scopes.iter().map(Scope::cgroup).collect();
    let (mut object, built) = memory::load(BpfObject::load(), &cgroups, config.memory_hook);
    let mut built = built?;
    let mut kernel_log = None;
    if kernel_log::is_wanted() {
        // A kernel that refuses what writes the lines takes the same hook without them.
        match memory::load(BpfObject::load_with_log(), &cgroups, config.memory_hook) {
            (logging, Ok(same)) if same.selected_hook.hook == built.selected_hook.hook => {
                (object, built) = (logging, same);
                kernel_log = object.as_mut().ok().and_then(BpfObject::kernel_log);
            }
            _ => tracing::warn!("the kernel refuses programs that write to the log"),
        }
    }
    for (hook, reason) in &built.selected_hook.refused {
        tracing::info!(%hook, reason, "a better hook is refused");
    }
    let mut memory = object.ok();
    let programs = Programs {
        oom: memory.as_mut().and_then(attach_oom_reader),
        memory,
        counters: None,
        kernel_log,
    };
    Ok(LoadedPrograms {
        programs,
        trigger: built.trigger,
        hook: built.selected_hook.hook,
    })
}

fn attach_oom_reader(object: &mut BpfObject) -> Option<OomReader> {
    match OomReader::attach(object) {
        Ok((reader, refused)) => {
            for (program, reason) in refused {
                tracing::info!(program, reason, "evidence of the OOM killer is missing");
            }
            if reader.is_none() {
                tracing::warn!("no program observes the OOM killer: its kills are counted");
            }
            reader
        }
        Err(error) => {
            tracing::warn!(%error, "the OOM killer is not observed");
            None
        }
    }
}
