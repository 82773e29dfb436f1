//! TLS with a client certificate, and an access token.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tenure::access::Right;
use tenure::client::{CallError, Endpoints, Remote};
use tenure::tls::ClientTls;

use crate::case::Case;
use crate::cluster::Cluster;
use crate::process::tenure;
use crate::session::Session;
use crate::wait::{POLL, SOON};

const SETTINGS: &str = "[tls]\nca = \"tls/ca.pem\"\ncert = \"tls/node-{node}.pem\"\nkey = \"tls/node-{node}.key\"\n\
                        client_cert = \"require\"\n";

/// Makes the certificates with the command that users run.
fn make_certificates(folder: &Path) {
    let mut command = tenure();
    let made = command.args(["tls", "init", "tls", "--config", "cluster.toml"]).current_dir(folder).output();
    let made = made.expect("the command runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Creates a principal with these rights for all leases. Returns its access token.
async fn create_principal(admin: &Remote, name: &str, right: Right) -> Result<String, CallError> {
    let name = name.parse().expect("a valid name");
    let permission = tenure::api::Permission::new(right, "");
    // The leader refuses access control until all nodes have answered.
    while admin.set_role(&name, std::slice::from_ref(&permission)).await.is_err() {
        tokio::time::sleep(POLL).await;
    }
    admin.set_principal(&name, std::slice::from_ref(&name)).await?;
    Ok(admin.create_token(&name, None).await?.token)
}

pub async fn tls_and_access_token(case: &Case) {
    let cluster = Arc::new(Cluster::launch(SETTINGS, make_certificates).await);
    let urls: Vec<String> = cluster.addresses.iter().map(|address| format!("https://{address}")).collect();
    let file = |name: &str| cluster.folder().join("tls").join(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let tls = ClientTls::with_certificate(&ca, &cert, &key).expect("valid files");
    let endpoints: Endpoints = urls.join(",").parse().expect("valid URLs");
    let admin = Remote::new(endpoints).with_tls(&tls);
    let root = create_principal(&admin, "root", Right::Admin);
    let root = tokio::time::timeout(SOON, root).await.expect("all nodes start").expect("created");
    let worker = create_principal(&admin, "worker", Right::Hold).await.expect("created");
    let admin = admin.with_token(&root.parse().expect("a token"));
    admin.enable_access(true).await.expect("enabled");

    let open = |fields: serde_json::Value| {
        let mut open = json!({"op": "open", "endpoints": urls, "ca": ca});
        open.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        open
    };
    let acquire = json!({"op": "acquire", "lease": "job", "ttl_ms": 10_000});
    let session = Session::start(&case.language, &[]);
    session.ask(open(json!({"cert": cert, "key": key, "token": worker}))).await;
    let held = session.ask(acquire.clone()).await;
    assert_eq!(held["outcome"], "held", "{held}");

    let anonymous = Session::start(&case.language, &[]);
    anonymous.ask(open(json!({"cert": cert, "key": key}))).await;
    let refused = anonymous.ask(acquire.clone()).await;
    assert_eq!((&refused["outcome"], &refused["code"]), (&json!("refused"), &json!("unauthenticated")), "{refused}");

    let stranger = Session::start(&case.language, &[]);
    stranger.ask(open(json!({"token": worker, "operation_timeout_ms": 500}))).await;
    let refused = stranger.ask(acquire.clone()).await;
    // A node refuses the certificate after the client's side of a TLS 1.3 handshake has ended.
    assert!(refused["outcome"] == "unavailable" || refused["outcome"] == "unknown", "{refused}");

    // The certificates have the address of the node, and not this name for it.
    let by_name = urls.iter().map(|url| url.replace("127.0.0.1", "localhost")).collect::<Vec<_>>();
    assert_ne!(by_name, urls);
    let misled = Session::start(&case.language, &[]);
    let fields =
        json!({"endpoints": by_name, "cert": cert, "key": key, "token": worker, "operation_timeout_ms": 3_000});
    misled.ask(open(fields)).await;
    let refused = misled.ask(acquire).await;
    assert_eq!(refused["outcome"], "unavailable", "certificate of another host: {refused}");
    session.ask(json!({"op": "shutdown"})).await;
}
