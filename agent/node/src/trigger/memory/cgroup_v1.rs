//! The cgroup v1 hook: the kernel's own usage notification (`Documentation/admin-guide/cgroup-v1/memory.rst`, 9).
//!
//! The kernel compares once per 128 charged pages, in either direction, and does not say which threshold it was.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use evictd_engine::model::settings::MemoryHook;
use evictd_sys::eventfd::EventFd;

use super::{MAX_TRIGGERS, SLOTS_PER_SCOPE, TriggerEvent};
use crate::{
    cgroup::memory::{MemoryCgroup, Version},
    trigger::memory::{
        ANY_SLOT, MemoryTrigger, Trigger,
        notifier::{Files, Notifier, Triggers},
    },
};

/// All triggers of all scopes. Arming one is an order to the notifier: the old triggers serve until the new ones do.
pub struct CgroupV1Trigger {
    /// Holds the eventfd that the thresholds in force ring; readable when a threshold was crossed.
    epoll: OwnedFd,
    notifier: Notifier,
    triggers: Triggers,
}

impl CgroupV1Trigger {
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
        let epoll = epoll().map_err(|e| format!("epoll: {e}"))?;
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
        usage: open("memory.usage_in_bytes", false)?,
        control: open("cgroup.event_control", true)?,
    })
}

fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: takes a plain integer; the result is checked.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl MemoryTrigger for CgroupV1Trigger {
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

    fn next(&mut self) -> Option<TriggerEvent> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: one place for one event; returns at once.
        let got = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, 0) };
        (got == 1).then(|| TriggerEvent {
            slot: ANY_SLOT,
            ..TriggerEvent::default()
        })
    }

    fn set_near(&mut self, _: bool) -> io::Result<bool> {
        Ok(false)
    }

    fn is_attached(&self) -> bool {
        true
    }
}
