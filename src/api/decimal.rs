//! Serializes a fencing token as a decimal string.

use serde::{Deserialize, Deserializer, Serializer};

use crate::token::FencingToken;

pub fn serialize<S: Serializer>(token: &FencingToken, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(token)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FencingToken, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

/// For optional fields.
pub mod optional {
    use super::*;

    pub fn serialize<S: Serializer>(token: &Option<FencingToken>, serializer: S) -> Result<S::Ok, S::Error> {
        match token {
            Some(token) => super::serialize(token, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FencingToken>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }
}
