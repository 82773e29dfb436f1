//! The parser of duration arguments: `500ms`, `30s`, `1m30s`, `24h`.

use std::time::Duration;

use crate::api::TtlMs;

/// Maximum duration: 30 days. All limits of requests are below it.
const MAX_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// Maximum length of the text.
const MAX_BYTES: usize = 32;

/// Parses one or more numbers, each with a unit: `ms`, `s`, `m`, `h` or `d`.
///
/// # Errors
///
/// The text is no duration, or the duration is above 30 days. The error is a message for the user.
pub fn parse(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected a number and a unit (ms, s, m, h or d), for instance 500ms, 30s or 1m30s";
    if text.is_empty() || text.len() > MAX_BYTES {
        return Err(EXPECTED.to_owned());
    }
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let unit_ms: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(EXPECTED.to_owned()),
        };
        let number: u64 = number.parse().map_err(|_| EXPECTED.to_owned())?;
        total = number.checked_mul(unit_ms).and_then(|ms| total.checked_add(ms)).unwrap_or(u64::MAX);
        if total > MAX_MS {
            return Err(format!("{text} is longer than the maximum of 30 days"));
        }
        rest = after;
    }
    Ok(Duration::from_millis(total))
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

/// Formats a duration in its two largest units.
pub fn show(ms: u64) -> String {
    let (seconds, minutes, hours, days) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    match ms {
        ..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{seconds}.{}s", ms % 1_000 / 100),
        60_000..3_600_000 => format!("{minutes}m{}s", seconds % 60),
        3_600_000..86_400_000 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_requires_units() {
        for (text, ms) in
            [("500ms", 500), ("30s", 30_000), ("1m30s", 90_000), ("24h", 86_400_000), ("0s", 0), ("30d", MAX_MS)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "30", "s", "-1s", "1.5s", "1 s", "1S", "1s ", "1sms", "1w", "٣s", "99999999999999999999s"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse("31d").expect_err("too long").contains("30 days"));
        assert!(parse("18446744073709551615d").expect_err("too long").contains("30 days"));
        assert!(parse(&"1ms".repeat(20)).is_err(), "too many parts");
    }

    #[test]
    fn parse_ttl_accepts_infinite() {
        assert_eq!(parse_ttl("infinite"), Ok(TtlMs::Infinite));
        assert_eq!(parse_ttl("2s"), Ok(TtlMs::Millis(2_000)));
        assert!(parse_ttl("forever").expect_err("no such word").contains("infinite"));
    }

    #[test]
    fn show_prints_the_two_largest_units() {
        for (ms, text) in [(7, "7ms"), (1_950, "1.9s"), (90_000, "1m30s"), (3_725_000, "1h2m"), (90_000_000, "1d1h")] {
            assert_eq!(show(ms), text);
        }
    }
}
