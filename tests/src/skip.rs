//! Tests that cannot run here say so and why; `cargo xtask test` counts these lines.

use evictd_node::{
    cgroup::realtime::probe_realtime,
    trigger::hook::{CountHook, SelectedHook},
};
use nix::unistd::geteuid;

use crate::prelude::*;

/// Prints the reason in the form that `cargo xtask test` counts. Written past the test harness's capture, so that
/// it is seen although the test passes.
pub fn skipped(test: &str, why: &str) {
    use std::io::Write as _;
    // In one piece, as other threads write lines too. A closed stderr is no reason to fail a test.
    let line = format!("SKIPPED {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prints what a signal got from a hook on this kernel, in the form that `cargo xtask vm test` gathers into one table.
pub fn matrix(signal: &str, hook: &str, detail: &str) {
    let row = json!({"signal": signal, "hook": hook, "detail": detail});
    println!("MATRIX {row}");
}

/// Why kernel-facing tests cannot run, if they cannot.
pub fn not_root() -> Option<&'static str> {
    (!geteuid().is_root()).then_some("needs root")
}

/// Why no memory cgroup can be made, if none can.
pub fn no_memory_cgroups() -> Option<&'static str> {
    not_root().or_else(|| memory_root().is_none().then_some("no memory cgroups here"))
}

/// Why the eBPF programs cannot be loaded, if they cannot.
pub fn no_bpf() -> Option<&'static str> {
    not_root().or_else(|| {
        (!Path::new("/sys/kernel/btf/vmlinux").exists()).then_some("this kernel has no BTF")
    })
}

/// Why nothing here can have real-time priority.
pub fn no_realtime() -> Option<String> {
    let refused = probe_realtime().err();
    refused.map(|error| format!("SCHED_FIFO: {error}"))
}

/// An error with the kernel's reason where it has refused the hook that a trigger was to have.
pub fn granted(selected: &SelectedHook<CountHook>) -> Result<(), String> {
    match (selected.hook, selected.refused.first()) {
        (CountHook::Sampler, Some((hook, reason))) => {
            Err(format!("{hook} cannot be used here: {reason}"))
        }
        _ => Ok(()),
    }
}

/// Whether this is a guest of `cargo xtask vm`: its kernel's command line says which cgroups it has.
pub fn in_guest() -> bool {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    line.contains("evictd.cgroup=")
}

/// Why what is the machine's cannot be touched.
pub fn not_in_guest() -> Option<&'static str> {
    (!in_guest()).then_some("not inside a guest of cargo xtask vm")
}

/// A reason to skip a test, as text. That the verifier has refused a program is none: it is a defect of the program.
pub fn reason(why: impl std::fmt::Display) -> String {
    let why = format!("{why:#}");
    // EACCES and E2BIG are the verifier's alone. EINVAL is also what a kernel says that lacks a kind of programs, which no
    // guest does.
    let refusals = ["(os error 13)", "(os error 7)", "(os error 22)"];
    let most = refusals.len() - usize::from(!in_guest());
    let is_refused = refusals[..most].iter().any(|refusal| why.contains(refusal));
    assert!(!(is_refused && why.contains("BPF_PROG_LOAD")), "{why}");
    why
}

/// Ends the test with a note when the given reason exists.
#[macro_export]
macro_rules! skip_if {
    ($why:expr) => {
        if let Some(why) = $why {
            $crate::skip::skipped(
                concat!(module_path!(), " line ", line!()),
                &$crate::skip::reason(why),
            );
            return;
        }
    };
}

/// A fixture that needs root; the end of the test with a note where it is not to be had. Any other error of the fixture is a failure.
#[macro_export]
macro_rules! as_root {
    ($fixture:expr) => {{
        $crate::skip_if!($crate::skip::not_root());
        $fixture
    }};
}

/// A fixture that loads eBPF programs; the end of the test with a note where they cannot be loaded. Any other error of the fixture is a failure.
#[macro_export]
macro_rules! with_bpf {
    ($fixture:expr) => {{
        $crate::skip_if!($crate::skip::no_bpf());
        $fixture
    }};
}

/// The value, or the end of the test with a note that holds the error.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => return $crate::skip_if!(Some(why)),
        }
    };
}

/// Tests that play one scene each, a row for each of them: `fn NAME() unless WHY => SCENE;`, where WHY is a reason not to play it.
#[macro_export]
macro_rules! scenes {
    ($($(#[$comment:meta])* fn $name:ident() $(unless $why:expr)? => $scene:expr;)*) => {$(
        $(#[$comment])*
        #[test]
        fn $name() {
            $(if let Some(why) = $why {
                let test = concat!(module_path!(), "::", stringify!($name));
                return $crate::skip::skipped(test, &why.to_string());
            })?
            $scene;
        }
    )*};
}
