//! Durations of arguments and tables, in the format of the crate humantime: `500ms`, `30s`, `1m 30s`.

use std::time::Duration;

use crate::api::TtlMs;

/// Maximum duration of a request, in days. All limits of requests are below it.
const MAX_DAYS: u32 = 30;
/// Maximum time until an access token expires, in days: 100 years.
const MAX_TOKEN_DAYS: u32 = 36_525;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum length of the text, in bytes.
const MAX_BYTES: usize = 32;
/// Maximum length of a number. With longer ones, humantime can overflow and panic.
const MAX_DIGITS: usize = 10;
const EXPECTED: &str = "expected a number and a unit (ms, s, m, h or d), for instance 500ms, 30s or 1m30s";

/// Parses one or more numbers, each with a unit.
///
/// # Errors
///
/// The text is no duration, or the duration is above 30 days or no whole number of milliseconds. The error is a message
/// for the user.
pub fn parse(text: &str) -> Result<Duration, String> {
    parse_within(text, MAX_DAYS)
}

/// As [`parse`], up to 100 years: the time until an access token expires.
pub fn parse_token_ttl(text: &str) -> Result<Duration, String> {
    parse_within(text, MAX_TOKEN_DAYS)
}

fn parse_within(text: &str, max_days: u32) -> Result<Duration, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("the duration has more than {MAX_BYTES} bytes: {EXPECTED}"));
    }
    let is_too_long = || format!("{text} is longer than the maximum of {max_days} days");
    if text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > MAX_DIGITS) {
        return Err(is_too_long());
    }
    // humantime ignores whitespace, also between two digits of one number.
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_digit = |c: char| c.is_ascii_digit();
    if words.windows(2).any(|pair| pair[0].ends_with(is_digit) && pair[1].starts_with(is_digit)) {
        return Err(EXPECTED.to_owned());
    }
    let duration = humantime::parse_duration(text).map_err(|error| format!("{error}: {EXPECTED}"))?;
    if duration > DAY * max_days {
        return Err(is_too_long());
    }
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(format!("{text} is not a whole number of milliseconds"));
    }
    Ok(duration)
}

/// Parses a duration or `infinite`.
///
/// # Errors
///
/// The text is neither. The error is a message for the user.
pub fn parse_ttl(text: &str) -> Result<TtlMs, String> {
    match text {
        "infinite" => Ok(TtlMs::Infinite),
        text => parse(text)
            .map(|ttl| TtlMs::Millis(ttl.as_millis() as u64))
            .map_err(|error| format!("{error}, or `infinite`")),
    }
}

/// Formats a duration, rounded down to its second largest unit.
pub fn show(ms: u64) -> String {
    let unit_ms = match ms {
        ..1_000 => 1,
        1_000..60_000 => 100,
        60_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    humantime::format_duration(Duration::from_millis(ms - ms % unit_ms)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_requires_units() {
        for (text, ms) in
            [("500ms", 500), ("30s", 30_000), ("1m30s", 90_000), ("24h", 86_400_000), ("0s", 0), ("30d", 2_592_000_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for (text, ms) in [("1m 30s", 90_000), ("1.5s", 1_500), ("2hours", 7_200_000), ("1w", 604_800_000), ("0", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in [
            "",
            "30",
            "s",
            "-1s",
            "1S",
            "1sms",
            "٣s",
            "99999999999999999999s",
            "1.5ms",
            "1ns",
            "1 30s",
            "1844674407 3709551615s1000ms",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn access_tokens_expire_within_100_years() {
        assert_eq!(parse_token_ttl("36525d"), Ok(DAY * 36_525));
        assert!(parse_token_ttl("36526d").expect_err("too long").contains("36525 days"));
    }

    #[test]
    fn parse_accepts_at_most_30_days() {
        for long in ["31d", "30d1ms", "18446744073709551615d", "18446744073709551615s1000ms", "9999999999y"] {
            assert!(parse(long).expect_err("too long").contains("30 days"), "{long}");
        }
        assert!(parse(&"1ms".repeat(20)).is_err(), "too many parts");
    }

    #[test]
    fn parse_ttl_accepts_infinite() {
        assert_eq!(parse_ttl("infinite"), Ok(TtlMs::Infinite));
        assert_eq!(parse_ttl("2s"), Ok(TtlMs::Millis(2_000)));
        assert!(parse_ttl("forever").expect_err("no such word").contains("infinite"));
    }

    #[test]
    fn show_rounds_down_to_the_second_largest_unit() {
        for (ms, text) in [
            (0, "0s"),
            (7, "7ms"),
            (1_950, "1s 900ms"),
            (90_500, "1m 30s"),
            (3_725_000, "1h 2m"),
            (90_000_000, "1day 1h"),
            (86_400_000, "1day"),
        ] {
            assert_eq!(show(ms), text);
        }
    }
}
