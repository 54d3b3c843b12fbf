//! When a signal is too low: thresholds, hard and soft.

use std::{fmt, str::FromStr, time::Duration};

use crate::{
    Observation, Observations, Signal,
    model::quantity::{Format, Quantity},
};

/// A value to compare a signal with: an amount, or a share of the resource's capacity.
#[derive(Clone, Debug, PartialEq)]
pub enum ThresholdValue {
    /// Bytes, inodes or process ids.
    Quantity(Quantity),
    /// A share between 0.0 and 1.0, single precision as in the kubelet: 10 % of 100 GiB is then 160 bytes more than
    /// one tenth, and messages show it.
    Percentage(f32),
    /// A value with a step on top.
    Raised(Box<RaisedValue>),
}

/// A value with a step on top, as far as the resource is large enough for it.
#[derive(Clone, Debug, PartialEq)]
pub struct RaisedValue {
    /// Value that is raised.
    pub base: ThresholdValue,
    /// Amount by which `base` is raised.
    pub step: ThresholdValue,
    /// The share of the capacity above which the step raises nothing: on a small node the whole of it could be met at
    /// once.
    pub most: f32,
    /// The signal's soft threshold, if it has one: where it is above the base the step raises halfway to it at most, so that its
    /// grace period still counts.
    pub soft: Option<ThresholdValue>,
}

impl RaisedValue {
    /// The two amounts together, or less where that would be too much of the capacity; never less than the base.
    fn amount(&self, capacity: i64) -> u64 {
        let base = self.base.amount(capacity);
        let whole = base.saturating_add(self.step.amount(capacity));
        let most = share_of(capacity, self.most).min(self.below_soft(capacity));
        whole.min(most).max(base)
    }

    /// Halfway from the base to the soft threshold above it.
    fn below_soft(&self, capacity: i64) -> u64 {
        let base = self.base.amount(capacity);
        let soft = self.soft.as_ref().map(|soft| soft.amount(capacity));
        let above = soft.filter(|soft| *soft > base);
        above.map_or(u64::MAX, |soft| base.midpoint(soft))
    }

    /// Whether the soft threshold leaves less than the whole step, and no more than the capacity does.
    pub fn is_cut_by_soft(&self, capacity: i64) -> bool {
        self.is_cut(capacity) && self.below_soft(capacity) <= share_of(capacity, self.most)
    }

    /// Whether the capacity leaves less than the whole step.
    pub fn is_cut(&self, capacity: i64) -> bool {
        let whole = self.base.amount(capacity);
        self.amount(capacity) < whole.saturating_add(self.step.amount(capacity))
    }
}

/// A limit below which a signal calls for action.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// Signal that is compared with `value`.
    pub signal: Signal,
    /// Value of the threshold: it is met while less than this is available.
    pub value: ThresholdValue,
    /// Time for which the threshold must be met before pods are evicted; zero makes it a hard one.
    pub grace_period: Duration,
    /// Amount above `value` that must be available for a threshold that was met to be met no longer; `None`: no more
    /// than `value`.
    pub min_reclaim: Option<ThresholdValue>,
}

impl ThresholdValue {
    /// The value without the step that raises it.
    pub fn base(&self) -> &Self {
        match self {
            Self::Raised(raised) => &raised.base,
            value => value,
        }
    }

    /// The amount that the value stands for, given the capacity of the resource.
    ///
    /// A percentage is multiplied in double precision and cut to a whole number, as in the kubelet's
    /// `GetThresholdQuantity`, and is printed with binary suffixes even where inodes are meant.
    pub fn quantity(&self, capacity: i64) -> Quantity {
        match self {
            Self::Quantity(quantity) => quantity.clone(),
            Self::Percentage(share) => Quantity::bytes(share_of(capacity, *share)),
            Self::Raised(raised) if raised.is_cut(capacity) => {
                Quantity::bytes(raised.amount(capacity))
            }
            Self::Raised(raised) => {
                let mut quantity = raised.base.quantity(capacity);
                quantity.add(&raised.step.quantity(capacity));
                quantity
            }
        }
    }

    /// Computes [`Self::quantity`] as a whole number, rounded up, never negative; allocates nothing.
    pub fn amount(&self, capacity: i64) -> u64 {
        match self {
            Self::Quantity(quantity) => u64::try_from(quantity.value()).unwrap_or(0),
            Self::Percentage(share) => share_of(capacity, *share),
            Self::Raised(raised) => raised.amount(capacity),
        }
    }
}

fn share_of(capacity: i64, share: f32) -> u64 {
    // `as` cuts at both ends of the range and maps NaN to zero.
    (capacity as f64 * f64::from(share)) as u64
}

impl Threshold {
    /// What makes it the same threshold after a reload: a minimum reclaim, and the soft threshold that bounds a step, do not.
    pub(crate) fn bound(&self) -> (Signal, &ThresholdValue, Option<&ThresholdValue>, Duration) {
        let step = match &self.value {
            ThresholdValue::Raised(raised) => Some(&raised.step),
            _ => None,
        };
        (self.signal, self.value.base(), step, self.grace_period)
    }

    /// Whether pods are evicted as soon as the threshold is met.
    pub fn is_hard(&self) -> bool {
        self.grace_period.is_zero()
    }

    /// Its signal and whether it is hard.
    pub(crate) fn key(&self) -> (Signal, bool) {
        (self.signal, self.is_hard())
    }

    /// Whether less than the threshold is available, or than the threshold with its minimum reclaim. What was not
    /// observed is not met.
    pub fn is_met(&self, observations: &Observations, with_reclaim: bool) -> bool {
        let Some(seen) = observations.get(self.signal) else {
            return false;
        };
        let mut quantity = self.value.quantity(seen.capacity);
        if let Some(reclaim) = self.min_reclaim.as_ref().filter(|_| with_reclaim) {
            quantity.add(&reclaim.quantity(seen.capacity));
        }
        quantity > Quantity::from_units(seen.available, Format::BinarySi)
    }

    /// The amount that must be available for the threshold not to be met, in the signal's unit.
    pub fn amount(&self, capacity: i64) -> u64 {
        self.value.amount(capacity)
    }

    /// Whether a step raises the threshold, given the capacity of the resource: it may be cut to nothing.
    pub fn is_raised(&self, capacity: i64) -> bool {
        self.amount(capacity) > self.value.base().amount(capacity)
    }

    /// The amount that must be available for a threshold that was met to be met no longer.
    pub fn resolved_amount(&self, capacity: i64) -> u64 {
        let reclaim = self
            .min_reclaim
            .as_ref()
            .map_or(0, |value| value.amount(capacity));
        self.amount(capacity).saturating_add(reclaim)
    }

    /// How much must come back until the threshold and its minimum reclaim are satisfied, in the signal's unit.
    pub fn deficit(&self, seen: Observation) -> u64 {
        let missing = i128::from(self.resolved_amount(seen.capacity)) - i128::from(seen.available);
        u64::try_from(missing.max(0)).unwrap_or(u64::MAX)
    }

    /// Whether the threshold is met, or would not be resolved if it had been: its minimum reclaim counts.
    /// [`Planner::is_under_pressure`](crate::Planner::is_under_pressure) knows whether it was.
    pub fn is_unresolved(&self, seen: &Observations) -> bool {
        let now = seen.get(self.signal);
        now.is_some_and(|now| self.deficit(now) > 0)
    }
}

/// The hard threshold of a signal that is met first.
pub fn hard_threshold(
    thresholds: &[Threshold],
    signal: Signal,
    capacity: i64,
) -> Option<&Threshold> {
    first_met(thresholds.iter(), signal, true, capacity)
}

/// The hard or the soft threshold of a signal that is met first: of several the largest, with its minimum reclaim. A
/// signal has several hard ones where a soft threshold has no grace period, or where the pods' cgroup has its own beside
/// the node's.
pub(crate) fn first_met<'a>(
    thresholds: impl DoubleEndedIterator<Item = &'a Threshold>,
    signal: Signal,
    is_hard: bool,
    capacity: i64,
) -> Option<&'a Threshold> {
    let of_kind = thresholds.filter(|t| t.signal == signal && t.is_hard() == is_hard);
    let amounts = |t: &&Threshold| (t.amount(capacity), t.resolved_amount(capacity));
    // The first one where several are equal.
    of_kind.rev().max_by_key(amounts)
}

impl fmt::Display for ThresholdValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantity(quantity) => f.pad(&quantity.to_string()),
            Self::Percentage(share) => {
                // Four digits are more than configurations have and less than single precision blurs.
                let percent = format!("{:.4}", f64::from(*share) * 100.0);
                f.pad(&format!(
                    "{}%",
                    percent.trim_end_matches('0').trim_end_matches('.')
                ))
            }
            Self::Raised(raised) => f.pad(&format!("{}+{}", raised.base, raised.step)),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<{}", self.signal, self.value)?;
        if !self.is_hard() {
            write!(f, " for {:?}", self.grace_period)?;
        }
        match &self.min_reclaim {
            Some(reclaim) => write!(f, ", reclaims {reclaim} more"),
            None => Ok(()),
        }
    }
}

/// Reads the value of a threshold; `0%` and `100%`, in exactly these spellings, switch the threshold off.
///
/// # Errors
/// The reason why the kubelet would refuse it.
pub fn parse_threshold_value(text: &str) -> Result<Option<ThresholdValue>, String> {
    if matches!(text, "0%" | "100%") {
        return Ok(None);
    }
    let value = parse_value(text)?;
    match &value {
        ThresholdValue::Percentage(share) if *share < 0.0 => Err("must not be below 0%".to_owned()),
        ThresholdValue::Percentage(share) if *share > 1.0 => {
            Err("must not be above 100%".to_owned())
        }
        ThresholdValue::Quantity(quantity) if quantity.sign() <= 0 => {
            Err("must be positive".to_owned())
        }
        _ => Ok(Some(value)),
    }
}

/// Reads a quantity or a percentage; what range it may have depends on where it stands.
///
/// # Errors
/// The reason why it is neither.
pub fn parse_value(text: &str) -> Result<ThresholdValue, String> {
    if !text.ends_with('%') {
        return Quantity::from_str(text)
            .map(ThresholdValue::Quantity)
            .map_err(|e| e.to_string());
    }
    // The kubelet takes off all percent signs, then reads a single-precision number. It would also take NaN and
    // infinity, which compare with nothing; those are refused here.
    match text.trim_end_matches('%').parse::<f32>() {
        Ok(percent) if percent.is_finite() => Ok(ThresholdValue::Percentage(percent / 100.0)),
        _ => Err("is not a percentage".to_owned()),
    }
}

/// A threshold's value outside the kubelet's maps, with the same rules; one that is switched off is an error here.
impl FromStr for ThresholdValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_threshold_value(text)?.ok_or_else(|| "must be above 0% and below 100%".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: i64 = 1 << 20;

    #[test]
    fn of_several_hard_thresholds_the_largest_is_met_first() {
        let of = |value: &str, reclaim: Option<&str>, grace_period| Threshold {
            signal: Signal::MemoryAvailable,
            value: value.parse().unwrap(),
            grace_period: Duration::from_secs(grace_period),
            min_reclaim: reclaim.map(|text| text.parse().unwrap()),
        };
        let thresholds = [
            of("100Mi", Some("50Mi"), 0),
            of("10%", None, 0),
            of("100Mi", Some("60Mi"), 0),
            of("900Mi", None, 30),
            Threshold {
                signal: Signal::AllocatableMemoryAvailable,
                ..of("800Mi", None, 0)
            },
        ];
        let at = |mib| hard_threshold(&thresholds, Signal::MemoryAvailable, mib * MI);
        assert_eq!(at(500), Some(&thresholds[2]));
        assert_eq!(at(2000), Some(&thresholds[1]));
        let twice = [of("1Gi", None, 0), of("1024Mi", None, 0)];
        let first = hard_threshold(&twice, Signal::MemoryAvailable, 0).unwrap();
        assert!(std::ptr::eq(first, &twice[0]));
        assert_eq!(hard_threshold(&twice, Signal::PidAvailable, 0), None);
    }

    #[test]
    fn a_step_is_added_as_far_as_the_capacity_allows() {
        let raised = |base: &str, step: &str, most| {
            ThresholdValue::Raised(Box::new(RaisedValue {
                base: base.parse().unwrap(),
                step: step.parse().unwrap(),
                most,
                soft: None,
            }))
        };
        for (base, step, most, capacity, expected) in [
            ("100Mi", "100Mi", 0.1, 8192 * MI, 200 * MI),
            // Small nodes: a tenth, and never less than without the step.
            ("100Mi", "100Mi", 0.1, 1500 * MI, 150 * MI),
            ("100Mi", "100Mi", 0.1, 512 * MI, 100 * MI),
            ("100Mi", "100Mi", 0.1, 0, 100 * MI),
            // Shares are of the capacity.
            ("5%", "100Mi", 0.1, 10000 * MI, 600 * MI),
            ("10%", "5%", 0.25, 1000 * MI, 150 * MI),
            ("15%", "20%", 0.25, 1000 * MI, 250 * MI),
        ] {
            let value = raised(base, step, most);
            let text = value.to_string();
            assert_eq!(text, format!("{base}+{step}"));
            let found = value.amount(capacity).cast_signed();
            // Single precision.
            assert!((found - expected).abs() < 4096, "{text}: {found}");
            assert_eq!(value.quantity(capacity).value(), found, "{text}");
        }
        let whole = raised("100Mi", "100Mi", 0.1);
        assert_eq!(whole.quantity(8192 * MI).to_string(), "200Mi");
    }
}
