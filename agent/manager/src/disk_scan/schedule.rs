//! Whose directories are walked next, and how much rest the thread takes. Moments are nanoseconds of one clock.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use evictd_engine::units::nanos;

use super::{PRESSED_REST, REST, ScanTarget, pod_walk::PodWalk};

/// A pod is walked again so long after its last walk began (the kubelet's `volumeStatsAggPeriod`).
const PERIOD: Duration = Duration::from_secs(60);
/// Shortest time between the starts of two walks of a pod while a disk is short.
const PRESSED_PERIOD: Duration = Duration::from_secs(2);
/// While a disk is short a pod is walked again after so many times as long as walks like its own of all pods would
/// take.
const PRESSED_SHARE: u32 = 3;
/// Walks that are under way at once: each holds a descriptor and the links that it has met.
const OPEN: usize = 8;
/// A walk that takes no longer comes to its end in one turn: it needs no place among those.
const SMALL: Duration = Duration::from_millis(30);

/// Step to take next.
pub(super) enum NextStep {
    /// Begin with a pod.
    Start(ScanTarget),
    /// Go on with one.
    Resume(Box<PodWalk>),
    /// Wait for this long: nothing is due.
    Wait(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkState {
    /// The pod's walk was not begun.
    New,
    /// The pod's walk was begun at this time and given up: too many others are under way.
    Dropped(u64),
    /// The pod's walk is under way since this time.
    Open(u64),
    /// The pod's last walk was begun at this time.
    Walked(u64),
}

#[derive(Clone, Copy, Debug)]
struct Known {
    state: WalkState,
    /// Time that the last whole walk took, without rests.
    worked: Duration,
}

/// Pods take turns. A new one comes first, and then a close walk; then those whose time has come, alternating with those that
/// are under way unless a disk is short and not all were walked since.
#[derive(Default)]
pub(super) struct Schedule {
    targets: Arc<Vec<ScanTarget>>,
    known: HashMap<String, Known>,
    parked: VecDeque<Box<PodWalk>>,
    /// Newest start of a shortage, while a disk is short: evictions wait for walks that began since.
    short_since: Option<u64>,
    rest: u32,
    has_begun: bool,
}

impl Schedule {
    /// Whether there are pods that it does not know.
    pub fn has_new_targets(&self, targets: &Arc<Vec<ScanTarget>>) -> bool {
        let is_new = |target: &ScanTarget| !self.known.contains_key(&target.uid);
        !Arc::ptr_eq(targets, &self.targets) && targets.iter().any(is_new)
    }

    /// Takes over which pods there are, and since when a disk is short.
    pub fn follow(&mut self, targets: &Arc<Vec<ScanTarget>>, short_since: Option<u64>, now: u64) {
        if !Arc::ptr_eq(targets, &self.targets) {
            self.targets = Arc::clone(targets);
            let present: HashSet<&str> = targets.iter().map(|t| t.uid.as_str()).collect();
            self.known.retain(|uid, _| present.contains(uid.as_str()));
            self.parked
                .retain(|scan| present.contains(scan.target.uid.as_str()));
            for target in targets.iter() {
                self.known.entry(target.uid.clone()).or_insert(Known {
                    state: WalkState::New,
                    worked: Duration::ZERO,
                });
            }
        }
        self.short_since = short_since;
        self.rest = match short_since {
            None => REST,
            // Not for ever, should a walk not come to its end.
            Some(since)
                if now < since.saturating_add(nanos(PERIOD)) && self.is_any_older(since) =>
            {
                0
            }
            Some(_) => PRESSED_REST,
        };
    }

    /// Whether a pod was not walked since.
    fn is_any_older(&self, since: u64) -> bool {
        let is_older = |known: &Known| match known.state {
            WalkState::Walked(began) => began < since,
            _ => true,
        };
        self.known.values().any(is_older)
    }

    /// Ratio of the thread's sleep to the time that it has worked.
    pub fn rest(&self) -> u32 {
        self.rest
    }

    /// Whether a close walk waits for others: if these rested, what it finds would be too uncertain again. It may be already.
    pub fn awaits_close_walk(&self, now: u64) -> bool {
        let awaits = |scan: &PodWalk| scan.is_close() && !scan.has_rested(now);
        self.parked.iter().any(|scan| awaits(scan))
    }

    /// Chooses the next step: whose turn it is.
    pub fn next(&mut self, now: u64) -> NextStep {
        // A short disk waits for those that were not walked since: the large ones come after them.
        let alternates = std::mem::take(&mut self.has_begun) && self.rest > 0;
        let is_short = self.short_since.is_some();
        let front = self.parked.front();
        let is_close = front.is_some_and(|scan| scan.goes_first(is_short));
        let goes_on = is_close && self.rest > 0 || alternates && !self.parked.is_empty();
        let target = match self.soonest() {
            Some((target, None)) => Some(target),
            Some((target, Some(due))) if due <= now && !goes_on => Some(target),
            _ => None,
        };
        if let Some(target) = target.cloned() {
            if let Some(known) = self.known.get_mut(&target.uid) {
                known.state = WalkState::Open(now);
            }
            self.has_begun = true;
            return NextStep::Start(target);
        }
        if let Some(scan) = self.parked.pop_front() {
            return NextStep::Resume(scan);
        }
        let due = self.soonest().and_then(|(_, due)| due);
        NextStep::Wait(due.map_or(PERIOD, |due| Duration::from_nanos(due.saturating_sub(now))))
    }

    /// The pod that may be begun next, and when; `None` for a new one, which does not wait.
    fn soonest(&self) -> Option<(&ScanTarget, Option<u64>)> {
        let has_room = self.parked.len() < OPEN;
        let due = |target: &ScanTarget| {
            let known = self.known.get(&target.uid)?;
            match known.state {
                WalkState::New => Some(None),
                WalkState::Walked(began) if has_room || known.worked <= SMALL => {
                    Some(Some(self.due(known, began)))
                }
                // Another one's walk has ended.
                WalkState::Dropped(began) if has_room => Some(Some(began)),
                _ => None,
            }
        };
        let begin = self.targets.iter().filter_map(|t| Some((t, due(t)?)));
        begin.min_by_key(|(_, due)| *due)
    }

    fn due(&self, known: &Known, began: u64) -> u64 {
        let period = match self.short_since {
            None => PERIOD,
            Some(since) if began < since => PRESSED_PERIOD,
            Some(_) => {
                let pods = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
                let all = known.worked.saturating_mul(pods);
                let period = all.saturating_mul(PRESSED_SHARE);
                period.clamp(PRESSED_PERIOD, PERIOD)
            }
        };
        began.saturating_add(nanos(period))
    }

    /// A walk is at its end.
    pub fn done(&mut self, scan: &PodWalk) {
        if let Some(known) = self.known.get_mut(&scan.target.uid)
            && let WalkState::Open(began) = known.state
        {
            known.state = WalkState::Walked(began);
            known.worked = scan.worked;
        }
    }

    /// A walk has been begun in the place of one that was too uncertain after so much work: it is next.
    pub fn walk_closely(&mut self, mut scan: PodWalk, worked: Duration) {
        if let Some(known) = self.known.get_mut(&scan.target.uid) {
            scan.expect(known.worked.max(worked));
            known.state = WalkState::Open(scan.began());
            self.parked.push_front(Box::new(scan));
        }
    }

    /// A walk is interrupted; it goes on when its turn comes again.
    pub fn park(&mut self, mut scan: Box<PodWalk>) {
        if scan.goes_first(self.short_since.is_some()) {
            scan.park();
            self.parked.push_front(scan);
        } else if self.parked.len() < OPEN {
            scan.park();
            self.parked.push_back(scan);
        } else if let Some(known) = self.known.get_mut(&scan.target.uid)
            && let WalkState::Open(began) = known.state
        {
            known.state = WalkState::Dropped(began);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evictd_engine::units::{MS, SECOND};
    use evictd_node::{fs::mounts::MountPoints, pods::dirs::PodDirs};

    fn targets(count: usize) -> Arc<Vec<ScanTarget>> {
        let target = |n| ScanTarget::of(&format!("{n:02}"), PodDirs::default);
        Arc::new((0..count).map(target).collect())
    }

    /// The pod whose turn it is, after its turn: a walk of `huge` ones does not come to its end, that of others takes
    /// `worked`.
    fn turn(schedule: &mut Schedule, now: u64, huge: &[&str], worked: Duration) -> String {
        let mut scan = match schedule.next(now) {
            NextStep::Start(target) => {
                Box::new(PodWalk::begin(target, &MountPoints::default(), None))
            }
            NextStep::Resume(scan) => scan,
            NextStep::Wait(left) => return format!("wait {}", left.as_secs()),
        };
        scan.worked = worked;
        let uid = scan.target.uid.clone();
        if huge.contains(&uid.as_str()) {
            schedule.park(scan);
        } else {
            schedule.done(&scan);
        }
        uid
    }

    #[test]
    fn a_huge_pod_holds_up_no_other_one() {
        let begin = SECOND;
        let mut schedule = Schedule::default();
        schedule.follow(&targets(3), None, begin);
        let turns = |schedule: &mut Schedule, after: u64, count: usize| {
            let now = begin + after * SECOND;
            let turn = |_| turn(schedule, now, &["00"], Duration::from_secs(1));
            (0..count).map(turn).collect::<Vec<_>>()
        };
        assert_eq!(turns(&mut schedule, 0, 5), ["00", "01", "02", "00", "00"]);
        // A new one is next, and those whose time has come take turns with it.
        schedule.follow(&targets(4), None, begin);
        assert_eq!(turns(&mut schedule, 1, 2), ["03", "00"]);
        assert_eq!(turns(&mut schedule, 60, 5), ["01", "00", "02", "00", "00"]);
        // A pod that is gone is not walked to the end.
        schedule.follow(&Arc::new(targets(4)[1..].to_vec()), None, begin);
        assert_eq!(turns(&mut schedule, 60, 1), ["wait 1"]);
        // A short disk waits for all: the others come before it.
        let mut schedule = Schedule::default();
        schedule.follow(&targets(3), None, begin);
        assert_eq!(turns(&mut schedule, 0, 4), ["00", "01", "02", "00"]);
        let later = begin + 60 * SECOND;
        schedule.follow(&targets(3), Some(later), later);
        assert_eq!(turns(&mut schedule, 60, 3), ["01", "02", "00"]);
    }

    /// A close walk goes on before others whose time has come, but not while a short disk waits for those.
    #[test]
    fn a_close_walk_goes_first_where_no_disk_is_short() {
        for (is_short, expected) in [(false, ["00", "01", "02"]), (true, ["01", "02", "00"])] {
            let begin = SECOND;
            let mut schedule = Schedule::default();
            schedule.follow(&targets(3), None, begin);
            for _ in 0..3 {
                turn(&mut schedule, begin, &["00"], Duration::from_secs(1));
            }
            let NextStep::Resume(walk) = schedule.next(begin) else {
                panic!("the huge one goes on");
            };
            let close = walk.begin_closely(&MountPoints::default(), None);
            schedule.walk_closely(close, Duration::ZERO);
            let began = evictd_sys::clock::monotonic_ns();
            let awaits = [began, began + 60 * SECOND].map(|now| schedule.awaits_close_walk(now));
            assert_eq!(awaits, [true, false], "it has waited for a minute");
            let now = begin + 60 * SECOND;
            schedule.follow(&targets(3), is_short.then_some(now), now);
            let turns = expected.map(|_| turn(&mut schedule, now, &[], Duration::from_secs(1)));
            assert_eq!(turns, expected);
        }
    }

    /// One pod needs two minutes, and another one is always being walked.
    // R10
    #[test]
    fn a_close_walk_that_was_too_short_goes_first_for_longer_the_next_time() {
        let mounts = MountPoints::default();
        let begin = |target| Box::new(PodWalk::begin(target, &mounts, None));
        let mut schedule = Schedule::default();
        schedule.follow(&targets(2), None, SECOND);
        let NextStep::Start(target) = schedule.next(SECOND) else {
            panic!("both are new");
        };
        let rested = begin(target);
        let turn = Duration::from_secs(10);
        let mut is_certain = |worked: Duration, is_short: bool| {
            let close = rested.begin_closely(&mounts, None);
            let mut now = close.began();
            let before = now - 61 * SECOND;
            schedule.follow(&targets(2), is_short.then_some(before), before);
            schedule.walk_closely(close, worked);
            loop {
                let mut scan = match schedule.next(now) {
                    NextStep::Start(target) => begin(target),
                    NextStep::Resume(scan) => scan,
                    NextStep::Wait(_) => panic!("both are under way"),
                };
                now += nanos(turn);
                if scan.target.uid == rested.target.uid {
                    scan.worked += turn;
                    if scan.worked >= 12 * turn {
                        schedule.done(&scan);
                        return !scan.has_rested(now);
                    }
                }
                schedule.park(scan);
            }
        };
        assert!(!is_certain(2 * turn, false));
        assert!(is_certain(Duration::ZERO, false), "as the last one took");
        assert!(!is_certain(12 * turn, true), "others are awaited");
        assert!(is_certain(12 * turn, false));
    }

    #[test]
    fn few_walks_are_under_way_and_a_new_pod_comes_first_all_the_same() {
        let begin = SECOND;
        let mut schedule = Schedule::default();
        let all = targets(OPEN + 3);
        let huge: Vec<&str> = all[..OPEN + 2].iter().map(|t| t.uid.as_str()).collect();
        schedule.follow(&all, None, begin);
        let mut turns = Vec::new();
        for _ in 0..2 * OPEN + 6 {
            turns.push(turn(&mut schedule, begin, &huge, Duration::ZERO));
            assert!(schedule.parked.len() <= OPEN);
        }
        assert_eq!(turns[OPEN + 2], all[OPEN + 2].uid, "the small one");
        // Those that found no place wait until another one's walk has ended.
        assert!(turns[OPEN + 3..].iter().all(|uid| *uid < all[OPEN].uid));
        let walked = turn(&mut schedule, begin, &[], Duration::ZERO);
        assert!(walked < all[OPEN].uid);
        let next = turn(&mut schedule, begin, &[], Duration::ZERO);
        assert_eq!(next, all[OPEN].uid);
    }

    #[test]
    fn walks_that_are_under_way_keep_no_small_pod_from_its_next_one() {
        let begin = SECOND;
        let mut schedule = Schedule::default();
        let all = targets(OPEN + 2);
        let huge: Vec<&str> = all[..OPEN].iter().map(|t| t.uid.as_str()).collect();
        let (small, large) = (&all[OPEN].uid, &all[OPEN + 1].uid);
        schedule.follow(&all, None, begin);
        // Each is begun once; the last two come to their ends.
        for _ in 0..OPEN + 1 {
            turn(&mut schedule, begin, &huge, SMALL);
        }
        assert_eq!(turn(&mut schedule, begin, &huge, SMALL * 2), *large);
        assert_eq!(schedule.parked.len(), OPEN);
        let later = begin + nanos(PERIOD);
        let turns: Vec<_> = (0..2 * OPEN)
            .map(|_| turn(&mut schedule, later, &huge, SMALL))
            .collect();
        assert_eq!(turns.iter().filter(|uid| *uid == small).count(), 1);
        assert!(!turns.contains(large), "it needs a place");
    }

    #[test]
    fn while_a_disk_is_short_the_thread_rests_after_the_first_walks() {
        let begin = SECOND;
        let at = |ms: u64| begin + ms * MS;
        let pods = targets(10);
        let mut schedule = Schedule::default();
        let walk_all = |schedule: &mut Schedule, ms: u64, worked: u64| {
            for _ in 0..10 {
                turn(schedule, at(ms), &[], Duration::from_millis(worked));
            }
        };
        schedule.follow(&pods, None, begin);
        assert_eq!(schedule.rest(), REST);
        walk_all(&mut schedule, 0, 1);
        schedule.follow(&pods, Some(at(10_000)), at(10_000));
        assert_eq!(schedule.rest(), 0);
        walk_all(&mut schedule, 10_000, 1);
        schedule.follow(&pods, Some(at(10_000)), at(10_001));
        assert_eq!(schedule.rest(), PRESSED_REST);
        // Quick walks are repeated soon; the slower they are, the later.
        let due = |schedule: &mut Schedule, ms| turn(schedule, at(ms), &[], Duration::ZERO);
        assert_eq!(due(&mut schedule, 10_500), "wait 1");
        walk_all(&mut schedule, 12_000, 500);
        assert_eq!(due(&mut schedule, 12_000), "wait 15");
        walk_all(&mut schedule, 27_000, 5000);
        assert_eq!(due(&mut schedule, 27_000), "wait 60");
        // Once it is short no more, the thread rests as before.
        schedule.follow(&pods, None, at(28_000));
        assert_eq!(schedule.rest(), REST);
    }

    // R10, R43
    #[test]
    fn a_disk_that_becomes_short_beside_another_one_has_walks_of_its_own() {
        let at = |second: u64| second * SECOND;
        let pods = targets(3);
        let mut schedule = Schedule::default();
        // Long walks: each pod's next one is due after a minute.
        let walk_all = |schedule: &mut Schedule, second| {
            let walk = |_| turn(schedule, at(second), &[], Duration::from_secs(9));
            (0..3).map(walk).collect::<Vec<_>>()
        };
        let all = ["00", "01", "02"];
        let short_since = |schedule: &mut Schedule, since: u64, second: u64| {
            schedule.follow(&pods, Some(at(since)), at(second));
            schedule.rest()
        };
        for second in [1, 61, 121] {
            short_since(&mut schedule, 1, second);
            assert_eq!(walk_all(&mut schedule, second), all);
        }
        assert_eq!(short_since(&mut schedule, 1, 125), PRESSED_REST);
        assert_eq!(short_since(&mut schedule, 125, 125), 0);
        assert_eq!(walk_all(&mut schedule, 125), all);
        assert_eq!(short_since(&mut schedule, 125, 126), PRESSED_REST);
        // That of the other one goes on.
        assert_eq!(short_since(&mut schedule, 1, 127), PRESSED_REST);
        assert_eq!(walk_all(&mut schedule, 127), ["wait 58"; 3]);
    }
}
