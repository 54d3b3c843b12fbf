//! What was seen of the hog.

use std::{fmt, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use super::workload::{describe, statuses};

/// What was seen of the hog until it was gone.
#[derive(Default)]
pub struct Seen {
    pub uid: String,
    pub lived: Duration,
    /// The most restarts that its status has shown.
    pub restarts: i32,
    /// How its containers ended: reason and exit code.
    pub ends: Vec<String>,
    /// `DisruptionTarget`, if it was there: reason and message.
    pub disruption: Option<String>,
    pub ran: bool,
    /// What the kubelet says where it has evicted the pod.
    pub by_kubelet: Option<String>,
    last: String,
}

impl Seen {
    pub fn new(uid: String) -> Self {
        Self {
            uid,
            ..Self::default()
        }
    }

    /// One version of the object.
    pub fn take(&mut self, pod: &Pod) {
        self.last = describe(pod);
        let Some(status) = &pod.status else {
            return;
        };
        // evictd deletes; what the kubelet evicts stays there with this reason.
        if status.reason.as_deref() == Some("Evicted") {
            self.by_kubelet = Some(status.message.clone().unwrap_or_default());
        }
        self.ran |= status.phase.as_deref() == Some("Running");
        let conditions = status.conditions.as_deref().unwrap_or_default();
        if let Some(c) = conditions.iter().find(|c| c.type_ == "DisruptionTarget") {
            let text = |t: &Option<String>| t.clone().unwrap_or_default();
            self.disruption = Some(format!("{}: {}", text(&c.reason), text(&c.message)));
        }
        for container in statuses(pod) {
            self.restarts = self.restarts.max(container.restart_count);
            let states = [&container.state, &container.last_state];
            let ends = states
                .into_iter()
                .flatten()
                .filter_map(|s| s.terminated.as_ref());
            for end in ends {
                let reason = end.reason.clone().unwrap_or_default();
                let end = format!("{reason} ({})", end.exit_code);
                if !self.ends.contains(&end) {
                    self.ends.push(end);
                }
            }
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, restarts: {}", self.last, self.restarts)
    }
}
