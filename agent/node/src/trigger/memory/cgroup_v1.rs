//! The cgroup v1 hook: the kernel's own usage notification (`Documentation/admin-guide/cgroup-v1/memory.rst`, 9).
//!
//! The kernel compares once per 128 charged pages, in either direction, and does not say which threshold it was.

use std::{
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use evictd_engine::model::settings::MemoryHook;
use evictd_sys::eventfd::EventFd;
use rustix::event::{Timespec, epoll};

use super::{MAX_TRIGGERS, SLOTS_PER_SCOPE, TriggerEvent};
use crate::{
    cgroup::memory::{MemoryCgroup, Version},
    trigger::memory::{
        ANY_SLOT, Trigger, TriggerSet,
        notifier::{Files, Notifier, Triggers},
    },
};

/// All triggers of all scopes. Arming one is an order to the notifier: the old triggers serve until the new ones do.
pub struct CgroupV1Triggers {
    /// Holds the eventfd that the thresholds in force ring; readable when a threshold was crossed.
    epoll: OwnedFd,
    notifier: Notifier,
    triggers: Triggers,
}

impl CgroupV1Triggers {
    /// Opens the `cgroup.event_control` of each scope; the reason says why not.
    pub fn new(scopes: &[&MemoryCgroup]) -> Result<Self, String> {
        let mut files = Vec::new();
        for scope in scopes {
            files.push(open(scope)?);
            // The registration of a threshold is the part that a kernel can refuse; try it before it is needed.
            let unreachable = Trigger {
                limit: u64::MAX / 2,
                ..Trigger::DISABLED
            };
            EventFd::new()
                .and_then(|probe| files[files.len() - 1].register(&probe, &unreachable))
                .map_err(|e| format!("{}/cgroup.event_control: {e}", scope.path().display()))?;
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = epoll.map_err(|e| format!("epoll: {}", io::Error::from(e)))?;
        let start = || {
            let any = scopes.first().ok_or(io::ErrorKind::InvalidInput)?;
            let notifier = Notifier::start(epoll.try_clone()?, any.path())?;
            for (scope, files) in files.into_iter().enumerate() {
                notifier.set_files(scope, files)?;
            }
            Ok(notifier)
        };
        let notifier = start().map_err(|e: io::Error| format!("its thread: {e}"))?;
        Ok(Self {
            epoll,
            notifier,
            triggers: [Trigger::DISABLED; MAX_TRIGGERS as usize],
        })
    }

    fn order(&mut self) -> io::Result<()> {
        self.notifier.request_registration(&self.triggers)
    }
}

fn open(scope: &MemoryCgroup) -> Result<Files, String> {
    if scope.version() != Version::V1 {
        return Err("cgroup v2 has no usage notification".to_owned());
    }
    let path = scope.path();
    let open = |name: &str, write: bool| {
        let file = path.join(name);
        let opened = File::options().read(!write).write(write).open(&file);
        opened.map_err(|e| format!("{}: {e}", file.display()))
    };
    Ok(Files {
        usage: open(Version::V1.usage_file(), false)?,
        control: open("cgroup.event_control", true)?,
    })
}

impl TriggerSet for CgroupV1Triggers {
    fn hook(&self) -> MemoryHook {
        MemoryHook::Eventfd
    }

    fn watch(&mut self, scope: usize, cgroup: &MemoryCgroup) -> io::Result<()> {
        let slots = scope * SLOTS_PER_SCOPE as usize..(scope + 1) * SLOTS_PER_SCOPE as usize;
        let triggers = self.triggers.get_mut(slots);
        triggers
            .ok_or(io::ErrorKind::InvalidInput)?
            .fill(Trigger::DISABLED);
        let files = open(cgroup).map_err(io::Error::other)?;
        self.notifier.set_files(scope, files)?;
        self.order()
    }

    fn arm(&mut self, slot: usize, trigger: Trigger) -> io::Result<()> {
        // A floor needs a program in the kernel; here it is a threshold like any other and wakes the agent.
        let Some(armed) = self.triggers.get_mut(slot) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // These stay armed after a crossing.
        if *armed == trigger {
            return Ok(());
        }
        *armed = trigger;
        self.order()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn next_crossing(&mut self) -> Option<TriggerEvent> {
        let mut event = [MaybeUninit::uninit()];
        let at_once = Timespec::default();
        let (got, _) = epoll::wait(&self.epoll, &mut event, Some(&at_once)).ok()?;
        (!got.is_empty()).then(|| TriggerEvent {
            slot: ANY_SLOT,
            ..TriggerEvent::default()
        })
    }
}
