//! Access control: the operations of an embedded node, and the mapping to the types of the API.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::local::answered;
use super::{invalid, unexpected};
use crate::access::{self, AccessChange, AccessName, AccessToken, PrefixRight, TokenHash, TokenId};
use crate::api::{self, AccessControl, CreatedToken, Problem, Timestamp};
use crate::client::CallError;
use crate::clock::{Clock, SystemClock};
use crate::node::{Answer, Forward, Node, Request};
use crate::peer::Transport;
use crate::storage::Storage;
use crate::types::LeaseName;

/// The longest time until an access token expires: 100 years of 365.25 days.
const MAX_TOKEN_TTL_MS: u64 = 3_155_760_000_000;

/// The same operations as those of [`Remote`](crate::client::Remote). The program that embeds the node has all rights.
impl<S: Storage, T: Transport> Node<S, T> {
    /// Returns the roles, the principals and the ids of their access tokens. Any node asks the leader.
    ///
    /// # Errors
    ///
    /// - [`Refused`](CallError::Refused) with the code `access_refused` and the reason, or `not_found`.
    /// - [`Unknown`](CallError::Unknown): the change may be made.
    /// - [`Unavailable`](CallError::Unavailable): there is no leader. The change is not made.
    ///
    /// The other methods of access control return the same errors.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn access(&self) -> Result<AccessControl, CallError> {
        let asked = self.request(Request::Access, Forward::Once).await;
        answered(self, asked, view)
    }

    /// Turns access control on or off.
    ///
    /// Only a caller over HTTP needs an administrator: create one first, or only embedded nodes can change anything.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the change may still be made.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(node: tenure::node::Node) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::access::{AccessName, Right};
    /// use tenure::api::Permission;
    ///
    /// let admin = AccessName::new("admin")?;
    /// node.set_role(&admin, &[Permission::new(Right::Admin, "")]).await?;
    /// node.set_principal(&admin, &[admin.clone()]).await?;
    /// let token = node.create_token(&admin, None).await?;
    /// node.enable_access(true).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn enable_access(&self, enable: bool) -> Result<AccessControl, CallError> {
        self.change_access(AccessChange::Enable(enable)).await
    }

    /// Creates a role, or replaces its permissions.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access), and `invalid` for a prefix that no lease name has.
    ///
    /// # Cancel safety
    ///
    /// As of [`enable_access`](Self::enable_access).
    pub async fn set_role(
        &self,
        role: &AccessName,
        permissions: &[api::Permission],
    ) -> Result<AccessControl, CallError> {
        let permissions = permissions.iter().cloned().map(permission).collect::<Result<_, _>>();
        let permissions = permissions.map_err(CallError::Refused)?;
        self.change_access(AccessChange::SetRole { role: role.clone(), permissions }).await
    }

    /// Removes a role that no principal has.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access).
    ///
    /// # Cancel safety
    ///
    /// As of [`enable_access`](Self::enable_access).
    pub async fn remove_role(&self, role: &AccessName) -> Result<AccessControl, CallError> {
        self.change_access(AccessChange::RemoveRole(role.clone())).await
    }

    /// Creates a principal, or replaces its roles.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access).
    ///
    /// # Cancel safety
    ///
    /// As of [`enable_access`](Self::enable_access).
    pub async fn set_principal(
        &self,
        principal: &AccessName,
        roles: &[AccessName],
    ) -> Result<AccessControl, CallError> {
        let roles = roles.iter().cloned().collect();
        self.change_access(AccessChange::SetPrincipal { principal: principal.clone(), roles }).await
    }

    /// Removes a principal and its tokens. Its leases stay until they end.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access).
    ///
    /// # Cancel safety
    ///
    /// As of [`enable_access`](Self::enable_access).
    pub async fn remove_principal(&self, principal: &AccessName) -> Result<AccessControl, CallError> {
        self.change_access(AccessChange::RemovePrincipal(principal.clone())).await
    }

    /// Creates an access token of a principal. Only this answer has its secret. After an unknown outcome, the token may
    /// exist: [`access`](Self::access) shows its id.
    ///
    /// The leader revokes the token when `ttl` has passed by its wall clock. Without `ttl`, the token stays until you
    /// revoke it.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access), and `invalid` for a `ttl` of zero or above 100 years.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the cluster may still create the token, but its secret is lost. Find the token with
    /// [`access`](Self::access), and revoke it.
    pub async fn create_token(&self, principal: &AccessName, ttl: Option<Duration>) -> Result<CreatedToken, CallError> {
        let (change, created) = new_token(principal.clone(), ttl).map_err(CallError::Refused)?;
        let state = self.change_access(change).await?;
        Ok(CreatedToken { expires_at: expires_at(&state, &created.id), ..created })
    }

    /// Revokes the access token with this public id.
    ///
    /// # Errors
    ///
    /// As of [`access`](Self::access), and `invalid` if the text is no id.
    ///
    /// # Cancel safety
    ///
    /// As of [`enable_access`](Self::enable_access).
    pub async fn revoke_token(&self, id: &str) -> Result<AccessControl, CallError> {
        let id = TokenId::try_from(id.to_owned()).map_err(|error| CallError::Refused(invalid(error)))?;
        self.change_access(AccessChange::RemoveToken(id)).await
    }

    async fn change_access(&self, change: AccessChange) -> Result<AccessControl, CallError> {
        let asked = self.request(Request::ChangeAccess(change), Forward::Once).await;
        answered(self, asked, view)
    }
}

/// Checks a permission of a request.
pub(crate) fn permission(api::Permission { right, prefix }: api::Permission) -> Result<PrefixRight, Box<Problem>> {
    // A prefix that is not empty is itself a name.
    match prefix.is_empty() || LeaseName::new(&prefix).is_ok() {
        true => Ok(PrefixRight { right, prefix }),
        false => Err(invalid(format!("prefix: no lease name begins with {prefix:?}"))),
    }
}

/// A random access token: the change that adds its hash, and the answer with its secret.
pub(crate) fn new_token(
    principal: AccessName,
    ttl: Option<Duration>,
) -> Result<(AccessChange, CreatedToken), Box<Problem>> {
    let ttl_ms = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    if ttl_ms.is_some_and(|ttl_ms| !(1..=MAX_TOKEN_TTL_MS).contains(&ttl_ms)) {
        return Err(invalid("ttl_ms: an access token expires after 1 ms to 100 years"));
    }
    let token = AccessToken::from_secret(rand::random());
    let hash = TokenHash::of(&token);
    let created_wall_ms = SystemClock.wall_ms();
    let created = CreatedToken {
        id: hash.id().to_string(),
        principal: principal.clone().into(),
        token: token.expose().to_owned(),
        expires_at: None,
    };
    let change = match ttl_ms.map(|ttl_ms| created_wall_ms.saturating_add(ttl_ms)) {
        // The leader replaces both times by those of its own clock.
        Some(expires_wall_ms) => AccessChange::AddExpiringToken { principal, hash, created_wall_ms, expires_wall_ms },
        None => AccessChange::AddToken { principal, hash, created_wall_ms },
    };
    Ok((change, created))
}

/// When the token with this id expires.
pub(crate) fn expires_at(state: &AccessControl, id: &str) -> Option<Timestamp> {
    state.principals.iter().flat_map(|principal| &principal.tokens).find(|token| token.id == id)?.expires_at
}

/// Converts the state of access control.
pub(crate) fn view(answer: Answer) -> Result<AccessControl, Box<Problem>> {
    let (view, expiries) = match answer {
        Answer::Access(view) => (view, BTreeMap::new()),
        Answer::AccessWithExpiries { view, expiries } => (view, expiries),
        answer => return Err(unexpected(&answer)),
    };
    let permission = |access::PrefixRight { right, prefix }| api::Permission { right, prefix };
    let role = |(name, permissions): (AccessName, BTreeSet<access::PrefixRight>)| api::RoleDefinition {
        name: name.into(),
        permissions: permissions.into_iter().map(permission).collect(),
    };
    let token = |token: access::TokenView| api::TokenInfo {
        id: token.id.to_string(),
        created_at: Timestamp::from_millis(token.created_wall_ms),
        expires_at: expiries.get(&token.id).copied().map(Timestamp::from_millis),
    };
    let principal = |(name, principal): (AccessName, access::PrincipalView)| api::Principal {
        name: name.into(),
        roles: principal.roles.into_iter().map(String::from).collect(),
        tokens: principal.tokens.into_iter().map(token).collect(),
    };
    Ok(AccessControl {
        enabled: view.is_enabled,
        roles: view.roles.into_iter().map(role).collect(),
        principals: view.principals.into_iter().map(principal).collect(),
    })
}
