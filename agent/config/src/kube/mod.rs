//! Documents of the Kubernetes API: pods, and the kubelet's summary of their use.

pub mod decode;
#[cfg(test)]
mod local_storage_tests;
pub mod pod;
pub mod summary;
