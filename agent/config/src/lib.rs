//! Decodes every document: the configuration file, the KubeletConfiguration, the pod manifest, pods and summaries of
//! Kubernetes. It must not know the network or the kernel's files.
//!
//! Fields that the kubelet has too are named as in the KubeletConfiguration; an absent one means the kubelet's default.

mod cluster;
mod config;
mod cri;
pub mod decode;
mod document;
mod drop_ins;
pub mod duration;
mod error;
mod filesystems;
mod hard_layers;
mod kernel_floor;
pub mod kube;
mod kubelet;
mod metrics_tls;
mod mitigation;
mod origin;
mod pinned_guard;
pub mod pod_manifest;
mod policy;
mod signal_values;
mod source;
mod thresholds;

pub use cluster::{
    ClusterConfig, ConfigMapName, DEFAULT_TAINT_PREFIX, EvictedPods, FleetConfig, TaintConfig,
    TaintEffect,
};
pub use config::{Config, DEFAULT_STATE_DIR, OptionalAmount, ScopeConfig};
pub use cri::CriConfig;
pub use document::{parse_document, read_at_most, read_document, yaml_reason};
pub use error::{ConfigError, cut, one_line};
pub use filesystems::FilesystemPaths;
pub use kubelet::DEFAULT_PRESSURE_TRANSITION_PERIOD;
pub use kubelet::EvictionFields;
pub use metrics_tls::{CertificateFiles, MetricsTls};
pub use origin::{Origin, Origins};
pub use pinned_guard::PinnedGuardConfig;
pub use policy::PolicyConfig;
pub use source::{KubeletDocument, KubeletFiles, KubeletSource, Unreadable};
pub use thresholds::{DEFAULT_EVICTION_HARD, SignalValues, ThresholdTexts};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
