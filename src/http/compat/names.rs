//! Maps any text to the name of a lease, so that different texts have different names and the text can be read back.

use std::collections::BTreeMap;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::super::response::ProblemResponse;
use crate::lease::HolderLease;
use crate::types::{LeaseName, MAX_METADATA_BYTES, MAX_NAME_BYTES, Metadata};

/// The prefix of the leases of this service.
pub(super) const PREFIX: &str = "compat/";
/// The metadata key of a resource that does not fit into a name.
const RESOURCE_KEY: &str = "resource";
/// Begins the hash in a name. `.` begins the escape of a byte, and no escape has the digit `x`.
const HASH_MARK: &str = ".x";
const HASH_DIGITS: usize = 64;
/// The longest resource, in bytes.
const MAX_RESOURCE_BYTES: usize = MAX_METADATA_BYTES - RESOURCE_KEY.len();

/// The lease of a resource.
pub(super) struct Mapped {
    pub name: LeaseName,
    /// The resource, if the name does not contain all of it.
    pub metadata: Metadata,
}

/// Letters, digits and `_:/-` stay. Each other byte becomes `.` and two hexadecimal digits.
///
/// If the result is too long, the name has its beginning, and the SHA-256 of the resource.
pub(super) fn of(resource: &str) -> Result<Mapped, ProblemResponse> {
    if resource.len() > MAX_RESOURCE_BYTES {
        let detail = format!("resource is {} bytes long; at most {MAX_RESOURCE_BYTES} are allowed", resource.len());
        return Err(ProblemResponse::invalid(detail));
    }
    let most = MAX_NAME_BYTES - HASH_MARK.len() - HASH_DIGITS;
    let (mut name, mut head) = (PREFIX.to_owned(), PREFIX.len());
    for byte in resource.bytes() {
        if byte.is_ascii_alphanumeric() || b"_:/-".contains(&byte) {
            name.push(char::from(byte));
        } else {
            write!(name, ".{byte:02x}").expect("a string takes all text");
        }
        if name.len() <= most {
            head = name.len();
        }
    }
    let mut metadata = BTreeMap::new();
    if name.len() > MAX_NAME_BYTES {
        name.truncate(head);
        name.push_str(HASH_MARK);
        for byte in Sha256::digest(resource) {
            write!(name, "{byte:02x}").expect("a string takes all text");
        }
        metadata.insert(RESOURCE_KEY.to_owned(), resource.to_owned());
    }
    let name = LeaseName::new(name).expect("the name has valid characters and its length is bounded");
    let metadata = Metadata::new(metadata).expect("the resource is bounded");
    Ok(Mapped { name, metadata })
}

/// The resource of a lease. A lease that another route created under an unusual name has that name as its resource.
pub(super) fn resource(lease: &HolderLease) -> String {
    let text = lease.name.as_str().strip_prefix(PREFIX).unwrap_or(lease.name.as_str());
    if text.contains(HASH_MARK) {
        let stored = lease.metadata.iter().find(|(key, _)| *key == RESOURCE_KEY);
        return stored.map_or(text, |(_, resource)| resource).to_owned();
    }
    decode(text).unwrap_or_else(|| text.to_owned())
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'.' {
            let digit = |byte: u8| char::from(byte).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
            bytes.push(u8::try_from(16 * digit(rest.next()?)? + digit(rest.next()?)?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_contains_the_resource_if_it_fits() {
        for (resource, name) in [
            ("task:17", "compat/task:17"),
            ("", "compat/"),
            ("a/b c.d", "compat/a/b.20c.2ed"),
            ("é", "compat/.c3.a9"),
            ("\0~", "compat/.00.7e"),
        ] {
            let mapped = of(resource).expect("short");
            assert_eq!((mapped.name.as_str(), mapped.metadata.is_empty()), (name, true));
            assert_eq!(decode(&name[PREFIX.len()..]).as_deref(), Some(resource));
        }
    }

    #[test]
    fn long_resource_has_its_beginning_and_a_hash() {
        let at_most = of(&"a".repeat(193)).expect("it fits");
        assert!(at_most.metadata.is_empty() && at_most.name.as_str().len() == 200);
        for (resource, head) in [("a".repeat(194), "a".repeat(127)), ("é".repeat(99), ".c3.a9".repeat(21))] {
            let mapped = of(&resource).expect("it is bounded");
            assert!(mapped.name.as_str().starts_with(&format!("compat/{head}.x")), "{}", mapped.name);
            assert_eq!(mapped.metadata.iter().collect::<Vec<_>>(), [("resource", resource.as_str())]);
            let other = of(&format!("{resource}b")).expect("it is bounded");
            assert_ne!(other.name, mapped.name);
        }
    }

    #[test]
    fn escapes_have_lower_case_digits() {
        assert_eq!((decode("a.2e").as_deref(), decode("a.2E")), (Some("a."), None));
    }

    /// No resource has one of these names.
    #[test]
    fn lease_with_an_unusual_name_has_it_as_its_resource() {
        for text in ["a.2E", "a.zz", "a.x1", ".ff"] {
            let name = LeaseName::new(format!("{PREFIX}{text}")).expect("valid");
            let lease = HolderLease { name, ..super::super::record::tests::lease(5) };
            assert_eq!(resource(&lease), text);
        }
    }

    #[test]
    fn resource_has_at_most_4088_bytes() {
        assert!(of(&"\n".repeat(4088)).is_ok());
        assert!(format!("{:?}", of(&"a".repeat(4089)).err().expect("too long")).contains("at most 4088"));
    }
}
