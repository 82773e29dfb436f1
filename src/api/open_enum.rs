//! Enums of responses, which later versions can extend.

/// Defines an enum with its names in JSON. A client reads a name that it does not know as `Other`, so that a newer server
/// does not break it.
macro_rules! open_enum {
    (
        $(#[doc = $text:literal])+
        $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $json:literal,)+ }
    ) => {
        $(#[doc = $text])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[doc = $doc])+ #[serde(rename = $json)] $variant,)+
            /// A name that this version does not know, from a newer server.
            #[serde(other, rename = "other")]
            Other,
        }

        impl $name {
            /// The name in JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $json,)+
                    $name::Other => "other",
                }
            }
        }

        /// A derived schema would contain `other`, which no server sends.
        #[cfg(feature = "server")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                super::schema::names(&[$($json),+], concat!($($text),+))
            }
        }

        #[cfg(feature = "server")]
        impl utoipa::ToSchema for $name {}
    };
}

pub(super) use open_enum;
