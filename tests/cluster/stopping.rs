//! A node while it shuts down.

use std::time::Duration;

use tenure::node::RequestError;

use super::{acquire, ask, held, start};

/// A held lease delays the end of the shutdown.
#[tokio::test(start_paused = true)]
async fn node_is_not_ready_from_the_start_of_its_shutdown() {
    for leads in [false, true] {
        let cluster = start().await;
        let leader = cluster.leader().await;
        held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
        let stops = cluster.ids().find(|id| (*id == leader) == leads).expect("a leader and followers");
        let node = cluster.node(stops).clone();
        assert_eq!(node.health().not_ready, None);
        let shutdown = tokio::spawn(async move { node.shutdown().await });
        let node = cluster.node(stops);
        for at in ["at the start", "later"] {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!shutdown.is_finished(), "the node waits for the release of the lease");
            assert_eq!(node.health().not_ready.as_deref(), Some("the node is shutting down"), "{at}, leader: {leads}");
            assert_eq!(ask(node, acquire("other", "b", 60_000, None)).await, Err(RequestError::ShuttingDown));
        }
        shutdown.await.expect("no panic");
        assert_eq!(node.health().not_ready.as_deref(), Some("the node is shutting down"), "afterwards");
        cluster.shutdown().await;
    }
}
