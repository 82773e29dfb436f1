//! Answers of nodes, parsed by the client library.

use bytes::Bytes;
use futures_util::future::FutureExt;
use futures_util::stream::{self, TryStreamExt};
use sse_stream::Sse;

use super::{Input, input, json, texts};
use crate::api::{
    AccessControl, Cluster, CreatedToken, Event, Explanation, History, LeaseInfo, LeasePage, Members, Problem, Queue,
    Released, Renewed, Revoked, Transferred, Version,
};
use crate::client::http::events::parse_events;

pub(super) fn inputs() -> Vec<Input> {
    vec![input("answer_json", 4096, answer, answers), input("answer_events", 4096, events, streams)]
}

/// The body of an answer. The first byte of the input selects its type.
fn answer(bytes: &[u8]) -> bool {
    let Some((kind, body)) = bytes.split_first() else { return false };
    match kind {
        b'l' => json::<LeaseInfo>(body).is_some(),
        b'p' => json::<Problem>(body).is_some(),
        b'e' => json::<Event>(body).is_some(),
        b'b' => json::<Renewed>(body).is_some(),
        b'r' => json::<Released>(body).is_some(),
        b'v' => json::<Revoked>(body).is_some(),
        b'g' => json::<LeasePage>(body).is_some(),
        b'h' => json::<History>(body).is_some(),
        b'q' => json::<Queue>(body).is_some(),
        b'x' => json::<Explanation>(body).is_some(),
        b'c' => json::<Cluster>(body).is_some(),
        b'm' => json::<Members>(body).is_some(),
        b't' => json::<Transferred>(body).is_some(),
        b'o' => json::<Version>(body).is_some(),
        b'a' => json::<AccessControl>(body).is_some(),
        b'k' => json::<CreatedToken>(body).is_some(),
        _ => false,
    }
}

fn answers() -> Vec<Vec<u8>> {
    const LEASE: &str = r#"{"name":"jobs","holder":"h","token":"281474976710661","term":1,"index":5,"ttl_ms":30000,"expires_in_ms":29000,"state":"active","granted_at":"2026-01-31T12:00:00.000Z","renewed_at":"2026-01-31T12:00:00.000Z","renewals":0,"metadata":{"pid":"7"},"limit":1,"lock_delay_ms":0,"waiters":0}"#;
    const EVENT: &str = r#"{"event":"revoked","index":12,"part":0,"name":"jobs","holder":"h","token":"281474976710657","reason":"stuck","at":"2026-01-31T12:00:00.000Z"}"#;
    const PROBLEM: &str = r#"{"type":"urn:tenure:problem:held","title":"The lease is held","status":409,"detail":"held by a","code":"held","holder":"a","token":"7","since":"2026-01-31T12:00:00.000Z","retry_after_ms":5,"waiters":0}"#;
    let [lease, event, problem] = [LEASE, EVENT, PROBLEM];
    [
        format!("l{lease}"),
        format!("p{problem}"),
        r#"p{"type":"t","title":"t","status":418,"detail":"d","code":"of_a_later_version"}"#.to_owned(),
        format!("e{event}"),
        format!(r#"b{{"results":[{{"name":"jobs","lease":{lease}}},{{"name":"b","problem":{problem}}}]}}"#),
        r#"r{"released":true}"#.to_owned(),
        r#"v{"revoked":1}"#.to_owned(),
        format!(r#"g{{"leases":[{lease}],"cursor":"jobs~7"}}"#),
        format!(r#"h{{"name":"jobs","transitions":[{event}]}}"#),
        r#"q{"name":"jobs","total":1,"waiters":[{"place":0,"holder":"w","since_at":"2026-01-31T12:00:00.000Z","waited_ms":1,"expires_in_ms":2}]}"#.to_owned(),
        format!(r#"c{{"cluster_id":"c","node":1,"leader":null,"quorum":false,"term":1,"applied":2,"feature_level":2,"clock":{{"monotonic_ms":3,"wall":"2026-01-31T12:00:00.000Z"}},"members":[{}]}}"#,
            r#"{"id":1,"role":"leader","state":"ok","http":"a:1","peer":"a:2","lag":0,"last_contact_ms":null}"#),
        r#"m{"members":[{"id":4,"role":"learner","state":"unreachable","http":"d:1","peer":"d:2","lag":null,"last_contact_ms":null}]}"#.to_owned(),
        r#"t{"from":1,"leader":2}"#.to_owned(),
        r#"o{"version":"0.1.0","data_format":1}"#.to_owned(),
        r#"a{"enabled":true,"roles":[{"name":"worker","permissions":[{"right":"hold","prefix":"jobs/"}]}],"principals":[{"name":"ci","roles":["worker"],"tokens":[{"id":"0123456789abcdef","created_at":"2026-01-31T12:00:00.000Z"}]}]}"#.to_owned(),
        r#"k{"id":"0123456789abcdef","principal":"ci","token":"tenure_00"}"#.to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// A stream of server-sent events. The split into chunks must not change the events.
fn events(bytes: &[u8]) -> bool {
    let whole = parse(bytes, bytes.len().max(1));
    for size in [1, 7] {
        assert_eq!(parse(bytes, size), whole, "in chunks of {size} bytes");
    }
    whole.is_some()
}

fn parse(bytes: &[u8], size: usize) -> Option<Vec<Sse>> {
    let chunks: Vec<Bytes> = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
    let events = parse_events(stream::iter(chunks)).try_collect();
    events.now_or_never().expect("the chunks are in memory").ok()
}

fn streams() -> Vec<Vec<u8>> {
    texts([
        ": alive\n\nid: 7.0\nevent: granted\ndata: {\"a\":1}\n\nid:8\r\n\r\ndata: a\ndata: b\n\n",
        "event: lagged\ndata: {\"code\":\"lagged\"}\n\n",
        "id: 10\n\n",
    ])
}
