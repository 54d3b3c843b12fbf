//! What victims that are still terminating will give back.

use serde::{Deserialize, Serialize};

/// Amounts that victims which are still terminating are expected to give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// Amount that all of them together are expected to give back.
    pub amount: u64,
    /// Time at which the first part of `amount` is due.
    pub due: Option<u64>,
    /// The part of it that comes with the end of processes.
    #[serde(default)]
    pub soon: u64,
    /// Some of it has come a moment ago, and more is coming.
    #[serde(default)]
    pub flows: bool,
    /// Time at which the newest of the victims that gave memory back a moment ago began to give it back.
    #[serde(default)]
    pub flows_since: Option<u64>,
    /// Time at which the first of those victims is due that have given nothing yet.
    #[serde(default)]
    pub begins: Option<u64>,
}

impl Pending {
    /// Adds what others are expected to give.
    pub(crate) fn merge(&mut self, other: Self) {
        self.amount = self.amount.saturating_add(other.amount);
        self.soon = self.soon.saturating_add(other.soon);
        self.due = earliest(self.due, other.due);
        self.begins = earliest(self.begins, other.begins);
        self.flows |= other.flows;
        self.flows_since = self.flows_since.max(other.flows_since);
    }

    /// Adds what the end of a victim's processes is expected to give.
    pub(crate) fn add_soon(&mut self, amount: u64, due: u64) {
        self.add(amount, due);
        self.soon = self.soon.saturating_add(amount);
    }

    /// Adds what one victim is expected to give.
    pub fn add(&mut self, amount: u64, due: u64) {
        if amount > 0 {
            self.amount = self.amount.saturating_add(amount);
            self.due = earliest(self.due, Some(due));
        }
    }
}

/// The earlier one of two times that may be unknown.
pub(crate) fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
