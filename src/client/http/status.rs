//! The version and the metrics of a node.

use reqwest::Method;

use super::Remote;
use crate::api::Version;
use crate::client::CallError;
use crate::client::retry::RetryPolicy;

impl Remote {
    /// Returns the version of the node that answers.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn version(&self) -> Result<Version, CallError> {
        self.send(self.call(Method::GET, &["version"], RetryPolicy::Read)).await
    }

    /// Returns the metrics of the node that answers, in the Prometheus text format.
    ///
    /// # Errors
    ///
    /// Refused with the code `unauthenticated` or `not_found`, and the errors of [`Remote`].
    pub async fn metrics(&self) -> Result<String, CallError> {
        let call = self.call(Method::GET, &["metrics"], RetryPolicy::Read);
        let answered = call.send_for_bytes(&self.http, &self.endpoints).await?;
        Ok(String::from_utf8_lossy(&answered.answer).into_owned())
    }
}
