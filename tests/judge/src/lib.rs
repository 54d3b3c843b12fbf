//! A judge in hindsight: drawn incidents of a simulated node, gone through by evictd's own core, by the kubelet's way and by
//! a poller, and compared with the fewest pods that had to go.
//!
//! **The pods that had to go.** A *crossing* is the moment at which less than the threshold is left of what the capacity is
//! above the memory that cannot be given back: processes, memory-backed volumes and what is outside of pods; on cgroup v1
//! also page cache that has to be written first, which can make an OOM kill but is no shortage by itself. Where the kubelet's
//! count leaves some of it out, that count has to meet the threshold too, or the memory guard. A shortage
//! lasts until the minimum reclaim is available as well. At each crossing the judge starts the same node anew with the
//! first 0, 1, 2, ... pods of the ranking evicted at that moment, and takes the least number with which
//!
//! - no OOM kill happens, and
//! - the shortage is over before the kubelet has looked again at the latest (10 s).
//!
//! Where no number ends the shortage it is the least one with the fewest OOM kills, at least one pod, and after 10 s the
//! judge does the same again with at least one pod, as the kubelet takes one a round. A SIGKILL of the judge takes as long as
//! the others' do; it alone decides in no time.
//!
//! **Needless** is a pod that a strategy evicts beyond that number. Each pod of the judge's justifies one of the strategy's:
//! the first that follows its crossing, or any other one that is left over.
//!
//! **Ended by itself.** A pod beyond the number is not needless but counted apart where the threshold was crossed in the
//! sense above, and the fastest growth that was seen over any of 28 times from a millisecond to twelve seconds, had it gone
//! on, would have led to an OOM kill within 10.5 s, with what earlier victims give back: nothing but the future tells.
//!
//! **The kubelet's count demands it.** A pod beyond the number is not needless but counted apart where the kubelet is certain
//! to take one: with statistics that are exact and up to date its count has met the threshold (or the minimum reclaim, once
//! met) at every moment of a whole monitoring interval (10 s), no pod was evicted meanwhile, and what victims of before are
//! going to give back does not cover it. So it is one pod, and one more each 10 s. This is told of the node as the strategy
//! left it, by the world's true values; a pod that goes before the 10 s are over stays needless, also one of the kubelet's.
//!
//! **Avoidable** is the OOM kill of a node whose memory the judge keeps from being used up. An OOM whose choice was sent SIGKILL
//! before is none: the kernel only helps it to die. The judge's own choice has to do without that help.
//!
//! **Beyond the rate.** A third of the nodes have the eviction rate of the chart's values, and half of these have used up a part
//! of it or all. The judge itself, the kubelet and the poller have none. An avoidable OOM kill that comes when evictd's rate is
//! used up is counted apart too: then no pod goes but those that make the growth.
//!
//! A needless pod is told by what the node was like: *cache*: the threshold was met by page cache alone, *brief*: the
//! shortage was genuine but would have ended by itself within 10 s, or with what was on its way.

mod bare_pod;
mod course;
pub mod draw;
mod evictd;
mod hindsight;
mod report;
mod world;

pub use bare_pod::BarePod;
use course::{Course, Kubelet, Poller, Strategy, run};
pub use report::Report;
use world::World;

use self::evictd::{Evictd, left_of_rate};
use hindsight::{Hindsight, cause, look_back, was_demanded, was_ending};

/// The strategies, in the order of the results.
pub const STRATEGIES: [&str; 3] = ["evictd", "kubelet", "poll-100ms"];
/// The index of evictd's own.
const EVICTD: usize = 0;

/// A pod that goes so many nanoseconds before a crossing goes for it: statistics are no more exact.
const AT_ONCE: u64 = 50 * world::MS;

/// Verdict of the judge on one strategy in one incident.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub kills: usize,
    /// Pods that did not have to go.
    pub needless: usize,
    /// Needless pods that went while page cache alone met the threshold.
    pub cache: usize,
    /// Pods that went for a growth which ended by itself.
    pub ended: usize,
    /// Pods that went because the kubelet's count demands it.
    pub demanded: usize,
    pub ooms: usize,
    /// The judge would have denied the node an OOM kill.
    pub avoidable: bool,
    /// The OOM kill is avoidable, and the node's eviction rate was used up when it came. For evictd only.
    pub beyond_rate: bool,
    /// Causes of the needless kills, one for each.
    pub causes: Vec<String>,
}

/// Judgement of one incident.
#[derive(Clone, Debug)]
pub struct Judgement {
    pub seed: u64,
    /// Description of how memory grows, and what else is particular.
    pub shape: String,
    pub needed: usize,
    /// One for each of [`STRATEGIES`].
    pub verdicts: [Verdict; 3],
}

/// Draws the incident of a seed and judges it.
pub fn judge(seed: u64) -> Judgement {
    let incident = draw::draw(seed);
    let back = look_back(World::new(&incident));
    let verdicts = [0, 1, 2].map(|index| {
        let mut strategy = strategy_of(index, &incident);
        let course = run(World::new(&incident), strategy.as_mut(), |_| ());
        let mut verdict = status(&course, &back).0;
        let had_rate_left = |(at, _): &(u64, usize)| left_of_rate(&incident, &course, *at) > 0;
        verdict.beyond_rate =
            index == EVICTD && verdict.avoidable && !course.ooms.iter().any(had_rate_left);
        verdict
    });
    Judgement {
        seed,
        shape: describe(&incident),
        needed: back.kills.len(),
        verdicts,
    }
}

fn strategy_of<'a>(index: usize, incident: &world::Incident) -> Box<dyn Strategy<'a>> {
    match index {
        EVICTD => Box::new(Evictd::new(incident)),
        1 => Box::new(Kubelet::new(incident.kubelet_looks)),
        _ => Box::new(Poller::default()),
    }
}

fn describe(incident: &world::Incident) -> String {
    let mut text = format!("{}, {:?}", incident.shape, incident.scope);
    for particular in &incident.traits {
        text.push_str(", ");
        text.push_str(particular);
    }
    text
}

/// The verdict, and for each eviction what it was.
fn status(course: &Course<'_>, back: &Hindsight) -> (Verdict, Vec<&'static str>) {
    let mut words = vec![""; course.kills.len()];
    let mut left_over = 0;
    for needed in &back.kills {
        let follows = |(kill, word): (&course::Kill<'_>, &&str)| {
            kill.time + AT_ONCE >= *needed && word.is_empty()
        };
        match course.kills.iter().zip(&words).position(follows) {
            Some(index) => words[index] = "needed",
            None => left_over += 1,
        }
    }
    for word in words
        .iter_mut()
        .filter(|word| word.is_empty())
        .take(left_over)
    {
        *word = "needed";
    }
    let mut status = Verdict {
        kills: course.kills.len(),
        ooms: course.ooms.len(),
        avoidable: !course.ooms.is_empty() && back.used_up == 0,
        ..Verdict::default()
    };
    for (kill, word) in course.kills.iter().zip(&mut words) {
        if !word.is_empty() {
            continue;
        }
        *word = if was_ending(kill) {
            status.ended += 1;
            "ended by itself"
        } else if was_demanded(kill) {
            status.demanded += 1;
            "the kubelet's count demands it"
        } else if kill.before.short_since.is_none() {
            status.needless += 1;
            status.cache += 1;
            status.causes.push(cause(kill));
            "needless (cache)"
        } else {
            status.needless += 1;
            status.causes.push(cause(kill));
            "needless (brief)"
        };
    }
    (status, words)
}

/// The course of an incident as text, strategy by strategy.
pub fn replay(seed: u64) -> String {
    use std::fmt::Write as _;

    use world::{SECOND, mib};
    let incident = draw::draw(seed);
    let back = look_back(World::new(&incident));
    let seconds = |time: u64| time as f64 / SECOND as f64;
    let mut text = format!("seed {seed}: {}\n", describe(&incident));
    let _ = writeln!(
        text,
        "capacity {:.0} MiB, {} pods, signal {:.2} ms, limits {:?}, swap {:.0} MiB, restart {:?}, rate counts {:?}",
        mib(incident.capacity as f64),
        incident.pods.len(),
        incident.signal as f64 / 1e6,
        incident
            .limits
            .iter()
            .map(|l| (l.0 / 1_000_000, l.1 >> 20, l.2 >> 20))
            .collect::<Vec<_>>(),
        mib(incident.swap),
        incident.restart.map(seconds),
        incident.rate.as_ref().map(Vec::len),
    );
    let times: Vec<f64> = back.kills.iter().map(|time| seconds(*time)).collect();
    let _ = writeln!(
        text,
        "hindsight: pods at {times:?}, memory used up {} times",
        back.used_up
    );
    for (index, name) in STRATEGIES.iter().enumerate() {
        let _ = writeln!(text, "\n{name}");
        let mut lines = Vec::new();
        let mut due = 0;
        let mut strategy = strategy_of(index, &incident);
        let course = run(World::new(&incident), strategy.as_mut(), |world| {
            if world.now >= due {
                due = world.now + SECOND / 2;
                lines.push((world.now, state(world)));
            }
        });
        let (_, words) = status(&course, &back);
        for (kill, word) in course.kills.iter().zip(words) {
            let (spec, before) = (&incident.pods[kill.pod], &kill.before);
            let said = format!(
                "EVICTS pod {} ({}; {:?}, priority {}, request {:.0} MiB, exit {:.1} ms, unmount {:.1} s{}): {}{}: {word}; {}",
                kill.pod,
                before.pod_text(kill.pod),
                spec.inputs.qos,
                spec.inputs.priority,
                mib(spec.inputs.request as f64),
                spec.exit as f64 / 1e6,
                seconds(spec.unmount),
                if spec.stuck { ", stuck" } else { "" },
                kill.why,
                kill.numbers,
                state(before),
            );
            lines.push((kill.time, said));
        }
        lines.extend(
            course
                .ooms
                .iter()
                .map(|(time, pod)| (*time, oom_text(&incident, *time, *pod))),
        );
        lines.sort_by_key(|line| line.0);
        for (time, line) in lines {
            let _ = writeln!(text, "{:10.4} s  {line}", seconds(time));
        }
    }
    text
}

fn oom_text(incident: &world::Incident, time: u64, pod: usize) -> String {
    use world::mib;
    let Some(spec) = incident.pods.get(pod) else {
        return "NO POD IS LEFT for the OOM killer".to_owned();
    };
    format!(
        "OOM KILL of pod {pod} ({:?}, priority {}, request {:.0} MiB, anon {:.0} MiB{})",
        spec.inputs.qos,
        spec.inputs.priority,
        mib(spec.inputs.request as f64),
        mib(spec.anon.at(time)),
        if spec.protected { ", protected" } else { "" },
    )
}

fn state(world: &World<'_>) -> String {
    use world::mib;
    let totals = &world.totals;
    format!(
        "room {:.1} MiB, clean inactive {:.0}, active {:.0}, to be written {:.0}{}{}",
        mib(world.incident.capacity as f64 - totals.hard),
        mib(totals.inactive),
        mib(totals.active),
        mib(totals.dirty),
        if world.short_since.is_some() {
            ", short"
        } else {
            ""
        },
        world.met_since.map_or(String::new(), |since| {
            let met = (world.now - since) as f64 / world::SECOND as f64;
            format!(", met for {met:.4} s")
        }),
    )
}
