//! Whether a hook tells what it is attached for: the agent takes some memory of its own, which a scope that the agent
//! is in counts, and the hook has to report it.

use std::{fs, io, path::Path, ptr, time::Duration};

use evictd_sys::page::page_size;

use super::{Action, Direction, Trigger, TriggerSet, batch_bytes};
use crate::cgroup::{memory::MemoryCgroup, tree::subdirectories};

/// Number of batches of pages that are taken, as the kernel charges in batches: 1 MiB in all where a page has 4 KiB.
const BATCHES: u64 = 4;
/// A CPU may still hold a batch that was charged before; the kernel may have taken a huge page at once; and a program that
/// another task is in the middle of sees no charge of that CPU.
const ATTEMPTS: usize = 10;
/// Before each attempt after the third.
const PAUSE: Duration = Duration::from_millis(10);
/// The first scope's first slot; the caller arms it anew.
const SLOT: usize = 0;
/// The kernel's id of a hierarchy's root. Memory of processes in the root itself is not charged.
const ROOT_ID: u64 = 1;

/// Tests a hook with a kernel program, just attached; no thread is woken, and nothing is armed afterwards.
///
/// # Errors
/// Memory was charged to the first scope, and the hook has reported nothing. Where no charge could be made (the agent
/// is outside of the scope, or gets no memory) nothing is known against the hook.
pub fn run(trigger: &mut dyn TriggerSet, scopes: &[&MemoryCgroup]) -> Result<(), String> {
    let Some(scope) = scopes.first() else {
        return Ok(());
    };
    let any_charge = Trigger {
        limit: page_size(),
        direction: Direction::Rising,
        action: Action::RecordOnly,
        full: 0,
    };
    let armed = trigger.arm(SLOT, any_charge);
    armed.map_err(|e| format!("the self-test cannot arm a trigger: {e}"))?;
    let taken = taken(page_size());
    let reported = (0..ATTEMPTS).find_map(|attempt| {
        if attempt > 2 {
            std::thread::sleep(PAUSE);
        }
        match take_memory(taken) {
            Ok(()) => trigger.next_crossing().map(|_| Ok(attempt)),
            Err(error) => Some(Err(error)),
        }
    });
    let disarmed = trigger.arm(SLOT, Trigger::DISABLED);
    disarmed.map_err(|e| format!("the self-test cannot clear its trigger: {e}"))?;
    let untested = match reported {
        Some(Ok(attempt)) => {
            tracing::info!(hook = %trigger.hook(), attempt, "the hook has passed its self-test");
            return Ok(());
        }
        Some(Err(error)) => format!("no memory could be taken: {error}"),
        None if is_charged_to(scope) => {
            return Err(format!(
                "its self-test failed: {} MiB were charged to {}, and it reported nothing",
                (ATTEMPTS * taken) >> 20,
                scope.path().display()
            ));
        }
        None => format!("the agent is not in {}", scope.path().display()),
    };
    tracing::info!(hook = %trigger.hook(), reason = untested, "the hook has had no self-test");
    Ok(())
}

/// Size of what is taken at once, in bytes.
fn taken(page_size: u64) -> usize {
    // Some MiB, so it fits.
    usize::try_from(BATCHES * batch_bytes(page_size)).unwrap_or(usize::MAX)
}

/// Takes so many bytes of memory that were not there before, and gives them back.
fn take_memory(bytes: usize) -> io::Result<()> {
    const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
    // MAP_POPULATE charges as a touch of each page does.
    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: a mapping of its own, at an address that the kernel chooses.
    let taken = unsafe { libc::mmap(ptr::null_mut(), bytes, PROTECTION, FLAGS, -1, 0) };
    if taken == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping from above, to which nothing refers.
    unsafe { libc::munmap(taken, bytes) };
    Ok(())
}

/// Whether the kernel counts this process's memory in a scope. In a container the process sees no name of its own
/// cgroup that means anything outside, so its PID is looked for.
fn is_charged_to(scope: &MemoryCgroup) -> bool {
    let own = std::process::id().to_string();
    let is_listed = |dir: &Path| {
        let list = fs::read_to_string(dir.join("cgroup.procs"));
        list.is_ok_and(|list| list.lines().any(|pid| pid == own))
    };
    let is_member = scope.id() != ROOT_ID && is_listed(scope.path());
    is_member || is_below(scope.path(), &is_listed)
}

/// Whether a cgroup below this one lists the process.
fn is_below(dir: &Path, is_listed: &dyn Fn(&Path) -> bool) -> bool {
    subdirectories(dir).any(|group| is_listed(&group) || is_below(&group, is_listed))
}

#[cfg(test)]
mod tests {
    use evictd_engine::model::settings::MemoryHook;

    use super::*;
    use crate::trigger::memory::TriggerEvent;

    /// A hook that is attached; whether it also reports is another matter.
    struct Fake {
        reports: bool,
        armed: Option<Trigger>,
    }

    impl TriggerSet for Fake {
        fn hook(&self) -> MemoryHook {
            MemoryHook::Fexit
        }
        fn arm(&mut self, slot: usize, trigger: Trigger) -> io::Result<()> {
            assert_eq!(slot, SLOT);
            self.armed = Some(trigger);
            Ok(())
        }
        fn next_crossing(&mut self) -> Option<TriggerEvent> {
            self.reports.then(TriggerEvent::default)
        }
    }

    /// A scope with a pod that lists a process.
    fn scope(pid: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("besteffort/pod");
        fs::create_dir_all(&pod).unwrap();
        for file in ["memory.usage_in_bytes", "memory.stat", "cgroup.procs"] {
            fs::write(dir.path().join(file), "0").unwrap();
        }
        fs::write(pod.join("cgroup.procs"), format!("1\n{pid}\n")).unwrap();
        dir
    }

    fn test(reports: bool, pid: u32) -> Result<(), String> {
        let dir = scope(pid);
        let scope = MemoryCgroup::open(dir.path()).unwrap();
        let mut hook = Fake {
            reports,
            armed: None,
        };
        let result = run(&mut hook, &[&scope]);
        assert_eq!(hook.armed, Some(Trigger::DISABLED), "nothing is left armed");
        result
    }

    #[test]
    fn several_batches_are_taken_whatever_the_size_of_a_page() {
        assert_eq!(taken(4 << 10), 1 << 20);
        assert_eq!(taken(64 << 10) as u64, BATCHES * 64 * (64 << 10));
    }

    #[test]
    fn a_hook_that_reports_nothing_of_the_agents_own_memory_is_refused() {
        let own = std::process::id();
        assert_eq!(test(true, own), Ok(()));
        let reason = test(false, own).unwrap_err();
        assert!(reason.contains("its self-test failed"), "{reason}");
        // The agent is elsewhere.
        assert_eq!(test(false, u32::MAX), Ok(()));
        assert_eq!(test(true, u32::MAX), Ok(()));
    }
}
