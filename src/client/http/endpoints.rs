//! The URLs of a cluster's nodes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Url;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::call::exchange;
use super::credential::Http;
use crate::api::Cluster;

/// Environment variable with the URLs of the nodes, separated by commas.
pub const ENDPOINTS_VARIABLE: &str = "TENURE_ENDPOINTS";
/// The nodes of `tenure dev`.
pub const DEFAULT_ENDPOINTS: &str = "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103";
/// Largest number of endpoints of a client.
pub const MAX_ENDPOINTS: usize = 32;

/// Default interval at which a client asks the cluster for its members.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// Longest interval if an endpoint did not serve a request since the last time: it may have been replaced.
const REFRESH_INTERVAL_AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Longest wait for the members.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);
/// The attempts at one node that callers drop before its answer can take this time together. After that, the next request
/// begins at another node.
const LONGEST_SILENCE: Duration = Duration::from_millis(250);
/// Path of the members.
const CLUSTER: &str = "v1/cluster";

/// The endpoints of a cluster. Cheap to clone. Clones share the preferred node: the one that answered last gets the
/// next request.
///
/// While a client sends requests or watches, it asks the cluster for its members every 30 s, and after 2 s if an endpoint
/// fails. It adds their addresses, so it also reaches nodes that join later. It never drops the endpoints that it was
/// given.
#[derive(Clone, Debug)]
pub struct Endpoints {
    inner: Arc<EndpointState>,
    refresh_interval: Duration,
}

#[derive(Debug)]
struct EndpointState {
    /// The endpoints that the client was given.
    given: Vec<Url>,
    /// These, and the other members of the cluster.
    urls: Mutex<Arc<[Url]>>,
    preferred: AtomicUsize,
    /// Microseconds of the attempts at the preferred node that callers dropped, since the last answer.
    silent_us: AtomicU64,
    refresh: Mutex<Refresh>,
}

/// The last request for the members.
#[derive(Debug)]
struct Refresh {
    began: Instant,
    /// An endpoint failed since then.
    has_failure: bool,
    task: Option<JoinHandle<()>>,
}

impl Drop for EndpointState {
    fn drop(&mut self) {
        if let Some(task) = self.refresh.get_mut().task.take() {
            task.abort();
        }
    }
}

impl Endpoints {
    fn new(given: Vec<Url>) -> Endpoints {
        let urls = Mutex::new(given.clone().into());
        let refresh = Mutex::new(Refresh { began: Instant::now(), has_failure: false, task: None });
        let (preferred, silent_us) = (AtomicUsize::new(0), AtomicU64::new(0));
        let inner = Arc::new(EndpointState { given, urls, preferred, silent_us, refresh });
        Endpoints { inner, refresh_interval: REFRESH_INTERVAL }
    }

    /// Sets the interval at which the client asks for the members. Default: 30 s. A shorter interval finds new nodes
    /// earlier, and costs the cluster a read of its status each time.
    pub fn with_refresh_interval(self, interval: Duration) -> Endpoints {
        Endpoints { refresh_interval: interval, ..self }
    }

    /// The number of endpoints.
    pub fn len(&self) -> usize {
        self.urls().len()
    }

    /// Always `false`: there is at least one endpoint.
    pub fn is_empty(&self) -> bool {
        self.urls().is_empty()
    }

    /// The current endpoints.
    pub(super) fn urls(&self) -> Arc<[Url]> {
        self.inner.urls.lock().clone()
    }

    /// Asks for the members of the cluster at `answered`, in the background, if the last request is long ago.
    pub(super) fn refresh(&self, http: &Http, answered: &Url) {
        let mut refresh = self.inner.refresh.lock();
        let after_failure = self.refresh_interval.min(REFRESH_INTERVAL_AFTER_FAILURE);
        let interval = if refresh.has_failure { after_failure } else { self.refresh_interval };
        let is_in_progress = refresh.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_in_progress || refresh.began.elapsed() < interval {
            return;
        }
        (refresh.began, refresh.has_failure) = (Instant::now(), false);
        let (weak, answered) = (Arc::downgrade(&self.inner), answered.clone());
        let request = http.get(answered.join(CLUSTER).expect("a constant path")).timeout(REFRESH_TIMEOUT);
        refresh.task = Some(tokio::spawn(async move {
            // Without an answer, the endpoints stay as they are until the next refresh.
            let Ok((status, body)) = exchange(request, None).await else { return };
            let Ok(cluster) = serde_json::from_slice::<Cluster>(&body) else { return };
            if status.is_success()
                && let Some(inner) = weak.upgrade()
            {
                inner.add_members(&answered, cluster.members.iter().map(|member| member.http.as_str()));
            }
        }));
    }

    pub(super) fn preferred(&self) -> usize {
        self.inner.preferred.load(Ordering::Relaxed)
    }

    pub(super) fn prefer(&self, index: usize) {
        self.inner.preferred.store(index, Ordering::Relaxed);
        self.inner.silent_us.store(0, Ordering::Relaxed);
    }

    /// Moves the preference to the next node of `count`, so that a node that hangs does not cost each request its first
    /// attempt.
    pub(super) fn avoid(&self, index: usize, count: usize) {
        self.inner.refresh.lock().has_failure = true;
        let next = (index + 1) % count;
        // Another request may have set a better preference in the meantime.
        if self.inner.preferred.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.inner.silent_us.store(0, Ordering::Relaxed);
        }
    }

    /// Begins an attempt at the node `index` of `count`.
    pub(super) fn begin_attempt(&self, index: usize, count: usize) -> Unanswered<'_> {
        Unanswered { endpoints: Some(self), index, count, began: Instant::now() }
    }
}

/// An attempt at a node. If its caller drops it before its [`end`](Self::end), its time counts against the node: a caller
/// with a short limit must not ask a node that hangs each time.
pub(super) struct Unanswered<'a> {
    endpoints: Option<&'a Endpoints>,
    index: usize,
    count: usize,
    began: Instant,
}

impl Unanswered<'_> {
    pub(super) fn end(mut self) {
        self.endpoints = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let Some(endpoints) = self.endpoints.filter(|endpoints| endpoints.preferred() == self.index) else { return };
        let took = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let silent = endpoints.inner.silent_us.fetch_add(took, Ordering::Relaxed).saturating_add(took);
        if Duration::from_micros(silent) >= LONGEST_SILENCE {
            endpoints.avoid(self.index, self.count);
        }
    }
}

impl EndpointState {
    /// Sets the endpoints: the given ones, then the other members. They have the scheme and the path of the node that
    /// answered.
    fn add_members<'m>(&self, answered: &Url, members: impl Iterator<Item = &'m str>) {
        let url = |address: &str| parse_url(&format!("{}://{address}{}", answered.scheme(), answered.path())).ok();
        let mut urls = self.given.clone();
        for url in members.filter_map(url) {
            if urls.len() < MAX_ENDPOINTS && !urls.contains(&url) {
                urls.push(url);
            }
        }
        let mut current = self.urls.lock();
        if **current != *urls {
            tracing::debug!(endpoints = ?urls.iter().map(Url::as_str).collect::<Vec<_>>(), "the members have changed");
            *current = urls.into();
        }
    }
}

/// The endpoint of attempt number `attempt`: the attempts start at `first` and go around.
pub(super) fn at(urls: &[Url], first: usize, attempt: usize) -> (usize, &Url) {
    let index = (first + attempt) % urls.len();
    (index, &urls[index])
}

impl Default for Endpoints {
    fn default() -> Endpoints {
        DEFAULT_ENDPOINTS.parse().expect("the default endpoints are valid")
    }
}

/// Parses URLs separated by commas. `host:port` stands for `http://host:port`. The path of a URL is the mount point of
/// the node's router. `https` needs an HTTP client with TLS:
/// [`Remote::with_http_client`](super::Remote::with_http_client).
impl FromStr for Endpoints {
    type Err = InvalidEndpoints;

    fn from_str(text: &str) -> Result<Endpoints, InvalidEndpoints> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let urls = words.map(parse_url).collect::<Result<Vec<Url>, InvalidEndpoints>>()?;
        match urls.len() {
            0 => Err(InvalidEndpoints::None),
            1..=MAX_ENDPOINTS => Ok(Endpoints::new(urls)),
            found => Err(InvalidEndpoints::TooMany { found }),
        }
    }
}

/// Formats the URLs that it was given, separated by commas. The result can be parsed again.
impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<&str> = self.inner.given.iter().map(Url::as_str).collect();
        f.write_str(&urls.join(","))
    }
}

fn parse_url(word: &str) -> Result<Url, InvalidEndpoints> {
    let invalid = |why: &str| InvalidEndpoints::Url { url: word.to_owned(), why: why.to_owned() };
    let text = if word.contains("://") { word.to_owned() } else { format!("http://{word}") };
    let mut url = Url::parse(&text).map_err(|error| invalid(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid("expected the scheme http or https"));
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("expected only a scheme, a host, a port and a path"));
    }
    if url.host_str().is_some_and(|host| host.contains(',')) {
        // The URL holds it as %2c. The text of `Display` would parse as two endpoints.
        return Err(invalid("a host name cannot contain a comma"));
    }
    if !url.path().ends_with('/') {
        // Without the final slash, `Url::join` replaces the last part of the path.
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// Why a text is not a list of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEndpoints {
    /// The text holds no endpoint.
    #[error("no endpoint is given: expected URLs separated by commas")]
    None,
    /// The text holds more than [`MAX_ENDPOINTS`] endpoints.
    #[error("{found} endpoints are given: expected at most {MAX_ENDPOINTS}")]
    TooMany {
        /// The number of endpoints.
        found: usize,
    },
    /// An endpoint is not a valid URL.
    #[error("invalid endpoint {url:?}: {why}")]
    Url {
        /// The endpoint.
        url: String,
        /// Why it is invalid.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::client::Remote;

    #[test]
    fn hosts_and_urls_are_parsed() {
        let text = " http://127.0.0.1:7101/, node-2:7101 ,[::1]:7101, https://leases.example/tenure,";
        let endpoints: Endpoints = text.parse().expect("four valid endpoints");
        let urls = endpoints.urls();
        let urls: Vec<&str> = urls.iter().map(Url::as_str).collect();
        let expected =
            ["http://127.0.0.1:7101/", "http://node-2:7101/", "http://[::1]:7101/", "https://leases.example/tenure/"];
        assert_eq!(urls, expected);
        assert!(!endpoints.is_empty());
        let again: Endpoints = endpoints.to_string().parse().expect("the formatted endpoints parse again");
        assert_eq!(again.urls(), endpoints.urls());
        assert_eq!(Endpoints::default().len(), 3);
    }

    #[test]
    fn invalid_endpoints_are_refused() {
        for bad in ["", ",", "http://u:p@a", "http://:p@a", "http://a?x=1", "http://a#x", "ftp://a", "http://", "a%2cb"]
        {
            assert!(bad.parse::<Endpoints>().is_err(), "{bad}");
        }
    }

    #[test]
    fn attempts_start_at_the_preferred_node_and_go_around() {
        let endpoints = Endpoints::default();
        endpoints.clone().prefer(2);
        let first = endpoints.preferred();
        let urls = endpoints.urls();
        let indices: Vec<usize> = (0..4).map(|attempt| at(&urls, first, attempt).0).collect();
        assert_eq!(indices, [2, 0, 1, 2]);
        endpoints.avoid(1, 3);
        assert_eq!(endpoints.preferred(), 2, "another one is preferred");
        endpoints.avoid(2, 3);
        assert_eq!(endpoints.preferred(), 0);
    }

    /// A caller drops its request at the node `index` of three after this time.
    async fn drop_request(endpoints: &Endpoints, index: usize, after: Duration) {
        let _attempt = endpoints.begin_attempt(index, 3);
        tokio::time::sleep(after).await;
    }

    /// Callers with a short limit drop some requests, and the node answers others.
    #[tokio::test(start_paused = true)]
    async fn node_that_answers_stays_preferred() {
        let endpoints = Endpoints::default();
        for request in 0..3 {
            drop_request(&endpoints, 0, LONGEST_SILENCE * 2 / 5).await;
            assert_eq!(endpoints.preferred(), 0, "request {request}");
            endpoints.prefer(0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_of_one_node_does_not_count_for_the_next() {
        let endpoints = Endpoints::default();
        drop_request(&endpoints, 0, LONGEST_SILENCE).await;
        assert_eq!(endpoints.preferred(), 1, "the first node hangs");
        drop_request(&endpoints, 1, LONGEST_SILENCE * 2 / 5).await;
        assert_eq!(endpoints.preferred(), 1, "the second node has time left");
    }

    #[test]
    fn members_follow_the_given_endpoints() {
        let endpoints: Endpoints = "http://a:1/tenure,b:1".parse().expect("valid");
        let answered = endpoints.urls()[0].clone();
        let urls = || endpoints.urls().iter().map(|url| url.to_string()).collect::<Vec<_>>();
        endpoints.inner.add_members(&answered, ["a:1", "c:1", "[::1]:1", "not an address"].into_iter());
        assert_eq!(urls(), ["http://a:1/tenure/", "http://b:1/", "http://c:1/tenure/", "http://[::1]:1/tenure/"]);
        // The cluster has removed node c.
        endpoints.inner.add_members(&answered, ["d:1"].into_iter());
        assert_eq!(urls(), ["http://a:1/tenure/", "http://b:1/", "http://d:1/tenure/"]);
        assert_eq!(endpoints.to_string(), "http://a:1/tenure/,http://b:1/", "only the given endpoints");
        let many: Vec<String> = (0..40).map(|node| format!("node-{node}:1")).collect();
        endpoints.inner.add_members(&answered, many.iter().map(String::as_str));
        assert_eq!(endpoints.len(), MAX_ENDPOINTS);
    }

    #[tokio::test(start_paused = true)]
    async fn members_are_asked_for_every_30_s_and_2_s_after_a_failure() {
        let endpoints: Endpoints = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3".parse().expect("valid");
        let (http, url) = (Remote::new(endpoints.clone()).http, endpoints.urls()[0].clone());
        let asks_after = async |seconds| {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            endpoints.refresh(&http, &url);
            let mut refresh = endpoints.inner.refresh.lock();
            // No node listens: the request must not delay the next one.
            refresh.task = None;
            refresh.began == Instant::now()
        };
        assert_eq!((asks_after(29).await, asks_after(1).await), (false, true));
        endpoints.avoid(0, 3);
        assert_eq!((asks_after(1).await, asks_after(1).await), (false, true), "after a failure");
        assert_eq!((asks_after(3).await, asks_after(26).await, asks_after(1).await), (false, false, true));
    }

    /// The answer takes longer than the interval.
    #[tokio::test]
    async fn short_refresh_interval_leaves_time_for_the_answer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoints: Endpoints = listener.local_addr().expect("it is bound").to_string().parse().expect("valid");
        let member = serde_json::json!({
            "id": 2, "role": "voter", "state": "up", "http": "127.0.0.1:1", "peer": "127.0.0.1:2", "lag": null,
            "last_contact_ms": null
        });
        let body = serde_json::json!({
            "cluster_id": "c", "node": 1, "leader": 1, "quorum": true, "term": 1, "applied": 9, "feature_level": 1,
            "clock": {"monotonic_ms": 5, "wall": "2026-01-31T12:00:00.000Z"}, "members": [member]
        });
        let body = body.to_string();
        let answer = format!("HTTP/1.1 200 X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    if stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }
                });
            }
        });
        let endpoints = endpoints.with_refresh_interval(Duration::ZERO);
        let (http, url) = (Remote::new(endpoints.clone()).http, endpoints.urls()[0].clone());
        let learned = async {
            while endpoints.len() == 1 {
                endpoints.refresh(&http, &url);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), learned).await.expect("the client learns of the member");
    }

    #[test]
    fn endpoints_are_at_most_32() {
        let named = |count: usize| vec!["node:7101"; count].join(",").parse::<Endpoints>();
        assert_eq!(named(32).expect("32 endpoints are allowed").len(), 32);
        assert_eq!(named(33).err(), Some(InvalidEndpoints::TooMany { found: 33 }));
    }
}
