//! The candidates that come first, found in one pass and kept in order.

use super::{Candidate, CandidateState, PassedOver, RankKey, SelectionCriteria};

/// Rank of a candidate, and its position in the slice, which decides among equals.
pub(super) type Place = (RankKey, usize);

/// Number of candidates that are kept: more than usually have to be read.
const CAPACITY: usize = 32;

/// The first candidates by what is known of them.
pub(super) struct TopCandidates {
    /// The last one first, so that the first one is taken off the end.
    places: [Place; CAPACITY],
    count: usize,
    /// Candidates that are not kept here stand behind this; `None` if all are kept.
    rest: Option<Place>,
}

impl TopCandidates {
    /// Looks through all candidates once.
    pub(super) fn of(
        candidates: &[Candidate],
        rules: SelectionCriteria,
        passed_over: PassedOver,
    ) -> Self {
        let mut front = Self {
            places: [Place::default(); CAPACITY],
            count: 0,
            rest: None,
        };
        for (position, candidate) in candidates.iter().enumerate() {
            if candidate.state == CandidateState::Eligible && !passed_over.includes(candidate) {
                front.insert(rules.place(position, candidate));
            }
        }
        if front.rest.is_some() {
            front.rest = front.places.first().copied();
        }
        front
    }

    /// Takes the first one.
    pub(super) fn pop(&mut self) -> Option<usize> {
        self.count = self.count.checked_sub(1)?;
        self.places.get(self.count).map(|(_, position)| *position)
    }

    /// Puts one back whose place has changed. If it stands behind the rest now, it is found again when the front is
    /// used up.
    pub(super) fn put_back(&mut self, place: Place) {
        if self.rest.is_none_or(|rest| place < rest) {
            self.insert(place);
        }
    }

    /// Whether all candidates are kept here.
    pub(super) fn is_complete(&self) -> bool {
        self.rest.is_none()
    }

    fn insert(&mut self, place: Place) {
        let kept = self.places.get_mut(..self.count).unwrap_or_default();
        if self.count == CAPACITY {
            self.rest = Some(place);
            if kept.first().is_some_and(|last| *last < place) {
                return;
            }
            // The last one makes room.
            kept.rotate_left(1);
            self.count -= 1;
        }
        let kept = self.places.get_mut(..=self.count).unwrap_or_default();
        let mut at = self.count;
        while at > 0 && kept.get(at - 1).is_some_and(|before| *before < place) {
            kept.swap(at, at - 1);
            at -= 1;
        }
        if let Some(slot) = kept.get_mut(at) {
            *slot = place;
        }
        self.count += 1;
    }
}
