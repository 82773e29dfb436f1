//! Fencing tokens. A resource that stores the highest token can reject requests of earlier holders.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::types::InvalidValue;

/// Bits of the log index in the integer form. The term has the 15 bits above them.
const INDEX_BITS: u32 = 48;
const MAX_INDEX: u64 = (1 << INDEX_BITS) - 1;
const MAX_TERM: u64 = (1 << 15) - 1;

/// The Raft term and log index of the entry that granted a lease.
///
/// Each new grant of a name has a higher token than all earlier grants of that name. A renewal, or another acquire by
/// the holder, keeps the token.
///
/// Tokens are compared by their integer form, so a token from text or an integer equals the granted one. In JSON a token
/// is the integer form as a decimal string.
#[derive(Clone, Copy, Debug)]
pub struct FencingToken {
    pub(crate) term: u64,
    pub(crate) index: u64,
}

/// The parts of a token in the log and between nodes.
#[derive(Serialize, Deserialize)]
struct Parts {
    term: u64,
    index: u64,
}

#[cfg(feature = "testing")]
#[doc(hidden)]
impl FencingToken {
    pub const fn new(term: u64, index: u64) -> FencingToken {
        FencingToken { term, index }
    }

    pub const fn term(self) -> u64 {
        self.term
    }

    pub const fn index(self) -> u64 {
        self.index
    }
}

impl FencingToken {
    /// The integer form: 63 bits, so that it fits a SQL `BIGINT`. It has the same order as the tokens of a cluster.
    ///
    /// The term saturates at 15 bits. The order survives saturation, because the index alone rises within one cluster
    /// history.
    pub fn as_u64(self) -> u64 {
        debug_assert!(self.index <= MAX_INDEX, "log index {} has more than 48 bits", self.index);
        (self.term.min(MAX_TERM) << INDEX_BITS) | self.index.min(MAX_INDEX)
    }

    /// The integer form as a parameter of type SQL `BIGINT`. Never negative.
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.as_u64()).expect("the integer form has 63 bits")
    }

    /// The integer form as 20 digits with leading zeros, for stores that compare text.
    pub fn padded(self) -> String {
        format!("{:020}", self.as_u64())
    }
}

impl FencingToken {
    /// The parts of the integer form.
    fn parts(self) -> (u64, u64) {
        (self.term.min(MAX_TERM), self.index)
    }
}

impl PartialEq for FencingToken {
    fn eq(&self, other: &FencingToken) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for FencingToken {}

impl PartialOrd for FencingToken {
    fn partial_cmp(&self, other: &FencingToken) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FencingToken {
    fn cmp(&self, other: &FencingToken) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl Hash for FencingToken {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_u64())
    }
}

/// Reads the integer form. The result has the saturated term.
impl TryFrom<u64> for FencingToken {
    type Error = InvalidValue;

    fn try_from(value: u64) -> Result<FencingToken, InvalidValue> {
        if value > i64::MAX as u64 {
            return Err(InvalidValue::Token(value.to_string()));
        }
        Ok(FencingToken { term: value >> INDEX_BITS, index: value & MAX_INDEX })
    }
}

/// Reads the integer form in decimal digits. The result has the saturated term.
impl FromStr for FencingToken {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<FencingToken, InvalidValue> {
        let all_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(value) if all_digits => FencingToken::try_from(value),
            _ => Err(InvalidValue::Token(text.to_string())),
        }
    }
}

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let FencingToken { term, index } = *self;
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            Parts { term, index }.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FencingToken, D::Error> {
        if deserializer.is_human_readable() {
            let text = Cow::<'de, str>::deserialize(deserializer)?;
            return text.parse().map_err(serde::de::Error::custom);
        }
        let Parts { term, index } = Parts::deserialize(deserializer)?;
        Ok(FencingToken { term, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_form_keeps_the_order_and_fits_a_signed_bigint() {
        let rising = [(0, 1), (0, 2), (1, 1), (1, MAX_INDEX), (2, 0), (MAX_TERM, 7), (MAX_TERM + 1, 8), (u64::MAX, 9)];
        let values: Vec<u64> = rising.iter().map(|&(term, index)| FencingToken { term, index }.as_u64()).collect();
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{values:?}");
        assert!(values.iter().all(|&value| value <= i64::MAX as u64));
        let granted = FencingToken { term: 1 << 50, index: 7 };
        assert_eq!(FencingToken::try_from(granted.as_u64()), Ok(granted), "a restored cluster has terms above 15 bits");
    }

    #[test]
    fn decimal_form_round_trips_and_rejects_other_text() {
        let token = FencingToken { term: 7, index: 42 };
        assert_eq!(token.to_string().parse(), Ok(token));
        assert_eq!(token.padded().parse(), Ok(token));
        assert_eq!(FencingToken::try_from(token.as_u64()), Ok(token));
        assert_eq!(token.as_i64().to_string(), token.to_string());
        assert!(FencingToken::try_from(1 << 63).is_err());
        for bad in ["", "+1", "-1", " 1", "1.0", "0x1", "9223372036854775808", "99999999999999999999999"] {
            assert!(bad.parse::<FencingToken>().is_err(), "{bad:?}");
        }
    }
}
