//! At what the hog has to go. The kubelet's own threshold is often 100Mi for a node of any size, and default
//! configurations of test clusters have none at all. On a node that runs the control plane too the API server starves
//! before that much is left, and what would be seen is its trouble, not evictd's work. So the test keeps a margin unless
//! it is told otherwise.

use evictd_tests::prelude::*;
use kube::Client;

use super::node::{self, Target};

/// `--threshold` for the manifests', which is above the kubelet's, whatever that is.
pub const OWN: &str = "own";
/// `DefaultEvictionHard` of the kubelet for `memory.available`, in MiB.
const DEFAULT_MIB: u64 = 100;
/// More than this is not needed to keep a control plane alive.
const MARGIN_MIB: u64 = 512;

/// `evictionHard["memory.available"]` for evictd; `None` leaves the manifests' in force.
pub async fn choose(
    client: &Client,
    target: &Target,
    asked: Option<&str>,
) -> Result<Option<String>> {
    match asked {
        Some(OWN) => return Ok(None),
        Some(asked) => return Ok(Some(asked.to_owned())),
        None => {}
    }
    let kubelet = match configuration(client, target).await {
        Ok(kubelet) => kubelet,
        Err(error) => {
            say!("e2e: the kubelet does not tell its configuration: {error:#}");
            Value::Null
        }
    };
    let found = Found::of(&kubelet, target.capacity_mib);
    let chosen = found.careful();
    let own = found.own_mib.map_or_else(
        || "the kubelet has none for memory".to_owned(),
        |mib| format!("the kubelet has {mib}Mi; --threshold {OWN} is 100Mi above that"),
    );
    if let Some(chosen) = &chosen {
        say!("e2e: the hog has to go at memory.available<{chosen}, to keep the node well ({own})");
    }
    Ok(chosen)
}

/// The running kubelet's configuration; needs the right to the node's proxy.
async fn configuration(client: &Client, target: &Target) -> Result<Value> {
    let path = format!("/api/v1/nodes/{}/proxy/configz", target.name);
    let request = http::Request::get(path).body(Vec::new())?;
    let answer: Value = client.request(request).await.context("its /configz")?;
    Ok(answer["kubeletconfig"].clone())
}

/// What the kubelet keeps back, in MiB.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    own_mib: Option<u64>,
    /// What pods can have together.
    room_mib: u64,
}

impl Found {
    fn of(kubelet: &Value, capacity_mib: u64) -> Self {
        let mib = |value: &Value| -> Option<u64> {
            let text = value.as_str()?;
            if let Some(percent) = text.strip_suffix('%') {
                let share: f64 = percent.parse().ok()?;
                return Some((capacity_mib as f64 * share / 100.0) as u64);
            }
            node::mib(text)
        };
        let own_mib = match &kubelet["evictionHard"] {
            Value::Object(hard) => hard.get("memory.available").and_then(mib),
            // One that sets nothing has the defaults.
            _ => Some(DEFAULT_MIB),
        };
        let reserved = ["systemReserved", "kubeReserved"];
        let reserved = reserved.map(|field| mib(&kubelet[field]["memory"]).unwrap_or(0));
        Self {
            own_mib,
            room_mib: capacity_mib.saturating_sub(reserved.iter().sum()),
        }
    }

    /// Enough for the node to stay well, and never so much that the pods of the story do not fit beside it.
    fn careful(&self) -> Option<String> {
        let margin = MARGIN_MIB.min(self.room_mib / 8);
        (self.own_mib.unwrap_or(0) < margin).then(|| format!("{margin}Mi"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn careful(kubelet: &Value, capacity_mib: u64) -> Option<String> {
        Found::of(kubelet, capacity_mib).careful()
    }

    #[test]
    fn a_node_of_a_usual_size_keeps_a_margin() {
        let usual = json!({"evictionHard": {"memory.available": "100Mi"}});
        assert_eq!(careful(&usual, 16_000).unwrap(), "512Mi");
        assert_eq!(careful(&usual, 1_600).unwrap(), "200Mi");
        assert_eq!(careful(&Value::Null, 16_000).unwrap(), "512Mi");
        // kind's: only disks, and those at 0.
        let kind = json!({"evictionHard": {"nodefs.available": "0%"}});
        assert_eq!(Found::of(&kind, 16_000).own_mib, None);
        assert_eq!(careful(&kind, 16_000).unwrap(), "512Mi");
    }

    #[test]
    fn a_kubelet_that_keeps_more_is_believed() {
        let generous = json!({"evictionHard": {"memory.available": "1Gi"}});
        assert_eq!(careful(&generous, 16_000), None);
        let share = json!({"evictionHard": {"memory.available": "10%"}});
        assert_eq!(careful(&share, 16_000), None);
    }

    // The pods' cgroup has a limit of its own there, and the threshold holds below that as well.
    #[test]
    fn the_margin_fits_into_what_pods_can_have() {
        let reserved = json!({"evictionHard": {"memory.available": "100Mi"}, "systemReserved": {"memory": "22Gi"}});
        let found = Found::of(&reserved, 24_105);
        assert_eq!(found.room_mib, 24_105 - 22 * 1024);
        assert_eq!(found.careful().unwrap(), "197Mi");
    }
}
