//! Each fault once while a hog grows; `cargo xtask chaos` plays more of them.

use clap::ValueEnum as _;
use evictd_tests::{
    chaos::{Case, Fault},
    prelude::*,
};

/// MiB per second: the node has a second and more from the threshold to its end, on a busy machine as well.
const RATE: u64 = 50;

macro_rules! faults {
    ($($name:ident: $fault:ident,)*) => {
        $(
            #[test]
            fn $name() {
                skip_if!(no_bpf());
                let case = |seed| Case { fault: Fault::$fault, rate: RATE, seed };
                // Another moment for each fault, before the threshold, and the same one at every run.
                let mut cases = (Fault::$fault as u64..).step_by(100).map(case);
                let case = cases.find(Case::strikes_before).unwrap();
                case.play(concat!(module_path!(), " ", stringify!($name)));
            }
        )*

        #[test]
        fn every_fault_is_played() {
            assert_eq!(Fault::value_variants(), [$(Fault::$fault),*]);
        }
    };
}

faults! {
    no_fault: None,
    agent_stopped: AgentStopped,
    agent_killed: AgentKilled,
    agent_killed_afterwards: AgentKilledAfterwards,
    agent_restarted: AgentRestarted,
    agent_upgraded: AgentUpgraded,
    second_agent: SecondAgent,
    fast_path_stalled: FastPathStalled,
    manager_stalled: ManagerStalled,
    main_stalled: MainStalled,
    unpinned: Unpinned,
    map_edited: MapEdited,
    disk_full: DiskFull,
    journal_read_only: JournalReadOnly,
    disk_hangs: DiskHangs,
    api_away: ApiAway,
    api_hangs: ApiHangs,
    api_loses_answers: ApiLosesAnswers,
    api_refuses: ApiRefuses,
    runtime_restarted: RuntimeRestarted,
    kubelet_away: KubeletAway,
    clock_jumps: ClockJumps,
}
