//! The messages of etcd's API version 3 that the client uses, with the fields that it uses.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantRequest {
    /// In seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseId {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseRevokeResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseKeepAliveResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// 0: the lease has expired.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: bytes::Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: bytes::Bytes,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    pub deleted: i64,
}

/// The value of `Compare::target` for the revision of a key's creation.
pub const TARGET_CREATE: i32 = 1;

/// Whether both values are equal, which is the result 0 of the missing field 1.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub key: bytes::Bytes,
    #[prost(oneof = "CompareTo", tags = "5")]
    pub to: Option<CompareTo>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum CompareTo {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
}

#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    #[prost(oneof = "RequestOpKind", tags = "2")]
    pub kind: Option<RequestOpKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum RequestOpKind {
    #[prost(message, tag = "2")]
    Put(PutRequest),
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchRequest {
    #[prost(oneof = "WatchRequestKind", tags = "1")]
    pub kind: Option<WatchRequestKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum WatchRequestKind {
    #[prost(message, tag = "1")]
    Create(KeyRequest),
}

/// The value of `Event::kind` for a deletion.
pub const EVENT_DELETE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub struct Event {
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchResponse {
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}
