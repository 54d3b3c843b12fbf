//! A hook of memory is tested with memory of the agent's own before the agent watches with it.

use evictd_tests::{cgroup::begin_in, prelude::*};

// R14, R39
#[test]
fn a_hook_is_tested_where_the_agent_is_in_the_scope() {
    let files = with_bpf!(Files::of("self-test", 256, &json!([])));
    let own = files.scope().child("besteffort/agent").unwrap();
    let config = files.write().unwrap();

    let begin = |command: &mut _| begin_in(&own, command).unwrap();
    let inside = Agent::start_as(&config, &[], begin).unwrap().ends_well();
    let log = inside.log();
    assert!(log.contains("the hook has passed its self-test"), "{log}");
    assert!(!log.contains("its self-test failed"), "{log}");
    drop(inside);

    // Nothing of what it takes counts in the scope: silence says nothing about the hook. What the first agent's cgroup still gives back
    // would be reported: another scope.
    let files = Files::of("self-test-outside", 256, &json!([]));
    let outside = files.start(&[]);
    let log = outside.log();
    assert!(log.contains("the hook has had no self-test"), "{log}");
}
