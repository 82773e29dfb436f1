//! Validated names and quantities, and the states of leases. Constructors and deserialization check the bounds, so later code need not.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

mod members;
pub(crate) mod open_enum;
mod states;

pub use members::MemberChange;
pub use states::{Consistency, DiskState, GrantCause, LeaseState, LostReason, MemberState, Right, Role, StateFilter};

/// A node's id in its cluster. A cluster never reuses an id, even after it removes the node.
pub type NodeId = u64;

/// Cluster time in milliseconds: replicated, never decreasing, and independent of wall clocks.
pub type ClusterMs = u64;

/// Longest lease name, in bytes.
pub const MAX_NAME_BYTES: usize = 200;
/// Longest holder id, in bytes.
pub const MAX_HOLDER_BYTES: usize = 200;
/// Longest name of a principal or of a role, in bytes.
pub const MAX_ACCESS_NAME_BYTES: usize = 64;
/// Longest reason for a revoke, in bytes.
pub const MAX_REASON_BYTES: usize = 500;
/// Most entries in a lease's metadata.
pub const MAX_METADATA_ENTRIES: usize = 32;
/// Most bytes in a lease's metadata, keys and values together.
pub const MAX_METADATA_BYTES: usize = 4096;
/// Highest metadata version in an update: 2^53 - 1, the largest integer that every JSON reader represents exactly.
#[cfg(feature = "server")]
pub(crate) const MAX_METADATA_VERSION: u64 = (1 << 53) - 1;
/// Shortest ttl, in milliseconds.
pub const MIN_TTL_MS: u64 = 100;
/// Longest finite ttl, in milliseconds: 24 hours.
pub const MAX_TTL_MS: u64 = 24 * 60 * 60 * 1000;
/// Longest lock delay, in milliseconds: 24 hours.
pub const MAX_LOCK_DELAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Longest wait for a held lease, in milliseconds: 24 hours.
pub const MAX_WAIT_MS: u64 = 24 * 60 * 60 * 1000;
/// Most holders of one counted lease.
pub const MAX_LIMIT: u32 = 10_000;
/// Largest difference between two clock rates that a lease manager can assume, in thousandths.
pub const MAX_DRIFT_PERMILLE: u32 = 500;

/// Prefix of the metadata keys that the library writes.
#[cfg(feature = "client")]
pub(crate) const OWN_KEYS: &str = "tenure.";

/// A duration in whole milliseconds, rounded up so that no wait ends early.
pub(crate) fn ceil_ms(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX)
}

/// A lease's name: `[A-Za-z0-9][A-Za-z0-9._:/-]*`, at most [`MAX_NAME_BYTES`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(SmolStr);

/// The id of a holder: 1 to [`MAX_HOLDER_BYTES`] bytes of the caller's choice, without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(SmolStr);

/// The name of a principal or of a role: `[A-Za-z0-9][A-Za-z0-9._:@-]*`, at most [`MAX_ACCESS_NAME_BYTES`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "server",
    derive(utoipa::ToSchema),
    schema(value_type = String, max_length = 64, pattern = "^[A-Za-z0-9][A-Za-z0-9._:@-]*$")
)]
pub struct AccessName(SmolStr);

/// A lease's metadata: keys and values of the holder, at most [`MAX_METADATA_ENTRIES`] and [`MAX_METADATA_BYTES`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Metadata(Option<Arc<BTreeMap<String, String>>>);

/// Lifetime of a grant without a renewal: [`MIN_TTL_MS`] to [`MAX_TTL_MS`] milliseconds, or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Option<u64>", into = "Option<u64>")]
pub struct Ttl(Option<u64>);

impl LeaseName {
    /// Checks and creates a name.
    ///
    /// # Errors
    ///
    /// [`InvalidValue::TooLong`] or [`InvalidValue::Name`].
    pub fn new(name: impl AsRef<str>) -> Result<LeaseName, InvalidValue> {
        let name = name.as_ref();
        let starts_well = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let all_allowed = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/-".contains(&b));
        if name.len() > MAX_NAME_BYTES {
            return Err(InvalidValue::TooLong { what: "lease name", bytes: name.len(), max: MAX_NAME_BYTES });
        }
        if !starts_well || !all_allowed {
            return Err(InvalidValue::Name(name.to_string()));
        }
        Ok(LeaseName(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl HolderId {
    /// Checks and creates a holder id.
    ///
    /// # Errors
    ///
    /// [`InvalidValue::TooLong`] or [`InvalidValue::Holder`].
    pub fn new(holder: impl AsRef<str>) -> Result<HolderId, InvalidValue> {
        let holder = holder.as_ref();
        if holder.len() > MAX_HOLDER_BYTES {
            return Err(InvalidValue::TooLong { what: "holder", bytes: holder.len(), max: MAX_HOLDER_BYTES });
        }
        if holder.is_empty() || holder.chars().any(char::is_control) {
            return Err(InvalidValue::Holder);
        }
        Ok(HolderId(holder.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AccessName {
    /// Checks and creates a name.
    ///
    /// # Errors
    ///
    /// [`InvalidValue::TooLong`] or [`InvalidValue::AccessName`].
    pub fn new(name: impl AsRef<str>) -> Result<AccessName, InvalidValue> {
        let name = name.as_ref();
        let starts_well = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let all_allowed = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:@-".contains(&b));
        if name.len() > MAX_ACCESS_NAME_BYTES {
            let what = "name of a principal or role";
            return Err(InvalidValue::TooLong { what, bytes: name.len(), max: MAX_ACCESS_NAME_BYTES });
        }
        if !starts_well || !all_allowed {
            return Err(InvalidValue::AccessName(name.to_string()));
        }
        Ok(AccessName(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Metadata {
    /// Checks and creates metadata.
    ///
    /// # Errors
    ///
    /// [`InvalidValue::Metadata`] if there are too many entries or bytes.
    pub fn new(entries: BTreeMap<String, String>) -> Result<Metadata, InvalidValue> {
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        if entries.len() > MAX_METADATA_ENTRIES || bytes > MAX_METADATA_BYTES {
            return Err(InvalidValue::Metadata { entries: entries.len(), bytes });
        }
        Ok(Metadata((!entries.is_empty()).then(|| Arc::new(entries))))
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Size of keys and values together, in bytes.
    pub fn bytes(&self) -> usize {
        self.iter().map(|(key, value)| key.len() + value.len()).sum()
    }

    /// Adds entries of the library, whose keys start with [`OWN_KEYS`].
    ///
    /// # Errors
    ///
    /// [`InvalidValue::Metadata`] if the result exceeds its bounds, [`InvalidValue::ReservedKey`] if `self` has a key
    /// with this prefix.
    #[cfg(feature = "client")]
    pub(crate) fn with_own<const N: usize>(&self, own: [(&str, String); N]) -> Result<Metadata, InvalidValue> {
        if let Some((key, _)) = self.iter().find(|(key, _)| key.starts_with(OWN_KEYS)) {
            return Err(InvalidValue::ReservedKey(key.to_owned()));
        }
        let mut entries = BTreeMap::from(self.clone());
        entries.extend(own.map(|(key, value)| (key.to_owned(), value)));
        Metadata::new(entries)
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|entries| entries.iter()).map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

impl Ttl {
    /// Until a release, a revoke or a hand-over.
    pub const INFINITE: Ttl = Ttl(None);

    /// A finite ttl in milliseconds.
    ///
    /// # Errors
    ///
    /// [`InvalidValue::Ttl`] outside [`MIN_TTL_MS`] to [`MAX_TTL_MS`].
    pub fn millis(ms: u64) -> Result<Ttl, InvalidValue> {
        if !(MIN_TTL_MS..=MAX_TTL_MS).contains(&ms) {
            return Err(InvalidValue::Ttl(ms));
        }
        Ok(Ttl(Some(ms)))
    }

    /// Milliseconds, or `None` for an infinite ttl.
    pub fn as_millis(self) -> Option<u64> {
        self.0
    }

    /// The last millisecond of cluster time before expiry, for a grant or renewal at `now`; `None` for an infinite ttl.
    /// The lease expires one millisecond later, because `now` is rounded down.
    pub fn deadline(self, now: ClusterMs) -> Option<ClusterMs> {
        self.as_millis().map(|ms| now.saturating_add(ms))
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for AccessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ms) => write!(f, "{ms}ms"),
            None => f.write_str("infinite"),
        }
    }
}

/// As text, without a copy on the heap.
macro_rules! serialize_as_text {
    ($($type:ident),*) => {
        $(impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                deserializer.deserialize_str(TextVisitor(PhantomData))
            }
        })*
    };
}

serialize_as_text!(LeaseName, HolderId, AccessName);

struct TextVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err = InvalidValue>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Lets a map with names as keys be searched by text, for example by prefix. Names and text have the same order.
impl Borrow<str> for LeaseName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Lets functions accept a name as text or as a `LeaseName`.
impl AsRef<str> for LeaseName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for AccessName {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<AccessName, InvalidValue> {
        AccessName::new(text)
    }
}

impl FromStr for LeaseName {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<LeaseName, InvalidValue> {
        LeaseName::new(text)
    }
}

impl FromStr for HolderId {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<HolderId, InvalidValue> {
        HolderId::new(text)
    }
}

impl TryFrom<String> for LeaseName {
    type Error = InvalidValue;
    fn try_from(text: String) -> Result<LeaseName, InvalidValue> {
        LeaseName::new(text)
    }
}

impl TryFrom<String> for AccessName {
    type Error = InvalidValue;
    fn try_from(text: String) -> Result<AccessName, InvalidValue> {
        AccessName::new(text)
    }
}

impl From<AccessName> for String {
    fn from(name: AccessName) -> String {
        name.0.to_string()
    }
}

impl TryFrom<String> for HolderId {
    type Error = InvalidValue;
    fn try_from(text: String) -> Result<HolderId, InvalidValue> {
        HolderId::new(text)
    }
}

impl TryFrom<BTreeMap<String, String>> for Metadata {
    type Error = InvalidValue;
    fn try_from(entries: BTreeMap<String, String>) -> Result<Metadata, InvalidValue> {
        Metadata::new(entries)
    }
}

impl TryFrom<Option<u64>> for Ttl {
    type Error = InvalidValue;
    fn try_from(ms: Option<u64>) -> Result<Ttl, InvalidValue> {
        ms.map_or(Ok(Ttl::INFINITE), Ttl::millis)
    }
}

impl From<LeaseName> for String {
    fn from(name: LeaseName) -> String {
        name.0.to_string()
    }
}

impl From<HolderId> for String {
    fn from(holder: HolderId) -> String {
        holder.0.to_string()
    }
}

impl From<Metadata> for BTreeMap<String, String> {
    fn from(metadata: Metadata) -> BTreeMap<String, String> {
        metadata.0.map(Arc::unwrap_or_clone).unwrap_or_default()
    }
}

impl From<Ttl> for Option<u64> {
    fn from(ttl: Ttl) -> Option<u64> {
        ttl.as_millis()
    }
}

/// The value is outside its bounds or malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidValue {
    /// A lease name with invalid characters.
    #[error(
        "lease name {0:?} must start with a letter or digit, and use only letters, digits, '.', '_', ':', '/' and '-'"
    )]
    Name(String),
    /// A name of a principal or role with invalid characters.
    #[error(
        "name {0:?} of a principal or role must start with a letter or digit, and use only letters, digits, '.', '_', ':', '@' and '-'"
    )]
    AccessName(String),
    /// A holder that is empty or has control characters.
    #[error("a holder must have 1 to {MAX_HOLDER_BYTES} bytes and no control characters")]
    Holder,
    /// A text that is too long.
    #[error("{what} is {bytes} bytes long; at most {max} are allowed")]
    TooLong {
        /// The kind of text.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest valid length.
        max: usize,
    },
    /// Metadata with too many entries or bytes.
    #[error(
        "metadata has {entries} entries and {bytes} bytes; at most {MAX_METADATA_ENTRIES} entries and {MAX_METADATA_BYTES} bytes are allowed"
    )]
    Metadata {
        /// The number of entries.
        entries: usize,
        /// The size of keys and values together.
        bytes: usize,
    },
    /// A metadata key of the library.
    #[error("metadata key {0:?} is reserved: the library uses keys that start with \"tenure.\"")]
    ReservedKey(String),
    /// A ttl in milliseconds.
    #[error("ttl {0} ms is outside {MIN_TTL_MS} to {MAX_TTL_MS} ms")]
    Ttl(u64),
    /// A lock delay in milliseconds.
    #[error("lock delay {0} ms is above {MAX_LOCK_DELAY_MS} ms")]
    LockDelay(u64),
    /// A longest hold that is shorter than the ttl.
    #[error("longest hold {longest_ms} ms is shorter than the ttl {ttl_ms} ms: expected at least the ttl")]
    LongestHold {
        /// The longest hold in milliseconds.
        longest_ms: u64,
        /// The ttl in milliseconds.
        ttl_ms: u64,
    },
    /// A number of concurrent holders.
    #[error("limit {0} is outside 1 to {MAX_LIMIT}")]
    Limit(u32),
    /// A wait for a lease, in milliseconds.
    #[error("wait {0} ms is above {MAX_WAIT_MS} ms")]
    Wait(u64),
    /// A grace that is longer than half the ttl.
    #[error("grace {grace_ms} ms is longer than half the ttl of {ttl_ms} ms")]
    Grace {
        /// The grace in milliseconds.
        grace_ms: u64,
        /// The ttl in milliseconds.
        ttl_ms: u64,
    },
    /// The operation timeout of a lease manager.
    #[error("operation timeout {0:?} is outside 1 ms to 24 h")]
    OperationTimeout(Duration),
    /// A difference between clock rates, in thousandths.
    #[error("clock drift of {0} thousandths is above {MAX_DRIFT_PERMILLE}")]
    Drift(u32),
    /// A time between two reads of a recipe.
    #[error("refresh interval {0:?} is outside 10 ms to 24 h")]
    Refresh(Duration),
    /// A text or an integer that is not a fencing token.
    #[error("fencing token {0:?} is not a decimal integer of at most 63 bits")]
    Token(String),
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn name_and_holder_are_limited_to_200_bytes() {
        let too_long = |what| Some(InvalidValue::TooLong { what, bytes: 201, max: 200 });
        assert_eq!(LeaseName::new("n".repeat(200)).expect("200 bytes").as_str().len(), 200);
        assert_eq!(LeaseName::new("n".repeat(201)).err(), too_long("lease name"));
        assert_eq!(HolderId::new("h".repeat(200)).expect("200 bytes").as_str().len(), 200);
        assert_eq!(HolderId::new("h".repeat(201)).err(), too_long("holder"));
        // The bound counts bytes, not characters.
        assert_eq!(HolderId::new("\u{e9}".repeat(100)).expect("200 bytes").as_str().len(), 200);
        assert_eq!(HolderId::new(format!("h{}", "\u{e9}".repeat(100))).err(), too_long("holder"));
    }

    /// Short texts are kept without memory of their own, and long ones with it.
    #[test]
    fn names_of_each_length_have_the_order_hash_and_encoding_of_their_text() {
        let texts: Vec<String> =
            (1..=MAX_NAME_BYTES).map(|bytes| "a.1/-Z".chars().cycle().take(bytes).collect()).collect();
        let names: Vec<LeaseName> = texts.iter().map(|text| LeaseName::new(text).expect("a valid name")).collect();
        let places: HashMap<LeaseName, usize> = names.iter().cloned().zip(0..).collect();
        for (place, (text, name)) in texts.iter().zip(&names).enumerate() {
            assert_eq!((name.as_str(), places.get(text.as_str())), (text.as_str(), Some(&place)));
            assert!(names.iter().zip(&texts).all(|(other, its)| name.cmp(other) == text.cmp(its)));
            let json = serde_json::to_string(name).expect("a name is JSON");
            assert_eq!(json, serde_json::to_string(text).expect("a string is JSON"));
            assert_eq!(serde_json::from_str::<LeaseName>(&json).expect("its own JSON"), *name);
            #[cfg(feature = "server")]
            {
                use crate::storage::codec::{decode, encode};
                assert_eq!(encode(name), encode(text));
                assert_eq!(decode::<LeaseName>(&encode(name), 1_000).as_ref(), Ok(name));
            }
        }
        let escaped = serde_json::from_str::<LeaseName>(r#""a\u002fb""#).expect("a name with an escape");
        assert_eq!(escaped.as_str(), "a/b");
        let refused = |json| serde_json::from_str::<HolderId>(json).expect_err("no holder").to_string();
        assert!(refused("5").starts_with("invalid type: integer `5`, expected a string"), "{}", refused("5"));
        assert!(refused(r#""""#).contains("1 to 200 bytes"), "{}", refused(r#""""#));
    }

    #[test]
    fn access_name_is_limited_to_64_bytes_of_its_characters() {
        assert_eq!(AccessName::new("a".repeat(64)).expect("64 bytes").as_str().len(), 64);
        let what = "name of a principal or role";
        assert_eq!(AccessName::new("a".repeat(65)).err(), Some(InvalidValue::TooLong { what, bytes: 65, max: 64 }));
        assert!(AccessName::new("ci@build-7.x:y_z").is_ok());
        for invalid in ["", "-a", "a b", "a/b", "\u{e9}"] {
            assert_eq!(AccessName::new(invalid).err(), Some(InvalidValue::AccessName(invalid.to_owned())));
        }
    }

    #[test]
    fn metadata_is_limited_to_32_entries_and_4096_bytes() {
        let metadata = |entries: usize, bytes: usize| {
            let value = |number: usize| if number == 0 { "v".repeat(bytes - 2 * entries) } else { String::new() };
            Metadata::new((0..entries).map(|number| (format!("{number:02}"), value(number))).collect())
        };
        assert_eq!(metadata(32, 4_096).expect("32 entries and 4,096 bytes").bytes(), 4_096);
        assert_eq!(metadata(33, 4_096).err(), Some(InvalidValue::Metadata { entries: 33, bytes: 4_096 }));
        assert_eq!(metadata(32, 4_097).err(), Some(InvalidValue::Metadata { entries: 32, bytes: 4_097 }));
    }

    #[test]
    fn ttl_is_limited_to_100_ms_to_24_hours() {
        for ms in [100, 86_400_000] {
            assert_eq!(Ttl::millis(ms).map(Ttl::as_millis), Ok(Some(ms)));
        }
        for ms in [99, 86_400_001] {
            assert_eq!(Ttl::millis(ms), Err(InvalidValue::Ttl(ms)));
        }
    }
}
