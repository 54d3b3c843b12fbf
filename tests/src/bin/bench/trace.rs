//! Which process sent SIGKILL (or another signal) to which, and when, as the kernel says in the same way for every contender: `signal_generate` in a
//! trace instance of our own, stamped with CLOCK_MONOTONIC.

use evictd_tests::{prelude::*, tracefs::Instance};

/// A trace instance that records signals.
pub struct Trace(Instance);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Nanoseconds of CLOCK_MONOTONIC; the trace has microseconds.
    pub time_ns: u64,
    /// The thread that sent it, or in whose time the kernel did.
    pub sender: Task,
    pub receiver: Task,
}

/// A thread, by the kernel's id and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub tid: i32,
    /// The name, at most 15 bytes.
    pub name: String,
}

impl Trace {
    /// Makes the instance and switches the event on, for SIGKILL.
    pub fn start() -> Result<Self> {
        Self::start_for("sig == 9")
    }

    /// The same for the signals that a filter of the kernel's kind lets through: `sig == 9 || sig == 15`.
    pub fn start_for(filter: &str) -> Result<Self> {
        let trace = Instance::new("bench")?;
        trace.write("trace_clock", "mono")?;
        trace.write("buffer_size_kb", "64")?;
        ensure!(
            trace.enable("signal/signal_generate", filter)?,
            "no tracepoint signal:signal_generate"
        );
        Ok(Self(trace))
    }

    pub fn clear(&self) -> Result<()> {
        self.0.clear()
    }

    /// What was recorded since the last [`Trace::clear`], oldest first.
    pub fn kills(&self) -> Result<Vec<Kill>> {
        Ok(self.0.text()?.lines().filter_map(parse).collect())
    }
}

/// `  fast path-17  [001] d..1.  12.345678: signal_generate: sig=9 errno=0 code=0 comm=hog pid=15 grp=1 res=0`
fn parse(line: &str) -> Option<Kill> {
    let (head, event) = line.split_once(": signal_generate: ")?;
    let (task, rest) = head.split_once(" [")?;
    let (name, tid) = task.trim().rsplit_once('-')?;
    let sender = Task {
        tid: tid.parse().ok()?,
        name: name.to_owned(),
    };
    let (seconds, fraction) = rest.rsplit_once(' ')?.1.split_once('.')?;
    let micros = seconds.parse::<u64>().ok()? * 1_000_000 + fraction.parse::<u64>().ok()?;
    let (name, rest) = event.split_once(" comm=")?.1.rsplit_once(" pid=")?;
    let receiver = Task {
        tid: rest.split(' ').next()?.parse().ok()?,
        name: name.to_owned(),
    };
    Some(Kill {
        time_ns: micros * 1000,
        sender,
        receiver,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_trace_is_read() {
        let line = "     a-b c-17    [001] d..1. 30812.345678: signal_generate: sig=9 errno=0 code=0 \
                    comm=hog pid=15 grp=1 res=0";
        let task = |tid, name: &str| Task {
            tid,
            name: name.to_owned(),
        };
        let kill = Kill {
            time_ns: 30_812_345_678_000,
            sender: task(17, "a-b c"),
            receiver: task(15, "hog"),
        };
        assert_eq!(parse(line), Some(kill));
        assert_eq!(parse("# tracer: nop"), None);
    }
}
