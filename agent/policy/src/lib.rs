//! Which pods may be evicted, when, and in what order. It must not know the node or the API server.
//!
//! Operators write down what they know of their workloads as [`EvictionPolicy`] objects or files. The [`evaluator`]
//! turns them into numbers in each pod's entry (`engine::permit`) long before a node is short of anything: the fast
//! path only reads these numbers.

pub mod conflict;
pub mod evaluator;
pub mod expression;
pub mod file;
pub mod gate;
mod model;
mod namespaces;
pub mod pause;
mod selector;
pub mod set;
pub mod store;
mod tenant;
pub mod tolerations;

pub use evaluator::PolicyEvaluator;
pub use model::{API_VERSION, Evict, EvictionPolicy, KIND, Limit, NoExecute, Rule, Wait};
pub use namespaces::Namespaces;
pub use pause::{PAUSED, PauseChange, PauseSource, PauseState};
pub use selector::{Labels, Selector};
pub use set::PolicySet;
pub use store::{PolicyStatus, PolicyStore};
pub use tenant::{PodEvictionPolicy, TENANT_KIND, TenantRequest};
