//! The ttl in requests and responses.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::integer;
use crate::types::{InvalidValue, Ttl, ceil_ms};

/// JSON form of an infinite ttl.
pub(super) const INFINITE: &str = "infinite";

/// A ttl: an integer of milliseconds, or the string `infinite`. The node checks that of a request against the cluster's
/// bounds later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TtlMs {
    /// A finite ttl in milliseconds.
    Millis(u64),
    /// Until a release, a revoke or a hand-over.
    Infinite,
}

impl TtlMs {
    /// The milliseconds. `None`: infinite.
    pub fn as_millis(self) -> Option<u64> {
        match self {
            TtlMs::Millis(ms) => Some(ms),
            TtlMs::Infinite => None,
        }
    }

    /// Reads a field that can be absent but not `null`: a client could mean the default by it, or an infinite ttl.
    pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TtlMs>, D::Error> {
        TtlMs::deserialize(deserializer).map(Some)
    }
}

impl TryFrom<TtlMs> for Ttl {
    type Error = InvalidValue;

    fn try_from(ttl: TtlMs) -> Result<Ttl, InvalidValue> {
        match ttl {
            TtlMs::Millis(ms) => Ttl::millis(ms),
            TtlMs::Infinite => Ok(Ttl::INFINITE),
        }
    }
}

/// Rounds up to whole milliseconds.
impl From<Duration> for TtlMs {
    fn from(ttl: Duration) -> TtlMs {
        TtlMs::Millis(ceil_ms(ttl))
    }
}

impl From<Ttl> for TtlMs {
    fn from(ttl: Ttl) -> TtlMs {
        ttl.as_millis().map_or(TtlMs::Infinite, TtlMs::Millis)
    }
}

impl Serialize for TtlMs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            TtlMs::Millis(ms) => serializer.serialize_u64(*ms),
            TtlMs::Infinite => serializer.serialize_str(INFINITE),
        }
    }
}

impl<'de> Deserialize<'de> for TtlMs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TtlMs, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = TtlMs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer of milliseconds or \"infinite\"")
            }

            fn visit_u64<E: serde::de::Error>(self, ms: u64) -> Result<TtlMs, E> {
                Ok(TtlMs::Millis(ms))
            }

            fn visit_f64<E: serde::de::Error>(self, ms: f64) -> Result<TtlMs, E> {
                let integer = integer::from_float(ms).map(TtlMs::Millis);
                integer.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Float(ms), &self))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TtlMs, E> {
                match text {
                    INFINITE => Ok(TtlMs::Infinite),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_is_milliseconds_or_infinite() {
        assert_eq!(serde_json::from_str::<TtlMs>("1500").expect("a number"), TtlMs::Millis(1500));
        assert_eq!(serde_json::from_str::<TtlMs>("1500.0").expect("the same number"), TtlMs::Millis(1500));
        assert_eq!(serde_json::from_str::<TtlMs>("\"infinite\"").expect("the word"), TtlMs::Infinite);
        for bad in ["null", "-1", "1.5", "\"1500\"", "\"Infinite\"", "true", "[]", "1e300"] {
            let error = serde_json::from_str::<TtlMs>(bad).expect_err(bad).to_string();
            assert!(error.contains("milliseconds"), "{bad}: {error}");
        }
        assert_eq!(serde_json::to_string(&[TtlMs::Millis(7), TtlMs::Infinite]).expect("plain"), "[7,\"infinite\"]");
    }
}
