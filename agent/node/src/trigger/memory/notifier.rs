//! Registers cgroup v1's usage thresholds, on a thread of its own: the kernel waits for an RCU grace period in each
//! registration (`__mem_cgroup_usage_register_event`), tens of milliseconds on busy CPUs, which the fast path cannot
//! spare.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use evictd_sys::{
    eventfd::EventFd,
    fs::{errno, is_gone},
    page::page_size,
    poll::poll,
};
use rustix::event::epoll::{self, EventData, EventFlags};
use triple_buffer::{Input, Output, triple_buffer};

use super::{MAX_SCOPES, MAX_TRIGGERS, SLOTS_PER_SCOPE};
use crate::{
    cgroup::realtime::{acquire_sched_fifo, join_root_memcg},
    kernfile::{number, pread},
    trigger::memory::{Direction, Trigger},
};

/// All triggers.
pub type Triggers = [Trigger; MAX_TRIGGERS as usize];

/// Below every thread that evicts, above what saturates the CPUs.
const PRIORITY: i32 = 1;
/// Size of the thread's stack, in bytes: it needs little, and what is locked is the agent's memory.
const STACK_BYTES: usize = 64 << 10;

/// Files with which a threshold is registered.
pub struct Files {
    pub usage: File,
    pub control: File,
}

/// The fast path's end. To order takes no lock and no memory: where the agent's cgroup is at its limit, a page for what
/// is written to a pipe has to be reclaimed first, by the writer.
pub struct Notifier {
    orders: Input<Triggers>,
    scopes: Sender<(usize, Files)>,
    shared: Arc<Shared>,
}

/// State that both ends share.
struct Shared {
    /// Rings at an order, and at the end.
    event: EventFd,
    is_over: AtomicBool,
    /// The errno of the last failure until it is reported; 0: none.
    errno: AtomicI32,
}

impl Notifier {
    /// Starts the thread. `epoll` becomes readable at a crossing, and stays the same; `cgroup` is one of the scopes.
    pub fn start(epoll: OwnedFd, cgroup: &Path) -> io::Result<Self> {
        let (orders, triggers) = triple_buffer(&[Trigger::DISABLED; MAX_TRIGGERS as usize]);
        let (scopes, new_scopes) = channel();
        let shared = Arc::new(Shared {
            event: EventFd::new()?,
            is_over: AtomicBool::new(false),
            errno: AtomicI32::new(0),
        });
        let mut worker = Worker {
            epoll,
            event: None,
            files: Default::default(),
            triggers,
            new_scopes,
            shared: Arc::clone(&shared),
        };
        let cgroup = cgroup.to_owned();
        thread::Builder::new()
            .name("v1-notifier".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // An eventfd and a place in an epoll are charged. Refused, it works at the agent's limit and at normal
                // priority: later, but as well.
                let _ = join_root_memcg(&cgroup);
                let _ = acquire_sched_fifo(PRIORITY);
                worker.run();
            })?;
        Ok(Self {
            orders,
            scopes,
            shared,
        })
    }

    /// From the next order on this scope's triggers are registered with these files. Allocates.
    pub fn set_files(&self, scope: usize, files: Files) -> io::Result<()> {
        let sent = self.scopes.send((scope, files));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Has all triggers registered anew; until they are, the last ones serve. Of orders that wait, only the last one
    /// counts.
    ///
    /// # Errors
    /// What went wrong with an earlier order.
    pub fn request_registration(&mut self, triggers: &Triggers) -> io::Result<()> {
        self.orders.write(*triggers);
        self.shared.event.notify();
        match self.shared.errno.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.event.notify();
    }
}

/// The thread's end.
struct Worker {
    epoll: OwnedFd,
    /// The eventfd of the triggers that are in force.
    event: Option<EventFd>,
    files: [Option<Files>; MAX_SCOPES as usize],
    triggers: Output<Triggers>,
    new_scopes: Receiver<(usize, Files)>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(&mut self) {
        loop {
            poll([Some(self.shared.event.fd())], None);
            // Before anything is looked at: what comes later rings again.
            self.shared.event.clear();
            if self.shared.is_over.load(Ordering::Acquire) {
                return;
            }
            if !self.triggers.update() {
                continue;
            }
            // A scope's files were sent before its first order.
            while let Ok((scope, files)) = self.new_scopes.try_recv() {
                if let Some(place) = self.files.get_mut(scope) {
                    *place = Some(files);
                }
            }
            let triggers = *self.triggers.output_buffer();
            if let Err(error) = self.register(&triggers) {
                self.shared.errno.store(errno(&error), Ordering::Relaxed);
            }
        }
    }

    /// Registers all triggers with a new eventfd: a threshold cannot be taken back singly, and closing the old one
    /// takes back all of them, in a worker of the kernel's own. There is no moment without triggers.
    fn register(&mut self, triggers: &Triggers) -> io::Result<()> {
        let event = EventFd::new()?;
        let scopes = triggers.chunks(SLOTS_PER_SCOPE as usize);
        let mut crossed = false;
        for (files, triggers) in self.files.iter().zip(scopes) {
            for trigger in triggers.iter().filter(|w| !w.is_disabled()) {
                let files = files.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
                match files.register(&event, trigger) {
                    // A scope that was removed must not take the other one's triggers with it.
                    Err(e) if is_gone(&e) => {}
                    other => {
                        other?;
                        // Crossed while it was registered: the kernel does not report that.
                        crossed |= files.has_crossed(trigger)?;
                    }
                }
            }
        }
        if crossed {
            event.notify();
        }
        // By its edge: the reader has nothing to read, and needs no descriptor but the epoll's.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&self.epoll, event.fd(), EventData::new_u64(0), flags)?;
        self.event = Some(event);
        Ok(())
    }
}

impl Files {
    /// Registers one trigger.
    pub fn register(&self, event: &EventFd, trigger: &Trigger) -> io::Result<()> {
        // The kernel compares with >; one page less makes it "at the limit".
        let limit = match trigger.direction {
            Direction::Rising => trigger.limit.saturating_sub(page_size()),
            Direction::Falling => trigger.limit,
        };
        // "<event fd> <fd of memory.usage_in_bytes> <threshold in bytes>", written at once and without allocating.
        let mut line = [0_u8; 64];
        let mut cursor = io::Cursor::new(&mut line[..]);
        let (event, usage): (RawFd, RawFd) = (event.fd().as_raw_fd(), self.usage.as_raw_fd());
        write!(cursor, "{event} {usage} {limit}")?;
        let length = usize::try_from(cursor.position()).unwrap_or(0);
        (&self.control).write_all(&line[..length])
    }

    fn has_crossed(&self, trigger: &Trigger) -> io::Result<bool> {
        let mut buffer = [0; 32];
        let usage = number(pread(&self.usage, &mut buffer)?).unwrap_or(0);
        Ok(match trigger.direction {
            Direction::Rising => usage >= trigger.limit,
            Direction::Falling => usage <= trigger.limit,
        })
    }
}
