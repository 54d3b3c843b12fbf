//! Kubernetes' `resource.Quantity`: numbers such as `1.5Gi`, `500M`, `250m` or `12e6`.
//!
//! The grammar, the rounding and the way a quantity is written back are those of
//! `k8s.io/apimachinery/pkg/api/resource`, because thresholds are read and eviction messages are printed with them.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

use crate::units::signed;

mod parse;

/// One unit of a quantity in the smallest step that Kubernetes can express.
const NANOS: i128 = 1_000_000_000;

/// The largest magnitude a quantity can have: 2^63 - 1 units. What is larger is cut to this.
const MAX_NANOS: i128 = i64::MAX as i128 * NANOS;

/// Splits a text behind the ASCII digits that it begins with.
pub fn take_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// The family of suffixes a quantity was written with; it is written back with the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `k`, `M`, `G`... powers of 1000, and `m`, `u`, `n` below one.
    DecimalSi,
    /// `Ki`, `Mi`, `Gi`... powers of 1024.
    BinarySi,
    /// `e3`, `e6`...
    DecimalExponent,
}

/// A fixed-point number: exact down to 10^-9 units, at most 2^63 - 1 units in magnitude.
///
/// Equality and order look at the amount only, not at the way it was written.
#[derive(Clone, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
    /// The text as given, kept in the cases in which apimachinery keeps it: such a text is printed again unchanged.
    text: Option<Box<str>>,
}

/// Why a text is not a quantity; the wording follows apimachinery's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not of the form number, suffix.
    #[error(
        "is not a quantity: a number with an optional suffix such as Ki, Mi, Gi, k, M, G, m or e3"
    )]
    Format,
    /// The number has as many digits as fit an int64 but is larger than one.
    #[error("the numeric part of the quantity does not fit")]
    Numeric,
    /// The suffix is none that Kubernetes knows.
    #[error(
        "the suffix is none that quantities have (Ki, Mi, Gi, Ti, Pi, Ei, n, u, m, k, M, G, T, P, E, e<N>)"
    )]
    Suffix,
}

impl Quantity {
    /// Quantity zero; adding to it takes over the other's format.
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::DecimalSi,
        text: None,
    };

    /// A whole number of units, to be printed in `format`.
    pub fn from_units(units: i64, format: Format) -> Self {
        Self {
            nanos: i128::from(units) * NANOS,
            format,
            text: None,
        }
    }

    /// A number of bytes, printed with binary suffixes as the kubelet prints usage. Above 2^63 - 1 it is cut (the
    /// kubelet's conversion to int64 would turn it negative).
    pub fn bytes(bytes: u64) -> Self {
        Self::from_units(signed(bytes), Format::BinarySi)
    }

    /// The amount in whole units, rounded away from zero (`Quantity.Value`).
    pub fn value(&self) -> i64 {
        let whole = self.nanos / NANOS;
        let rounded = whole
            + if self.nanos % NANOS == 0 {
                0
            } else {
                self.nanos.signum()
            };
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }

    /// The amount in whole units, rounded down, never below zero: for a whole number n, `n > quantity` holds exactly
    /// if `n > quantity.floor()`, so that comparisons with counters stay exact without fractions.
    pub fn floor(&self) -> u64 {
        u64::try_from(self.nanos.div_euclid(NANOS)).unwrap_or(0)
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        match self.nanos.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Whether the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Adds, saturating; zero takes over the format of what is added (`Quantity.Add`).
    pub fn add(&mut self, other: &Self) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.nanos = self
            .nanos
            .saturating_add(other.nanos)
            .clamp(-MAX_NANOS, MAX_NANOS);
        self.text = None;
    }

    /// Writes the canonical form: the largest suffix of the quantity's family that leaves no fraction.
    fn write_canonical(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        let whole = self.nanos % NANOS == 0;
        let small = self.nanos.unsigned_abs() < 1024 * NANOS.unsigned_abs();
        match self.format {
            Format::BinarySi if whole && !small => {
                const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
                let (mantissa, step) = strip_factors(self.nanos / NANOS, 1024, SUFFIXES.len() - 1);
                write!(f, "{mantissa}{}", SUFFIXES[step])
            }
            Format::BinarySi | Format::DecimalSi => {
                const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
                let (mantissa, step) = strip_factors(self.nanos, 1000, SUFFIXES.len() - 1);
                write!(f, "{mantissa}{}", SUFFIXES[step])
            }
            Format::DecimalExponent => {
                let (mantissa, step) = strip_factors(self.nanos, 1000, 12);
                match step as i32 * 3 - 9 {
                    0 => write!(f, "{mantissa}"),
                    exponent => write!(f, "{mantissa}e{exponent}"),
                }
            }
        }
    }
}

/// Divides by `factor` as long as nothing is lost, at most `limit` times; returns what is left and how often.
fn strip_factors(mut number: i128, factor: i128, limit: usize) -> (i128, usize) {
    let mut times = 0;
    while times < limit && number % factor == 0 {
        number /= factor;
        times += 1;
    }
    (number, times)
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => self.write_canonical(f),
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        parse::parse(text)
    }
}

/// Serializes the quantity as it is printed.
impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A text, or a plain number (`Quantity.UnmarshalJSON`); null is zero.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        Quantity::from_str(text.trim()).map_err(|e| E::custom(format!("{text:?}: {e}")))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
        self.visit_str(&format!("{number:?}"))
    }

    fn visit_unit<E>(self) -> Result<Quantity, E> {
        Ok(Quantity::ZERO)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

#[cfg(test)]
mod tests;
