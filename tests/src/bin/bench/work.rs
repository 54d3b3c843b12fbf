//! Bare work: how long a SCHED_FIFO thread takes for a tenth of a millisecond of work. What it takes longer went to
//! interrupts or to the hypervisor: a chain of that length has at least this tail, however it is designed.

use evictd_node::cgroup::realtime::acquire_fastpath_fifo;
use evictd_tests::{cpus, prelude::*};

/// About what evictd works between the crossing and the signal.
const WORK_NS: u64 = 100_000;
/// To read the clock twice takes less; what is longer was not the thread's own time.
const STEP_NS: u64 = 5_000;
/// The thread keeps all others from its CPU: for 10 ms, and as long it rests.
const TIMES_AT_ONCE: usize = 100;
const REST: Duration = Duration::from_millis(10);

/// Microseconds that the work took, `times` on every CPU in turn.
pub fn measure(times: usize) -> Result<Vec<f64>> {
    let cpus = std::thread::available_parallelism()?.get();
    let mut found = Vec::with_capacity(times * cpus);
    for cpu in 0..cpus {
        let here = std::thread::spawn(move || on(cpu, times)).join();
        found.extend(here.ok().context("a thread has panicked")??);
    }
    Ok(found)
}

fn on(cpu: usize, times: usize) -> Result<Vec<f64>> {
    cpus::tie(0, &[cpu])?;
    acquire_fastpath_fifo()?;
    let mut found = Vec::with_capacity(times);
    for time in 0..times {
        if time % TIMES_AT_ONCE == 0 {
            std::thread::sleep(REST);
        }
        let start = monotonic_ns();
        let (mut last, mut worked) = (start, 0);
        while worked < WORK_NS {
            let now = monotonic_ns();
            worked += (now - last).min(STEP_NS);
            last = now;
        }
        found.push((last - start) as f64 / 1000.0);
    }
    Ok(found)
}
