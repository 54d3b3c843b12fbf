//! Which pods had to go.

use super::{
    AT_ONCE,
    course::Kill,
    world::{MS, SECOND, World},
};

/// The kubelet has looked again at the latest.
const NEXT_LOOK: u64 = 10 * SECOND;
/// A growth that ends the room sooner than this cannot wait for the kubelet.
const TOO_SOON: u64 = NEXT_LOOK + SECOND / 2;

#[derive(Clone, Debug, Default)]
pub struct Hindsight {
    /// Time at which each of the pods had to go, in nanoseconds.
    pub kills: Vec<u64>,
    /// How often memory was used up all the same. Also where the OOM killer only helps an earlier victim to die: a perfect decision
    /// keeps the node from that.
    pub used_up: usize,
}

/// Outcome of the eviction of a prefix of the ranking.
struct Outcome<'a> {
    world: World<'a>,
    used_up: usize,
    ended: bool,
}

/// Goes through the incident and evicts at each crossing the least number of pods after which nothing bad happens.
pub fn look_back<'a>(mut world: World<'a>) -> Hindsight {
    let mut found = Hindsight::default();
    let mut continues = false;
    while world.now < world.incident.end {
        if !world.is_tight() {
            world.step_to_crossing(world.incident.end);
            continues = false;
            continue;
        }
        let ranking = ranking(&world);
        // The kubelet takes one a round where memory that cannot be given back stays short.
        let least = usize::from(continues && world.short_since.is_some());
        let mut best: Option<(usize, Outcome<'a>)> = None;
        for count in least.min(ranking.len())..=ranking.len() {
            let outcome = after(&world, &ranking[..count]);
            let is_good = outcome.used_up == 0 && outcome.ended;
            let is_better = best
                .as_ref()
                .is_none_or(|(_, b)| outcome.used_up < b.used_up);
            if is_good || is_better {
                best = Some((count, outcome));
            }
            if is_good {
                break;
            }
        }
        let Some((mut count, mut outcome)) = best else {
            break;
        };
        if count == 0 && !outcome.ended && !ranking.is_empty() {
            // No number ends it, and the kubelet takes one.
            let one = after(&world, &ranking[..1]);
            if one.used_up <= outcome.used_up {
                (count, outcome) = (1, one);
            }
        }
        found.kills.extend(std::iter::repeat_n(world.now, count));
        continues = !outcome.ended;
        world = outcome.world;
    }
    found.used_up = world.used_up;
    found
}

/// Pods in the order of eviction, without those that were evicted.
fn ranking(world: &World<'_>) -> Vec<usize> {
    let mut candidates = world.candidates(|pod| world.is_signalled(pod));
    world.choose_some(&mut candidates, u64::MAX)
}

/// The node at the end of the shortage, or when the kubelet has looked again, be it after the incident.
fn after<'a>(world: &World<'a>, victims: &[usize]) -> Outcome<'a> {
    let mut world = world.clone();
    let (before, until) = (world.used_up, world.now + NEXT_LOOK);
    victims.iter().for_each(|pod| world.kill(*pod));
    let mut was_short = world.short_since.is_some();
    while world.is_tight() && world.now < until && world.used_up == before {
        world.step(until, None);
        was_short |= world.short_since.is_some();
    }
    let used_up = world.used_up - before;
    // Page cache that waits for the disk is no reason to evict as long as memory is not used up.
    let ended = !world.is_tight() || !was_short;
    Outcome {
        world,
        used_up,
        ended,
    }
}

/// Whether a pod was evicted at a genuine crossing by a growth that would have used up the memory before the kubelet had
/// looked again and freed some.
pub fn was_ending(kill: &Kill<'_>) -> bool {
    if !kill.before.is_tight() {
        return false;
    }
    let mut world = kill.before.as_ref().clone();
    let (before, until) = (world.used_up, world.now + TOO_SOON);
    world.freeze();
    while world.now < until && world.used_up == before {
        world.step(until, None);
    }
    world.used_up > before
}

/// Whether the kubelet is certain to have found the threshold met: its count did at every moment of a whole monitoring
/// interval, no pod went meanwhile, and none that went before covers it.
pub fn was_demanded(kill: &Kill<'_>) -> bool {
    let world = &kill.before;
    let is_whole = |since: u64| world.now >= since + NEXT_LOOK;
    world.met_since.is_some_and(is_whole)
        && world.evicted.is_none_or(is_whole)
        && !world.is_covered()
}

/// Describes in a few words what a needless pod went for: what the strategy said, and what memory was like.
pub fn cause(kill: &Kill<'_>) -> String {
    let world = &kill.before;
    let after_another = match world.evicted {
        Some(last) if world.now < last + SECOND => ", within 1 s of another",
        Some(_) => ", later than that after another",
        None => "",
    };
    let state = if world.short_since.is_some() {
        "memory is short"
    } else if world.is_tight() {
        "what is to be written makes it short"
    } else {
        match crosses_in(world, AT_ONCE) {
            Some(early) if early <= 5 * MS => "memory is short within 5 ms",
            Some(_) => "memory is short within 50 ms",
            None => "memory is not short",
        }
    };
    format!("{}: {state}{after_another}", kill.why)
}

/// Computes the nanoseconds until memory is short if no pod goes; `None` if it is not within so many.
fn crosses_in(world: &World<'_>, within: u64) -> Option<u64> {
    let (mut world, from) = (world.clone(), world.now);
    while world.now < from + within && !world.is_tight() {
        world.step_to_crossing(from + within);
    }
    world.is_tight().then(|| world.now - from)
}
