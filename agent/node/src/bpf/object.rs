//! The embedded eBPF object: loaded once, its programs tried one by one.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    time::Duration,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, MapError, PerfEventArray, RingBuf},
    programs::{Program, ProgramError, links::FdLink},
    util::KernelVersion,
};
use evictd_common::memory::slack_shift;
use evictd_sys::page::page_size;

use super::{
    btf,
    kernel_log::{self, KernelLog},
    offsets,
};

/// The object files that `build.rs` made from `ebpf/`.
static COUNTS: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/evictd-ebpf-counters"));
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/evictd-ebpf"));

/// Why the object or one of its parts cannot be used; the kernel's own words are kept.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Offsets cannot be resolved.
    #[error(transparent)]
    Btf(#[from] btf::BtfError),
    /// A map was refused or the object cannot be relocated.
    #[error("loading the eBPF object: {}", chain(.0))]
    Load(#[from] aya::EbpfError),
    /// A map has another type than the agent thinks.
    #[error("map {0}: {reason}", reason = chain(.1))]
    Map(&'static str, MapError),
    /// The object lacks something the agent wants: agent and object are of different builds.
    #[error("the eBPF object has no {0}")]
    Missing(&'static str),
}

/// An error with all its causes on one line: aya keeps the verifier's reason in the source chain.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // What aya adds when the verifier has said nothing.
    text.trim_end_matches(". Verifier output:").to_owned()
}

/// The errno behind aya's error; EINVAL's kind for what is not the kernel's. The fast path may meet it: nothing is
/// allocated or logged.
pub(crate) fn os_error(error: MapError) -> std::io::Error {
    match error {
        MapError::SyscallError(e) => e.io_error,
        _ => std::io::ErrorKind::InvalidInput.into(),
    }
}

/// The number by which `perf_event_open` knows kprobes, where the kernel has them (4.17 and later).
const KPROBES: &str = "/sys/bus/event_source/devices/kprobe/type";

/// A place in the kernel where a program can sit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachPoint {
    /// `tp_btf`: a tracepoint with typed arguments.
    BtfTracepoint(&'static str),
    /// `fexit` of a kernel function.
    Fexit(&'static str),
    /// `fentry` of a kernel function.
    Fentry(&'static str),
    /// A kprobe at the entry of a kernel function.
    Kprobe(&'static str),
    /// A tracepoint of tracefs: category and name.
    Tracepoint(&'static str, &'static str),
}

/// A program of the object and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramSpec {
    /// Name of the program in the object.
    pub name: &'static str,
    /// Point at which the program is attached.
    pub attach_point: AttachPoint,
}

/// The loaded object. Programs stay attached for as long as it lives.
pub struct BpfObject {
    pub(crate) ebpf: Ebpf,
    btf: Option<aya::Btf>,
    /// Form in which this kernel names the victims of the OOM killer; or why it cannot be read.
    pub(crate) victims: Result<VictimArgument, String>,
}

/// Argument that `tp_btf/mark_victim` passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VictimArgument {
    /// The task; since about 6.8, and wherever that was carried back.
    Tasks,
    /// Process id of the victim, which leads a program nowhere.
    Numbers,
}

/// Free entries of an LRU map that each CPU takes for itself (`LOCAL_FREE_TARGET`, before 6.17): of a map that has no more
/// for a CPU, that one forgets each entry at the next one.
const LRU_ENTRIES_OF_A_CPU: u32 = 128;

/// How many tasks the pinned guard's program follows through their reclaims.
fn tasks_in_reclaim() -> u32 {
    let cpus = aya::util::online_cpus().map_or(0, |cpus| cpus.len());
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX).clamp(8, 512);
    cpus * LRU_ENTRIES_OF_A_CPU
}

impl BpfObject {
    /// Resolves offsets from the running kernel's BTF and creates the maps.
    ///
    /// # Errors
    /// No BTF, no `bpf(2)`, not allowed to: the reason says which.
    pub fn load() -> Result<Self, ObjectError> {
        Self::load_memory(false)
    }

    /// Loads the object like [`BpfObject::load`], with memory programs that write what they do to the log
    /// ([`BpfObject::kernel_log`]).
    ///
    /// # Errors
    /// As [`BpfObject::load`].
    pub fn load_with_log() -> Result<Self, ObjectError> {
        Self::load_memory(true)
    }

    fn load_memory(logs: bool) -> Result<Self, ObjectError> {
        let kernel = btf::Btf::from_sys_fs()?;
        let mut globals = offsets::resolve(&kernel)?;
        let victims = offsets::resolve_victims(&kernel).map_err(|e| e.to_string());
        let victims = victims.map(|offsets| {
            globals.extend(offsets);
            match kernel.tracepoint_argument_is_pointer("mark_victim", 0) {
                Some(true) => VictimArgument::Tasks,
                _ => VictimArgument::Numbers,
            }
        });
        // Where the list cannot be read, as for more CPUs than there are: that only costs looks.
        let cpus = aya::util::online_cpus().map_or(1 << 13, |cpus| cpus.len() as u64);
        globals.push(("SLACK_SHIFT", slack_shift(cpus)));
        globals.push(("PAGE_SHIFT", page_size().ilog2()));
        let btf = aya::Btf::from_sys_fs().map_err(aya::EbpfError::BtfError)?;
        let mut object = Self::create(OBJECT, Some(btf), &globals, logs)?;
        object.victims = victims;
        Ok(object)
    }

    /// The object that counts tasks, inodes and cgroups. It does without BTF: then nothing is typed, and cgroups are
    /// told apart on v2 only.
    ///
    /// # Errors
    /// No `bpf(2)`, not allowed to: the reason says which.
    pub fn load_counts() -> Result<Self, ObjectError> {
        let hierarchy = memory_hierarchy();
        let resolved = btf::Btf::from_sys_fs().and_then(|btf| offsets::resolve_counts(&btf));
        match resolved {
            Ok(mut globals) => {
                globals.extend([("MEMORY_HIERARCHY", hierarchy), ("OFFSETS_KNOWN", 1)]);
                Self::create(COUNTS, aya::Btf::from_sys_fs().ok(), &globals, false)
            }
            Err(error) => {
                tracing::info!(%error, "the counting program is loaded without types of the kernel");
                Self::load_counts_untyped(hierarchy)
            }
        }
    }

    /// Loads the counting object as on a kernel without BTF. `memory_hierarchy` is the id of the hierarchy that has the
    /// memory controller: 0 is v2.
    ///
    /// # Errors
    /// As [`BpfObject::load_counts`].
    pub fn load_counts_untyped(memory_hierarchy: u32) -> Result<Self, ObjectError> {
        let globals = [("MEMORY_HIERARCHY", memory_hierarchy)];
        Self::create(COUNTS, None, &globals, false)
    }

    /// Drops the kernel's type table: only loading a program needs it, and it is the largest thing that an agent holds
    /// (some 20 MiB). Typed programs that are not loaded by now cannot be loaded any more.
    pub fn drop_btf(&mut self) {
        self.btf = None;
    }

    fn create(
        object: &[u8],
        btf: Option<aya::Btf>,
        globals: &[(&'static str, u32)],
        logs: bool,
    ) -> Result<Self, ObjectError> {
        let mut loader = EbpfLoader::new();
        loader.btf(btf.as_ref());
        kernel_log::prepare(&mut loader, logs);
        loader.map_max_entries("RECLAIMS", tasks_in_reclaim());
        for (name, value) in globals {
            loader.override_global(name, value, true);
        }
        let ebpf = ask_again(|| loader.load(object))?;
        Ok(Self {
            ebpf,
            btf,
            victims: Err("this object knows no victims".to_owned()),
        })
    }

    /// Opens the log that the programs write, where the object was loaded for that.
    pub fn kernel_log(&mut self) -> Option<KernelLog> {
        KernelLog::new(&mut self.ebpf)
    }

    /// Loads and attaches one program.
    ///
    /// # Errors
    /// The kernel's reason, with the verifier's last words where it gave any.
    pub fn attach(&mut self, program: &ProgramSpec) -> Result<(), String> {
        if matches!(program.attach_point, AttachPoint::Kprobe(_)) {
            require_kprobes()?;
        }
        let missing = || {
            format!(
                "no BTF, or the object has no program {} of this type",
                program.name
            )
        };
        let attached = ask_again(|| {
            let Some(loaded) = self.ebpf.program_mut(program.name) else {
                return Ok(None);
            };
            let attached = attach(loaded, program.attach_point, self.btf.as_ref()).transpose();
            if attached.is_err() {
                // Or the next attempt would find it loaded.
                self.detach(program.name);
            }
            attached
        });
        attached.map_err(|e| chain(&e))?.ok_or_else(missing)
    }

    /// Loads and attaches a kprobe. Its link, where this kernel gives one (5.15 and later), keeps it attached;
    /// elsewhere the object does.
    ///
    /// # Errors
    /// As [`BpfObject::attach`].
    pub fn attach_kprobe(&mut self, program: &ProgramSpec) -> Result<Option<FdLink>, String> {
        if KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(5, 15, 0)) {
            return self.attach(program).map(|()| None);
        }
        require_kprobes()?;
        let (Some(Program::KProbe(kprobe)), AttachPoint::Kprobe(function)) =
            (self.ebpf.program_mut(program.name), program.attach_point)
        else {
            return Err(format!(
                "the object has no program {} of this type",
                program.name
            ));
        };
        let attached = ask_again(|| {
            let link = kprobe
                .load()
                .and_then(|()| kprobe.attach(function, 0))
                .and_then(|id| kprobe.take_link(id));
            if link.is_err() {
                // Or the next attempt would find it loaded.
                let _ = kprobe.unload();
            }
            link
        });
        let attached = attached.map_err(|e| chain(&e))?;
        FdLink::try_from(attached).map(Some).map_err(|e| chain(&e))
    }

    /// Loads and attaches programs that need each other: all of them or none.
    ///
    /// # Errors
    /// The name of the one that was refused, and the kernel's reason.
    pub fn attach_all(&mut self, programs: &[ProgramSpec]) -> Result<(), String> {
        for (done, program) in programs.iter().enumerate() {
            if let Err(reason) = self.attach(program) {
                for attached in &programs[..done] {
                    self.detach(attached.name);
                }
                return Err(format!("{}: {reason}", program.name));
            }
        }
        Ok(())
    }

    /// Detaches and unloads a program; nothing happens when it is not loaded.
    pub fn detach(&mut self, program: &str) {
        let unloaded = match self.ebpf.program_mut(program) {
            Some(Program::BtfTracePoint(p)) => p.unload(),
            Some(Program::FExit(p)) => p.unload(),
            Some(Program::FEntry(p)) => p.unload(),
            Some(Program::KProbe(p)) => p.unload(),
            Some(Program::TracePoint(p)) => p.unload(),
            _ => Ok(()),
        };
        if let Err(error) = unloaded {
            tracing::debug!(program, error = %chain(&error), "the program was not loaded");
        }
    }

    /// Loads a program that the caller attaches, as often as it wants: the descriptor is all it takes.
    ///
    /// # Errors
    /// The kernel's reason, with the verifier's last words where it gave any.
    pub fn load_program(&mut self, program: &ProgramSpec) -> Result<OwnedFd, String> {
        let missing = || format!("the object has no program {} of this type", program.name);
        let btf = self.btf.as_ref().ok_or("no BTF")?;
        let loaded = self.ebpf.program_mut(program.name).ok_or_else(missing)?;
        let fd = match (loaded, program.attach_point) {
            (Program::BtfTracePoint(p), AttachPoint::BtfTracepoint(name)) => {
                ask_again(|| p.load(name, btf)).and_then(|()| p.fd())
            }
            (Program::FExit(p), AttachPoint::Fexit(name)) => {
                ask_again(|| p.load(name, btf)).and_then(|()| p.fd())
            }
            _ => return Err(missing()),
        };
        let fd = fd.map_err(|e| chain(&e))?;
        fd.as_fd().try_clone_to_owned().map_err(|e| e.to_string())
    }

    /// Takes an array map out of the object.
    ///
    /// # Errors
    /// The object has no map of this name, or one of another kind; so for all that follow.
    pub fn array<T: aya::Pod>(
        &mut self,
        name: &'static str,
    ) -> Result<Array<MapData, T>, ObjectError> {
        let map = self.map(name)?;
        Array::try_from(map).map_err(|e| ObjectError::Map(name, e))
    }

    /// Takes a map of any kind out of the object.
    pub fn map(&mut self, name: &'static str) -> Result<Map, ObjectError> {
        self.ebpf.take_map(name).ok_or(ObjectError::Missing(name))
    }

    /// Takes a hash map out of the object.
    pub fn hash<K: aya::Pod, V: aya::Pod>(
        &mut self,
        name: &'static str,
    ) -> Result<HashMap<MapData, K, V>, ObjectError> {
        let map = self.map(name)?;
        HashMap::try_from(map).map_err(|e| ObjectError::Map(name, e))
    }

    /// Takes a ring buffer out of the object.
    pub fn ring(&mut self, name: &'static str) -> Result<RingBuf<MapData>, ObjectError> {
        let map = self.map(name)?;
        RingBuf::try_from(map).map_err(|e| ObjectError::Map(name, e))
    }

    /// Takes an array of events, one per CPU, out of the object.
    pub fn events(&mut self, name: &'static str) -> Result<PerfEventArray<MapData>, ObjectError> {
        let map = self.map(name)?;
        PerfEventArray::try_from(map).map_err(|e| ObjectError::Map(name, e))
    }
}

/// Before a kprobe is loaded: to be told so after half a second of the verifier's work would only make the start
/// longer.
fn require_kprobes() -> Result<(), String> {
    match Path::new(KPROBES).exists() {
        true => Ok(()),
        false => Err(format!("this kernel has no kprobes: no {KPROBES}")),
    }
}

/// How often the kernel is asked where it has no memory.
const ATTEMPTS: u32 = 8;
/// The pause between.
const PAUSE: Duration = Duration::from_millis(100);

/// On a short node the kernel refuses maps and programs memory rather than to call the OOM killer (`__GFP_NORETRY`), and
/// what is refused at the start is missing for the agent's life: it is asked again.
fn ask_again<T, E: std::error::Error>(mut ask: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    for _ in 1..ATTEMPTS {
        match ask() {
            Err(error) if is_out_of_memory(&error) => std::thread::sleep(PAUSE),
            answer => return answer,
        }
    }
    ask()
}

fn is_out_of_memory(error: &dyn std::error::Error) -> bool {
    let io = |e: &(dyn std::error::Error + 'static)| {
        let io: Option<&std::io::Error> = e.downcast_ref();
        io.and_then(std::io::Error::raw_os_error)
    };
    let mut causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.any(|cause| io(cause) == Some(libc::ENOMEM))
}

/// The hierarchy that has the memory controller (cgroups(7), `/proc/cgroups`): 0 is v2.
fn memory_hierarchy() -> u32 {
    let table = std::fs::read_to_string("/proc/cgroups").unwrap_or_default();
    let line = table.lines().find_map(|l| l.strip_prefix("memory\t"));
    let hierarchy = line.and_then(|l| l.split_whitespace().next());
    hierarchy.and_then(|h| h.parse().ok()).unwrap_or(0)
}

/// `None`: the program is of another type than the place asks for, or that place needs BTF.
fn attach(
    program: &mut Program,
    place: AttachPoint,
    btf: Option<&aya::Btf>,
) -> Option<Result<(), ProgramError>> {
    Some(match (program, place) {
        (Program::BtfTracePoint(p), AttachPoint::BtfTracepoint(name)) => {
            p.load(name, btf?).and_then(|()| p.attach().map(drop))
        }
        (Program::FExit(p), AttachPoint::Fexit(name)) => {
            p.load(name, btf?).and_then(|()| p.attach().map(drop))
        }
        (Program::FEntry(p), AttachPoint::Fentry(name)) => {
            p.load(name, btf?).and_then(|()| p.attach().map(drop))
        }
        (Program::KProbe(p), AttachPoint::Kprobe(name)) => {
            p.load().and_then(|()| p.attach(name, 0).map(drop))
        }
        (Program::TracePoint(p), AttachPoint::Tracepoint(category, name)) => {
            p.load().and_then(|()| p.attach(category, name).map(drop))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("creating a map")]
    struct Refused(#[source] std::io::Error);

    #[test]
    fn what_lacks_memory_is_asked_again_and_nothing_else() {
        let asked = |errno: i32, refusals: u32| {
            let mut times = 0;
            let answer = ask_again(|| {
                times += 1;
                match times > refusals {
                    true => Ok(()),
                    false => Err(Refused(std::io::Error::from_raw_os_error(errno))),
                }
            });
            (answer.is_ok(), times)
        };
        assert_eq!(asked(libc::ENOMEM, 2), (true, 3));
        assert_eq!(asked(libc::ENOMEM, 100), (false, ATTEMPTS));
        assert_eq!(asked(libc::EPERM, 2), (false, 1));
    }
}
