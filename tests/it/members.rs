//! The answers to changes of the members and to transfers, against the OpenAPI document.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::cluster::SOON;
use crate::document::operation::{Document, Operation};
use crate::steady::strict;
use crate::three_nodes::{ThreeNodes, answer};

strict!(answers_to_changes_of_members_match_the_document);

/// Sends requests to node `at`, and checks each answer.
struct Checked<'c> {
    cluster: &'c ThreeNodes,
    at: u64,
    document: Document,
    operations: Vec<Operation>,
}

impl<'c> Checked<'c> {
    async fn new(cluster: &'c ThreeNodes, at: u64) -> Checked<'c> {
        let document = Document::new(answer(cluster.client.get(cluster.url(at, "/openapi.json"))).await.1);
        let operations = document.operations();
        Checked { cluster, at, document, operations }
    }

    /// Sends a request of the operation with this path, for the member `id`.
    async fn send(&self, method: Method, path: &str, id: u64, body: Value) -> (u16, Value) {
        let is_it = |operation: &&Operation| operation.method == method.as_str() && operation.path == path;
        let operation = self.operations.iter().find(is_it).expect("the document has the operation");
        let request =
            self.cluster.client.request(method, self.cluster.url(self.at, &path.replace("{id}", &id.to_string())));
        let request = if body.is_null() { request } else { request.json(&body) };
        let (status, answer) = answer(request).await;
        let kind = if status == 200 { "application/json" } else { "application/problem+json" };
        let checked = operation.check_answer(&self.document, status, kind, Some(&answer));
        checked.unwrap_or_else(|why| panic!("{} {path}: {status} {answer}: {why}", operation.method));
        (status, answer)
    }

    /// Sends it again while the new member catches up, or while no transfer of the leadership succeeds in time. Returns
    /// the members.
    async fn until_done(&self, method: Method, path: &str, id: u64, body: Value) -> Vec<u64> {
        let began = Instant::now();
        loop {
            let (status, answer) = self.send(method.clone(), path, id, body.clone()).await;
            if status == 200 {
                let members = answer["members"].as_array().expect("a list");
                return members.iter().map(|member| member["id"].as_u64().expect("an id")).collect();
            }
            assert!(began.elapsed() < 4 * SOON && [409, 503, 504].contains(&status), "{status} {answer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn answers_to_changes_of_members_match_the_document() {
    const MEMBER: &str = "/v1/cluster/members/{id}";
    let mut cluster = ThreeNodes::start().await;
    let (http, peer) = cluster.join().await;
    let (leader, follower) = cluster.roles().await;
    let third = (1..=3).find(|id| ![leader, follower].contains(id)).expect("three nodes");
    let checked = Checked::new(&cluster, follower).await;
    let transfer = async |body| checked.send(Method::POST, "/v1/cluster/transfer", 0, body).await;
    let transferred = transfer(json!({"to": third})).await;
    assert_eq!(transferred, (200, json!({"from": leader, "leader": third})));
    let (status, any) = transfer(json!({})).await;
    assert_eq!((status, &any["from"]), (200, &json!(third)), "{any}");

    let add = json!({"id": 4, "http": http, "peer": peer});
    let added = checked.until_done(Method::POST, "/v1/cluster/members", 0, add).await;
    assert_eq!(added, [1, 2, 3, 4]);
    let replace = json!({"with": 4});
    let replaced = checked.until_done(Method::POST, &format!("{MEMBER}/replace"), leader, replace).await;
    let mut left = vec![follower, third, 4];
    left.sort();
    assert_eq!(replaced, left);
    let promoted = checked.until_done(Method::POST, &format!("{MEMBER}/promote"), 4, Value::Null).await;
    assert_eq!(promoted, left);
    let moved = json!({"http": "127.0.0.1:9", "peer": peer});
    let moved = checked.until_done(Method::POST, &format!("{MEMBER}/addresses"), 4, moved).await;
    assert_eq!(moved, left);
    let (_, again) = transfer(json!({"to": third})).await;
    assert_eq!(again["leader"], json!(third));
    // A leader transfers its leadership before its removal.
    let removed = checked.until_done(Method::DELETE, MEMBER, third, Value::Null).await;
    left.retain(|id| *id != third);
    assert_eq!(removed, left);
    let (status, members) = checked.send(Method::GET, "/v1/cluster", 0, Value::Null).await;
    assert_eq!((status, members["members"].as_array().map(Vec::len)), (200, Some(2)), "{members}");
    cluster.end().await;
}
