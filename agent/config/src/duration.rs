//! Parses durations as Go's `time.ParseDuration`, which the kubelet uses: `1m30s`, `500ms`, `1.5h`.

use std::time::Duration;

use evictd_engine::model::quantity::take_digits;

/// Why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a sequence of numbers with units.
    #[error("is not a duration such as 1m30s")]
    Invalid,
    /// A number without its unit.
    #[error("a unit is missing (ns, us, ms, s, m or h)")]
    MissingUnit,
    /// A unit that durations do not have.
    #[error("the unit is none of ns, us, ms, s, m and h")]
    UnknownUnit,
    /// More than 2^63 - 1 nanoseconds, about 292 years.
    #[error("the duration is too long")]
    Overflow,
    /// Below zero where that makes no sense.
    #[error("must not be negative")]
    Negative,
}

/// The largest absolute value, in nanoseconds: -2^63 ns is a duration, though 2^63 ns is not.
const LIMIT: u64 = 1 << 63;

/// Parses a duration into nanoseconds; it may be negative.
fn parse_nanos(text: &str) -> Result<i64, DurationError> {
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(DurationError::Invalid);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (part, tail) = parse_part(rest)?;
        total = total
            .checked_add(part)
            .filter(|t| *t <= LIMIT)
            .ok_or(DurationError::Overflow)?;
        rest = tail;
    }
    match (negative, i64::try_from(total)) {
        (true, Ok(nanos)) => Ok(-nanos),
        (true, Err(_)) => Ok(i64::MIN),
        (false, Ok(nanos)) => Ok(nanos),
        (false, Err(_)) => Err(DurationError::Overflow),
    }
}

/// Parses a duration that must not be negative.
///
/// # Errors
/// No duration as Go writes them, or a negative one.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let nanos = parse_nanos(text)?;
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| DurationError::Negative)
}

/// Parses one number with its unit into nanoseconds; also returns the rest of the text.
fn parse_part(text: &str) -> Result<(u64, &str), DurationError> {
    let (integer, rest) = take_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => take_digits(rest),
        None => ("", rest),
    };
    if integer.is_empty() && fraction.is_empty() {
        return Err(DurationError::Invalid);
    }
    let unit_length = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, tail) = rest.split_at(unit_length);
    let unit: u64 = match unit {
        "" => return Err(DurationError::MissingUnit),
        "ns" => 1,
        // The micro sign, the Greek letter mu, and the plain letter u.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(DurationError::UnknownUnit),
    };
    let mut whole: u64 = 0;
    for digit in integer.bytes() {
        let larger = whole
            .checked_mul(10)
            .and_then(|w| w.checked_add(u64::from(digit - b'0')));
        whole = larger
            .filter(|w| *w <= LIMIT)
            .ok_or(DurationError::Overflow)?;
    }
    let nanos = whole
        .checked_mul(unit)
        .filter(|n| *n <= LIMIT)
        .ok_or(DurationError::Overflow)?;
    let nanos = nanos.saturating_add(fraction_of(fraction, unit));
    if nanos > LIMIT {
        return Err(DurationError::Overflow);
    }
    Ok((nanos, tail))
}

/// `0.<digits>` of a unit, in nanoseconds, rounded down. Digits beyond a u64 are ignored.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let mut numerator: u64 = 0;
    let mut denominator: f64 = 1.0;
    for digit in digits.bytes() {
        let larger = numerator
            .checked_mul(10)
            .and_then(|n| n.checked_add(u64::from(digit - b'0')));
        let Some(larger) = larger.filter(|n| *n <= LIMIT) else {
            break;
        };
        numerator = larger;
        denominator *= 10.0;
    }
    (numerator as f64 * (unit as f64 / denominator)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        // R5
        for (text, nanos) in [
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            ("30s", 30_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5m", 90_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("500ms", 500_000_000),
            ("1h", 3_600_000_000_000),
            ("5\u{b5}s", 5_000),
            ("5\u{3bc}s", 5_000),
            ("-5s", -5_000_000_000),
            ("+5s", 5_000_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("0.100000000000000000000h", 360_000_000_000),
        ] {
            assert_eq!(parse_nanos(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        use DurationError::{Invalid, MissingUnit, Negative, Overflow, UnknownUnit};
        for (text, expected) in [
            ("", Invalid),
            ("-", Invalid),
            ("abc", Invalid),
            (".s", Invalid),
            ("90", MissingUnit),
            ("1h30", MissingUnit),
            ("1 s", UnknownUnit),
            ("1d", UnknownUnit),
            ("1s ", UnknownUnit),
            ("9223372036854775808ns", Overflow),
            ("3000000h", Overflow),
            ("99999999999999999999s", Overflow),
        ] {
            assert_eq!(parse_nanos(text), Err(expected), "{text:?}");
        }
        assert_eq!(parse("-5s"), Err(Negative));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-+0-9.hmsnu\u{b5}]{0,30}|.{0,20}") {
            let _ = parse(&text);
        }
    }
}
