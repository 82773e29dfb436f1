//! The URLs of a cluster's nodes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Url;

/// Environment variable with the URLs of the nodes, separated by commas.
pub const ENDPOINTS_VARIABLE: &str = "TENURE_ENDPOINTS";
/// The nodes of `tenure dev`.
pub const DEFAULT_ENDPOINTS: &str = "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103";
/// Largest number of endpoints of a client.
pub const MAX_ENDPOINTS: usize = 32;

/// The endpoints of a cluster. Cheap to clone. Clones share the preferred node: the one that answered last gets the
/// next request.
#[derive(Clone, Debug)]
pub struct Endpoints(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    urls: Vec<Url>,
    preferred: AtomicUsize,
}

impl Endpoints {
    /// The number of endpoints.
    pub fn len(&self) -> usize {
        self.0.urls.len()
    }

    /// Always `false`: there is at least one endpoint.
    pub fn is_empty(&self) -> bool {
        self.0.urls.is_empty()
    }

    /// The endpoint of attempt number `attempt`: the attempts start at `first` and go around.
    pub(super) fn at(&self, first: usize, attempt: usize) -> (usize, &Url) {
        let index = (first + attempt) % self.len();
        (index, &self.0.urls[index])
    }

    pub(super) fn preferred(&self) -> usize {
        self.0.preferred.load(Ordering::Relaxed)
    }

    pub(super) fn prefer(&self, index: usize) {
        self.0.preferred.store(index, Ordering::Relaxed);
    }

    /// Moves the preference to the next node, so that a node that hangs does not cost each request its first attempt.
    pub(super) fn avoid(&self, index: usize) {
        let next = (index + 1) % self.len();
        // Another request may have set a better preference in the meantime.
        let _ = self.0.preferred.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }
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
            1..=MAX_ENDPOINTS => Ok(Endpoints(Arc::new(Inner { urls, preferred: AtomicUsize::new(0) }))),
            found => Err(InvalidEndpoints::TooMany { found }),
        }
    }
}

/// Formats the URLs separated by commas. The result can be parsed again.
impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<&str> = self.0.urls.iter().map(Url::as_str).collect();
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
    use super::*;

    #[test]
    fn hosts_and_urls_are_parsed() {
        let text = " http://127.0.0.1:7101/, node-2:7101 ,[::1]:7101, https://leases.example/tenure,";
        let endpoints: Endpoints = text.parse().expect("four valid endpoints");
        let urls: Vec<&str> = endpoints.0.urls.iter().map(Url::as_str).collect();
        let expected =
            ["http://127.0.0.1:7101/", "http://node-2:7101/", "http://[::1]:7101/", "https://leases.example/tenure/"];
        assert_eq!(urls, expected);
        assert!(!endpoints.is_empty());
        let again: Endpoints = endpoints.to_string().parse().expect("the formatted endpoints parse again");
        assert_eq!(again.0.urls, endpoints.0.urls);
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
        let indices: Vec<usize> = (0..4).map(|attempt| endpoints.at(first, attempt).0).collect();
        assert_eq!(indices, [2, 0, 1, 2]);
        endpoints.avoid(1);
        assert_eq!(endpoints.preferred(), 2, "another one is preferred");
        endpoints.avoid(2);
        assert_eq!(endpoints.preferred(), 0);
    }

    #[test]
    fn endpoints_are_at_most_32() {
        let named = |count: usize| vec!["node:7101"; count].join(",").parse::<Endpoints>();
        assert_eq!(named(32).expect("32 endpoints are allowed").len(), 32);
        assert_eq!(named(33).err(), Some(InvalidEndpoints::TooMany { found: 33 }));
    }
}
