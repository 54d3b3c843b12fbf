//! What the kernel programs log, for the search for a fault: aya-log's ring buffer, off by default.

use aya::Ebpf;
use aya_log::{EbpfLogger, LEVEL};
use log::{Log, Metadata, Record};

/// The target of these lines in the log filter.
pub const TARGET: &str = "evictd_ebpf";
/// The ring buffer.
const MAP: &str = "AYA_LOGS";
/// Bytes of it when no program writes to it: a page.
const UNUSED_BYTES: u32 = 4096;
/// aya-log's numbers for no line at all, and for those of level debug and above.
const OFF: u8 = 0;
const DEBUG: u8 = 4;

/// Whether the log filter lets the lines through: `EVICTD_LOG=info,evictd_ebpf=debug`.
pub fn is_wanted() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
}

/// Has the programs write lines, or leaves the code for it out: it is behind a constant that the verifier knows.
pub(super) fn prepare(loader: &mut aya::EbpfLoader<'_>, on: bool) {
    loader.override_global(LEVEL, if on { &DEBUG } else { &OFF }, false);
    if !on {
        loader.map_max_entries(MAP, UNUSED_BYTES);
    }
}

/// Hands the lines of the programs to the agent's log. Lines that do not fit into the ring buffer are lost.
pub struct KernelLog(EbpfLogger<ToTracing>);

impl KernelLog {
    /// Takes the ring buffer out of an object; `None` where there is none.
    pub(super) fn new(ebpf: &mut Ebpf) -> Option<Self> {
        EbpfLogger::init_with_logger(ebpf, ToTracing).ok().map(Self)
    }

    /// Logs what was written since the last time.
    pub fn flush(&mut self) {
        self.0.flush();
    }
}

struct ToTracing;

impl Log for ToTracing {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        tracing::debug!(target: TARGET, "{}", record.args());
    }

    fn flush(&self) {}
}
