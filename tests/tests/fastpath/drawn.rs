//! Drawn scenes: hogs of any shape beside pods that work. The hogs go, and no other pod. `EVICTD_SCENES=40:200` plays 200 of
//! them, from the seed 40 on.

use evictd_tests::{cgroup::begin_in, prelude::*, reaped::Reaped};
use fastrand::Rng;

/// Seeds of a run that asks for no others: the first, and how many.
const SCENES: (u64, u64) = (0, 20);
const LONG: Duration = Duration::from_secs(180);
/// An emulated machine is slower by so much.
const EMULATED: u64 = 8;

/// A pod that is started some milliseconds after the beginning, with amounts in MiB.
#[derive(Debug)]
struct Drawn {
    name: String,
    request: u64,
    priority: i32,
    limit: Option<u64>,
    after: u64,
    /// Arguments of its hog; `spin`: processes that only compute.
    arguments: String,
}

#[derive(Debug)]
struct Scene {
    mib: u64,
    /// The pods' cgroup has the limit, and not the node's.
    of_pods: bool,
    threshold: u64,
    min_reclaim: u64,
    /// Milliseconds from the beginning to the agent's start.
    agent_after: u64,
    pods: Vec<Drawn>,
}

fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    *rng.choice(of).unwrap()
}

impl Scene {
    fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let (mib, threshold) = (one_of(rng, &[384, 512, 768]), rng.u64(60..120));
        let mut scene = Self {
            mib,
            of_pods: rng.bool(),
            threshold,
            min_reclaim: one_of(rng, &[0, 0, 40, 150]),
            agent_after: one_of(rng, &[0, 0, 0, 500, 1500]),
            pods: Vec::new(),
        };
        // What the kubelet's count leaves when all but the hogs have what they want.
        let mut room = mib - threshold - 50;
        // The hogs come first by their priority, or because the others use no more than they request.
        let by_priority = rng.bool();
        let request = |request: u64| if by_priority { request } else { 5000 };
        for number in 0..rng.u64(2..5) {
            let uses = rng.u64(15..45).min(room.saturating_sub(5));
            room = room.saturating_sub(uses + 3);
            scene.pods.push(Drawn {
                name: format!("calm-{number}"),
                request: request(one_of(rng, &[10, uses + 10])),
                priority: one_of(rng, &[0, 0, 100]),
                limit: None,
                after: 0,
                arguments: format!("--mib {uses}"),
            });
        }
        for number in 0..rng.u64(0..3) {
            let size = one_of(rng, &[60, 200, 400, 900, 1300]);
            let files = format!("--size {size} --mib {}", size * rng.u64(1..6));
            let limit = rng.u64(40..150).min(room.saturating_sub(5));
            let rate = one_of(rng, &[0, 20, 100, 500]);
            let kind = rng.u64(0..12);
            let (needs, arguments) = match kind {
                0 | 1 => (10, format!("--way write {files}")),
                2 => (10, format!("--way read {files}")),
                3 => (10, format!("--way map {files}")),
                4 => (10, "--way write --mib 1000 --rate 4".into()),
                5 => (10, "--way files --mib 60".into()),
                6 => (25, "--way churn --mib 20".into()),
                7 => (30, "spin".into()),
                8 => (limit, format!("--mib 300 --rate {rate}")),
                9 => (70, "--way churn --mib 60".into()),
                10 => (45, "--mib 40".into()),
                _ => (35, "--way tmpfs --mib 30".into()),
            };
            if room < needs + 5 {
                continue;
            }
            room -= needs;
            scene.pods.push(Drawn {
                name: format!("work-{number}"),
                request: request(one_of(rng, &[10, 60])),
                priority: one_of(rng, &[0, 0, 100]),
                limit: (kind == 8).then_some(limit),
                after: rng.u64(300..2500),
                arguments,
            });
        }
        let slower = if in_guest() { EMULATED } else { 1 };
        let hogs = one_of(rng, &[1, 1, 1, 2, 3]);
        let ways = [
            "touch",
            "touch",
            "populate",
            "thp",
            "tmpfs",
            "threads",
            "processes",
            "cache",
        ];
        for number in 0..hogs {
            let (way, rate) = (
                one_of(rng, &ways),
                one_of(rng, &[0, 4000, 1000, 400, 150, 60, 25]),
            );
            let head = match rate {
                // Near the threshold, or it would take long.
                1..=100 => room.saturating_sub(30) / hogs,
                _ => rng.u64(0..=room / hogs),
            };
            let head = if rng.bool() || rate == 25 { head } else { 0 };
            scene.pods.push(Drawn {
                name: format!("hog-{number}"),
                request: 10,
                priority: if by_priority { -100 } else { 100 },
                limit: None,
                after: scene.agent_after + rng.u64(300..2500),
                arguments: format!(
                    "--way {way} --mib 6000 --rate {} --head {head}",
                    rate / slower
                ),
            });
        }
        scene
    }

    /// Plays it; what went wrong.
    fn play(&self) -> Result<(), String> {
        let disk = Disk::new("ext4", 3000, 200_000).unwrap();
        let node = if self.of_pods { 4 * self.mib } else { self.mib };
        let manifest = self.pods.iter().map(|pod| {
            json!({ "name": pod.name, "cgroup": format!("kubepods/burstable/pod-{}", pod.name), "priority": pod.priority,
                "requests": { "memory": format!("{}Mi", pod.request) } })
        });
        let mut files = Files::of("drawn", node, &Value::from_iter(manifest));
        let (scope, mib) = (
            files.scope(),
            |mib: u64| json!({ "memory.available": format!("{mib}Mi") }),
        );
        if self.of_pods {
            scope.limit_child("kubepods", self.mib * MIB).unwrap();
        }
        files.config["evictionHard"] = mib(self.threshold);
        files.config["evictionMinimumReclaim"] = mib(self.min_reclaim);
        let container = |pod: &Drawn| files.cgroup(&pod.name).join("container");
        let mut starts: Vec<_> = self.pods.iter().map(|pod| (pod.after, Some(pod))).collect();
        starts.push((self.agent_after, None));
        starts.sort_by_key(|(after, _)| *after);
        let (mut hogs, mut agent, mut spinning) = (Vec::new(), None, Vec::new());
        let begin = monotonic_ns();
        for (after, pod) in starts {
            sleep_from(begin, Duration::from_millis(after));
            match pod {
                None => agent = Some(files.start(&[])),
                Some(pod) => {
                    let dir = container(pod);
                    let below = dir.strip_prefix(files.scope().path()).unwrap();
                    files.scope().child(below.to_str().unwrap()).unwrap();
                    if pod.arguments == "spin" {
                        spinning.extend((0..8).map(|_| {
                            let mut command = Command::new("sh");
                            begin_in(&dir, command.args(["-c", "while :; do :; done"])).unwrap();
                            Reaped(command.spawn().unwrap())
                        }));
                        continue;
                    }
                    if let Some(limit) = pod.limit {
                        files
                            .scope()
                            .limit_child(below.to_str().unwrap(), limit * MIB)
                            .unwrap();
                    }
                    let mut arguments: Vec<&str> = pod.arguments.split(' ').collect();
                    let on_disk = disk.path();
                    if !pod.arguments.contains("tmpfs") {
                        arguments.extend(["--dir", on_disk.to_str().unwrap()]);
                    }
                    hogs.push((pod, Hog::start(&dir, &arguments).unwrap()));
                }
            }
        }
        // A pod with a limit of its own ends at that.
        let dead = |hogs: &mut Vec<(&Drawn, Hog)>| {
            let dead = hogs.iter_mut().filter_map(|(pod, hog)| {
                (pod.limit.is_none() && !hog.is_alive()).then(|| pod.name.clone())
            });
            BTreeSet::from_iter(dead)
        };
        let names = self.pods.iter().map(|pod| pod.name.clone());
        let wanted: BTreeSet<String> = names.filter(|name| name.starts_with("hog")).collect();
        let evicted = || BTreeSet::from_iter(files.evicted());
        until(LONG, || dead(&mut hogs).is_superset(&wanted));
        until(LONG / 10, || evicted().is_superset(&wanted));
        std::thread::sleep(Duration::from_secs(2));
        let kills = |dir: &Path| MemoryCgroup::open(dir).unwrap().oom_kills().unwrap();
        let limited = self.pods.iter().filter(|pod| pod.limit.is_some());
        let own: u64 = limited.map(|pod| kills(&container(pod))).sum();
        let kills = kills(files.scope().path()) - own;
        let (dead, evicted) = (dead(&mut hogs), evicted());
        if evicted == wanted && dead == wanted && kills == 0 {
            return Ok(());
        }
        Err(format!(
            "evicted {evicted:?}, dead {dead:?}, {kills} OOM kills\n{}",
            agent.unwrap().log()
        ))
    }
}

// R2, R40, R43
#[test]
fn drawn_hogs_go_alone() {
    skip_if!(not_root());
    let asked = std::env::var("EVICTD_SCENES").ok();
    // An emulated machine takes several times as long.
    let (first, count) = SCENES;
    let usual = (first, if in_guest() { count / 10 } else { count });
    let (first, count) = asked.map_or(usual, |asked| {
        let (first, count) = asked.split_once(':').expect("FIRST:COUNT");
        (first.parse().unwrap(), count.parse().unwrap())
    });
    let bad = (first..first + count).filter(|seed| {
        let scene = Scene::draw(*seed);
        let wrong = scene.play().err();
        if let Some(wrong) = &wrong {
            println!("scene {seed}: {scene:#?}\n{wrong}\n");
        }
        wrong.is_some()
    });
    assert_eq!(Vec::from_iter(bad), [0; 0], "of {count} scenes");
}
