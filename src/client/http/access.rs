//! Changes of access control.

use std::time::Duration;

use reqwest::Method;

use super::Remote;
use super::call::Call;
use super::remote::to_json;
use crate::access::AccessName;
use crate::api::{AccessControl, Code, CreatedToken, Permission, Problem, SetPrincipal, SetRole};
use crate::client::CallError;
use crate::client::retry::RetryPolicy;

impl Remote {
    /// Returns the state of access control.
    ///
    /// # Errors
    ///
    /// Refused with the code `unauthenticated` or `forbidden`, and the errors of [`Remote`]. The other methods of access
    /// control return the same errors. They need the right `admin`, and are not retried after a lost answer.
    pub async fn access(&self) -> Result<AccessControl, CallError> {
        self.send(self.call(Method::GET, &["v1", "access"], RetryPolicy::Read)).await
    }

    /// Turns access control on or off. To turn it on, this client needs a credential with the right `admin`.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access).
    pub async fn enable_access(&self, enable: bool) -> Result<AccessControl, CallError> {
        let action = if enable { "enable" } else { "disable" };
        self.send(self.call(Method::POST, &["v1", "access", action], RetryPolicy::Never)).await
    }

    /// Creates a role, or replaces its permissions.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access).
    pub async fn set_role(&self, role: &AccessName, permissions: &[Permission]) -> Result<AccessControl, CallError> {
        let body = SetRole::new(permissions.to_vec());
        self.put(&["v1", "access", "roles", role.as_str()], &body).await
    }

    /// Removes a role that no principal has.
    ///
    /// # Errors
    ///
    /// Refused with the code `not_found`, and the errors of [`access`](Self::access).
    pub async fn remove_role(&self, role: &AccessName) -> Result<AccessControl, CallError> {
        self.delete(&["v1", "access", "roles", role.as_str()]).await
    }

    /// Creates a principal, or replaces its roles.
    ///
    /// # Errors
    ///
    /// Refused with the code `not_found` for an unknown role, and the errors of [`access`](Self::access).
    pub async fn set_principal(
        &self,
        principal: &AccessName,
        roles: &[AccessName],
    ) -> Result<AccessControl, CallError> {
        let body = SetPrincipal::new(roles.to_vec());
        self.put(&["v1", "access", "principals", principal.as_str()], &body).await
    }

    /// Removes a principal and its tokens. Its leases stay until they end.
    ///
    /// # Errors
    ///
    /// Refused with the code `not_found`, and the errors of [`access`](Self::access).
    pub async fn remove_principal(&self, principal: &AccessName) -> Result<AccessControl, CallError> {
        self.delete(&["v1", "access", "principals", principal.as_str()]).await
    }

    /// Creates an access token of a principal. The cluster shows its secret only here. After an unknown outcome, the token
    /// may exist: [`access`](Self::access) shows its id.
    ///
    /// The leader revokes the token when `ttl` has passed by its wall clock. Without `ttl`, the token stays until you
    /// revoke it.
    ///
    /// # Errors
    ///
    /// - Refused as `not_found`, and the errors of [`access`](Self::access).
    /// - Refused as `access_refused`: a node of an older release ignored the `ttl`, and this call has revoked the token.
    /// - Unknown with the id of the token: that revocation failed.
    pub async fn create_token(&self, principal: &AccessName, ttl: Option<Duration>) -> Result<CreatedToken, CallError> {
        let query = ttl.map(|ttl| ("ttl_ms", ttl.as_millis().to_string())).into_iter().collect();
        let path = ["v1", "access", "principals", principal.as_str(), "tokens"];
        let call = Call { query, ..self.call(Method::POST, &path, RetryPolicy::Never) };
        let created: CreatedToken = self.send(call).await?;
        if ttl.is_some() && created.expires_at.is_none() {
            // A node of an older release ignores the ttl.
            self.revoke_token(&created.id).await.map_err(|error| CallError::Unknown {
                why: format!(
                    "a node has an older release, so token {} does not expire; revoke it: {error}",
                    created.id
                ),
                last: None,
            })?;
            let detail = "a node has an older release, so the token would not expire: it is revoked; upgrade all nodes";
            return Err(CallError::Refused(Box::new(Problem::new(Code::AccessRefused, detail))));
        }
        Ok(created)
    }

    /// Revokes the access token with this public id.
    ///
    /// # Errors
    ///
    /// Refused with the code `not_found`, with `invalid` if the text is no id, and the errors of [`access`](Self::access).
    pub async fn revoke_token(&self, id: &str) -> Result<AccessControl, CallError> {
        self.delete(&["v1", "access", "tokens", id]).await
    }

    async fn put<T: serde::Serialize>(&self, path: &[&str], body: &T) -> Result<AccessControl, CallError> {
        let json = to_json(body);
        let call = self.call(Method::PUT, path, RetryPolicy::Never);
        self.send(Call { body: Some(Box::new(move |_| json.clone())), ..call }).await
    }

    async fn delete(&self, path: &[&str]) -> Result<AccessControl, CallError> {
        self.send(self.call(Method::DELETE, path, RetryPolicy::Never)).await
    }
}
