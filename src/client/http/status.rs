//! The version, the metrics and the health of a node.

#[cfg(feature = "cli")]
use std::net::SocketAddr;

use reqwest::Method;

use super::Remote;
#[cfg(feature = "cli")]
use super::call::describe_error;
#[cfg(feature = "cli")]
use super::remote::{BUILDS, http_client, with_tls};
#[cfg(feature = "cli")]
use crate::api::Problem;
use crate::api::Version;
use crate::client::CallError;
use crate::client::retry::RetryPolicy;
#[cfg(feature = "cli")]
use crate::tls::ClientTls;

impl Remote {
    /// Returns the version of the node that answers.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn version(&self) -> Result<Version, CallError> {
        self.send(self.call(Method::GET, "version".to_owned(), RetryPolicy::Read)).await
    }

    /// Returns the metrics of the node that answers, in the Prometheus text format.
    ///
    /// # Errors
    ///
    /// Refused with the code `unauthenticated` or `not_found`, and the errors of [`Remote`].
    pub async fn metrics(&self) -> Result<String, CallError> {
        let call = self.call(Method::GET, "metrics".to_owned(), RetryPolicy::Read);
        let answered = call.send_for_bytes(&self.http, &self.endpoints).await?;
        Ok(String::from_utf8_lossy(&answered.answer).into_owned())
    }
}

/// Sends one GET request, without a retry. The host name in the URL stands for this address.
///
/// # Errors
///
/// A message: the URL is invalid, there is no answer, or it is no success.
#[cfg(feature = "cli")]
pub(crate) async fn get_at(url: &str, at: SocketAddr, tls: Option<&ClientTls>) -> Result<(), String> {
    let url: reqwest::Url = url.parse().map_err(|error| format!("{url}: {error}"))?;
    let builder = with_tls(http_client(), tls).resolve(url.host_str().unwrap_or_default(), at);
    let sent = builder.build().expect(BUILDS).get(url.clone()).send().await;
    let answer = sent.map_err(|error| describe_error(&url, &error))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let why = answer.json::<Problem>().await.map_or(status.to_string(), |problem| problem.detail);
    Err(format!("{url}: {why}"))
}
