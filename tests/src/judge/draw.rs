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
/// Tells the seeds of [`rate`] and [`logs`] from those of the incidents.
const RATE_STREAM: u64 = 1 << 63;
const LOGS_STREAM: u64 = 1 << 62;
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

pub fn draw(seed: u64) -> Incident {
    let mut rng = Rng::with_seed(seed);
    let rng = &mut rng;
    let capacity = octaves(rng, 512.0 * MIB, 512.0 * 1024.0 * MIB);
    let threshold = match chance(rng, 50) {
        true => (between(rng, 0.02, 0.15) * capacity).max(50.0 * MIB),
        false => octaves(rng, 100.0 * MIB, 2048.0 * MIB).min(capacity * 0.2),
    };
    let mut traits = Vec::new();
    let mut has = |rng: &mut Rng, percent, name| {
        let has = chance(rng, percent);
        if has {
            traits.push(name);
        }
        has
    };
    let resolved = match has(rng, 20, "minimum reclaim") {
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
    let reached = begin + time(rng, 200 * MS, 8 * SECOND);
    let until = (reached - begin) as f64 / SECOND as f64;
    let usable = capacity - threshold;
    // A growth that goes on has so much in the end.
    let endless = capacity * 1.5;
    let full_speed = |rng: &mut Rng| between(rng, 0.5, 3.0) * 1024.0 * MIB * (cpus.min(4) as f64);
    let goes_on = |speed: f64, most: f64| Growth {
        line: ramp(begin, speed, endless),
        reach: (usable * most).min(speed * until),
    };
    let overshoot = |rng: &mut Rng| between(rng, 0.05, 0.9) * threshold;
    let mut cache = None;
    let mut outside = Line::default();
    let mut limits = vec![(0, threshold as u64, resolved as u64)];
    let (shape, mut growths): (&str, Vec<Growth>) = match rng.u32(0..13) {
        0 => ("full speed", vec![goes_on(full_speed(rng), 0.6)]),
        1 => {
            let speed = octaves(rng, 1.0, 2000.0) * MIB;
            ("linear", vec![goes_on(speed, 0.6)])
        }
        2 => {
            let (mut amount, factor) = (octaves(rng, 1.0, 16.0) * MIB, between(rng, 1.05, 1.5));
            let step = time(rng, 50 * MS, 500 * MS);
            let (mut points, mut at) = (vec![(begin, amount)], begin);
            let fastest = full_speed(rng) * step as f64 / SECOND as f64;
            while amount < endless {
                // As far as the machine goes.
                amount = (amount * factor).min(amount + fastest);
                at += step;
                points.push((at, amount));
            }
            let line = Line(points);
            let reach = usable * between(rng, 0.1, 0.6);
            ("exponential", vec![Growth { line, reach }])
        }
        3 => {
            let (step, pause) = (overshoot(rng) * 0.5, time(rng, 100 * MS, 6 * SECOND));
            let rise = time(rng, 2 * MS, 50 * MS);
            let (mut points, mut at, mut amount) = (vec![(begin, 0.0)], begin, 0.0);
            for _ in 0..rng.u32(3..40) {
                at += rise;
                amount += step;
                points.push((at, amount));
                at += pause;
                points.push((at, amount));
            }
            let reach = between(rng, 0.1, 0.9) * amount.min(usable);
            let line = Line(points);
            ("stepwise", vec![Growth { line, reach }])
        }
        kind @ (4 | 5) => {
            let size = between(rng, 0.05, 1.5) * threshold;
            let (up, down) = (time(rng, 50 * MS, 5 * SECOND), time(rng, 10 * MS, SECOND));
            let rest = time(rng, 1, 3 * SECOND);
            let (mut points, mut at) = (vec![(begin, 0.0)], begin);
            for _ in 0..rng.u32(3..10) {
                points.push((at + up, size));
                points.push((at + up + down, 0.0));
                at += up + down + rest;
                points.push((at, 0.0));
            }
            let line = Line(points);
            match kind {
                4 => {
                    let reach = size + between(rng, 0.001, 0.3) * threshold;
                    ("sawtooth below", vec![Growth { line, reach }])
                }
                _ => {
                    let reach = size * between(rng, 0.1, 0.99);
                    ("sawtooth that dips past", vec![Growth { line, reach }])
                }
            }
        }
        6 => {
            let speed = octaves(rng, 1.0, 2000.0) * MIB;
            let size = (speed * until).clamp(threshold * 0.1, usable * 0.6);
            let reach = size - overshoot(rng).min(size);
            let line = ramp(begin, speed, size);
            ("stops by itself", vec![Growth { line, reach }])
        }
        7 => {
            let count = rng.usize(2..6);
            let growths = (0..count).map(|_| {
                let speed = match chance(rng, 30) {
                    // They share the CPUs.
                    true => full_speed(rng) / count as f64,
                    false => octaves(rng, 1.0, 500.0) * MIB,
                };
                goes_on(speed, 0.15)
            });
            ("several pods", growths.collect())
        }
        8 => {
            let count = rng.usize(1..5);
            let growths = (0..count).map(|_| {
                let (speed, size) = (
                    full_speed(rng) / count as f64,
                    octaves(rng, 50.0, 2000.0) * MIB,
                );
                let size = size.min(usable * 0.1);
                let mut line = ramp(begin + time(rng, 0, SECOND), speed, size);
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
            ("start-up burst", growths.collect())
        }
        9 => {
            let speed = octaves(rng, 20.0, 2000.0) * MIB;
            let size = between(rng, 0.3, 2.0) * capacity;
            cache = Some((ramp(begin, speed, size), chance(rng, 50)));
            let growths = match chance(rng, 40) {
                true => {
                    let speed = octaves(rng, 1.0, 1000.0) * MIB;
                    vec![goes_on(speed, 0.4)]
                }
                false => Vec::new(),
            };
            ("page cache", growths)
        }
        10 => {
            let speed = octaves(rng, 10.0, 2000.0) * MIB;
            let size = match chance(rng, 50) {
                true => endless,
                false => (speed * until).clamp(threshold * 0.2, usable * 0.6),
            };
            let reach = match size < endless {
                true => size - overshoot(rng).min(size),
                false => (usable * 0.6).min(speed * until),
            };
            let line = ramp(begin, speed, size);
            ("tmpfs", vec![Growth { line, reach }])
        }
        11 => {
            let speed = octaves(rng, 1.0, 1000.0) * MIB;
            let size = match chance(rng, 30) {
                true => capacity * 0.5,
                false => (speed * until).min(usable * 0.3) + overshoot(rng),
            };
            outside = ramp(begin, speed, size);
            ("outside of pods", Vec::new())
        }
        _ => {
            let higher = (threshold * between(rng, 1.3, 3.0)).min(capacity * 0.5);
            let reclaim = resolved - threshold;
            limits.push((reached, higher as u64, (higher + reclaim) as u64));
            let growths = match chance(rng, 50) {
                true => {
                    let speed = octaves(rng, 1.0, 200.0) * MIB;
                    vec![goes_on(speed, 0.3)]
                }
                false => Vec::new(),
            };
            ("threshold change", growths)
        }
    };
    let is_huge = has(rng, 20, "huge pages");
    let has_stuck = has(rng, 8, "stuck death");
    let is_slow = has(rng, 15, "slow death");
    let has_cache = has(rng, 25, "cache beside");
    let has_tmpfs = has(rng, 15, "tmpfs beside");
    let outside_static = has(rng, 30, "static memory outside");
    let swap = match has(rng, 12, "swap") {
        true => between(rng, 0.02, 0.3) * capacity,
        false => 0.0,
    };
    let restart = has(rng, 10, "restart").then(|| reached + time(rng, 0, 6 * SECOND));
    let late_lists = has(rng, 20, "late lists");
    // What is there at the beginning, so that the threshold is met when it is to be.
    let reach: f64 = growths.iter().map(|growth| growth.reach).sum();
    let reach = match shape {
        "outside of pods" => outside.at(u64::MAX) - overshoot(rng).min(outside.at(u64::MAX)),
        "page cache" if growths.is_empty() => between(rng, 0.05, 0.5) * usable,
        "threshold change" if growths.is_empty() => {
            let higher = limits[1].1 as f64 - threshold;
            between(rng, 0.02, 0.98) * higher
        }
        _ => reach,
    };
    let mut fixed = (usable - reach).max(usable * 0.05);
    if outside_static {
        let part = fixed * between(rng, 0.05, 0.5);
        fixed -= part;
        outside.raise(part);
    }
    let count = rng.usize(3..41);
    let weights: Vec<f64> = (0..count).map(|_| octaves(rng, 1.0, 256.0)).collect();
    let sum: f64 = weights.iter().sum();
    let mut pods: Vec<PodSpec> = weights.iter().map(|w| pod(rng, fixed * w / sum)).collect();
    let slowness = if is_slow { 0.2 } else { 1.0 };
    for spec in &mut pods {
        spec.teardown = between(rng, 2.0, 16.0) * 1024.0 * MIB * slowness;
        spec.stuck = has_stuck && chance(rng, 25);
        spec.huge = is_huge && chance(rng, 50);
        if has_tmpfs && chance(rng, 40) {
            std::mem::swap(&mut spec.anon, &mut spec.tmpfs);
        }
        if has_cache && chance(rng, 40) {
            let amount = between(rng, 0.0, 0.3) * usable;
            let active = amount * rng.f64();
            spec.read = Line(vec![(0, amount), (1, amount)]);
            spec.activated = Line(vec![(0, active), (1, active)]);
            if late_lists || chance(rng, 30) {
                let at = reached.saturating_sub(time(rng, 0, SECOND));
                spec.activated.0.push((at, active));
                spec.activated.0.push((at + 700 * MS, amount));
            }
        }
    }
    for growth in growths.drain(..) {
        let spec = &mut pods[rng.usize(..count)];
        let is_tmpfs = shape == "tmpfs";
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
        // Mostly it is above its request.
        if chance(rng, 70) {
            spec.inputs.request = (spec.inputs.request / 4).min((fixed / 100.0) as u64);
        }
    }
    if let Some((line, is_written)) = cache {
        let spec = &mut pods[rng.usize(..count)];
        if is_written {
            spec.written = line;
        } else {
            let part = rng.f64();
            let at = |point: &(u64, f64)| (point.0, point.1 * part);
            spec.activated = Line(line.0.iter().map(at).collect());
            spec.read = line;
        }
    }
    if let Some(speed) = logs(seed) {
        traits.push("logs");
        let writer = pods.iter_mut().find(|pod| pod.written.0.len() <= 1);
        if let Some(spec) = writer {
            spec.written = ramp(0, speed, speed * LOGS_SECONDS);
        }
    }
    let mut marks: Vec<u64> = limits.iter().map(|limit| limit.0).collect();
    let lines = |p: &PodSpec| {
        let lines = [&p.anon, &p.tmpfs, &p.read, &p.written, &p.activated];
        lines
            .into_iter()
            .flat_map(|l| l.0.iter().map(|p| p.0))
            .collect::<Vec<_>>()
    };
    marks.extend(pods.iter().flat_map(lines));
    marks.extend(outside.0.iter().map(|point| point.0));
    marks.sort_unstable();
    marks.dedup();
    let rate = rate(seed);
    if rate.is_some() {
        traits.push("eviction rate");
    }
    Incident {
        shape,
        traits,
        capacity: capacity as u64,
        scope,
        has_program: chance(rng, 70),
        fastest: cpus * (4 << 30),
        limits,
        pods,
        outside,
        swap,
        write_back: octaves(rng, 20.0, 500.0) * MIB,
        lag: if chance(rng, 50) {
            time(rng, 0, 5 * MS)
        } else {
            0
        },
        late_lists,
        wake: time(rng, MS / 50, MS),
        signal: octaves(rng, 50_000.0, 5_000_000.0) as u64,
        restart,
        rate,
        kubelet_looks: time(rng, 0, 10 * SECOND),
        ranking: match rng.u32(0..10) {
            0 => RankingStrategy::Usage,
            1 | 2 => RankingStrategy::Qos,
            _ => RankingStrategy::Kubelet,
        },
        marks,
        end: reached + 35 * SECOND,
        kept: match scope {
            ScopeKind::Machine => octaves(rng, MIB, 512.0 * MIB).min(capacity / 16.0),
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
