//! An incident under a strategy, and the two strategies beside evictd's.

use evictd_engine::{
    Among,
    kubelet_times::{MONITORING_INTERVAL_NS, POD_CLEANUP_NS},
};

use super::world::{MS, SECOND, World};

pub struct Kill<'a> {
    /// Time of the kill, in nanoseconds.
    pub time: u64,
    pub pod: usize,
    pub why: &'static str,
    /// The numbers that it says it for.
    pub numbers: String,
    pub before: Box<World<'a>>,
}

#[derive(Default)]
pub struct Course<'a> {
    pub kills: Vec<Kill<'a>>,
    /// Times at which the OOM killer was needed, in nanoseconds, each with the pod that it took.
    pub ooms: Vec<(u64, usize)>,
}

impl<'a> Course<'a> {
    /// Evicts a pod. One that was evicted before is signalled again, and counts once.
    pub fn kill(&mut self, world: &mut World<'a>, pod: usize, why: &'static str, numbers: &str) {
        if self.kills.iter().all(|kill| kill.pod != pod) {
            self.kills.push(Kill {
                time: world.now,
                pod,
                why,
                numbers: numbers.to_owned(),
                before: Box::new(world.clone()),
            });
        }
        world.kill(pod);
    }
}

pub trait Strategy<'a> {
    /// Time of the next look, in nanoseconds.
    fn next_look(&self) -> u64;
    /// The usage in bytes at which it is told.
    fn trigger(&self) -> Option<f64> {
        None
    }
    /// Tells the strategy that its trigger was reached.
    fn tripped(&mut self, _world: &World<'a>) {}
    fn look(&mut self, world: &mut World<'a>, course: &mut Course<'a>);
}

/// Runs an incident; `each` sees the node after every step.
pub fn run<'a>(
    mut world: World<'a>,
    strategy: &mut dyn Strategy<'a>,
    mut each: impl FnMut(&World<'a>),
) -> Course<'a> {
    let mut course = Course::default();
    while world.now < world.incident.end {
        if strategy.next_look() <= world.now {
            strategy.look(&mut world, &mut course);
        }
        let towards = strategy.next_look().min(world.incident.end);
        if world.step(towards, strategy.trigger()) {
            strategy.tripped(&world);
        }
        each(&world);
    }
    course.ooms = world.ooms;
    course
}

/// Bytes that are available by the kubelet's count.
fn available(world: &World<'_>) -> u64 {
    let reading = world.read();
    let working_set = reading.usage.saturating_sub(reading.inactive);
    world.incident.capacity.saturating_sub(working_set)
}

/// The kubelet's own way: a look every 10 s, one pod, and the wait for its end.
pub struct Kubelet {
    next: u64,
    met: bool,
    /// The victim, and when it is waited for no longer.
    waits: Option<(usize, u64)>,
}

impl Kubelet {
    pub fn new(first: u64) -> Self {
        Self {
            next: first,
            met: false,
            waits: None,
        }
    }
}

impl<'a> Strategy<'a> for Kubelet {
    fn next_look(&self) -> u64 {
        self.next
    }

    fn look(&mut self, world: &mut World<'a>, course: &mut Course<'a>) {
        if let Some((pod, until)) = self.waits {
            // It asks every second whether the pod's resources were given back.
            if world.usage(pod).is_some() && world.now < until {
                self.next = world.now + SECOND;
                return;
            }
            self.waits = None;
        }
        let available = available(world);
        let (threshold, resolved) = world.limits();
        self.met = available < threshold || (self.met && available < resolved);
        self.next = world.now + MONITORING_INTERVAL_NS;
        if self.met {
            let mut candidates = world.candidates(|pod| world.is_signalled(pod));
            if let Some(pod) = world.choose(&mut candidates, Among::All) {
                course.kill(world, pod, "met", "");
                self.waits = Some((pod, world.now + POD_CLEANUP_NS));
                self.next = world.now + SECOND;
            }
        }
    }
}

/// Looks every 100 ms and evicts as many pods as use what is missing.
#[derive(Default)]
pub struct Poller {
    next: u64,
}

impl<'a> Strategy<'a> for Poller {
    fn next_look(&self) -> u64 {
        self.next
    }

    fn look(&mut self, world: &mut World<'a>, course: &mut Course<'a>) {
        self.next = world.now + 100 * MS;
        let deficit = world.limits().0.saturating_sub(available(world));
        if deficit > 0 {
            let mut candidates = world.candidates(|pod| world.is_signalled(pod));
            for pod in world.choose_some(&mut candidates, deficit) {
                course.kill(world, pod, "met", "");
            }
        }
    }
}
