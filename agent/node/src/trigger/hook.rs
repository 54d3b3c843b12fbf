//! Orders of preference: which hook a trigger gets. How a hook is attached comes from the trigger; nothing is touched
//! here.

use std::fmt;

use evictd_engine::model::settings::MemoryHook;

use crate::bpf::object::{AttachPoint, ProgramSpec};

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

/// The hooks of what is counted event by event: tasks, inodes, cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl CountHook {
    /// The hooks that have programs, best first. The sampler takes their place where the kernel grants none.
    pub const WITH_PROGRAMS: [Self; 2] = [Self::Typed, Self::Tracepoint];
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
#[error("memoryHook: {hook} cannot be used here: {reason}")]
pub struct HookUnavailable {
    /// The hook that the configuration asks for.
    pub hook: MemoryHook,
    /// The kernel's reason.
    pub reason: String,
}

/// Tries the hooks of memory, the best first, until the kernel grants one. A hook that the configuration names is the
/// only one to be tried, so that its refusal is an error.
///
/// # Errors
/// The forced hook is refused, or all are.
pub(super) fn probe<T>(
    forced: Option<MemoryHook>,
    attach: impl FnMut(MemoryHook) -> Result<T, String>,
) -> Result<(SelectedHook, T), HookUnavailable> {
    let forced = forced.as_ref().map(std::slice::from_ref);
    first_granted(forced.unwrap_or(&MemoryHook::BY_PREFERENCE), attach).map_err(|mut refused| {
        let (hook, reason) = refused
            .pop()
            .unwrap_or_else(|| (MemoryHook::Sampler, "was not tried".to_owned()));
        HookUnavailable { hook, reason }
    })
}

/// Tries hooks of what is counted, the best first, until the kernel grants one. The sampler, which has nothing to
/// attach, takes the place of all that are refused.
pub(super) fn probe_counted<T>(
    hooks: &[CountHook],
    attach: impl FnMut(CountHook) -> Result<T, String>,
) -> (SelectedHook<CountHook>, Option<T>) {
    match first_granted(hooks, attach) {
        Ok((selected, attached)) => (selected, Some(attached)),
        Err(refused) => {
            let hook = CountHook::Sampler;
            (SelectedHook { hook, refused }, None)
        }
    }
}

/// Hooks that were refused, with the kernel's reason for each.
type Refusals<H> = Vec<(H, String)>;

/// The first hook that the kernel grants, or its reasons for refusing each.
fn first_granted<H: Copy, T>(
    hooks: &[H],
    mut attach: impl FnMut(H) -> Result<T, String>,
) -> Result<(SelectedHook<H>, T), Refusals<H>> {
    let mut refused = Vec::new();
    for &hook in hooks {
        match attach(hook) {
            Ok(attached) => return Ok((SelectedHook { hook, refused }, attached)),
            Err(reason) => refused.push((hook, reason)),
        }
    }
    Err(refused)
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
        let (selected, attached) = probe(forced, attach)?;
        assert_eq!(selected.hook, attached);
        Ok(selected)
    }

    #[test]
    fn the_best_usable_hook_is_taken_and_the_refused_ones_keep_their_reason() {
        let usable = [MemoryHook::Sampler, MemoryHook::Tracepoint];
        let selected = choose(&usable, None).unwrap();
        assert_eq!(selected.hook, MemoryHook::Tracepoint);
        assert_eq!(
            selected.refused,
            [
                (MemoryHook::Fexit, "no fexit".into()),
                (MemoryHook::Kprobe, "no kprobe".into())
            ]
        );
    }

    #[test]
    fn with_nothing_else_the_sampler_is_left() {
        let selected = choose(&[MemoryHook::Sampler], None).unwrap();
        assert_eq!(selected.hook, MemoryHook::Sampler);
        assert_eq!(selected.refused.len(), MemoryHook::BY_PREFERENCE.len() - 1);
    }

    #[test]
    fn the_sampler_takes_the_place_of_refused_counting_hooks() {
        let attach = |hook| match hook {
            CountHook::Tracepoint => Ok(hook),
            _ => Err("no BTF".to_owned()),
        };
        let refused = vec![(CountHook::Typed, "no BTF".to_owned())];
        let (selected, attached) = probe_counted(&CountHook::WITH_PROGRAMS, attach);
        assert_eq!(selected.hook, CountHook::Tracepoint);
        assert_eq!(
            (selected.refused, attached),
            (refused.clone(), Some(CountHook::Tracepoint))
        );
        let (selected, attached) = probe_counted(&[CountHook::Typed], attach);
        assert_eq!(selected.hook, CountHook::Sampler);
        assert_eq!((selected.refused, attached), (refused, None));
    }

    #[test]
    fn a_forced_hook_is_taken_or_refused_but_never_replaced() {
        let usable = [MemoryHook::Fexit, MemoryHook::Eventfd];
        let selected = choose(&usable, Some(MemoryHook::Eventfd)).unwrap();
        assert_eq!(
            (selected.hook, selected.refused),
            (MemoryHook::Eventfd, vec![])
        );
        let refused = choose(&usable, Some(MemoryHook::Kprobe)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memoryHook: kprobe cannot be used here: no kprobe"
        );
    }
}
