//! The download of a backup.

use std::time::Duration;

use bytes::Bytes;
use reqwest::StatusCode;
use reqwest::header::LOCATION;

use super::call::{classify_response, describe_error};
use super::endpoints::at;
use super::remote::Remote;
use crate::client::CallError;
use crate::client::retry::{Attempt, RetryPolicy, attempts};
use crate::types::Consistency;

const PATH: &str = "v1/cluster/snapshot";
/// Longest pause between two parts of a backup.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// A backup that a node sends. See [`Remote::snapshot`].
#[derive(Debug)]
pub struct Snapshot {
    url: reqwest::Url,
    response: reqwest::Response,
}

impl Remote {
    /// Downloads a backup of the cluster: from the leader, or with [`Consistency::Stale`] from any node.
    ///
    /// The backup is complete if `tenure::backup::inspect` or `tenure snapshot check` accepts it.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn snapshot(&self, consistency: Consistency) -> Result<Snapshot, CallError> {
        let (urls, first) = (self.endpoints.urls(), self.endpoints.preferred());
        let urls = &*urls;
        let resolved = attempts(RetryPolicy::Read, self.budget, Duration::ZERO, urls.len(), |context| async move {
            let (_, endpoint) = at(urls, first, context.number);
            let mut url = endpoint.join(PATH).expect("a constant path");
            url.query_pairs_mut().append_pair("consistency", consistency.as_str());
            let limited = tokio::time::timeout(context.limit, self.download(endpoint, url)).await;
            limited
                .unwrap_or_else(|_| Attempt::Unknown(format!("{endpoint} did not answer within {:?}", context.limit)))
        });
        Ok(resolved.await?.answer)
    }

    async fn download(&self, endpoint: &reqwest::Url, url: reqwest::Url) -> Attempt<Snapshot> {
        let failed = |error: &reqwest::Error| match error.is_connect() {
            true => Attempt::NotDone(describe_error(endpoint, error)),
            false => Attempt::Unknown(describe_error(endpoint, error)),
        };
        let mut response = match self.http.get(url.clone()).send().await {
            Ok(response) => response,
            Err(error) => return failed(&error),
        };
        if response.status() == StatusCode::TEMPORARY_REDIRECT
            && let Some(leader) = response.headers().get(LOCATION).and_then(|location| location.to_str().ok())
            && let Ok(leader) = url.join(leader)
        {
            response = match self.http.get(leader).send().await {
                Ok(response) => response,
                Err(error) => return failed(&error),
            };
        }
        let status = response.status();
        if status.is_success() {
            return Attempt::Done(Snapshot { url: endpoint.clone(), response });
        }
        match response.bytes().await {
            // Without a success there is no backup.
            Ok(body) => classify_response(endpoint, status, body.into())
                .and_then(|_| Attempt::NotDone(format!("{endpoint} answered {status}"))),
            Err(error) => failed(&error),
        }
    }
}

impl Snapshot {
    /// The next bytes, or `None` after the last ones.
    ///
    /// # Errors
    ///
    /// The connection ended early. The received part is no backup.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no bytes.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        let unavailable = |why: String| CallError::Unavailable(format!("the backup is incomplete: {why}"));
        match tokio::time::timeout(PART_TIMEOUT, self.response.chunk()).await {
            Ok(Ok(part)) => Ok(part),
            Ok(Err(error)) => Err(unavailable(describe_error(&self.url, &error))),
            Err(_) => Err(unavailable(format!("{} sent nothing for {PART_TIMEOUT:?}", self.url))),
        }
    }
}
