//! How the loop is to wait: asleep until a wire trips or a look is due, or awake when a crossing is imminent.

use std::time::Duration;

use super::{approach::Waiting, post::Post, report::Report, watch::Watch};
use crate::{
    kernel::ladder::MemoryHook,
    observe::deadline::{self, Nearness},
};

/// While memory is on its way back.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(1);
/// While memory is wanted and nobody can give it: the recovery trips a wire, and only a pod that begins to live in
/// between, or a rung without wires, needs the look.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);
/// With a program the sampler has only the ground to watch (inactive_file, capacity), which moves slower than usage.
const HOOKED_FLOOR: Duration = Duration::from_millis(10);

impl Watch {
    /// How to wait for the look that is due after the interval: earlier or awake when some scope's threshold is about to be
    /// crossed.
    pub(super) fn approach(&mut self, now: u64, interval: Duration) -> Waiting {
        let asleep = Waiting::Asleep(interval);
        let tripwire = &*self.setup.tripwire;
        let is_busy = self.posts.iter().any(|post| post.pressed && !post.idle);
        // A program is attached a moment later.
        if is_busy || (tripwire.has_program() && !tripwire.is_attached()) {
            return asleep;
        }
        let posts = self.posts.iter_mut();
        posts
            .filter(|post| !post.pressed && !post.gone && post.is_armed(tripwire))
            .filter_map(|post| post.approach(now))
            .fold(asleep, Waiting::and)
    }

    /// When to look again; switches the per-page rung on the way.
    pub(super) fn next_look(&mut self) -> Duration {
        // Under pressure the rung stays as it is: attaching takes time that the look has not.
        if self.posts.iter().any(|post| post.pressed && !post.idle) {
            return PRESSURE_INTERVAL;
        }
        let growth = self.growth;
        let nearness = Nearness::new(growth);
        let tripwire = &mut *self.setup.tripwire;
        let has_wires = tripwire.hook() != MemoryHook::Sampler;
        let has_program = tripwire.has_program();
        let attached = tripwire.is_attached();
        let wanted = self
            .posts
            .iter()
            .any(|post| !post.gone && nearness.wants_hook(post.distance(), attached));
        let switched = if has_wires {
            tripwire.set_near(wanted)
        } else {
            Ok(false)
        };
        match switched {
            // What was charged while it was being attached was not seen by it.
            Ok(true) if wanted => return Duration::ZERO,
            Ok(_) => {}
            Err(ref e) => {
                let errno = e.raw_os_error().unwrap_or(0);
                self.setup.outbox.send(Report::HookLost { errno });
            }
        }
        let is_lost = switched.is_err();
        let is_attached = has_wires && !is_lost && tripwire.is_attached();
        let next = |post: &Post| {
            let far = deadline::next_look(post.distance(), growth);
            if post.gone {
                deadline::CEILING
            } else if post.pressed {
                IDLE_INTERVAL
            } else if is_attached && post.is_armed(tripwire) {
                // An eventfd tells late: the last stretch is found by looking.
                if has_program {
                    far.max(HOOKED_FLOOR)
                } else {
                    far
                }
            } else if has_wires && !is_lost {
                nearness.next_look(post.distance())
            } else {
                far
            }
        };
        let looks = self.posts.iter().map(next);
        looks.min().unwrap_or(deadline::CEILING)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        config::RankingStrategy,
        kernel::tripwire,
        observe::cgroup::MemoryCgroup,
        reflex::{Limits, Mailbox, Outbox, Scope, Setup},
    };

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;
    const THRESHOLD: u64 = 100 * MIB;

    /// A cgroup of 512 MiB, made of files.
    struct Cgroup<'a>(&'a Path);

    impl Cgroup<'_> {
        /// So many bytes are left until the threshold is met.
        fn is_short_of_it_by(&self, bytes: u64) {
            let usage = 412 * MIB - bytes;
            let write = |name: &str, text: String| fs::write(self.0.join(name), text).unwrap();
            write("memory.current", usage.to_string());
            write(
                "memory.stat",
                format!("anon {usage}\nfile 0\nkernel 0\ninactive_file 0\nactive_file 0\n"),
            );
        }

        fn watch(&self) -> Watch {
            fs::write(self.0.join("memory.max"), (512 * MIB).to_string()).unwrap();
            self.is_short_of_it_by(200 * MIB);
            let cgroup = MemoryCgroup::open(self.0).unwrap();
            let built = tripwire::build(&[&cgroup], Err("none"), Some(MemoryHook::Sampler));
            let limits = |_| Limits {
                threshold: THRESHOLD,
                resolved: THRESHOLD,
                floor: None,
            };
            let mut watch = Watch::new(Setup {
                scopes: vec![Scope::new(cgroup, limits, false).unwrap()],
                tripwire: built.unwrap().tripwire,
                table: Box::default(),
                shadow: false,
                victims_at_once: 1,
                strategy: RankingStrategy::Kubelet,
                restraint: std::sync::Arc::default(),
                mailbox: Mailbox::new().unwrap(),
                outbox: Outbox::new().unwrap(),
            });
            watch.settle().unwrap();
            watch
        }
    }

    /// Whoever has no wire that tells of a crossing in the same moment is awake when it comes, and sees it.
    #[test]
    fn without_a_program_a_crossing_is_waited_for_awake() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = Cgroup(dir.path());
        let mut watch = cgroup.watch();
        cgroup.is_short_of_it_by(3 * MIB / 2);
        assert!(matches!(watch.go_round(1000 * MS), Waiting::Asleep(_)));
        // Half of the way in a millisecond.
        cgroup.is_short_of_it_by(3 * MIB / 4);
        let waiting = watch.go_round(1001 * MS);
        assert!(matches!(waiting, Waiting::Awake(_)), "{waiting:?}");
        assert!(!watch.sees_a_crossing());
        cgroup.is_short_of_it_by(0);
        assert!(!watch.sees_a_crossing(), "exactly the threshold is left");
        fs::write(
            dir.path().join("memory.current"),
            (412 * MIB + 4096).to_string(),
        )
        .unwrap();
        assert!(watch.sees_a_crossing());
        cgroup.is_short_of_it_by(0);
        fs::write(dir.path().join("memory.current"), (413 * MIB).to_string()).unwrap();
        watch.go_round(1002 * MS);
        // It is known now, and nobody is there to go: nothing is to be looked for.
        assert!(!watch.sees_a_crossing());
    }

    #[test]
    fn whoever_is_far_away_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = Cgroup(dir.path());
        let mut watch = cgroup.watch();
        for ms in 0..10 {
            cgroup.is_short_of_it_by((100 - ms) * MIB);
            let waiting = watch.go_round((1000 + ms) * MS);
            assert!(matches!(waiting, Waiting::Asleep(_)), "{waiting:?}");
        }
    }
}
