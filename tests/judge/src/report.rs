//! What came of many incidents.

use std::{collections::BTreeMap, fmt, panic::resume_unwind, thread};

use serde_json::{Value, json};

use super::{EVICTD, Judgement, STRATEGIES, Verdict, judge};

/// Number of the worst cases that are shown of each strategy but evictd's own.
const WORST: usize = 10;

/// What is summed over the incidents: the heading, the name in JSON, and what one incident adds.
type Count = (&'static str, &'static str, fn(&Verdict) -> usize);
const COUNTS: [Count; 9] = [
    ("needless kills", "needlessKills", |v| v.needless),
    ("of these for page cache", "needlessKillsForCache", |v| {
        v.cache
    }),
    (
        "incidents with needless kills",
        "incidentsWithNeedlessKills",
        |v| usize::from(v.needless > 0),
    ),
    (
        "the kubelet's count demands it",
        "demandedByTheKubeletsCount",
        |v| v.demanded,
    ),
    ("ended by itself", "endedByItself", |v| v.ended),
    ("avoidable OOM kills", "avoidableOomKills", |v| {
        usize::from(v.avoidable)
    }),
    (
        "of these with the rate used up",
        "avoidableOomKillsBeyondRate",
        |v| usize::from(v.beyond_rate),
    ),
    ("incidents with OOM kills", "incidentsWithOomKills", |v| {
        usize::from(v.ooms > 0)
    }),
    ("kills in all", "kills", |v| v.kills),
];

pub struct Report {
    /// Judgements in the order of the seeds.
    pub judgements: Vec<Judgement>,
}

impl Report {
    /// Judges the incidents of so many seeds from the first one on, on all CPUs.
    pub fn of(first: u64, count: u64) -> Self {
        let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let mut judgements: Vec<Judgement> = thread::scope(|scope| {
            let part = |index: u64| {
                let seeds = (index..count).step_by(threads as usize);
                scope.spawn(move || seeds.map(|seed| judge(first + seed)).collect::<Vec<_>>())
            };
            let parts: Vec<_> = (0..threads).map(part).collect();
            let joined = parts.into_iter().map(|part| part.join());
            joined
                .flat_map(|part| part.unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        judgements.sort_by_key(|judgement| judgement.seed);
        Self { judgements }
    }

    /// A sum over the verdicts of one of [`STRATEGIES`].
    pub fn sum(&self, strategy: usize, count: fn(&Verdict) -> usize) -> usize {
        let verdicts = self.judgements.iter().map(|j| &j.verdicts[strategy]);
        verdicts.map(count).sum()
    }

    pub fn needed(&self) -> usize {
        self.judgements
            .iter()
            .map(|judgement| judgement.needed)
            .sum()
    }

    /// Counts the needless pods of one of [`STRATEGIES`] by what they went for, the most first.
    pub fn causes(&self, strategy: usize) -> Vec<(&str, usize)> {
        let mut causes = BTreeMap::new();
        let verdicts = self.judgements.iter().map(|j| &j.verdicts[strategy]);
        for cause in verdicts.flat_map(|status| &status.causes) {
            *causes.entry(cause.as_str()).or_default() += 1;
        }
        let mut causes: Vec<(&str, usize)> = causes.into_iter().collect();
        causes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        causes
    }

    /// The worst incidents of one of [`STRATEGIES`], the worst first: all bad ones of evictd.
    pub fn worst(&self, strategy: usize) -> Vec<&Judgement> {
        let badness = |j: &&Judgement| {
            let status = &j.verdicts[strategy];
            // What is not for the rate comes first.
            let ooms = usize::from(status.avoidable) * 2 - usize::from(status.beyond_rate);
            ooms * 1000 + status.needless
        };
        let mut worst: Vec<&Judgement> =
            self.judgements.iter().filter(|j| badness(j) > 0).collect();
        worst.sort_by_key(|j| (std::cmp::Reverse(badness(j)), j.seed));
        if strategy != EVICTD {
            worst.truncate(WORST);
        }
        worst
    }

    pub fn json(&self) -> Value {
        let strategies = STRATEGIES.iter().enumerate().map(|(index, name)| {
            let worst = self.worst(index).into_iter().map(|judgement| {
                let status = &judgement.verdicts[index];
                json!({
                    "seed": judgement.seed,
                    "shape": judgement.shape,
                    "needed": judgement.needed,
                    "kills": status.kills,
                    "needless": status.needless,
                    "avoidableOomKill": status.avoidable,
                    "isBeyondRate": status.beyond_rate,
                })
            });
            let mut found = json!({
                "name": name,
                "causes": self.causes(index).into_iter().collect::<BTreeMap<_, _>>(),
                "worst": worst.collect::<Vec<_>>(),
            });
            for (_, key, count) in COUNTS {
                found[key] = self.sum(index, count).into();
            }
            found
        });
        json!({
            "incidents": self.judgements.len(),
            "needed": self.needed(),
            "strategies": strategies.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.judgements.len();
        writeln!(f, "{count} incidents, {} pods had to go\n", self.needed())?;
        let row = |name: &str, cells: [String; COUNTS.len()]| {
            format!("| {name} | {} |", cells.join(" | "))
        };
        let headings = COUNTS.map(|(heading, ..)| heading.to_owned());
        writeln!(f, "{}", row("strategy", headings))?;
        writeln!(f, "{}", row("---", COUNTS.map(|_| "---".to_owned())))?;
        for (index, name) in STRATEGIES.iter().enumerate() {
            let sums = COUNTS.map(|(_, _, count)| self.sum(index, count).to_string());
            writeln!(f, "{}", row(name, sums))?;
        }
        for (index, name) in STRATEGIES.iter().enumerate() {
            let causes = self.causes(index);
            if !causes.is_empty() {
                writeln!(f, "\nWhat the needless pods of {name} went for:")?;
            }
            for (cause, count) in causes {
                writeln!(f, "  {count}: {cause}")?;
            }
        }
        for (index, name) in STRATEGIES.iter().enumerate() {
            let worst = self.worst(index);
            if worst.is_empty() {
                continue;
            }
            writeln!(f, "\nThe worst of {name}:")?;
            for judgement in worst {
                let Verdict {
                    kills,
                    needless,
                    avoidable,
                    beyond_rate,
                    ..
                } = &judgement.verdicts[index];
                let oom = match (avoidable, beyond_rate) {
                    (false, _) => "",
                    (true, false) => ", avoidable OOM kill",
                    (true, true) => ", avoidable OOM kill with the rate used up",
                };
                writeln!(
                    f,
                    "  seed {}: {needless} needless of {kills}, {} had to go{oom}: {}",
                    judgement.seed, judgement.needed, judgement.shape
                )?;
            }
        }
        Ok(())
    }
}
