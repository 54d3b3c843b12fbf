//! The loop itself: wait, look, decide, kill.

mod evict;
mod schedule;
mod updates;
mod usage_cache;

use std::{io, sync::Arc};

use evictd_engine::{limiter::Restraint, model::settings::RankingStrategy};
use evictd_node::{
    memory_scope::Scope,
    pods::table::PodTable,
    proc::machine::online_cpus,
    sampling::{Nearness, fastest_growth},
    trigger::memory::{ANY_SLOT, MAX_SCOPES, SLOTS_PER_SCOPE, Tripwire, page_size, slot},
};
use evictd_sys::clock::now_ns;

use crate::{
    Mailbox, Outbox, Report,
    in_flight::{Earlier, InFlight, Told},
    monitor::usage_cache::Recent,
    scope::{News, Post},
    spin::Waiting,
};

/// How long whom the kernel may kill stays true while the scopes stand still: pods may change places among themselves.
const NAMED_FOR_NS: u64 = 1_000_000_000;
/// The same far from every threshold, where no hook has to be attached: whoever grows is named on the way.
const NAMED_FAR_FOR_NS: u64 = 10_000_000_000;

/// Calm for so long, a pressure is over. A counter that has just reached a threshold goes back by itself when a CPU returns what
/// it had charged in advance (`drain_stock`), and comes again.
const OVER_AFTER_NS: u64 = 1_000_000_000;

/// What the rung has told since the last turn.
#[derive(Default)]
struct Heard {
    /// Scope by scope.
    news: [News; MAX_SCOPES as usize],
    /// Whose threshold's wire tripped first.
    tripped: Option<usize>,
}

/// The state of the loop.
pub(super) struct Watch {
    pub(super) setup: Setup,
    /// The scopes; never more than [`MAX_SCOPES`].
    pub(super) posts: Vec<Post>,
    /// Victims for whichever scope: what one of them gives back, all of them get.
    pub(super) in_flight: InFlight,
    pub(super) growth: u64,
    pub(super) cpus: u64,
    /// How old the usages in the table are.
    pub(super) recent: Recent,
    pub(super) evictions: u64,
    met_in_force: u64,
    /// When the kernel was last told whom it may kill; 0: it has to be told.
    pub(super) named: u64,
    heard: Heard,
    /// Since when no threshold is met.
    calm_since: Option<u64>,
    /// How often every scope was looked at.
    pub(super) turns: u64,
}

impl Watch {
    pub(super) fn new(mut setup: Setup) -> Self {
        let mut posts = Vec::with_capacity(MAX_SCOPES as usize);
        let growth = fastest_growth();
        let cpus = online_cpus();
        let scopes = std::mem::take(&mut setup.scopes).into_iter().enumerate();
        posts.extend(scopes.map(|(index, scope)| Post::new(scope, index, growth, cpus)));
        if let Some(last) = setup.last_eviction {
            posts.iter_mut().for_each(|post| post.pace.evicted(last));
        }
        let mut in_flight = InFlight::new();
        in_flight.resume(&std::mem::take(&mut setup.earlier), now_ns());
        Self {
            setup,
            posts,
            in_flight,
            growth,
            cpus,
            recent: Recent::default(),
            evictions: 0,
            met_in_force: 0,
            named: 0,
            heard: Heard::default(),
            calm_since: None,
            turns: 0,
        }
    }

    /// Arms the wires for the first time.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let floor = self.floor_is_armed();
        for post in &mut self.posts {
            post.settle(&mut *self.setup.tripwire, floor)?;
        }
        (0..self.posts.len()).for_each(|index| self.say_met_in_force(index));
        Ok(())
    }

    /// Says that the threshold of a scope is met although it has just come into force.
    pub(super) fn say_met_in_force(&mut self, index: usize) {
        let Some(post) = self.posts.get(index) else {
            return;
        };
        let (available, threshold) = (post.look.available, post.scope.limits().threshold);
        if !post.gone && available < threshold {
            self.met_in_force += 1;
            self.setup.outbox.send(Report::MetInForce {
                signal: post.scope.signal(),
                available,
                threshold,
                number: self.met_in_force,
            });
        }
    }

    /// In shadow mode the kernel must not kill either.
    pub(super) fn floor_is_armed(&self) -> bool {
        !self.setup.shadow
    }

    /// One round of the loop; how to wait for the next one.
    pub(super) fn go_round(&mut self, woken: u64) -> Waiting {
        self.setup.outbox.note_turn(woken);
        // A decision comes first; what is new in the mailbox can wait for the next turn.
        if !self.hear() {
            self.take_letters();
        }
        self.turn(woken);
        let interval = self.next_look();
        self.approach(woken, interval)
    }

    /// The part of a round that cannot wait, for a reflex that is late. What else the rung has told waits for it.
    pub(super) fn decide_what_has_tripped(&mut self, woken: u64) {
        if self.hear() {
            self.setup.outbox.note_deputy();
            self.turn(woken);
        }
    }

    /// Takes in what the rung has told meanwhile; whether a threshold's wire has tripped.
    pub(super) fn hear(&mut self) -> bool {
        let Heard { news, tripped } = &mut self.heard;
        while let Some(trip) = self.setup.tripwire.next() {
            if trip.slot == ANY_SLOT {
                for news in &mut *news {
                    news.trip = news.trip.or(Some(trip));
                }
                *tripped = tripped.or(Some(0));
                continue;
            }
            let scope = (trip.slot / SLOTS_PER_SCOPE) as usize;
            let Some(news) = news.get_mut(scope) else {
                continue;
            };
            match trip.slot % SLOTS_PER_SCOPE {
                slot::CALIBRATION => news.counter = Some(trip.usage * page_size()),
                // To be awake is all that it is for.
                slot::RECOVERY => {}
                slot::APPROACH => news.approached = true,
                _ => {
                    news.trip = news.trip.or(Some(trip));
                    *tripped = tripped.or(Some(scope));
                }
            }
        }
        tripped.is_some()
    }

    /// Whether a threshold is met: where no program tells of that in the same moment, whoever is awake looks for himself.
    pub(super) fn sees_a_crossing(&self) -> bool {
        let tripwire = &*self.setup.tripwire;
        !tripwire.has_program() && self.posts.iter().any(Post::is_crossed)
    }

    /// One look at every scope, that one first whose wire has tripped, and what follows.
    fn turn(&mut self, woken: u64) {
        self.turns += 1;
        let Heard { news, tripped } = std::mem::take(&mut self.heard);
        let first = tripped.unwrap_or(0);
        let is_over = |since| woken.saturating_sub(since) >= OVER_AFTER_NS;
        if self.calm_since.is_some_and(is_over) {
            self.in_flight.forget_shadows();
        }
        let count = self.posts.len();
        for index in (0..count).map(|i| (first + i) % count) {
            let news = news.get(index).copied().unwrap_or_default();
            if let Err(e) = self.look_after(index, woken, &news) {
                self.say_gone(index, &e);
            }
        }
        // Exits are looked for afterwards: nothing may stand between the wake-up and the signal.
        self.finish_victims(now_ns());
        if self.recall_first_victims() {
            self.named = 0;
        }
        if self.posts.iter().all(|post| !post.pressed) {
            self.calm_since.get_or_insert(woken);
            self.name_when_due(woken);
        } else {
            self.calm_since = None;
            if self.in_flight.dying() > 0 {
                // The name stays that of the pod that is dying already.
                self.named = 0;
            } else {
                self.name_when_due(woken);
            }
        }
    }

    /// Asking every pod is what a look costs most: not while nothing has changed.
    fn name_when_due(&mut self, now: u64) {
        let nearness = Nearness::new(self.growth);
        let is_near = |post: &Post| nearness.wants_hook(post.distance(), true);
        let lasts = match self.posts.iter().any(is_near) {
            true => NAMED_FOR_NS,
            false => NAMED_FAR_FOR_NS,
        };
        let is_old = now.saturating_sub(self.named) >= lasts;
        if self.named == 0 || is_old || self.posts.iter().any(Post::has_moved) {
            self.named = now;
            self.name_first_victims();
            self.posts.iter_mut().for_each(Post::is_named);
        }
    }

    fn look_after(&mut self, index: usize, woken: u64, news: &News) -> io::Result<()> {
        let floor = self.floor_is_armed();
        let Some(post) = self.posts.get_mut(index) else {
            return Ok(());
        };
        let was_pressed = post.pressed;
        let (hook, table) = (self.setup.tripwire.hook(), &mut self.setup.table);
        post.look(woken, news, hook, self.growth, || table.add_up())?;
        let recorder = self.setup.outbox.recorder();
        let (signal, available) = (post.scope.signal(), post.look.available);
        if post.pressed && !was_pressed {
            recorder.keep(woken, signal, available);
        } else {
            recorder.note(woken, signal, available);
        }
        let idle = self.relieve(index, now_ns());
        let Some(post) = self.posts.get_mut(index) else {
            return Ok(());
        };
        post.follow_floor(&mut *self.setup.tripwire, floor)?;
        if !post.pressed {
            return post.keep(&mut *self.setup.tripwire, news, was_pressed, floor);
        }
        post.idle = idle;
        if idle {
            post.await_recovery(&mut *self.setup.tripwire)?;
        }
        Ok(())
    }

    /// Said once; the other scopes go on.
    pub(super) fn say_gone(&mut self, index: usize, error: &io::Error) {
        let Some(post) = self.posts.get_mut(index) else {
            return;
        };
        post.pressed = false;
        if !std::mem::replace(&mut post.gone, true) {
            self.setup.outbox.send(Report::ScopeGone {
                signal: post.scope.signal(),
                errno: error.raw_os_error().unwrap_or(0),
            });
        }
    }

    fn finish_victims(&mut self, now: u64) {
        let (outbox, posts) = (&self.setup.outbox, &self.posts);
        let at = |scope: usize| {
            posts
                .get(scope)
                .map(|post| (post.look, post.scope.limits().threshold))
                .unwrap_or_default()
        };
        let is_fewer = self.in_flight.step(now, at, |told| {
            outbox.send(match told {
                Told::Finished(finished) => Report::Finished(finished),
                Told::Stuck(stuck) => Report::Stuck(stuck),
            });
        });
        if is_fewer {
            let posts = self.posts.iter_mut();
            posts.for_each(|post| post.pace.forget_growth());
        }
    }
}

/// What a reflex needs.
pub struct Setup {
    /// The node, and the pods' cgroup if that one is watched too: at least one, at most
    /// [`MAX_SCOPES`](evictd_node::trigger::memory::MAX_SCOPES).
    pub scopes: Vec<Scope>,
    /// The rung that watches them, built for the same cgroups in the same order.
    pub tripwire: Box<dyn Tripwire>,
    /// The pods at the start.
    pub table: Box<PodTable>,
    /// Pods that an earlier agent has signalled.
    pub earlier: Vec<Earlier>,
    /// When an earlier agent last evicted a pod for memory, in nanoseconds of CLOCK_MONOTONIC.
    pub last_eviction: Option<u64>,
    /// Decide, report, and kill nothing.
    pub shadow: bool,
    /// The most pods that may be terminating at once; the kubelet's number is 1.
    pub victims_at_once: usize,
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// What holds for all pods: limits, the pause, the last resort.
    pub restraint: Arc<Restraint>,
    /// Where new tables come from.
    pub mailbox: Arc<Mailbox>,
    /// Where reports go.
    pub outbox: Arc<Outbox>,
}
