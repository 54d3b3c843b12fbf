//! What the kernel programs could not deliver.

use aya::maps::PerCpuArray;
use evictd_common::drops::DropCounter;

use crate::bpf::object::{BpfObject, ObjectError};

impl BpfObject {
    /// Records that the programs could not deliver, summed over the CPUs.
    ///
    /// # Errors
    /// The object has no such map, or the kernel refuses to read it.
    pub fn drops(&self, counter: DropCounter) -> Result<u64, ObjectError> {
        const NAME: &str = "DROPS";
        let map = self.ebpf.map(NAME).ok_or(ObjectError::Missing(NAME))?;
        let drops = PerCpuArray::<_, u64>::try_from(map).map_err(|e| ObjectError::Map(NAME, e))?;
        let per_cpu = drops
            .get(&(counter as u32), 0)
            .map_err(|e| ObjectError::Map(NAME, e))?;
        Ok(per_cpu.iter().sum())
    }
}
