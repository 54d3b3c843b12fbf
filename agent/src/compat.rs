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
        pub use evictd_kube::brake::of_config_map;
        pub use evictd_kube::brake::of_node;
    }
    pub mod client {
        pub use evictd_kube::client::Connection;
    }
    pub mod namespaces {
        pub use evictd_kube::namespaces::run;
    }
    pub mod node {
        pub use evictd_kube::node::LeftOver;
        pub use evictd_kube::node::NodeWriter;
        pub use evictd_kube::node::Wanted;
    }
    pub mod policies {
        pub use evictd_kube::policies::run;
    }
    pub mod status {
        pub use evictd_kube::status::SPREAD;
        pub use evictd_kube::status::StatusWriter;
    }
    pub mod watch {
        pub use evictd_kube::watch::Shared;
        pub use evictd_kube::watch::run;
    }
}
pub mod config {
    pub use evictd_config::Config;
    pub use evictd_config::CriConfig;
    pub use evictd_config::ThresholdTexts;
    pub use evictd_engine::quantity::Format;
    pub use evictd_engine::quantity::Quantity;
    pub use evictd_engine::settings::EvictionConfig;
    pub use evictd_engine::settings::Mode;
    pub use evictd_engine::settings::RankingStrategy;
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
pub use evictd_engine as engine;
pub mod evict {
    pub mod end {
        pub use evictd_node::end::end_gracefully;
        pub use evictd_node::end::kill_until_empty;
    }
    pub mod journal {
        pub use evictd_engine::record::Numbers;
        pub use evictd_store::graduated::GraduatedAction;
        pub use evictd_store::journal::Journal;
        pub use evictd_store::journal::SharedJournal;
        pub use evictd_store::journal::read;
        pub use evictd_store::reclaimed::NodeReclaimed;
        pub use evictd_store::records::Asked;
        pub use evictd_store::records::Eviction;
        pub use evictd_store::records::Finish;
        pub use evictd_store::records::Record;
        pub use evictd_store::records::Reported;
    }
    pub mod kill {
        pub use evictd_node::kill::Killer;
    }
    pub mod members {
        pub use evictd_node::members::Round;
        pub use evictd_node::members::signal_members;
    }
    pub mod oom {
        pub use evictd_store::oom_kill::OomCause;
        pub use evictd_store::oom_kill::OomKill;
    }
    pub mod soft {
        pub use evictd_kube::soft_eviction::SoftCandidate;
        pub use evictd_kube::soft_eviction::SoftEvictor;
        pub use evictd_kube::soft_eviction::SoftOutcome;
        pub use evictd_kube::soft_eviction::SoftPressure;
    }
}
pub mod graduated {
    pub use evictd_node::reclaim::Refusal;
    pub use evictd_node::throttle::Brakes;
    pub mod files {
        pub use evictd_node::reclaim::can_brake;
        pub use evictd_node::reclaim::can_reclaim;
        pub use evictd_node::reclaim::reclaim;
    }
}
pub mod kernel {
    pub use evictd_node::kernel::*;
    pub mod ladder {
        pub use evictd_engine::settings::MemoryHook;
        pub use evictd_node::kernel::ladder::*;
    }
    pub mod poll {
        pub use evictd_sys::poll::poll;
    }
}
pub use evictd_node::observe;
pub mod pods {
    pub mod manifest {
        pub use evictd_config::manifest::load;
    }
    pub mod names {
        pub use evictd_node::pods::names::Driver;
        pub use evictd_node::pods::names::parse;
    }
    pub mod table {
        pub use evictd_node::pods::table::Entry;
        pub use evictd_node::pods::table::PodTable;
    }
}
pub mod policy {
    pub use evictd_engine::clearance::LastResort;
    pub use evictd_engine::clearance::Permission;
    pub use evictd_engine::restraint::Restraint;
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
        pub use evictd_engine::restraint::PastEviction;
        pub use evictd_engine::restraint::Rate;
        pub use evictd_policy::keeper::Explanation;
        pub use evictd_policy::keeper::Settings;
        pub use evictd_policy::keeper::Worker;
    }
    pub mod load {
        pub use evictd_policy::load::load;
        pub use evictd_policy::load::read;
    }
}
pub mod reflex {
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
