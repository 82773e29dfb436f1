//! Enums that later versions can extend.

/// Defines an enum with its names in JSON, in the order of the stored form.
///
/// In JSON, a name that this version does not know is read as `Other`, so that a newer server does not break a client.
/// The log and the messages between nodes hold the position of a variant. There, an unknown position is an error: all
/// replicas must read the same state.
macro_rules! open_enum {
    (
        $(#[doc = $text:literal])+
        $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $json:literal,)+ }
    ) => {
        $(#[doc = $text])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[doc = $doc])+ $variant,)+
            /// A name that this version does not know, from a newer server.
            Other,
        }

        impl $name {
            const KNOWN: &[$name] = &[$($name::$variant),+];

            /// The name in JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $json,)+
                    $name::Other => "other",
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    return serializer.serialize_str(self.as_str());
                }
                match $name::KNOWN.iter().position(|known| known == self) {
                    Some(at) => serializer.serialize_unit_variant(stringify!($name), at as u32, self.as_str()),
                    None => Err(serde::ser::Error::custom("an unknown name cannot be stored")),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                #[derive(serde::Deserialize)]
                enum Stored {
                    $($variant,)+
                }
                if deserializer.is_human_readable() {
                    let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                    let known = $name::KNOWN.iter().find(|known| known.as_str() == name);
                    return Ok(known.copied().unwrap_or($name::Other));
                }
                Ok(match Stored::deserialize(deserializer)? {
                    $(Stored::$variant => $name::$variant,)+
                })
            }
        }

        /// A derived schema would contain `other`, which no server sends.
        #[cfg(feature = "server")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                crate::types::open_enum::schema(&[$($json),+], concat!($($text),+))
            }
        }

        #[cfg(feature = "server")]
        impl utoipa::ToSchema for $name {}
    };
}

pub(crate) use open_enum;

/// The schema of an enum with these names.
#[cfg(feature = "server")]
pub(crate) fn schema(names: &[&str], description: &str) -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
    use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
    let schema = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
    schema.enum_values(Some(names.iter().copied())).description(Some(description.trim())).into()
}

#[cfg(test)]
mod tests {
    use crate::types::GrantCause;

    #[test]
    fn unknown_name_is_read_and_its_order_is_kept() {
        for (json, cause) in [("\"queue\"", GrantCause::Queue), ("\"preempted\"", GrantCause::Other)] {
            assert_eq!(serde_json::from_str::<GrantCause>(json).expect("a name"), cause);
        }
        assert_eq!(serde_json::to_string(&GrantCause::HandOver).expect("plain"), "\"hand_over\"");
        assert!(GrantCause::Asked < GrantCause::Queue && GrantCause::Queue < GrantCause::HandOver);
    }

    #[cfg(feature = "server")]
    #[test]
    fn unknown_name_is_not_stored() {
        use crate::storage::codec;
        let stored = codec::encode(&GrantCause::HandOver);
        assert_eq!(codec::decode::<GrantCause>(&stored, 16).expect("a known position"), GrantCause::HandOver);
        assert!(codec::decode::<GrantCause>(&[stored[0] + 1], 16).is_err(), "the position of no variant");
    }
}
