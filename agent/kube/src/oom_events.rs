//! How often OOM kills at pods' own limits get an Event: a container that is started again is killed again, and a pod
//! whose workers are killed may have hundreds of kills in a minute.

use std::time::{Duration, Instant};

/// A pod has one Event in so long.
const GAP: Duration = Duration::from_secs(600);
/// Largest number of pods that have an Event in that time; the journal and the metric have the others.
const PODS: usize = 64;

/// Says which kills get an Event.
#[derive(Debug, Default)]
pub struct OomEventLimiter {
    /// UIDs of pods with the time of their Event.
    reported: Vec<(String, Instant)>,
}

impl OomEventLimiter {
    /// Whether a kill of this pod gets an Event now.
    pub fn allows(&mut self, uid: &str, now: Instant) -> bool {
        self.reported
            .retain(|(_, at)| now.saturating_duration_since(*at) < GAP);
        let is_reported = self.reported.iter().any(|(reported, _)| reported == uid);
        if is_reported || self.reported.len() == PODS {
            return false;
        }
        self.reported.push((uid.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_told_of_once_in_a_while_and_pods_are_bounded() {
        let mut limiter = OomEventLimiter::default();
        let start = Instant::now();
        assert!(limiter.allows("a", start));
        assert!(!limiter.allows("a", start + GAP / 2));
        assert!(limiter.allows("b", start + GAP / 2));
        assert!(limiter.allows("a", start + GAP));
        assert!(!limiter.allows("b", start + GAP), "each by its own time");
        let allowed = (0..1000).filter(|n| limiter.allows(&format!("pod-{n}"), start + GAP));
        assert_eq!(allowed.count(), PODS - 2);
        assert_eq!(limiter.reported.len(), PODS);
        assert!(limiter.allows("c", start + 3 * GAP));
    }
}
