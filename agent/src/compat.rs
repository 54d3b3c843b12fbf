//! The paths of before the crates were split, for the tests. Goes when they use the crates.
#![allow(missing_docs)]

pub mod cluster {
    pub mod access {
        pub use evictd_kube::access::PAUSE_RIGHTS;
        pub use evictd_kube::access::RIGHTS;
        pub use evictd_kube::access::Right;
        pub use evictd_kube::access::check;
    }
    pub mod brake {
        pub use evictd_config::ConfigMapName;
        pub use evictd_kube::pause::of_config_map;
        pub use evictd_kube::pause::of_node;
    }
    pub mod client {
        pub use evictd_kube::client::Connection;
    }
    pub mod namespaces {
        pub use evictd_kube::watch::namespaces::run;
    }
    pub mod node {
        pub use evictd_kube::node_status::LeftOver;
        pub use evictd_kube::node_status::NodeWriter;
        pub use evictd_kube::node_status::Wanted;
    }
    pub mod policies {
        pub use evictd_kube::watch::policies::run;
    }
    pub mod status {
        pub use evictd_kube::policy_status::SPREAD;
        pub use evictd_kube::policy_status::StatusWriter;
    }
    pub mod watch {
        pub use evictd_kube::watch::pods::Shared;
        pub use evictd_kube::watch::pods::run;
    }
}
pub mod config {
    pub use evictd_config::Config;
    pub use evictd_config::CriConfig;
    pub use evictd_config::ThresholdTexts;
    pub use evictd_engine::model::quantity::Format;
    pub use evictd_engine::model::quantity::Quantity;
    pub use evictd_engine::model::settings::EvictionConfig;
    pub use evictd_engine::model::settings::Mode;
    pub use evictd_engine::model::settings::RankingStrategy;
}
pub mod cri {
    pub use evictd_cri::CriError;
    pub use evictd_cri::Reclaimer;
    pub use evictd_cri::Runtime;
    pub use evictd_engine::reclaim::KnownPods;
    pub use evictd_engine::reclaim::Removed;
    pub mod messages {
        pub use evictd_cri::messages::Container;
        pub use evictd_cri::messages::ContainerMetadata;
        pub use evictd_cri::messages::ContainerRequest;
        pub use evictd_cri::messages::ContainerState;
        pub use evictd_cri::messages::ContainerStatus;
        pub use evictd_cri::messages::ContainerStatusResponse;
        pub use evictd_cri::messages::Empty;
        pub use evictd_cri::messages::Image;
        pub use evictd_cri::messages::ImageSpec;
        pub use evictd_cri::messages::ListContainersResponse;
        pub use evictd_cri::messages::ListImagesResponse;
        pub use evictd_cri::messages::ListPodSandboxResponse;
        pub use evictd_cri::messages::Mount;
        pub use evictd_cri::messages::PodSandbox;
        pub use evictd_cri::messages::PodSandboxMetadata;
        pub use evictd_cri::messages::PodSandboxRequest;
        pub use evictd_cri::messages::RemoveImageRequest;
        pub use evictd_cri::messages::SandboxState;
        pub use evictd_cri::messages::StatusResponse;
    }
}
pub mod engine {
    pub use evictd_engine::Candidate;
    pub use evictd_engine::CandidateState;
    pub use evictd_engine::Cause;
    pub use evictd_engine::Claim;
    pub use evictd_engine::Comeback;
    pub use evictd_engine::ContainerUsage;
    pub use evictd_engine::Demand;
    pub use evictd_engine::Earlier;
    pub use evictd_engine::EarlierComeback;
    pub use evictd_engine::EarlierEviction;
    pub use evictd_engine::EarlierVictim;
    pub use evictd_engine::EmptyDir;
    pub use evictd_engine::Eviction;
    pub use evictd_engine::FsUsage;
    pub use evictd_engine::Layout;
    pub use evictd_engine::Manager;
    pub use evictd_engine::MemorySizing;
    pub use evictd_engine::NodeCondition;
    pub use evictd_engine::NodeReclaim;
    pub use evictd_engine::Observation;
    pub use evictd_engine::Observations;
    pub use evictd_engine::Owner;
    pub use evictd_engine::Pod;
    pub use evictd_engine::PodUsage;
    pub use evictd_engine::QosClass;
    pub use evictd_engine::Ranking;
    pub use evictd_engine::Resource;
    pub use evictd_engine::Round;
    pub use evictd_engine::Rules;
    pub use evictd_engine::Settings;
    pub use evictd_engine::Signal;
    pub use evictd_engine::Snapshot;
    pub use evictd_engine::Threshold;
    pub use evictd_engine::ThresholdValue;
    pub use evictd_engine::Usages;
    pub use evictd_engine::Volume;
    pub use evictd_engine::VolumeUsage;
    pub mod growth {
        pub use evictd_engine::growth::Room;
    }
    pub mod pace {
        pub use evictd_engine::pace::Decision;
        pub use evictd_engine::pace::Judged;
        pub use evictd_engine::pace::MONITORING_INTERVAL_NS;
        pub use evictd_engine::pace::Pace;
        pub use evictd_engine::pace::Pending;
        pub use evictd_engine::pace::Relief;
        pub use evictd_engine::pace::Shortage;
        pub use evictd_engine::pace::Urgency;
    }
    pub use evictd_engine::select;
    pub mod terminating {
        pub use evictd_engine::terminating::Fate;
        pub use evictd_engine::terminating::Remains;
        pub use evictd_engine::terminating::Terminating;
    }
}
pub mod evict {
    pub mod end {
        pub use evictd_node::cgroup::end::end_gracefully;
        pub use evictd_node::cgroup::end::kill_until_empty;
    }
    pub mod journal {
        pub use evictd_engine::record::Numbers;
        pub use evictd_store::journal::Journal;
        pub use evictd_store::journal::SharedJournal;
        pub use evictd_store::journal::read;
        pub use evictd_store::record::Asked;
        pub use evictd_store::record::Eviction;
        pub use evictd_store::record::Finish;
        pub use evictd_store::record::MetInForce;
        pub use evictd_store::record::PaceRecord;
        pub use evictd_store::record::Pause;
        pub use evictd_store::record::Record;
        pub use evictd_store::record::Reported;
        pub use evictd_store::record::StuckPod;
        pub use evictd_store::record::counted::Counted;
        pub use evictd_store::record::counted::Returned;
        pub use evictd_store::record::counted::TimeBound;
        pub use evictd_store::record::counted::Workload;
        pub use evictd_store::record::mitigation::GraduatedAction;
        pub use evictd_store::record::mitigation::GraduatedPod;
        pub use evictd_store::record::node_reclaim::NodeReclaimed;
    }
    pub mod kill {
        pub use evictd_node::cgroup::kill::Killer;
    }
    pub mod members {
        pub use evictd_node::cgroup::members::Round;
        pub use evictd_node::cgroup::members::signal_members;
    }
    pub mod oom {
        pub use evictd_store::record::oom_kill::AtLimit;
        pub use evictd_store::record::oom_kill::Before;
        pub use evictd_store::record::oom_kill::OomCause;
        pub use evictd_store::record::oom_kill::OomKill;
        pub use evictd_store::record::oom_kill::PodName;
    }
    pub mod soft {
        pub use evictd_kube::soft_eviction::SoftCandidate;
        pub use evictd_kube::soft_eviction::SoftEvictor;
        pub use evictd_kube::soft_eviction::SoftOutcome;
    }
}
pub mod graduated {
    pub use evictd_node::cgroup::reclaim::Refusal;
    pub use evictd_node::cgroup::throttle::Brake;
    pub use evictd_node::cgroup::throttle::Brakes;
    pub mod files {
        pub use evictd_node::cgroup::reclaim::can_brake;
        pub use evictd_node::cgroup::reclaim::can_reclaim;
        pub use evictd_node::cgroup::reclaim::reclaim;
    }
}
pub mod kernel {
    pub mod btf {
        pub use evictd_node::bpf::btf::Btf;
    }
    pub mod budget {
        pub use evictd_node::trigger::counter::Crossing;
        pub use evictd_node::trigger::counter::Wire;
    }
    pub mod cgroups {
        pub use evictd_node::trigger::cgroups::Change;
        pub use evictd_node::trigger::cgroups::Happened;
        pub use evictd_node::trigger::cgroups::PodLife;
    }
    pub mod inodes {
        pub use evictd_node::trigger::inodes::InodeTripwire;
    }
    pub mod ladder {
        pub use evictd_engine::model::settings::MemoryHook;
        pub use evictd_node::trigger::hook::CountHook;
        pub use evictd_node::trigger::hook::Refused;
    }
    pub mod object {
        pub use evictd_node::bpf::object::Object;
        pub use evictd_node::bpf::object::ObjectError;
    }
    pub mod pids {
        pub use evictd_node::trigger::pids::PidTripwire;
    }
    pub mod poll {
        pub use evictd_sys::poll::poll;
    }
    pub mod telemetry {
        pub use evictd_node::trigger::oom::OomKill;
        pub use evictd_node::trigger::oom::Telemetry;
        pub use evictd_node::trigger::oom::UNKNOWN;
    }
    pub mod tripwire {
        pub use evictd_node::trigger::memory::ANY_SLOT;
        pub use evictd_node::trigger::memory::Act;
        pub use evictd_node::trigger::memory::Direction;
        pub use evictd_node::trigger::memory::Trip;
        pub use evictd_node::trigger::memory::Tripwire;
        pub use evictd_node::trigger::memory::Wire;
        pub use evictd_node::trigger::memory::build;
        pub use evictd_node::trigger::memory::page_size;
        pub use evictd_node::trigger::memory::slot;
        pub use evictd_node::trigger::memory::slot_of;
    }
}
pub mod observe {
    pub mod cgroup {
        pub use evictd_node::cgroup::memory::MemoryCgroup;
        pub use evictd_node::cgroup::memory::Version;
        pub use evictd_node::cgroup::memory::descendants;
        pub use evictd_node::cgroup::memory::memory_root;
    }
    pub mod deadline {
        pub use evictd_node::sampling::Nearness;
        pub use evictd_node::sampling::next_look;
    }
    pub mod filesystem {
        pub use evictd_node::fs::statfs::Filesystem;
    }
    pub mod machine {
        pub use evictd_node::proc::machine::MemAvailable;
        pub use evictd_node::proc::machine::memory_total;
        pub use evictd_node::proc::machine::oom_kills;
    }
    pub mod mounts {
        pub use evictd_node::fs::mounts::superblock_of;
    }
    pub mod pids {
        pub use evictd_node::cgroup::pids::of_pod;
        pub use evictd_node::proc::pids::Pids;
    }
    pub mod psi {
        pub use evictd_node::proc::psi::Pressure;
    }
}
pub mod pods {
    pub mod manifest {
        pub use evictd_config::pod_manifest::load;
    }
    pub mod names {
        pub use evictd_node::pods::cgroup_name::Driver;
        pub use evictd_node::pods::cgroup_name::parse;
    }
    pub mod table {
        pub use evictd_node::pods::table::Entry;
        pub use evictd_node::pods::table::PodTable;
    }
}
pub mod policy {
    pub use evictd_engine::limiter::Restraint;
    pub use evictd_engine::permit::LastResort;
    pub use evictd_engine::permit::Permission;
    pub use evictd_policy::API_VERSION;
    pub use evictd_policy::Brake;
    pub use evictd_policy::Brakes;
    pub use evictd_policy::Catalogue;
    pub use evictd_policy::Evict;
    pub use evictd_policy::EvictionPolicy;
    pub use evictd_policy::KIND;
    pub use evictd_policy::Keeper;
    pub use evictd_policy::PAUSED;
    pub use evictd_policy::PolicySet;
    pub use evictd_policy::Wait;
    pub mod gate {
        pub use evictd_policy::gate::Secrets;
    }
    pub mod keeper {
        pub use evictd_engine::limiter::PastEviction;
        pub use evictd_engine::limiter::Rate;
        pub use evictd_policy::evaluator::Explanation;
        pub use evictd_policy::evaluator::GateView;
        pub use evictd_policy::evaluator::RuleView;
        pub use evictd_policy::evaluator::Settings;
        pub use evictd_policy::evaluator::Worker;
    }
    pub mod load {
        pub use evictd_policy::file::load;
        pub use evictd_policy::file::read;
    }
}
pub mod reflex {
    pub use evictd_engine::record::Stages;
    pub use evictd_fastpath::Evicted;
    pub use evictd_fastpath::Finished;
    pub use evictd_fastpath::Mailbox;
    pub use evictd_fastpath::Outbox;
    pub use evictd_fastpath::Reflex;
    pub use evictd_fastpath::Report;
    pub use evictd_fastpath::Setup;
    pub use evictd_node::memory_scope::Limits;
    pub use evictd_node::memory_scope::Scope;
    pub mod thread {
        pub use evictd_sys::clock::now_ns;
        pub use evictd_sys::rt::become_fifo;
        pub use evictd_sys::rt::lock_memory;
        pub use evictd_sys::rt::probe_realtime;
    }
}
