//! Orders of preference: which hook a trigger gets. How a hook is attached comes from the trigger; nothing is touched
//! here.

use std::fmt;

use evictd_engine::model::settings::MemoryHook;

use crate::bpf::object::{AttachPoint, ProgramSpec};

/// The hooks of one order of preference.
pub trait Hook: Copy + PartialEq + fmt::Debug + fmt::Display + 'static {
    /// All hooks, best first.
    const PREFERENCE: &'static [Self];
    /// The hook that needs nothing from the kernel but files.
    const LAST: Self;
    /// Name of the configuration's field for the choice.
    const FIELD: &'static str;
}

/// Cost of a hook for the workload while it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The hook costs nothing.
    None,
    /// Some nanoseconds per batch of 32 or 64 pages: always attached.
    PerBatch,
    /// Several calls per page, a quarter of a page fault in the worst case: attached only while the distance is short.
    PerPage,
}

/// Cost of a hook for the workload.
pub fn cost(hook: MemoryHook) -> Cost {
    match hook {
        MemoryHook::Fexit | MemoryHook::Kprobe => Cost::PerBatch,
        MemoryHook::Tracepoint => Cost::PerPage,
        MemoryHook::Eventfd | MemoryHook::Sampler => Cost::None,
    }
}

/// The kernel program of a hook, for the hooks that have one.
pub fn program(hook: MemoryHook) -> Option<ProgramSpec> {
    const CHARGE: &str = "page_counter_try_charge";
    let (name, place) = match hook {
        MemoryHook::Fexit => ("memory_charge_exit", AttachPoint::Fexit(CHARGE)),
        MemoryHook::Kprobe => ("memory_charge_entry", AttachPoint::Kprobe(CHARGE)),
        MemoryHook::Tracepoint => (
            "memory_lruvec",
            AttachPoint::BtfTracepoint("mod_memcg_lruvec_state"),
        ),
        MemoryHook::Eventfd | MemoryHook::Sampler => return None,
    };
    Some(ProgramSpec {
        name,
        attach_point: place,
    })
}

impl Hook for MemoryHook {
    const PREFERENCE: &'static [Self] = &Self::BY_PREFERENCE;
    const LAST: Self = Self::Sampler;
    const FIELD: &'static str = "memoryHook";
}

/// The hooks of what is counted event by event: tasks, inodes, cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CountHook {
    /// `tp_btf`: tracepoints with typed arguments.
    Typed,
    /// Tracepoints of tracefs, which also filesystems built as modules have.
    Tracepoint,
    /// No hook: userspace looks as often as the distance to the limit asks for.
    Sampler,
}

impl fmt::Display for CountHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Typed => "tp_btf",
            Self::Tracepoint => "tracepoint",
            Self::Sampler => "sampler",
        })
    }
}

impl Hook for CountHook {
    const PREFERENCE: &'static [Self] = &[Self::Typed, Self::Tracepoint, Self::Sampler];
    const LAST: Self = Self::Sampler;
    const FIELD: &'static str = "countHook";
}

/// The hook that is used, and why the better ones are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedHook<H = MemoryHook> {
    /// The hook.
    pub hook: H,
    /// Better hooks and the kernel's reason for refusing each.
    pub refused: Vec<(H, String)>,
}

/// Error: the hook that the configuration asks for cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {hook} cannot be used here: {reason}", field = H::FIELD)]
pub struct HookUnavailable<H: Hook = MemoryHook> {
    /// The hook that the configuration asks for.
    pub hook: H,
    /// The kernel's reason.
    pub reason: String,
}

/// Tries the hooks, the best first, until the kernel grants one. A hook that the configuration names is the only one to
/// be tried, so that its refusal is an error.
///
/// # Errors
/// The forced hook is refused, or all are.
pub(super) fn probe<H: Hook, T>(
    forced: Option<H>,
    mut attach: impl FnMut(H) -> Result<T, String>,
) -> Result<(SelectedHook<H>, T), HookUnavailable<H>> {
    let forced = forced.as_ref().map(std::slice::from_ref);
    let mut refused = Vec::new();
    for &hook in forced.unwrap_or(H::PREFERENCE) {
        match attach(hook) {
            Ok(attached) => return Ok((SelectedHook { hook, refused }, attached)),
            Err(reason) => refused.push((hook, reason)),
        }
    }
    let (hook, reason) = refused
        .pop()
        .unwrap_or_else(|| (H::LAST, "was not tried".to_owned()));
    Err(HookUnavailable { hook, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine where these can be had.
    fn choose(
        usable: &[MemoryHook],
        forced: Option<MemoryHook>,
    ) -> Result<SelectedHook, HookUnavailable> {
        let attach = |hook: MemoryHook| match usable.contains(&hook) {
            true => Ok(hook),
            false => Err(format!("no {hook}")),
        };
        let (choice, attached) = probe(forced, attach)?;
        assert_eq!(choice.hook, attached);
        Ok(choice)
    }

    #[test]
    fn the_best_usable_hook_is_taken_and_the_refused_ones_keep_their_reason() {
        let usable = [MemoryHook::Sampler, MemoryHook::Tracepoint];
        let choice = choose(&usable, None).unwrap();
        assert_eq!(choice.hook, MemoryHook::Tracepoint);
        assert_eq!(
            choice.refused,
            [
                (MemoryHook::Fexit, "no fexit".into()),
                (MemoryHook::Kprobe, "no kprobe".into())
            ]
        );
    }

    #[test]
    fn with_nothing_else_the_sampler_is_left() {
        let choice = choose(&[MemoryHook::Sampler], None).unwrap();
        assert_eq!(choice.hook, MemoryHook::Sampler);
        assert_eq!(choice.refused.len(), MemoryHook::BY_PREFERENCE.len() - 1);
    }

    #[test]
    fn a_forced_hook_is_taken_or_refused_but_never_replaced() {
        let usable = [MemoryHook::Fexit, MemoryHook::Eventfd];
        let choice = choose(&usable, Some(MemoryHook::Eventfd)).unwrap();
        assert_eq!((choice.hook, choice.refused), (MemoryHook::Eventfd, vec![]));
        let refused = choose(&usable, Some(MemoryHook::Kprobe)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memoryHook: kprobe cannot be used here: no kprobe"
        );
    }
}
