use proptest::prelude::*;

use super::{Quantity, QuantityError};

fn value(text: &str) -> i64 {
    text.parse::<Quantity>()
        .unwrap_or_else(|e| panic!("{text}: {e}"))
        .value()
}

fn printed(text: &str) -> String {
    text.parse::<Quantity>()
        .unwrap_or_else(|e| panic!("{text}: {e}"))
        .to_string()
}

#[test]
fn suffixes_multiply() {
    // R1
    for (text, expected) in [
        ("0", 0),
        ("12", 12),
        ("1Ki", 1 << 10),
        ("1Mi", 1 << 20),
        ("1.5Gi", 3 << 29),
        (".5Gi", 1 << 29),
        ("+1Gi", 1 << 30),
        ("-1Gi", -(1 << 30)),
        ("1Ti", 1 << 40),
        ("1Pi", 1 << 50),
        ("1Ei", 1 << 60),
        ("5k", 5_000),
        ("500M", 500_000_000),
        ("2E", 2_000_000_000_000_000_000),
        ("1e3", 1_000),
        ("1E3", 1_000),
        ("12e-1", 2),
        ("1.", 1),
        ("007", 7),
    ] {
        assert_eq!(value(text), expected, "{text}");
    }
}

#[test]
fn fractions_are_rounded_away_from_zero() {
    for (text, expected) in [
        ("250m", 1),
        ("1.5", 2),
        ("-1.5", -2),
        ("1n", 1),
        ("0.1n", 1),
        ("1e-30", 1),
        ("0.5Ki", 512),
    ] {
        assert_eq!(value(text), expected, "{text}");
    }
    assert_eq!("1500m".parse::<Quantity>().map(|q| q.floor()), Ok(1));
    assert_eq!("-1".parse::<Quantity>().map(|q| q.floor()), Ok(0));
}

#[test]
fn what_is_too_large_is_cut() {
    for text in [
        "8Ei",
        "9223372036854775807",
        "99999999999999999999",
        "1e40",
        "123456789012345678901234567890123456789012345",
        "100E",
    ] {
        assert_eq!(value(text), i64::MAX, "{text}");
    }
    assert_eq!(value("-9Ei"), -i64::MAX);
}

#[test]
fn what_kubernetes_refuses_is_refused() {
    use QuantityError::{Format, Numeric, Suffix};
    for (text, expected) in [
        ("", Format),
        ("abc", Format),
        ("1Gi ", Format),
        (" 1Gi", Format),
        ("10 %", Format),
        ("1.2.3", Format),
        ("--1", Suffix),
        ("1Gib", Format),
        ("١", Format),
        ("1i", Suffix),
        ("1K", Suffix),
        ("1mi", Suffix),
        ("1e", Suffix),
        ("1em", Suffix),
        ("1ee3", Suffix),
        ("9999999999999999999", Numeric),
    ] {
        assert_eq!(text.parse::<Quantity>(), Err(expected), "{text:?}");
    }
}

#[test]
fn printing_follows_apimachinery() {
    for (text, expected) in [
        ("514Mi", "514Mi"),
        ("1024Mi", "1Gi"),
        ("1000Mi", "1000Mi"),
        ("1.5Gi", "1536Mi"),
        ("500M", "500M"),
        ("5000k", "5M"),
        ("1000000", "1M"),
        ("1e3", "1e3"),
        ("1.5", "1500m"),
        ("0.5Ki", "512"),
        ("0.5", "500m"),
        // apimachinery looks only roughly before it keeps a text, so these stay as they were written.
        ("+1Gi", "+1Gi"),
        ("1.500", "1.500"),
        ("0Mi", "0"),
        ("0", "0"),
    ] {
        assert_eq!(printed(text), expected, "{text}");
    }
    assert_eq!(Quantity::bytes(1_114_112).to_string(), "1088Ki");
    assert_eq!(Quantity::bytes(2_125_707_889).to_string(), "2125707889");
    assert_eq!(Quantity::bytes(1023).to_string(), "1023");
}

#[test]
fn adding_takes_over_the_format_of_the_first_amount() {
    let mut sum = Quantity::ZERO;
    for text in ["1Gi", "512Mi", "512Mi"] {
        sum.add(&text.parse().expect("a quantity"));
    }
    assert_eq!(sum.to_string(), "2Gi");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[-+0-9.eEinumkKMGTP ]{0,60}|.{0,20}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let _ = (quantity.value(), quantity.floor(), quantity.to_string());
        }
    }

    #[test]
    fn printing_and_reading_again_keeps_the_amount(units in any::<i64>(), suffix in "(|k|M|Ki|Mi|m|u|n|e3)") {
        let quantity: Quantity = format!("{}{suffix}", units / 4096).parse().expect("a quantity");
        let mut canonical = Quantity::ZERO;
        canonical.add(&quantity);
        prop_assert_eq!(canonical.to_string().parse::<Quantity>(), Ok(quantity));
    }
}
