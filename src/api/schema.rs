//! OpenAPI schemas that a derive cannot express.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use super::ttl::INFINITE;
use super::{Code, TtlMs};
use crate::types::{MAX_TTL_MS, MIN_TTL_MS};

/// A derived schema would have the names of the Rust variants.
impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        let codes = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
        let text = "The error, for programs. Existing codes never change; later versions can add codes.";
        codes.enum_values(Some(Code::NAMES.iter().copied())).description(Some(text)).into()
    }
}

impl ToSchema for Code {}

impl PartialSchema for TtlMs {
    fn schema() -> RefOr<Schema> {
        let millis = ObjectBuilder::new().schema_type(SchemaType::new(Type::Integer));
        // The configuration of a cluster can narrow these bounds, not widen them.
        let millis = millis.minimum(Some(MIN_TTL_MS as f64)).maximum(Some(MAX_TTL_MS as f64));
        let infinite = ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).enum_values(Some([INFINITE]));
        OneOfBuilder::new().item(millis).item(infinite).into()
    }
}

impl ToSchema for TtlMs {}
