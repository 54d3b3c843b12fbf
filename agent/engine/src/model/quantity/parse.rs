//! Reading a quantity (`resource.ParseQuantity`).

use super::{Format, MAX_NANOS, Quantity, QuantityError, take_digits};

/// Number of decimal digits that an int64 can hold at most (apimachinery's `maxInt64Factors`).
const INT64_DIGITS: usize = 19;

/// The pieces of a quantity's text: leading zeros of the number are gone.
struct Pieces<'a> {
    negative: bool,
    integer: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

/// Factor that a suffix stands for: a power of ten or a power of two.
enum Scale {
    Ten(i32, Format),
    Two(u32),
}

pub(super) fn parse(text: &str) -> Result<Quantity, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Format);
    }
    if text == "0" {
        return Ok(Quantity {
            nanos: 0,
            format: Format::DecimalSi,
            text: Some(text.into()),
        });
    }
    let pieces = split(text)?;
    let scale = interpret(pieces.suffix).ok_or(QuantityError::Suffix)?;
    let keep = keeps_text(&pieces, &scale)?;
    let nanos = magnitude(&pieces, &scale);
    let format = match scale {
        // Less than one byte cannot be said in binary suffixes.
        Scale::Two(_) if nanos > 0 && nanos < super::NANOS => Format::DecimalSi,
        Scale::Two(_) => Format::BinarySi,
        Scale::Ten(_, format) => format,
    };
    Ok(Quantity {
        nanos: if pieces.negative { -nanos } else { nanos },
        format,
        text: keep.then(|| text.into()),
    })
}

/// Splits sign, number and suffix; the letters of a suffix are checked here, their sense in [`interpret`].
fn split(text: &str) -> Result<Pieces<'_>, QuantityError> {
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let number = unsigned.trim_start_matches('0');
    let (integer, rest) = take_digits(number);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => take_digits(rest),
        None => ("", rest),
    };
    let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if exponent.bytes().all(|b| b.is_ascii_digit()) {
        Ok(Pieces {
            negative,
            integer,
            fraction,
            suffix,
        })
    } else {
        Err(QuantityError::Format)
    }
}

fn interpret(suffix: &str) -> Option<Scale> {
    let decimal = |exponent| Some(Scale::Ten(exponent, Format::DecimalSi));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => Some(Scale::Two(10)),
        "Mi" => Some(Scale::Two(20)),
        "Gi" => Some(Scale::Two(30)),
        "Ti" => Some(Scale::Two(40)),
        "Pi" => Some(Scale::Two(50)),
        "Ei" => Some(Scale::Two(60)),
        _ => {
            let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            // Beyond this everything is the largest or the smallest quantity anyway.
            let exponent = exponent.clamp(-1_000_000, 1_000_000) as i32;
            Some(Scale::Ten(exponent, Format::DecimalExponent))
        }
    }
}

/// Whether apimachinery keeps the text for printing: it does where its int64 path is taken and a rough look finds
/// the text canonical. That path is also the one that refuses 19-digit numbers above 2^63 - 1.
fn keeps_text(pieces: &Pieces<'_>, scale: &Scale) -> Result<bool, QuantityError> {
    let integer = if pieces.integer.is_empty() {
        "0"
    } else {
        pieces.integer
    };
    let digits = integer.len() + pieces.fraction.len();
    match scale {
        Scale::Ten(exponent, _) => {
            let exponent = i64::from(*exponent) - pieces.fraction.len() as i64;
            if digits > INT64_DIGITS || exponent < -9 {
                return Ok(false);
            }
            let shifted = format!("{integer}{}", pieces.fraction);
            shifted.parse::<i64>().map_err(|_| QuantityError::Numeric)?;
            Ok(exponent % 3 == 0 && !shifted.ends_with("000") && !shifted.starts_with('0'))
        }
        Scale::Two(exponent) => {
            let fits = digits + (*exponent as usize * 3 / 10) < 15;
            if !fits || !pieces.fraction.is_empty() {
                return Ok(false);
            }
            let value: i64 = integer.parse().map_err(|_| QuantityError::Numeric)?;
            Ok(value & 7 != 0 && value.checked_mul(1 << exponent).is_some())
        }
    }
}

/// The amount without its sign, in 10^-9 units: fractions below that are rounded up, what is too large is cut.
fn magnitude(pieces: &Pieces<'_>, scale: &Scale) -> i128 {
    let mut mantissa: u128 = 0;
    let mut exponent: i64 = 9 - pieces.fraction.len() as i64;
    // Digits that a u128 cannot hold are dropped; `lost` remembers that they were not all zero.
    let mut lost = false;
    for digit in pieces.integer.bytes().chain(pieces.fraction.bytes()) {
        let digit = u128::from(digit - b'0');
        if mantissa < u128::MAX / 1_000 {
            mantissa = mantissa * 10 + digit;
        } else {
            lost |= digit != 0;
            exponent += 1;
        }
    }
    match scale {
        Scale::Ten(power, _) => exponent += i64::from(*power),
        Scale::Two(power) => {
            while mantissa.leading_zeros() <= *power {
                lost |= !mantissa.is_multiple_of(10);
                mantissa /= 10;
                exponent += 1;
            }
            mantissa <<= power;
        }
    }
    if mantissa == 0 {
        return i128::from(lost);
    }
    while exponent > 0 && mantissa <= MAX_NANOS.unsigned_abs() {
        mantissa *= 10;
        exponent -= 1;
    }
    while exponent < 0 && mantissa > 0 {
        lost |= !mantissa.is_multiple_of(10);
        mantissa /= 10;
        exponent += 1;
    }
    let rounded = mantissa.saturating_add(u128::from(lost));
    i128::try_from(rounded).unwrap_or(MAX_NANOS).min(MAX_NANOS)
}
