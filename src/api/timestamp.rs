//! Wall-clock times, for display.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The last millisecond of the year 9999, and of RFC 3339.
const MAX_MS: u64 = 253_402_300_799_999;

/// Milliseconds since the Unix epoch, as text `2026-01-31T12:00:00.000Z`. For display only, except the expiry of an access
/// token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Times after the year 9999 become its last millisecond.
    pub fn from_millis(ms: u64) -> Timestamp {
        Timestamp(ms.min(MAX_MS))
    }

    /// Milliseconds since the Unix epoch.
    pub fn as_millis(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(self.0)).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)?;
        let since = time.duration_since(UNIX_EPOCH).map_err(serde::de::Error::custom)?;
        Ok(Timestamp::from_millis(since.as_millis() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_round_trips_as_utc_with_milliseconds() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            let time = Timestamp::from_millis(ms);
            assert_eq!(time.to_string(), text);
            assert_eq!(serde_json::from_str::<Timestamp>(&format!("{text:?}")).expect("a valid timestamp"), time);
        }
        assert!(serde_json::from_str::<Timestamp>("\"yesterday\"").is_err());
    }
}
