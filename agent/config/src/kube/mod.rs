//! Documents of Kubernetes: pods, and the kubelet's summary of their usage.

pub mod decode;
#[cfg(test)]
mod local_storage_tests;
pub mod pod;
pub mod summary;
