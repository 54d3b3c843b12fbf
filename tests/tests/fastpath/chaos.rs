//! What only a guest can show: the wall clock jumps; and a guard without its agent on the guest's kernel.

use evictd_tests::{
    chaos::{Case, Fault},
    prelude::*,
};

fn play(fault: Fault) {
    let case = Case {
        fault,
        // An emulated machine is slow.
        rate: 10,
        seed: 1,
    };
    case.play(module_path!());
}

scenes! {
    fn the_clock_jumps() unless not_in_guest() => play(Fault::ClockJumps);
    fn the_agent_is_killed() unless not_in_guest() => play(Fault::AgentKilled);
    fn the_agent_is_stopped() unless not_in_guest() => play(Fault::AgentStopped);
}
