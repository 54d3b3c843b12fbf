//! Draws incidents.

use evictd_engine::{
    QosClass, RankInputs,
    model::settings::RankingStrategy,
    units::{nanos, signed},
};
use fastrand::Rng;

use super::{
    evictd::RATE,
    world::{Incident, Line, MS, PodSpec, SECOND, ScopeKind},
};

const MIB: f64 = (1 << 20) as f64;
/// Tells the seeds of [`rate`], [`logs`], [`uncounted`], [`has_limit`] and of replicas from those of the incidents.
const RATE_STREAM: u64 = 1 << 63;
const LOGS_STREAM: u64 = 1 << 62;
const UNCOUNTED_STREAM: u64 = 1 << 61;
const LIMIT_STREAM: u64 = 1 << 60;
const REPLICAS_STREAM: u64 = 1 << 59;
/// From the OOM kill of a container to its end, and to its next start (the kubelet's first back-off).
const KILL_TAKES: u64 = 20 * MS;
const RESTART_AFTER: u64 = 10 * SECOND;
/// Longer than any incident.
const LOGS_SECONDS: f64 = 100.0;

/// Between two amounts, with each octave as probable as the others.
fn octaves(rng: &mut Rng, least: f64, most: f64) -> f64 {
    let mut octaves = 0;
    while least * 2_f64.powi(octaves) < most {
        octaves += 1;
    }
    let low = least * 2_f64.powi(rng.i32(0..octaves.max(1)));
    (low * (1.0 + rng.f64())).min(most)
}

fn between(rng: &mut Rng, least: f64, most: f64) -> f64 {
    least + rng.f64() * (most - least)
}

fn time(rng: &mut Rng, least: u64, most: u64) -> u64 {
    rng.u64(least..=most)
}

fn seconds(seconds: f64) -> u64 {
    (seconds * SECOND as f64) as u64
}

fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(0..100) < percent
}

/// Marks of an incident, for the tables of the judge.
#[derive(Default)]
struct Traits(Vec<&'static str>);

impl Traits {
    fn has(&mut self, rng: &mut Rng, percent: u32, name: &'static str) -> bool {
        let has = chance(rng, percent);
        if has {
            self.0.push(name);
        }
        has
    }
}

struct Growth {
    line: Line,
    /// What it has when the threshold is to be reached.
    reach: f64,
}

/// Grows at bytes per second from a time on, until it has so much.
fn ramp(from: u64, speed: f64, most: f64) -> Line {
    Line(vec![
        (from, 0.0),
        (from + seconds(most / speed).max(1), most),
    ])
}

/// What makes the node short.
struct Shape {
    name: &'static str,
    /// Growths of pods.
    growths: Vec<Growth>,
    /// Page cache of a pod, and whether it is written.
    cache: Option<(Line, bool)>,
    outside: Line,
    /// A threshold that comes later, with what resolves it.
    later: Option<(u64, u64, u64)>,
}

impl Shape {
    fn of_pods(name: &'static str, growths: Vec<Growth>) -> Self {
        Self {
            name,
            growths,
            cache: None,
            outside: Line::default(),
            later: None,
        }
    }

    fn of_one(name: &'static str, line: Line, reach: f64) -> Self {
        Self::of_pods(name, vec![Growth { line, reach }])
    }

    /// What has grown when the threshold is to be reached.
    fn reach(&self, rng: &mut Rng, node: &Node) -> f64 {
        match (self.name, self.later) {
            ("outside of pods", _) => {
                let most = self.outside.at(u64::MAX);
                most - node.overshoot(rng).min(most)
            }
            ("page cache", _) if self.growths.is_empty() => between(rng, 0.05, 0.5) * node.usable,
            (_, Some((_, higher, _))) if self.growths.is_empty() => {
                between(rng, 0.02, 0.98) * (higher as f64 - node.threshold)
            }
            _ => self.growths.iter().map(|growth| growth.reach).sum(),
        }
    }
}

/// The node, and when its threshold is reached.
struct Node {
    capacity: f64,
    threshold: f64,
    resolved: f64,
    /// What is there above the threshold.
    usable: f64,
    scope: ScopeKind,
    cpus: u64,
    begin: u64,
    reached: u64,
}

impl Node {
    fn draw(rng: &mut Rng, traits: &mut Traits) -> Self {
        let capacity = octaves(rng, 512.0 * MIB, 512.0 * 1024.0 * MIB);
        let threshold = match chance(rng, 50) {
            true => (between(rng, 0.02, 0.15) * capacity).max(50.0 * MIB),
            false => octaves(rng, 100.0 * MIB, 2048.0 * MIB).min(capacity * 0.2),
        };
        let resolved = match traits.has(rng, 20, "minimum reclaim") {
            true => threshold + between(rng, 0.1, 1.0) * threshold,
            false => threshold,
        };
        let scope = match rng.u32(0..3) {
            0 => ScopeKind::V1,
            1 => ScopeKind::V2,
            _ => ScopeKind::Machine,
        };
        let cpus = 1_u64 << rng.u32(1..5);
        let begin = time(rng, SECOND, 4 * SECOND);
        Self {
            capacity,
            threshold,
            resolved,
            usable: capacity - threshold,
            scope,
            cpus,
            begin,
            reached: begin + time(rng, 200 * MS, 8 * SECOND),
        }
    }

    /// Time of a growth until the threshold is reached, in seconds.
    fn until(&self) -> f64 {
        (self.reached - self.begin) as f64 / SECOND as f64
    }

    /// A growth that goes on has so much in the end.
    fn endless(&self) -> f64 {
        self.capacity * 1.5
    }

    fn fastest(&self, rng: &mut Rng) -> f64 {
        between(rng, 0.5, 3.0) * 1024.0 * MIB * (self.cpus.min(4) as f64)
    }

    /// The fastest growth of the machine, in bytes per second.
    fn bound(&self) -> u64 {
        self.cpus * (4 << 30)
    }

    /// Nanoseconds that a growth by so many bytes takes at least.
    fn least_time(&self, bytes: f64) -> u64 {
        seconds(bytes / self.bound() as f64)
    }

    fn overshoot(&self, rng: &mut Rng) -> f64 {
        between(rng, 0.05, 0.9) * self.threshold
    }

    fn goes_on(&self, speed: f64, most: f64) -> Growth {
        Growth {
            line: ramp(self.begin, speed, self.endless()),
            reach: (self.usable * most).min(speed * self.until()),
        }
    }

    fn shape(&self, rng: &mut Rng) -> Shape {
        match rng.u32(0..13) {
            0 => self.full_speed(rng),
            1 => self.linear(rng),
            2 => self.exponential(rng),
            3 => self.stepwise(rng),
            4 => self.sawtooth_below(rng),
            5 => self.sawtooth_past(rng),
            6 => self.stops_by_itself(rng),
            7 => self.several_pods(rng),
            8 => self.start_up(rng),
            9 => self.page_cache(rng),
            10 => self.tmpfs(rng),
            11 => self.outside_of_pods(rng),
            _ => self.threshold_change(rng),
        }
    }

    fn full_speed(&self, rng: &mut Rng) -> Shape {
        let growth = self.goes_on(self.fastest(rng), 0.6);
        Shape::of_pods("full speed", vec![growth])
    }

    fn linear(&self, rng: &mut Rng) -> Shape {
        let speed = octaves(rng, 1.0, 2000.0) * MIB;
        Shape::of_pods("linear", vec![self.goes_on(speed, 0.6)])
    }

    fn exponential(&self, rng: &mut Rng) -> Shape {
        let (mut amount, factor) = (octaves(rng, 1.0, 16.0) * MIB, between(rng, 1.05, 1.5));
        let step = time(rng, 50 * MS, 500 * MS);
        let (mut points, mut at) = (vec![(self.begin, amount)], self.begin);
        let fastest = self.fastest(rng) * step as f64 / SECOND as f64;
        while amount < self.endless() {
            // As far as the machine goes.
            amount = (amount * factor).min(amount + fastest);
            at += step;
            points.push((at, amount));
        }
        let reach = self.usable * between(rng, 0.1, 0.6);
        Shape::of_one("exponential", Line(points), reach)
    }

    fn stepwise(&self, rng: &mut Rng) -> Shape {
        let (step, pause) = (self.overshoot(rng) * 0.5, time(rng, 100 * MS, 6 * SECOND));
        let rise = time(rng, 2 * MS, 50 * MS).max(self.least_time(step));
        let (mut points, mut at, mut amount) = (vec![(self.begin, 0.0)], self.begin, 0.0);
        for _ in 0..rng.u32(3..40) {
            at += rise;
            amount += step;
            points.push((at, amount));
            at += pause;
            points.push((at, amount));
        }
        let reach = between(rng, 0.1, 0.9) * amount.min(self.usable);
        Shape::of_one("stepwise", Line(points), reach)
    }

    fn sawtooth_below(&self, rng: &mut Rng) -> Shape {
        let (line, size) = self.sawtooth(rng);
        let reach = size + between(rng, 0.001, 0.3) * self.threshold;
        Shape::of_one("sawtooth below", line, reach)
    }

    fn sawtooth_past(&self, rng: &mut Rng) -> Shape {
        let (line, size) = self.sawtooth(rng);
        let reach = size * between(rng, 0.1, 0.99);
        Shape::of_one("sawtooth that dips past", line, reach)
    }

    /// A sawtooth, and its size.
    fn sawtooth(&self, rng: &mut Rng) -> (Line, f64) {
        let size = between(rng, 0.05, 1.5) * self.threshold;
        let (up, down) = (time(rng, 50 * MS, 5 * SECOND), time(rng, 10 * MS, SECOND));
        let up = up.max(self.least_time(size));
        let rest = time(rng, 1, 3 * SECOND);
        let (mut points, mut at) = (vec![(self.begin, 0.0)], self.begin);
        for _ in 0..rng.u32(3..10) {
            points.push((at + up, size));
            points.push((at + up + down, 0.0));
            at += up + down + rest;
            points.push((at, 0.0));
        }
        (Line(points), size)
    }

    fn stops_by_itself(&self, rng: &mut Rng) -> Shape {
        let speed = octaves(rng, 1.0, 2000.0) * MIB;
        let size = (speed * self.until()).clamp(self.threshold * 0.1, self.usable * 0.6);
        let reach = size - self.overshoot(rng).min(size);
        Shape::of_one("stops by itself", ramp(self.begin, speed, size), reach)
    }

    fn several_pods(&self, rng: &mut Rng) -> Shape {
        let count = rng.usize(2..6);
        let growths = (0..count).map(|_| {
            let speed = match chance(rng, 30) {
                // They share the CPUs.
                true => self.fastest(rng) / count as f64,
                false => octaves(rng, 1.0, 500.0) * MIB,
            };
            self.goes_on(speed, 0.15)
        });
        let growths: Vec<_> = growths.collect();
        // The other incidents stay as they are.
        let rng = &mut Rng::with_seed(rng.clone().u64(..) ^ REPLICAS_STREAM);
        if !chance(rng, 25) {
            return Shape::of_pods("several pods", growths);
        }
        // Replicas share what one would grow by.
        let replicas = rng.usize(3..9);
        let growths = growths.iter().flat_map(|growth| {
            let shared = |all: f64| all / replicas as f64;
            let points = growth.line.0.iter().map(|(at, all)| (*at, shared(*all)));
            let line: Vec<_> = points.collect();
            (0..replicas).map(move |_| Growth {
                line: Line(line.clone()),
                reach: shared(growth.reach),
            })
        });
        Shape::of_pods("replicas", growths.collect())
    }

    fn start_up(&self, rng: &mut Rng) -> Shape {
        let count = rng.usize(1..5);
        let growths = (0..count).map(|_| {
            let (speed, size) = (
                self.fastest(rng) / count as f64,
                octaves(rng, 50.0, 2000.0) * MIB,
            );
            let size = size.min(self.usable * 0.1);
            let mut line = ramp(self.begin + time(rng, 0, SECOND), speed, size);
            if chance(rng, 50) {
                // What only starting up needs goes back.
                let (at, most) = line.0[1];
                let (at, back) = (at + time(rng, MS, 3 * SECOND), time(rng, MS, 300 * MS));
                line.0.extend([(at, most), (at + back, most * 0.6)]);
            }
            Growth {
                line,
                reach: size * between(rng, 0.5, 1.3),
            }
        });
        Shape::of_pods("start-up burst", growths.collect())
    }

    fn page_cache(&self, rng: &mut Rng) -> Shape {
        let speed = octaves(rng, 20.0, 2000.0) * MIB;
        let size = between(rng, 0.3, 2.0) * self.capacity;
        let cache = Some((ramp(self.begin, speed, size), chance(rng, 50)));
        let growths = match chance(rng, 40) {
            true => {
                let speed = octaves(rng, 1.0, 1000.0) * MIB;
                vec![self.goes_on(speed, 0.4)]
            }
            false => Vec::new(),
        };
        Shape {
            cache,
            ..Shape::of_pods("page cache", growths)
        }
    }

    fn tmpfs(&self, rng: &mut Rng) -> Shape {
        let speed = octaves(rng, 10.0, 2000.0) * MIB;
        let size = match chance(rng, 50) {
            true => self.endless(),
            false => (speed * self.until()).clamp(self.threshold * 0.2, self.usable * 0.6),
        };
        let reach = match size < self.endless() {
            true => size - self.overshoot(rng).min(size),
            false => (self.usable * 0.6).min(speed * self.until()),
        };
        Shape::of_one("tmpfs", ramp(self.begin, speed, size), reach)
    }

    fn outside_of_pods(&self, rng: &mut Rng) -> Shape {
        let speed = octaves(rng, 1.0, 1000.0) * MIB;
        let size = match chance(rng, 30) {
            true => self.capacity * 0.5,
            false => (speed * self.until()).min(self.usable * 0.3) + self.overshoot(rng),
        };
        Shape {
            outside: ramp(self.begin, speed, size),
            ..Shape::of_pods("outside of pods", Vec::new())
        }
    }

    fn threshold_change(&self, rng: &mut Rng) -> Shape {
        let higher = (self.threshold * between(rng, 1.3, 3.0)).min(self.capacity * 0.5);
        let reclaim = self.resolved - self.threshold;
        let growths = match chance(rng, 50) {
            true => {
                let speed = octaves(rng, 1.0, 200.0) * MIB;
                vec![self.goes_on(speed, 0.3)]
            }
            false => Vec::new(),
        };
        Shape {
            later: Some((self.reached, higher as u64, (higher + reclaim) as u64)),
            ..Shape::of_pods("threshold change", growths)
        }
    }
}

/// What there is besides the shape.
struct Beside {
    is_huge: bool,
    has_stuck: bool,
    is_slow: bool,
    has_cache: bool,
    has_tmpfs: bool,
    has_outside: bool,
    swap: f64,
    restart: Option<u64>,
    late_lists: bool,
}

impl Beside {
    fn draw(rng: &mut Rng, node: &Node, traits: &mut Traits) -> Self {
        Self {
            is_huge: traits.has(rng, 20, "huge pages"),
            has_stuck: traits.has(rng, 8, "stuck death"),
            is_slow: traits.has(rng, 15, "slow death"),
            has_cache: traits.has(rng, 25, "cache beside"),
            has_tmpfs: traits.has(rng, 15, "tmpfs beside"),
            has_outside: traits.has(rng, 30, "static memory outside"),
            swap: match traits.has(rng, 12, "swap") {
                true => between(rng, 0.02, 0.3) * node.capacity,
                false => 0.0,
            },
            restart: traits
                .has(rng, 10, "restart")
                .then(|| node.reached + time(rng, 0, 6 * SECOND)),
            late_lists: traits.has(rng, 20, "late lists"),
        }
    }

    /// The pods, which use so much together at the beginning.
    fn pods(&self, rng: &mut Rng, node: &Node, fixed: f64) -> Vec<PodSpec> {
        let count = rng.usize(3..41);
        let weights: Vec<f64> = (0..count).map(|_| octaves(rng, 1.0, 256.0)).collect();
        let sum: f64 = weights.iter().sum();
        let mut pods: Vec<PodSpec> = weights.iter().map(|w| pod(rng, fixed * w / sum)).collect();
        let slowness = if self.is_slow { 0.2 } else { 1.0 };
        for spec in &mut pods {
            spec.teardown = between(rng, 2.0, 16.0) * 1024.0 * MIB * slowness;
            spec.stuck = self.has_stuck && chance(rng, 25);
            spec.huge = self.is_huge && chance(rng, 50);
            if self.has_tmpfs && chance(rng, 40) {
                std::mem::swap(&mut spec.anon, &mut spec.tmpfs);
            }
            if self.has_cache && chance(rng, 40) {
                let amount = between(rng, 0.0, 0.3) * node.usable;
                let active = amount * rng.f64();
                spec.read = Line(vec![(0, amount), (1, amount)]);
                spec.activated = Line(vec![(0, active), (1, active)]);
                if self.late_lists || chance(rng, 30) {
                    let at = node.reached.saturating_sub(time(rng, 0, SECOND));
                    spec.activated.0.push((at, active));
                    spec.activated.0.push((at + 700 * MS, amount));
                }
            }
        }
        pods
    }
}

/// Has a pod grow. Mostly it is above its request.
fn grow(rng: &mut Rng, spec: &mut PodSpec, growth: Growth, is_tmpfs: bool, fixed: f64) {
    let line = if is_tmpfs {
        &mut spec.tmpfs
    } else {
        &mut spec.anon
    };
    // Pods grow once.
    if line.0.len() <= 1 {
        let base = line.at(0);
        *line = growth.line;
        line.raise(base);
    }
    if chance(rng, 70) {
        spec.inputs.request = (spec.inputs.request / 4).min((fixed / 100.0) as u64);
    }
}

/// Has a pod read or write files.
fn fill_cache(rng: &mut Rng, spec: &mut PodSpec, line: Line, is_written: bool) {
    if is_written {
        spec.written = line;
    } else {
        let part = rng.f64();
        let at = |point: &(u64, f64)| (point.0, point.1 * part);
        spec.activated = Line(line.0.iter().map(at).collect());
        spec.read = line;
    }
}

/// The moments at which something changes.
fn marks(limits: &[(u64, u64, u64)], pods: &[PodSpec], others: [&Line; 2]) -> Vec<u64> {
    let mut marks: Vec<u64> = limits.iter().map(|limit| limit.0).collect();
    let lines = |p: &PodSpec| {
        let lines = [&p.anon, &p.tmpfs, &p.read, &p.written, &p.activated];
        lines
            .into_iter()
            .flat_map(|l| l.0.iter().map(|p| p.0))
            .collect::<Vec<_>>()
    };
    marks.extend(pods.iter().flat_map(lines));
    marks.extend(
        others
            .iter()
            .flat_map(|line| line.0.iter().map(|point| point.0)),
    );
    marks.sort_unstable();
    marks.dedup();
    marks
}

pub fn draw(seed: u64) -> Incident {
    let mut rng = Rng::with_seed(seed);
    let rng = &mut rng;
    let mut traits = Traits::default();
    let node = Node::draw(rng, &mut traits);
    let shape = node.shape(rng);
    let beside = Beside::draw(rng, &node, &mut traits);
    // What is there at the beginning, so that the threshold is met when it is to be.
    let mut fixed = (node.usable - shape.reach(rng, &node)).max(node.usable * 0.05);
    let Shape {
        name,
        growths,
        cache,
        mut outside,
        later,
    } = shape;
    if beside.has_outside {
        let part = fixed * between(rng, 0.05, 0.5);
        fixed -= part;
        outside.raise(part);
    }
    let mut pods = beside.pods(rng, &node, fixed);
    let count = pods.len();
    for growth in growths {
        let spec = &mut pods[rng.usize(..count)];
        grow(rng, spec, growth, name == "tmpfs", fixed);
        if name == "stops by itself" && has_limit(seed) {
            traits.0.push("limit");
            stop_at_limit(spec);
        }
    }
    if let Some((line, is_written)) = cache {
        let spec = &mut pods[rng.usize(..count)];
        fill_cache(rng, spec, line, is_written);
    }
    if let Some(speed) = logs(seed) {
        traits.0.push("logs");
        let writer = pods.iter_mut().find(|pod| pod.written.0.len() <= 1);
        if let Some(spec) = writer {
            spec.written = ramp(0, speed, speed * LOGS_SECONDS);
        }
    }
    let mut limits = vec![(0, node.threshold as u64, node.resolved as u64)];
    limits.extend(later);
    let uncounted = match node.scope {
        ScopeKind::Machine => uncounted(seed, &node, &mut traits),
        ScopeKind::V1 | ScopeKind::V2 => Line::default(),
    };
    let rate = rate(seed);
    if rate.is_some() {
        traits.0.push("eviction rate");
    }
    Incident {
        shape: name,
        traits: traits.0,
        // So that as much can be used.
        capacity: (node.capacity + uncounted.at(0)) as u64,
        scope: node.scope,
        has_program: chance(rng, 70),
        fastest: node.bound(),
        marks: marks(&limits, &pods, [&outside, &uncounted]),
        limits,
        pods,
        outside,
        uncounted,
        swap: beside.swap,
        write_back: octaves(rng, 20.0, 500.0) * MIB,
        lag: if chance(rng, 50) {
            time(rng, 0, 5 * MS)
        } else {
            0
        },
        late_lists: beside.late_lists,
        wake: time(rng, MS / 50, MS),
        signal: octaves(rng, 50_000.0, 5_000_000.0) as u64,
        restart: beside.restart,
        rate,
        kubelet_looks: time(rng, 0, 10 * SECOND),
        ranking: match rng.u32(0..10) {
            0 => RankingStrategy::Usage,
            1 | 2 => RankingStrategy::Qos,
            _ => RankingStrategy::Kubelet,
        },
        end: node.reached + 35 * SECOND,
        kept: match node.scope {
            ScopeKind::Machine => octaves(rng, MIB, 512.0 * MIB).min(node.capacity / 16.0),
            _ => 0.0,
        },
    }
}

/// The node's eviction rate, with what it counts already: a third of the nodes have one, and half of these have evicted
/// before. It has a stream of its own: all that is drawn beside it stays the same.
fn rate(seed: u64) -> Option<Vec<i64>> {
    let rng = &mut Rng::with_seed(seed ^ RATE_STREAM);
    if rng.u32(0..3) > 0 {
        return None;
    }
    let count = match chance(rng, 50) {
        true => rng.u32(1..=RATE.evictions),
        false => 0,
    };
    let period = nanos(RATE.period);
    let mut charged: Vec<i64> = (0..count).map(|_| -signed(time(rng, 0, period))).collect();
    charged.sort_unstable();
    Some(charged)
}

/// On half of the nodes a pod writes a little all the time, as its logs: so many bytes per second. It has a stream of its
/// own, as the rate.
fn logs(seed: u64) -> Option<f64> {
    let rng = &mut Rng::with_seed(seed ^ LOGS_STREAM);
    chance(rng, 50).then(|| octaves(rng, 16.0 / 1024.0, 2.0) * MIB)
}

/// Memory of a third of the machines that the kubelet's count leaves out; of some it grows. It has a stream of its own, as the
/// rate.
fn uncounted(seed: u64, node: &Node, traits: &mut Traits) -> Line {
    let rng = &mut Rng::with_seed(seed ^ UNCOUNTED_STREAM);
    if !traits.has(rng, 33, "uncounted memory") {
        return Line::default();
    }
    let level = octaves(rng, 16.0 * MIB, 16.0 * 1024.0 * MIB).min(node.capacity * 0.2);
    let mut line = match traits.has(rng, 25, "uncounted memory grows") {
        true => ramp(
            node.begin,
            octaves(rng, 1.0, 500.0) * MIB,
            node.overshoot(rng),
        ),
        false => Line::default(),
    };
    line.raise(level);
    line
}

/// Whether it is the pod's own limit that stops its growth. It has a stream of its own, as the rate.
fn has_limit(seed: u64) -> bool {
    chance(&mut Rng::with_seed(seed ^ LIMIT_STREAM), 50)
}

/// Gives a pod that grows once a limit where it stops: the OOM killer ends its container there, and the kubelet starts it
/// again.
fn stop_at_limit(spec: &mut PodSpec) {
    let [(begin, base), (end, most)] = spec.anon.0[..] else {
        return;
    };
    spec.limit = Some((most + spec.tmpfs.at(end)) as u64);
    let again = end + RESTART_AFTER;
    spec.anon.0.extend([
        (end + KILL_TAKES, base),
        (again, base),
        (again + (end - begin), most),
        (again + (end - begin) + KILL_TAKES, base),
    ]);
}

/// A pod that uses so many bytes.
fn pod(rng: &mut Rng, usage: f64) -> PodSpec {
    let qos = match rng.u32(0..10) {
        0..=2 => QosClass::BestEffort,
        3..=7 => QosClass::Burstable,
        _ => QosClass::Guaranteed,
    };
    let request = match qos {
        QosClass::BestEffort => 0.0,
        QosClass::Burstable => usage * between(rng, 0.2, 1.6),
        QosClass::Guaranteed => usage * between(rng, 1.0, 2.0),
    };
    PodSpec {
        inputs: RankInputs {
            priority: *rng
                .choice(&[0, 0, 0, -10, 100, 1000, 1_000_000])
                .unwrap_or(&0),
            qos,
            request: request as u64,
            order: 0,
            priority_unknown: false,
        },
        protected: chance(rng, 5),
        anon: Line::level(usage),
        exit: octaves(rng, 200_000.0, 40_000_000.0) as u64,
        unmount: time(rng, SECOND, 8 * SECOND),
        ..PodSpec::default()
    }
}
