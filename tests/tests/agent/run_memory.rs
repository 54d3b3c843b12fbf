//! The machine's memory changes while the agent runs: memory that is plugged in, a balloon.

use std::os::unix::process::CommandExt as _;

use evictd_tests::{mounts, prelude::*, scrape::value};
/// From now on this process reads the machine's memory from a file.
fn read_from(meminfo: &Path) -> io::Result<()> {
    mounts::apart()?;
    mounts::bind(meminfo, Path::new("/proc/meminfo"))
}

#[test]
fn the_machines_memory_is_followed() {
    skip_if!(no_memory_cgroups());
    let mut files = Files::new(Path::new("/"), &json!([]));
    files.config.as_object_mut().unwrap().remove("scope");
    let address = listen(&mut files.config, "metricsAddress");
    files.config["evictionHard"] = json!({ "memory.available": "1%" });
    files.config["shadow"] = json!(true);
    let real = fs::read_to_string("/proc/meminfo").unwrap();
    let (first, rest) = real.split_once('\n').unwrap();
    let kib: u64 = first.split_whitespace().nth(1).unwrap().parse().unwrap();
    let meminfo = files.dir().join("meminfo");
    let has = |kib: u64| fs::write(&meminfo, format!("MemTotal: {kib} kB\n{rest}")).unwrap();
    has(kib);
    let seen = meminfo.clone();
    let config = files.write().unwrap();
    let agent = Agent::start_as(&config, &[], |command| {
        // SAFETY: after the fork only system calls are made, and the path was made before.
        unsafe { command.pre_exec(move || read_from(&seen)) };
    });
    let agent = agent.unwrap().ends_well();
    let shows = |kib: u64| {
        let bytes = kib * 1024;
        // As the kubelet computes it: single precision.
        let share = (bytes as f64 * f64::from(0.01_f32)) as u64;
        let capacity = "evictd_signal_capacity{signal=\"memory.available\"}";
        let threshold = "evictd_threshold{signal=\"memory.available\",hard=\"true\"}";
        until(Duration::from_secs(15), || {
            let amount = value(&address, threshold);
            value(&address, capacity) == Some(bytes)
                && amount.is_some_and(|amount| amount.abs_diff(share) < 2)
        })
    };
    assert!(shows(kib));
    let said = || agent.log().matches("the node's memory has changed").count();
    assert_eq!(said(), 0);
    has(kib * 2);
    assert!(shows(kib * 2), "plugged in");
    has(kib - (64 << 10));
    assert!(shows(kib - (64 << 10)), "a balloon");
    assert!(until(SOON, || said() == 2));
}
