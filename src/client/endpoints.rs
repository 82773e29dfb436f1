//! The nodes of a cluster, as a client reaches them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Url;

/// Environment variable with the nodes' URLs, commas between them.
pub const ENDPOINTS_VARIABLE: &str = "TENURE_ENDPOINTS";
/// The nodes of `tenure dev`.
pub const DEFAULT_ENDPOINTS: &str = "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103";
/// Most nodes that a client knows.
pub const MAX_ENDPOINTS: usize = 32;

/// Where to ask. Cheap to clone; clones share which node answered last, and it is asked first.
#[derive(Clone, Debug)]
pub struct Endpoints(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    urls: Vec<Url>,
    preferred: AtomicUsize,
}

impl Endpoints {
    pub fn len(&self) -> usize {
        self.0.urls.len()
    }

    /// Never true: there is at least one.
    pub fn is_empty(&self) -> bool {
        self.0.urls.is_empty()
    }

    /// Number `attempt` of a request goes there: to the preferred node first, then around.
    pub(super) fn at(&self, first: usize, attempt: usize) -> (usize, &Url) {
        let place = (first + attempt) % self.len();
        (place, &self.0.urls[place])
    }

    pub(super) fn preferred(&self) -> usize {
        self.0.preferred.load(Ordering::Relaxed)
    }

    pub(super) fn prefer(&self, place: usize) {
        self.0.preferred.store(place, Ordering::Relaxed);
    }

    /// This node did not answer, or could not serve: the next one is asked first from now on, so that one that hangs does
    /// not cost every request its first attempt.
    pub(super) fn avoid(&self, place: usize) {
        let next = (place + 1) % self.len();
        // Unless somebody has found a better one meanwhile.
        let _ = self.0.preferred.compare_exchange(place, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Default for Endpoints {
    fn default() -> Endpoints {
        DEFAULT_ENDPOINTS.parse().expect("the default is valid, which a test checks")
    }
}

/// URLs with commas between them. `host:port` stands for `http://host:port`. A path is where the node's router is
/// mounted. `https` needs an HTTP client with TLS: [`Remote::with_http_client`](super::Remote::with_http_client).
impl FromStr for Endpoints {
    type Err = InvalidEndpoints;

    fn from_str(text: &str) -> Result<Endpoints, InvalidEndpoints> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let urls = words.map(read_url).collect::<Result<Vec<Url>, InvalidEndpoints>>()?;
        match urls.len() {
            0 => Err(InvalidEndpoints::None),
            1..=MAX_ENDPOINTS => Ok(Endpoints(Arc::new(Inner { urls, preferred: AtomicUsize::new(0) }))),
            found => Err(InvalidEndpoints::TooMany { found }),
        }
    }
}

/// URLs with commas between them, as they are read.
impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<&str> = self.0.urls.iter().map(Url::as_str).collect();
        f.write_str(&urls.join(","))
    }
}

fn read_url(word: &str) -> Result<Url, InvalidEndpoints> {
    let invalid = |why: &str| InvalidEndpoints::Url { url: word.to_owned(), why: why.to_owned() };
    let text = if word.contains("://") { word.to_owned() } else { format!("http://{word}") };
    let mut url = Url::parse(&text).map_err(|error| invalid(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid("only http and https are spoken"));
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("a scheme, a host, a port and a path are all that belongs there"));
    }
    if url.host_str().is_some_and(|host| host.contains(',')) {
        // Written as %2c: it would be two where this is read again.
        return Err(invalid("no host has a comma in its name"));
    }
    if !url.path().ends_with('/') {
        // Else the last part of the path would be replaced by what is asked for.
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// Why there are no endpoints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoints {
    #[error("no endpoint is named")]
    None,
    #[error("{found} endpoints are named; at most {MAX_ENDPOINTS} are used")]
    TooMany { found: usize },
    #[error("endpoint {url:?}: {why}")]
    Url { url: String, why: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_urls_are_read() {
        let text = " http://127.0.0.1:7101/, node-2:7101 ,[::1]:7101, https://leases.example/tenure,";
        let endpoints: Endpoints = text.parse().expect("four of them");
        let urls: Vec<&str> = endpoints.0.urls.iter().map(Url::as_str).collect();
        let expected =
            ["http://127.0.0.1:7101/", "http://node-2:7101/", "http://[::1]:7101/", "https://leases.example/tenure/"];
        assert_eq!(urls, expected);
        assert!(!endpoints.is_empty());
        let again: Endpoints = endpoints.to_string().parse().expect("what was read is written so that it can be read");
        assert_eq!(again.0.urls, endpoints.0.urls);
        assert_eq!(Endpoints::default().len(), 3);
    }

    #[test]
    fn what_is_no_node_is_named() {
        for bad in ["", ",", "http://u:p@a", "http://:p@a", "http://a?x=1", "http://a#x", "ftp://a", "http://", "a%2cb"]
        {
            assert!(bad.parse::<Endpoints>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_node_that_answered_is_asked_first_and_then_around() {
        let endpoints = Endpoints::default();
        endpoints.clone().prefer(2);
        let first = endpoints.preferred();
        let places: Vec<usize> = (0..4).map(|attempt| endpoints.at(first, attempt).0).collect();
        assert_eq!(places, [2, 0, 1, 2]);
        endpoints.avoid(1);
        assert_eq!(endpoints.preferred(), 2, "another one is preferred");
        endpoints.avoid(2);
        assert_eq!(endpoints.preferred(), 0);
    }

    #[test]
    fn endpoints_are_at_most_32() {
        let named = |count: usize| vec!["node:7101"; count].join(",").parse::<Endpoints>();
        assert_eq!(named(32).expect("it is at the bound").len(), 32);
        assert_eq!(named(33).err(), Some(InvalidEndpoints::TooMany { found: 33 }));
    }
}
