//! Registers cgroup v1's usage thresholds, on a thread of its own: the kernel waits for an RCU grace period in each
//! registration (`__mem_cgroup_usage_register_event`), tens of milliseconds on busy CPUs, which the reflex cannot spare.

use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use super::tripwire::{Direction, MAX_SCOPES, MAX_TRIPWIRES, SLOTS_PER_SCOPE, Wire, page_size};
use crate::{
    observe::{
        cgroup::is_gone,
        text::{number, pread},
    },
    reflex::thread::become_fifo_at,
};

/// All wires.
pub type Wires = [Wire; MAX_TRIPWIRES as usize];

/// Bytes of a wire in an order: its limit, and its direction.
const WIRE_BYTES: usize = 9;
/// An order, which is less than PIPE_BUF: the kernel writes all of it or nothing.
const ORDER_BYTES: usize = MAX_TRIPWIRES as usize * WIRE_BYTES;
/// Below every thread that evicts, above what saturates the CPUs.
const PRIORITY: i32 = 1;
/// It needs little, and what is locked is the agent's memory.
const STACK_BYTES: usize = 64 << 10;

/// What a threshold is registered with.
pub struct Files {
    pub usage: File,
    pub control: File,
}

/// The reflex's end. To order takes one system call, no lock and no memory.
pub struct Registrar {
    orders: PipeWriter,
    scopes: Sender<(usize, Files)>,
    failure: Arc<AtomicI32>,
}

impl Registrar {
    /// Starts the thread. `epoll` becomes readable at a crossing, and stays the same.
    pub fn start(epoll: OwnedFd) -> io::Result<Self> {
        let (received, orders) = io::pipe()?;
        // SAFETY: a descriptor of ours and plain integers.
        if unsafe { libc::fcntl(orders.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let (scopes, new_scopes) = channel();
        let failure = Arc::new(AtomicI32::new(0));
        let mut worker = Worker {
            epoll,
            event: None,
            files: Default::default(),
            new_scopes,
            failure: Arc::clone(&failure),
        };
        thread::Builder::new()
            .name("registrar".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // Refused, it works at normal priority: later, but as well.
                let _ = become_fifo_at(PRIORITY);
                worker.work(received);
            })?;
        Ok(Self {
            orders,
            scopes,
            failure,
        })
    }

    /// From the next order on this scope's wires are registered with these files. Allocates.
    pub fn set_files(&self, scope: usize, files: Files) -> io::Result<()> {
        let sent = self.scopes.send((scope, files));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Has all wires registered anew; until they are, the last ones serve. `false` when so many orders wait that this
    /// one has to be given again.
    ///
    /// # Errors
    /// What went wrong with an earlier order.
    pub fn order(&self, wires: &Wires) -> io::Result<bool> {
        let taken = match (&self.orders).write(&encode(wires)) {
            Ok(_) => true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => false,
            Err(e) => return Err(e),
        };
        match self.failure.swap(0, Ordering::Relaxed) {
            0 => Ok(taken),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The thread's end; it ends with the pipe.
struct Worker {
    epoll: OwnedFd,
    /// The eventfd of the wires that are in force.
    event: Option<OwnedFd>,
    files: [Option<Files>; MAX_SCOPES as usize],
    new_scopes: Receiver<(usize, Files)>,
    failure: Arc<AtomicI32>,
}

impl Worker {
    fn work(&mut self, mut orders: PipeReader) {
        let mut buffer = [0; ORDER_BYTES * 32];
        loop {
            let length = match orders.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => length,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            while let Ok((scope, files)) = self.new_scopes.try_recv() {
                if let Some(place) = self.files.get_mut(scope) {
                    *place = Some(files);
                }
            }
            // Only the last one counts: the ground has moved since the others.
            let Some(last) = buffer[..length].rchunks_exact(ORDER_BYTES).next() else {
                continue;
            };
            if let Err(error) = self.register(&decode(last)) {
                let code = error.raw_os_error().unwrap_or(libc::EIO);
                self.failure.store(code, Ordering::Relaxed);
            }
        }
    }

    /// Registers all wires with a new eventfd: a threshold cannot be taken back singly, and closing the old one takes
    /// back all of them, in a worker of the kernel's own. There is no moment without wires.
    fn register(&mut self, wires: &Wires) -> io::Result<()> {
        let event = eventfd()?;
        let scopes = wires.chunks(SLOTS_PER_SCOPE as usize);
        let mut crossed = false;
        for (files, wires) in self.files.iter().zip(scopes) {
            for wire in wires.iter().filter(|w| !w.is_never()) {
                let files = files.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
                match files.register(&event, wire) {
                    // A scope that was removed must not take the other one's wires with it.
                    Err(e) if is_gone(&e) => {}
                    other => {
                        other?;
                        // Crossed while it was registered: nobody else would tell.
                        crossed |= files.has_crossed(wire)?;
                    }
                }
            }
        }
        if crossed {
            let one = 1_u64;
            // SAFETY: eight bytes from a local.
            unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
        let mut interest = libc::epoll_event {
            // By its edge: the reader has nothing to read, and needs no descriptor but the epoll's.
            events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(),
            u64: 0,
        };
        let (epoll, fd) = (self.epoll.as_raw_fd(), event.as_raw_fd());
        // SAFETY: descriptors of ours, and a local that outlives the call.
        if unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut interest) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.event = Some(event);
        Ok(())
    }
}

impl Files {
    /// Registers one wire.
    pub fn register(&self, event: &OwnedFd, wire: &Wire) -> io::Result<()> {
        // The kernel compares with >; one page less makes it "at the limit".
        let limit = match wire.direction {
            Direction::Rising => wire.limit.saturating_sub(page_size()),
            Direction::Falling => wire.limit,
        };
        // "<event fd> <fd of memory.usage_in_bytes> <threshold in bytes>", written at once and without allocating.
        let mut line = [0_u8; 64];
        let mut cursor = io::Cursor::new(&mut line[..]);
        let (event, usage): (RawFd, RawFd) = (event.as_raw_fd(), self.usage.as_raw_fd());
        write!(cursor, "{event} {usage} {limit}")?;
        let length = usize::try_from(cursor.position()).unwrap_or(0);
        (&self.control).write_all(&line[..length])
    }

    fn has_crossed(&self, wire: &Wire) -> io::Result<bool> {
        let mut buffer = [0; 32];
        let usage = number(pread(&self.usage, &mut buffer)?).unwrap_or(0);
        Ok(match wire.direction {
            Direction::Rising => usage >= wire.limit,
            Direction::Falling => usage <= wire.limit,
        })
    }
}

/// A new eventfd that does not block.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes plain integers; the result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn encode(wires: &Wires) -> [u8; ORDER_BYTES] {
    let mut order = [0; ORDER_BYTES];
    for (place, wire) in order.chunks_exact_mut(WIRE_BYTES).zip(wires) {
        let (limit, direction) = place.split_at_mut(8);
        limit.copy_from_slice(&wire.limit.to_ne_bytes());
        direction[0] = u8::from(wire.direction == Direction::Falling);
    }
    order
}

fn decode(order: &[u8]) -> Wires {
    let mut wires = [Wire::NEVER; MAX_TRIPWIRES as usize];
    for (wire, place) in wires.iter_mut().zip(order.chunks_exact(WIRE_BYTES)) {
        let (limit, direction) = place.split_at(8);
        wire.limit = limit.try_into().map_or(u64::MAX, u64::from_ne_bytes);
        wire.direction = match direction[0] {
            0 => Direction::Rising,
            _ => Direction::Falling,
        };
    }
    wires
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives_as_it_was_given() {
        let mut wires = [Wire::NEVER; MAX_TRIPWIRES as usize];
        wires[0].limit = 100 << 20;
        wires[3] = Wire {
            limit: 80 << 20,
            direction: Direction::Falling,
            ..Wire::NEVER
        };
        assert_eq!(decode(&encode(&wires)), wires);
        // Whole or not at all: PIPE_BUF is 4096.
        const { assert!(ORDER_BYTES <= 512) };
    }
}
