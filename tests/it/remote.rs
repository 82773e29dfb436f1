//! The HTTP client against scripted nodes: retries, unknown outcomes, resumed watches.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tenure::access::AccessName;
use tenure::api::{Acquire, Code, EventId, HandOver, Problem, Release, STALE_HEADER};
use tenure::client::{CallError, Coordinator, Endpoints, LeaseManager, ListQuery, Remote, RetryBudget, Wait};
use tenure::token::FencingToken;
use tenure::types::{Consistency, HolderId, LeaseName, MemberChange};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::steady::{steady, strict};

steady!(
    client_skips_nodes_that_are_down_or_leaderless,
    wait_continues_at_the_next_node_when_one_hangs,
    watch_pauses_after_each_round_of_refusals,
    watch_opens_at_the_next_node_when_one_hangs,
);
strict!(
    watch_ends_at_a_refusal_while_a_node_is_down,
    watch_opens_at_a_node_that_learns_the_token,
    watch_that_a_node_refused_before_an_outage_is_unavailable,
    token_that_an_older_node_would_never_expire_is_revoked,
    wait_stays_at_its_node_while_that_is_ready,
    error_names_the_node_and_its_cause,
    lists_send_the_filters_that_are_set,
    pages_of_a_list_are_read_to_the_last,
    release_without_any_node_is_unavailable,
    refusal_is_final,
    release_with_a_lost_answer_is_retried,
    release_of_a_forgotten_grant_is_unknown,
    claim_with_a_lost_answer_is_retried,
    claim_refused_after_a_lost_answer_stays_unknown,
    callers_with_a_short_limit_leave_a_hung_node,
    broken_watch_resumes_after_the_last_event,
    watch_leaves_a_node_that_answers_with_an_empty_stream,
    client_that_only_watches_asks_for_the_members,
    handover_with_a_lost_answer_is_not_retried,
    revoke_with_a_lost_answer_is_not_retried,
    member_change_with_a_lost_answer_is_not_retried,
    new_token_with_a_lost_answer_is_not_retried,
    release_refused_after_a_lost_answer_is_unknown,
    unreadable_answer_leaves_the_outcome_unknown,
    node_with_unreadable_answers_is_left,
    stale_read_without_an_age_has_an_unknown_age,
    stale_age_is_the_largest_one_of_all_reads,
);

pub const TOKEN: FencingToken = FencingToken::new(1, 5);

/// A node with prepared answers, one per request. It repeats the last one. An empty answer closes the connection.
pub struct ScriptedNode {
    pub address: String,
    /// The first line of each request.
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedNode {
    pub async fn start(answers: Vec<String>) -> ScriptedNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound").to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let received = requests.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let line = read_request(&mut stream).await;
                let number = {
                    let mut received = received.lock().expect("no task panics while it holds the lock");
                    received.push(line);
                    (received.len() - 1).min(answers.len() - 1)
                };
                let _ = stream.write_all(answers[number].as_bytes()).await;
            }
        });
        ScriptedNode { address, requests }
    }

    fn request_count(&self) -> usize {
        self.requests.lock().expect("no task panics while it holds the lock").len()
    }

    fn request(&self, number: usize) -> String {
        self.requests.lock().expect("no task panics while it holds the lock")[number].clone()
    }
}

/// Reads a request with its body. Returns the first line.
pub async fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let read = stream.read(&mut chunk).await.unwrap_or(0);
        request.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&request).to_lowercase();
        let body = text.split_once("\r\n\r\n").map(|(head, body)| {
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            (body.len(), length.map_or(0, |length| length.parse::<usize>().expect("a length")))
        });
        if read == 0 || body.is_some_and(|(received, length)| received >= length) {
            return String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
        }
    }
}

pub fn answer(status: u16, body: impl serde::Serialize) -> String {
    let body = serde_json::to_string(&body).expect("the body serializes");
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

pub fn problem(code: Code) -> String {
    answer(code.status(), Problem::new(code, "why"))
}

pub fn lease() -> String {
    let at = "2026-01-31T12:00:00.000Z";
    answer(
        200,
        json!({
            "name": "a", "holder": "h", "token": TOKEN.to_string(), "term": 1, "index": 5, "ttl_ms": 1000,
            "expires_in_ms": 900, "state": "active", "granted_at": at, "renewed_at": at, "renewals": 0,
            "metadata": {}, "limit": 1, "lock_delay_ms": 0, "waiters": 0, "a_field_of_a_newer_server": true
        }),
    )
}

/// The timeout of a client in a test that waits for it.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of a client in a test that bounds the time of a switch to another node.
const SHORT_TIMEOUT: Duration = Duration::from_millis(500);

/// An address without a listener.
async fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("the listener is bound").to_string()
}

/// A client whose requests do not time out on a busy machine.
pub fn remote(endpoints: &[&str]) -> Remote {
    remote_with_timeout(endpoints, Duration::from_secs(20))
}

fn remote_with_timeout(endpoints: &[&str], timeout: Duration) -> Remote {
    Remote::new(endpoints.join(",").parse().expect("valid addresses")).with_timeout(timeout)
}

pub fn name() -> LeaseName {
    LeaseName::new("a").expect("valid")
}

pub fn holder() -> HolderId {
    HolderId::new("h").expect("valid")
}

async fn client_skips_nodes_that_are_down_or_leaderless() {
    let leaderless = ScriptedNode::start(vec![problem(Code::NoLeader)]).await;
    let good = ScriptedNode::start(vec![lease()]).await;
    let remote = remote(&[&unused_address().await, &leaderless.address, &good.address]);
    let lease = remote.acquire(&name(), &Acquire::new(holder())).await.expect("the third node grants");
    assert_eq!(lease.token, TOKEN);
    remote.get(&name()).await.expect("the node that answered is tried first");
    assert_eq!((leaderless.request_count(), good.request_count()), (1, 2));
}

async fn release_without_any_node_is_unavailable() {
    let leaderless = ScriptedNode::start(vec![problem(Code::NoLeader)]).await;
    let remote = remote_with_timeout(&[&unused_address().await, &leaderless.address], TIMEOUT);
    let error = remote.release(&name(), &Release::new(holder(), TOKEN)).await.expect_err("no node serves the request");
    assert!(matches!(error, CallError::Unavailable(_)), "{error:?}");
    assert!(leaderless.request_count() > 1, "the client retries until the timeout");
}

async fn refusal_is_final() {
    let node = ScriptedNode::start(vec![problem(Code::Held)]).await;
    let error =
        remote(&[&node.address]).acquire(&name(), &Acquire::new(holder())).await.expect_err("the lease is held");
    assert!(matches!(&error, CallError::Refused(problem) if problem.code == Code::Held), "{error:?}");
    assert_eq!(node.request_count(), 1);
}

async fn release_with_a_lost_answer_is_retried() {
    let release = Release::new(holder(), TOKEN);
    for lost in [String::new(), problem(Code::OutcomeUnknown)] {
        for released in [true, false] {
            let node = ScriptedNode::start(vec![lost.clone(), answer(200, json!({"released": released}))]).await;
            let ended = remote(&[&node.address]).release(&name(), &release).await;
            match released {
                true => assert_eq!(ended.map(|answer| answer.released), Ok(true)),
                // The first attempt may have released the lease.
                false => assert!(matches!(ended, Err(CallError::Unknown { last: None, .. })), "{ended:?}"),
            }
            assert_eq!(node.request_count(), 2);
        }
    }
}

/// The answer of the first attempt is lost. The second one finds nothing to release, and the cluster has forgotten how
/// the grant ended: only the standing `ended` says whether the first attempt released it.
async fn release_of_a_forgotten_grant_is_unknown() {
    let event = json!({
        "event": "released", "index": 7, "part": 0, "name": "a", "holder": "h", "token": TOKEN.to_string(),
        "at": "2026-01-31T12:00:00.000Z"
    });
    for (standing, is_known) in
        [(json!({"status": "unknown"}), false), (json!({"status": "ended", "event": event}), true)]
    {
        let nothing = answer(200, json!({"released": false}));
        let explained =
            json!({"name": "a", "summary": "", "holders": 0, "held": [], "waiters": 0, "standing": standing});
        let node = ScriptedNode::start(vec![lease(), String::new(), nothing, answer(200, explained)]).await;
        let manager = LeaseManager::new(remote(&[&node.address]));
        let lease = manager.lease("a").expect("a valid name");
        lease.acquire(Wait::No).await.expect("granted");
        match lease.release().await {
            Ok(released) => assert!(is_known && released, "{released}"),
            Err(error) => assert!(!is_known && matches!(error, CallError::Unknown { .. }), "{error:?}"),
        }
        assert_eq!(node.request_count(), 4);
    }
}

/// The kernel accepts the connection of the hung node, but no answer comes.
async fn wait_continues_at_the_next_node_when_one_hangs() {
    let hung = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let hung_address = hung.local_addr().expect("the listener is bound").to_string();
    let good = ScriptedNode::start(vec![lease()]).await;
    let claim = Acquire::new(holder()).wait(Duration::from_secs(60)).ttl(Duration::from_millis(1_500));
    let begun = Instant::now();
    let granted = remote_with_timeout(&[&hung_address, &good.address], SHORT_TIMEOUT)
        .acquire(&name(), &claim)
        .await
        .expect("the next node grants");
    let took = begun.elapsed();
    assert_eq!((granted.token, good.request_count()), (TOKEN, 1));
    assert!(
        took >= Duration::from_millis(900) && took < Duration::from_millis(1_500),
        "two thirds of the ttl: {took:?}"
    );
}

async fn claim_with_a_lost_answer_is_retried() {
    let node = ScriptedNode::start(vec![String::new(), lease()]).await;
    let lease = remote(&[&node.address]).acquire(&name(), &Acquire::new(holder())).await.expect("the retry is granted");
    assert_eq!((lease.token, node.request_count()), (TOKEN, 2));
}

async fn claim_refused_after_a_lost_answer_stays_unknown() {
    let node = ScriptedNode::start(vec![String::new(), problem(Code::Held)]).await;
    let error =
        remote(&[&node.address]).acquire(&name(), &Acquire::new(holder())).await.expect_err("the retry is refused");
    assert!(matches!(&error, CallError::Unknown { last: Some(last), .. } if last.code == Code::Held), "{error:?}");
}

async fn release_refused_after_a_lost_answer_is_unknown() {
    let node = ScriptedNode::start(vec![String::new(), problem(Code::Forbidden)]).await;
    let release = Release::new(holder(), TOKEN);
    let error = remote(&[&node.address]).release(&name(), &release).await.expect_err("the retry is refused");
    assert!(matches!(&error, CallError::Unknown { last: Some(last), .. } if last.code == Code::Forbidden), "{error:?}");
    assert_eq!(node.request_count(), 2);
}

/// The node has carried out the request, because its status says so.
async fn unreadable_answer_leaves_the_outcome_unknown() {
    let node = ScriptedNode::start(vec![answer(200, json!("not a lease"))]).await;
    let remote = remote(&[&node.address]);
    let acquired = remote.acquire(&name(), &Acquire::new(holder())).await;
    assert!(matches!(acquired, Err(CallError::Unknown { .. })), "{acquired:?}");
    let released = remote.release(&name(), &Release::new(holder(), TOKEN)).await;
    assert!(matches!(released, Err(CallError::Unknown { .. })), "{released:?}");
}

/// A proxy shows a page in place of one node.
async fn node_with_unreadable_answers_is_left() {
    const PAGE: &str = "HTTP/1.1 200 X\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>";
    let page = || ScriptedNode::start(vec![PAGE.to_owned()]);
    let (proxy, node) = (page().await, ScriptedNode::start(vec![lease()]).await);
    let remote = remote(&[&proxy.address, &node.address]);
    remote.get(&name()).await.expect("the other node answers");
    remote.acquire(&name(), &Acquire::new(holder())).await.expect("the other node answers");
    assert_eq!(proxy.request_count(), 1, "the client prefers the other node");
    let (proxy, node) = (page().await, ScriptedNode::start(vec![stream(event(5))]).await);
    let mut watch = self::remote(&[&proxy.address, &node.address]).watch("", None);
    assert_eq!(watch.next().await.expect("the other node opens a stream").index, 5);
}

/// A node that has not caught up since its start does not know the age of its state.
async fn stale_read_without_an_age_has_an_unknown_age() {
    let aged = lease().replacen("\r\n\r\n", &format!("\r\n{STALE_HEADER}: 70\r\n\r\n"), 1);
    let node = ScriptedNode::start(vec![aged, lease()]).await;
    let remote = remote(&[&node.address]).with_consistency(Consistency::Stale);
    for expected in [Some(Duration::from_millis(70)), None] {
        remote.get(&name()).await.expect("the node answers");
        assert_eq!(remote.stale_age(), expected);
    }
}

/// A list of many pages has one age.
async fn stale_age_is_the_largest_one_of_all_reads() {
    let aged = |ms: u64| lease().replacen("\r\n\r\n", &format!("\r\n{STALE_HEADER}: {ms}\r\n\r\n"), 1);
    let node = ScriptedNode::start(vec![aged(70), aged(20), lease(), aged(20)]).await;
    let remote = remote(&[&node.address]).with_consistency(Consistency::Stale);
    let largest = Some(Duration::from_millis(70));
    for expected in [largest, largest, None, None] {
        remote.clone().get(&name()).await.expect("the node answers");
        assert_eq!(remote.stale_age(), expected);
    }
}

/// A frame of an event stream.
pub fn event(index: u64) -> String {
    let token = FencingToken::new(1, index);
    let data = json!({
        "event": "granted", "index": index, "part": 0, "name": "a", "holder": "h", "token": token.to_string(),
        "cause": "asked", "at": "2026-01-31T12:00:00.000Z"
    });
    format!("id: {index}\nevent: granted\ndata: {data}\n\n")
}

/// The answer to a watch.
pub fn stream(events: String) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{events}")
}

/// The kernel accepts the connections of a stopped process.
async fn watch_opens_at_the_next_node_when_one_hangs() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = hanging.local_addr().expect("the listener is bound").to_string();
    let node = ScriptedNode::start(vec![stream(event(5)), stream(event(6)), stream(event(7))]).await;
    let remote = remote_with_timeout(&[&address, &node.address], SHORT_TIMEOUT);
    let mut watch = remote.watch("", None);
    assert_eq!(watch.next().await.expect("the next node answers").index, 5);
    let began = Instant::now();
    assert_eq!(remote.watch("", None).next().await.expect("the client prefers that node").index, 6);
    assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
}

/// The callers drop each request before the time limit of an attempt.
async fn callers_with_a_short_limit_leave_a_hung_node() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = hanging.local_addr().expect("the listener is bound").to_string();
    let (watched, read) = (vec![stream(event(5))], vec![lease()]);
    let (watched, read) = (ScriptedNode::start(watched).await, ScriptedNode::start(read).await);
    let limit = Duration::from_millis(200);
    let asked = async {
        let mut watch = remote(&[&address, &watched.address]).watch("", None);
        while !tokio::time::timeout(limit, watch.next()).await.is_ok_and(|event| event.is_ok()) {}
        let reader = remote(&[&address, &read.address]);
        while !tokio::time::timeout(limit, reader.get(&name())).await.is_ok_and(|lease| lease.is_ok()) {}
    };
    tokio::time::timeout(Duration::from_secs(20), asked).await.expect("each client asks the other node");
}

async fn broken_watch_resumes_after_the_last_event() {
    let answers = vec![
        stream(format!("id: 4\n\n{}id: 6", event(5))),
        problem(Code::ShuttingDown),
        stream(format!("{}id: 9\n\n", event(7))),
        problem(Code::Compacted),
    ];
    let node = ScriptedNode::start(answers).await;
    let mut watch = remote(&[&node.address]).watch("", None);
    assert_eq!(watch.next().await.expect("the first event").index, 5);
    assert_eq!(watch.position(), Some(EventId { index: 5, part: None }), "an incomplete frame has no position");
    assert_eq!(watch.next().await.expect("the second event").index, 7);
    let error = watch.next().await.expect_err("the position is compacted");
    assert!(matches!(&error, CallError::Refused(problem) if problem.code == Code::Compacted), "{error:?}");
    assert_eq!(watch.position(), Some(EventId { index: 9, part: None }));
    let requests: Vec<String> = (0..4).map(|number| node.request(number)).collect();
    assert_eq!(
        requests,
        [
            "GET /v1/watch?prefix= HTTP/1.1",
            "GET /v1/watch?prefix=&after=5 HTTP/1.1",
            "GET /v1/watch?prefix=&after=5 HTTP/1.1",
            "GET /v1/watch?prefix=&after=9 HTTP/1.1",
        ]
    );
}

/// Something in place of the node ends each stream at once.
async fn watch_leaves_a_node_that_answers_with_an_empty_stream() {
    let (empty, node) = (vec![stream(String::new())], vec![stream(event(5))]);
    let (empty, node) = (ScriptedNode::start(empty).await, ScriptedNode::start(node).await);
    let mut watch = remote(&[&empty.address, &node.address]).watch("", None);
    let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("the watch goes on");
    assert_eq!(next.expect("the other node opens a stream").index, 5);
}

async fn client_that_only_watches_asks_for_the_members() {
    let node = ScriptedNode::start(vec![stream(event(5))]).await;
    let endpoints: Endpoints = node.address.parse().expect("a valid address");
    let mut watch = Remote::new(endpoints.with_refresh_interval(Duration::ZERO)).watch("", None);
    let asked = async {
        while !(0..node.request_count()).any(|number| node.request(number) == "GET /v1/cluster HTTP/1.1") {
            watch.next().await.expect("the node repeats its event");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), asked).await.expect("the client asks for the members");
}

/// A second hand-over could take the lease from the new holder.
async fn handover_with_a_lost_answer_is_not_retried() {
    for lost in [String::new(), problem(Code::OutcomeUnknown)] {
        let (first, second) =
            (ScriptedNode::start(vec![lost, lease()]).await, ScriptedNode::start(vec![lease()]).await);
        let hand_over = HandOver::new(holder(), TOKEN);
        let ended = remote(&[&first.address, &second.address]).hand_over(&name(), &hand_over).await;
        assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
        assert_eq!((first.request_count(), second.request_count()), (1, 0));
    }
}

async fn revoke_with_a_lost_answer_is_not_retried() {
    for lost in [String::new(), problem(Code::OutcomeUnknown)] {
        let revoked = || answer(200, json!({"revoked": 1}));
        let (first, second) =
            (ScriptedNode::start(vec![lost, revoked()]).await, ScriptedNode::start(vec![revoked()]).await);
        let ended = remote(&[&first.address, &second.address]).revoke(&name(), "a test").await;
        assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
        assert_eq!((first.request_count(), second.request_count()), (1, 0));
    }
}

/// Another node would carry out the change a second time, or refuse it because it is done.
async fn member_change_with_a_lost_answer_is_not_retried() {
    let (http, peer) = ("127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned());
    let changes = [
        MemberChange::Add { id: 4, http: http.clone(), peer: peer.clone() },
        MemberChange::Promote { id: 4 },
        MemberChange::Remove { id: 3, force: false },
        MemberChange::Replace { old: 3, new: 4 },
        MemberChange::Update { id: 3, http, peer },
    ];
    // Without a change, the client transfers the leadership.
    for change in changes.into_iter().map(Some).chain([None]) {
        let first = ScriptedNode::start(vec![String::new(), problem(Code::MemberRefused)]).await;
        let second = ScriptedNode::start(vec![problem(Code::MemberRefused)]).await;
        let remote = remote(&[&first.address, &second.address]);
        let ended = match &change {
            Some(change) => remote.change_members(change).await.map(drop),
            None => remote.transfer_leadership(None).await.map(drop),
        };
        assert!(matches!(ended, Err(CallError::Unknown { last: None, .. })), "{change:?}: {ended:?}");
        assert_eq!((first.request_count(), second.request_count()), (1, 0), "{change:?}");
    }
}

/// The principal would have another token, whose secret no client knows.
async fn new_token_with_a_lost_answer_is_not_retried() {
    let principal = AccessName::new("ci").expect("valid");
    let created = || answer(200, json!({ "id": "0123456789abcdef", "principal": "ci", "token": "tenure_secret" }));
    for lost in [String::new(), problem(Code::OutcomeUnknown)] {
        let (first, second) =
            (ScriptedNode::start(vec![lost, created()]).await, ScriptedNode::start(vec![created()]).await);
        let ended = remote(&[&first.address, &second.address]).create_token(&principal, None).await;
        assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
        assert_eq!((first.request_count(), second.request_count()), (1, 0));
    }
}

/// A node that answers a claim once it has said this often whether it is ready. Returns its address.
async fn probed(probes_before_answer: usize, readiness: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        let (mut waiting, mut probes) = (Vec::new(), 0);
        while let Ok((mut stream, _)) = listener.accept().await {
            if !read_request(&mut stream).await.starts_with("GET /readyz ") {
                waiting.push(stream);
                continue;
            }
            let _ = stream.write_all(answer(readiness, json!({})).as_bytes()).await;
            probes += 1;
            if probes == probes_before_answer {
                for mut stream in waiting.drain(..) {
                    let _ = stream.write_all(lease().as_bytes()).await;
                }
            }
        }
    });
    address
}

async fn wait_stays_at_its_node_while_that_is_ready() {
    for (readiness, asked_elsewhere) in [(200, 0), (404, 0), (503, 1)] {
        let (own, other) = (probed(2, readiness).await, ScriptedNode::start(vec![lease()]).await);
        let claim = Acquire::new(holder()).wait(Duration::from_secs(60)).ttl(Duration::from_secs(3));
        let granted = remote(&[&own, &other.address]).acquire(&name(), &claim).await.expect("one of them grants");
        assert_eq!((granted.token, other.request_count()), (TOKEN, asked_elsewhere), "{readiness}");
    }
}

async fn error_names_the_node_and_its_cause() {
    let address = unused_address().await;
    let error = remote_with_timeout(&[&address], TIMEOUT).queue(&name()).await.expect_err("no node listens");
    let CallError::Unavailable(why) = error else { panic!("{error:?}") };
    let cause = why.strip_prefix(&format!("http://{address}/: ")).unwrap_or_else(|| panic!("{why}"));
    assert!(cause.contains("refused"), "{cause}");
}

async fn lists_send_the_filters_that_are_set() {
    let node = ScriptedNode::start(vec![answer(200, json!({"leases": [], "cursor": null}))]).await;
    let remote = remote(&[&node.address]);
    remote.list(&ListQuery::default(), None).await.expect("a page");
    let query = ListQuery::new().prefix("a/").holder(holder()).states("expired").limit(7);
    remote.list(&query, Some("next")).await.expect("a page");
    let asked = [node.request(0), node.request(1)];
    let filters = "prefix=a%2F&holder=h&state=expired&limit=7&cursor=next";
    assert_eq!(asked, ["GET /v1/leases HTTP/1.1".to_owned(), format!("GET /v1/leases?{filters} HTTP/1.1")]);
}

async fn pages_of_a_list_are_read_to_the_last() {
    let page = |cursor: Option<&str>| answer(200, json!({"leases": [], "cursor": cursor}));
    let node = ScriptedNode::start(vec![page(Some("one")), page(Some("two")), page(None)]).await;
    let held = remote(&[&node.address]).held("job".to_owned(), RetryBudget::within(Duration::from_secs(5))).await;
    assert_eq!(held, Ok(Vec::new()));
    let first = "/v1/leases?prefix=job&state=active&limit=1000";
    let asked: Vec<String> = (0..node.request_count()).map(|number| node.request(number)).collect();
    let expected = [first.to_owned(), format!("{first}&cursor=one"), format!("{first}&cursor=two")];
    assert_eq!(asked, expected.map(|path| format!("GET {path} HTTP/1.1")));
}

/// A cluster without a leader refuses at once. Without pauses its clients would ask as fast as they can.
async fn watch_pauses_after_each_round_of_refusals() {
    let node = ScriptedNode::start(vec![problem(Code::ShuttingDown)]).await;
    let ended = remote_with_timeout(&[&node.address], SHORT_TIMEOUT).watch("", None).next().await;
    assert_eq!(ended, Err(CallError::Unavailable("why".to_owned())));
    // Within half a second, with pauses of 200 ms.
    assert!((2..=4).contains(&node.request_count()), "{}", node.request_count());
}

/// A node without an answer does not hide that the others refuse the caller.
async fn watch_ends_at_a_refusal_while_a_node_is_down() {
    for (code, is_refused) in [(Code::Unauthenticated, true), (Code::Forbidden, true), (Code::NotReady, false)] {
        let (down, up) = (unused_address().await, ScriptedNode::start(vec![problem(code)]).await);
        let ended = remote_with_timeout(&[&down, &up.address], TIMEOUT)
            .watch("", None)
            .next()
            .await
            .expect_err("no node opens a stream");
        let refused = matches!(&ended, CallError::Refused(problem) if problem.code == code);
        assert_eq!(refused, is_refused, "{code:?}: {ended:?}");
        assert!(!is_refused || up.request_count() == 2, "{code:?}: {}", up.request_count());
    }
}

/// A node can apply a new token later than the node that created it.
async fn watch_opens_at_a_node_that_learns_the_token() {
    let stream = "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let event = json!({
        "event": "released", "index": 7, "part": 0, "name": "a", "holder": "h", "token": TOKEN.to_string(),
        "at": "2026-01-31T12:00:00.000Z"
    });
    let node = ScriptedNode::start(vec![problem(Code::Unauthenticated), format!("{stream}id: 1\ndata: {event}\n\n")]);
    let node = node.await;
    let next = remote(&[&node.address]).watch("", None).next().await;
    assert!(next.is_ok(), "{next:?}");
}

/// The last answer of a node counts.
async fn watch_that_a_node_refused_before_an_outage_is_unavailable() {
    let node = ScriptedNode::start(vec![problem(Code::Unauthenticated), problem(Code::NoLeader)]).await;
    let ended = remote_with_timeout(&[&node.address], TIMEOUT).watch("", None).next().await;
    assert_eq!(ended, Err(CallError::Unavailable("why".to_owned())));
}

/// A node of a release without expiry ignores the ttl.
async fn token_that_an_older_node_would_never_expire_is_revoked() {
    let created = json!({ "id": "0123456789abcdef", "principal": "ci", "token": "tenure_secret" });
    let state = json!({ "enabled": true, "roles": [], "principals": [] });
    let node = ScriptedNode::start(vec![answer(200, &created), answer(200, state)]).await;
    let principal = AccessName::new("ci").expect("valid");
    let refused = remote(&[&node.address]).create_token(&principal, Some(Duration::from_secs(60))).await;
    assert!(matches!(&refused, Err(CallError::Refused(why)) if why.code == Code::AccessRefused), "{refused:?}");
    let asked: Vec<String> = (0..node.request_count()).map(|number| node.request(number)).collect();
    let paths = [
        "POST /v1/access/principals/ci/tokens?ttl_ms=60000 HTTP/1.1",
        "DELETE /v1/access/tokens/0123456789abcdef HTTP/1.1",
    ];
    assert_eq!(asked, paths);
    // An error that hides the token would leave it valid forever.
    let node = ScriptedNode::start(vec![answer(200, created), problem(Code::NoLeader)]).await;
    let unknown =
        remote_with_timeout(&[&node.address], TIMEOUT).create_token(&principal, Some(Duration::from_secs(60))).await;
    assert!(matches!(&unknown, Err(CallError::Unknown { why, .. }) if why.contains("0123456789abcdef")), "{unknown:?}");
}
