//! The ladders: which hook a trigger gets. Facts go in, a decision comes out; nothing is touched here.

use std::fmt;

use evictd_engine::model::settings::MemoryHook;

use crate::bpf::object::{AttachPoint, ProgramSpec};

/// The hooks of one order of preference.
pub trait Hook: Copy + PartialEq + fmt::Debug + fmt::Display + 'static {
    /// All hooks, best first.
    const PREFERENCE: &'static [Self];
    /// The hook that needs nothing from the kernel but files.
    const LAST: Self;
    /// What the configuration calls the choice.
    const FIELD: &'static str;
}

/// What a hook takes from the workload while it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Nothing.
    None,
    /// Some nanoseconds per batch of 32 or 64 pages: always attached.
    PerBatch,
    /// Several calls per page, a quarter of a page fault in the worst case: attached only while the distance is short.
    PerPage,
}

/// What a hook takes from the workload.
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
    const PREFERENCE: &'static [Self] = &Self::LADDER;
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

/// What probing found: for each hook, nothing or the reason why it cannot be had. A hook that was not tried is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResults<H = MemoryHook> {
    refused: Vec<(H, String)>,
    usable: Vec<H>,
}

impl<H> Default for ProbeResults<H> {
    fn default() -> Self {
        Self {
            refused: Vec::new(),
            usable: Vec::new(),
        }
    }
}

impl<H: Hook> ProbeResults<H> {
    /// Notes what trying a hook gave.
    pub fn record(&mut self, hook: H, tried: Result<(), String>) {
        match tried {
            Ok(()) => self.usable.push(hook),
            Err(reason) => self.refused.push((hook, reason)),
        }
    }
}

/// The hook that is used, and why the better ones are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedHook<H = MemoryHook> {
    /// The hook.
    pub hook: H,
    /// Better hooks and the kernel's reason for refusing each.
    pub refused: Vec<(H, String)>,
}

/// No hook is left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {hook} cannot be used here: {reason}", field = H::FIELD)]
pub struct HookUnavailable<H: Hook = MemoryHook> {
    /// The hook that the configuration asks for.
    pub hook: H,
    /// The kernel's reason.
    pub reason: String,
}

/// Takes the best hook that works, or the one that is asked for and no other: who names a hook wants to know when
/// it is refused.
pub fn select<H: Hook>(
    facts: &ProbeResults<H>,
    forced: Option<H>,
) -> Result<SelectedHook<H>, HookUnavailable<H>> {
    let reason_of = |hook: H| {
        let known = facts.refused.iter().find(|(h, _)| *h == hook);
        known.map_or_else(|| "was not probed".to_owned(), |(_, reason)| reason.clone())
    };
    if let Some(hook) = forced {
        return if facts.usable.contains(&hook) {
            Ok(SelectedHook {
                hook,
                refused: Vec::new(),
            })
        } else {
            Err(HookUnavailable {
                hook,
                reason: reason_of(hook),
            })
        };
    }
    let hooks = H::PREFERENCE.iter().copied();
    let hook = hooks
        .clone()
        .find(|h| facts.usable.contains(h))
        .unwrap_or(H::LAST);
    let refused = hooks
        .take_while(|h| *h != hook)
        .map(|h| (h, reason_of(h)))
        .collect();
    Ok(SelectedHook { hook, refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(usable: &[MemoryHook]) -> ProbeResults {
        let mut facts = ProbeResults::default();
        for hook in MemoryHook::LADDER {
            let tried = if usable.contains(&hook) {
                Ok(())
            } else {
                Err(format!("no {hook}"))
            };
            facts.record(hook, tried);
        }
        facts
    }

    #[test]
    fn the_best_usable_hook_is_taken_and_the_refused_ones_keep_their_reason() {
        let choice = select(&facts(&[MemoryHook::Sampler, MemoryHook::Tracepoint]), None).unwrap();
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
    fn with_nothing_at_all_the_sampler_is_left() {
        assert_eq!(
            select(&ProbeResults::<MemoryHook>::default(), None)
                .unwrap()
                .hook,
            MemoryHook::Sampler
        );
    }

    #[test]
    fn a_forced_hook_is_taken_or_refused_but_never_replaced() {
        let facts = facts(&[MemoryHook::Fexit, MemoryHook::Eventfd]);
        assert_eq!(
            select(&facts, Some(MemoryHook::Eventfd)).unwrap().hook,
            MemoryHook::Eventfd
        );
        let refused = select(&facts, Some(MemoryHook::Kprobe)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memoryHook: kprobe cannot be used here: no kprobe"
        );
    }
}
