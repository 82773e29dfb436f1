//! OpenAPI schemas that a derive cannot express.

use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::ttl::INFINITE;
use super::{Code, Event, GrantCause, LeaseInfo, Standing, TtlMs, Waiter};
use crate::types::{MAX_TTL_MS, MIN_TTL_MS, open_enum};

/// A derived schema would have the names of the Rust variants.
impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        open_enum::schema(
            Code::NAMES,
            "The error, for programs. Existing codes never change; later versions can add codes.",
        )
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

/// A derived schema would contain `other`, which no server sends.
impl PartialSchema for Standing {
    fn schema() -> RefOr<Schema> {
        let status = |name: &str| {
            let status = ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).enum_values(Some([name]));
            ObjectBuilder::new().property("status", status).required("status")
        };
        let reference = |name: String| Ref::from_schema_name(name);
        let cause = OneOfBuilder::new()
            .item(ObjectBuilder::new().schema_type(SchemaType::new(Type::Null)))
            .item(reference(GrantCause::name().into()));
        let cause = cause.description(Some("The cause of its grant; `null` if the history has forgotten it."));
        let holds = status("holds").property("lease", reference(LeaseInfo::name().into())).required("lease");
        let waits = status("waits").property("waiter", reference(Waiter::name().into())).required("waiter");
        let ended = status("ended").property("event", reference(Event::name().into())).required("event");
        let ended = ended.description(Some("The holder had the lease; this event ended the last grant."));
        let unknown = "The holder neither has the lease nor waits, and the cluster remembers no end of its grants.";
        OneOfBuilder::new()
            .item(holds.property("cause", cause))
            .item(waits)
            .item(ended)
            .item(status("unknown").description(Some(unknown)))
            .description(Some("The relation of one holder to one lease."))
            .into()
    }
}

impl ToSchema for Standing {}
