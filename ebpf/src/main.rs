//! The kernel programs of evictd, one file per topic, the same names as in `common/`.
#![no_std]
#![no_main]

mod drops;
mod kernel;
mod memory;
mod oom;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Without a GPL-compatible licence the kernel refuses the tracing helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
