//! The replicated state of access control, its changes, and the decision about one request.
//!
//! Logs, snapshots and connections carry [`AccessState`], [`AccessChange`] and [`Caller`]: their fields are frozen, and
//! new variants go at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::AccessToken;
use crate::storage::codec;
use crate::types::{AccessName, LeaseName, Right};

/// Most bytes of the encoded state. A snapshot has it in one record.
pub const MAX_STATE_BYTES: usize = 512 << 10;
/// Most bytes of one encoded change. A log entry has it.
const MAX_CHANGE_BYTES: usize = 64 << 10;

/// The SHA-256 of an access token. The cluster stores no token itself.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenHash([u8; 32]);

/// The public id of a token: the first bytes of its hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TokenId(pub u64);

/// Who sent a request, as far as the node that received it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Caller {
    /// No credential.
    Anonymous,
    /// A node of the cluster, or the program that embeds it. It may do everything.
    Program,
    Token(TokenHash),
    /// A client certificate with this name, signed by the CA of the cluster.
    Certificate(AccessName),
}

/// A right on all names that begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PrefixRight {
    pub right: Right,
    pub prefix: String,
}

/// The stored state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessState {
    is_enabled: bool,
    roles: BTreeMap<AccessName, BTreeSet<PrefixRight>>,
    principals: BTreeMap<AccessName, PrincipalState>,
    /// The wall clock in milliseconds since 1970 at which a token expires. Snapshots hold it beside this state, because
    /// older formats do not have it.
    #[serde(skip)]
    expiries: BTreeMap<TokenId, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PrincipalState {
    roles: BTreeSet<AccessName>,
    tokens: BTreeMap<TokenId, Token>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Token {
    hash: TokenHash,
    /// Wall clock in milliseconds since 1970. For display only.
    created_wall_ms: u64,
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessChange {
    Enable(bool),
    /// Creates or replaces a role.
    SetRole {
        role: AccessName,
        permissions: BTreeSet<PrefixRight>,
    },
    RemoveRole(AccessName),
    /// Creates a principal, or replaces its roles.
    SetPrincipal {
        principal: AccessName,
        roles: BTreeSet<AccessName>,
    },
    /// Removes a principal with its tokens. Its leases stay until they end.
    RemovePrincipal(AccessName),
    AddToken {
        principal: AccessName,
        hash: TokenHash,
        created_wall_ms: u64,
    },
    RemoveToken(TokenId),
    /// As `AddToken`, with the wall clock in milliseconds since 1970 at which the leader removes the token.
    AddExpiringToken {
        principal: AccessName,
        hash: TokenHash,
        created_wall_ms: u64,
        expires_wall_ms: u64,
    },
}

impl AccessChange {
    pub fn has_expiry(&self) -> bool {
        matches!(self, AccessChange::AddExpiringToken { .. })
    }

    /// Sets the creation of an expiring token to this time of the leader's wall clock. The token keeps its ttl.
    pub fn begin_at(&mut self, wall_ms: u64) {
        if let AccessChange::AddExpiringToken { created_wall_ms, expires_wall_ms, .. } = self {
            *expires_wall_ms = wall_ms.saturating_add(expires_wall_ms.saturating_sub(*created_wall_ms));
            *created_wall_ms = wall_ms;
        }
    }
}

/// The rights that a request needs.
#[derive(Clone, Debug)]
pub enum Need<'a> {
    /// Any principal.
    Principal,
    /// A right on each of these names.
    Names(Right, Vec<&'a LeaseName>),
    /// The right `operate` on this name, or `hold` for a lease of the caller.
    HandOver(&'a LeaseName),
    /// The right `read` on all names with this prefix.
    Prefix(&'a str),
    Admin,
}

/// Why a request is not executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Denied {
    /// The caller is not a principal.
    #[error("{0}")]
    Unauthenticated(String),
    /// The principal lacks a right.
    #[error("{0}")]
    Forbidden(String),
    /// The change refers to something that does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The state does not allow the change.
    #[error("{0}")]
    Refused(String),
}

/// The state without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessView {
    pub is_enabled: bool,
    pub roles: BTreeMap<AccessName, BTreeSet<PrefixRight>>,
    pub principals: BTreeMap<AccessName, PrincipalView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalView {
    pub roles: BTreeSet<AccessName>,
    pub tokens: Vec<TokenView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    pub id: TokenId,
    pub created_wall_ms: u64,
}

/// The state of access control with an index of its tokens. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Access(Arc<Indexed>);

#[derive(Debug, Default)]
struct Indexed {
    state: AccessState,
    /// The principal of each token.
    tokens: BTreeMap<TokenId, AccessName>,
}

impl TokenHash {
    pub fn of(token: &AccessToken) -> TokenHash {
        TokenHash(Sha256::digest(token.expose()).into())
    }

    pub fn id(&self) -> TokenId {
        TokenId(u64::from_be_bytes(*self.0.first_chunk().expect("a hash has 32 bytes")))
    }
}

/// Logs and errors show the id of a token, and not its hash.
impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenHash({}…)", self.id())
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Logs show the same text for a token when it is created and when it is revoked.
impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenId({self})")
    }
}

impl TryFrom<String> for TokenId {
    type Error = String;

    fn try_from(text: String) -> Result<TokenId, String> {
        let is_hex = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let id = u64::from_str_radix(&text, 16).ok().filter(|_| is_hex);
        id.map(TokenId).ok_or_else(|| format!("token id {text:?} is not 16 hexadecimal digits"))
    }
}

impl AccessState {
    pub fn with_expiries(self, expiries: BTreeMap<TokenId, u64>) -> AccessState {
        AccessState { expiries, ..self }
    }

    pub fn expiries(&self) -> &BTreeMap<TokenId, u64> {
        &self.expiries
    }
}

impl From<AccessState> for Access {
    fn from(state: AccessState) -> Access {
        let of = |(name, principal): (&AccessName, &PrincipalState)| {
            principal.tokens.keys().map(|id| (*id, name.clone())).collect::<Vec<_>>()
        };
        let tokens = state.principals.iter().flat_map(of).collect();
        Access(Arc::new(Indexed { state, tokens }))
    }
}

impl Access {
    pub fn state(&self) -> &AccessState {
        &self.0.state
    }

    pub fn is_enabled(&self) -> bool {
        self.0.state.is_enabled
    }

    /// Whether nothing was ever set.
    pub fn is_empty(&self) -> bool {
        self.0.state == AccessState::default()
    }

    /// The tokens that have expired at this time of the wall clock.
    pub fn expired(&self, wall_ms: u64) -> Vec<TokenId> {
        let expired = self.state().expiries.iter().filter(|(_, expires)| **expires <= wall_ms);
        expired.map(|(id, _)| *id).collect()
    }

    pub fn view(&self) -> AccessView {
        let AccessState { is_enabled, roles, principals, .. } = self.state();
        let token = |(id, token): (&TokenId, &Token)| TokenView { id: *id, created_wall_ms: token.created_wall_ms };
        let view = |principal: &PrincipalState| PrincipalView {
            roles: principal.roles.clone(),
            tokens: principal.tokens.iter().map(token).collect(),
        };
        AccessView {
            is_enabled: *is_enabled,
            roles: roles.clone(),
            principals: principals.iter().map(|(name, principal)| (name.clone(), view(principal))).collect(),
        }
    }

    /// The principal of a caller, also while access control is off.
    pub fn principal(&self, caller: &Caller) -> Option<&AccessName> {
        let principals = &self.state().principals;
        match caller {
            Caller::Anonymous | Caller::Program => None,
            Caller::Certificate(name) => principals.get_key_value(name).map(|(name, _)| name),
            Caller::Token(hash) => {
                let name = self.0.tokens.get(&hash.id())?;
                let stored = principals.get(name)?.tokens.get(&hash.id())?;
                bool::from(stored.hash.0.ct_eq(&hash.0)).then_some(name)
            }
        }
    }

    /// Decides about a request. Returns the principal whose leases the request concerns; `None` if it may concern the
    /// leases of all principals.
    pub fn authorize(&self, caller: &Caller, need: &Need<'_>) -> Result<Option<AccessName>, Denied> {
        if *caller == Caller::Program || !self.is_enabled() {
            return Ok(None);
        }
        let principal = self.authenticate(caller)?;
        let concerns_all = matches!(need, Need::HandOver(name) if self.may(principal, Right::Operate, name.as_str()));
        if !concerns_all {
            self.require(principal, need)?;
        }
        Ok((!concerns_all).then(|| principal.clone()))
    }

    fn authenticate(&self, caller: &Caller) -> Result<&AccessName, Denied> {
        self.principal(caller).ok_or_else(|| {
            Denied::Unauthenticated(match caller {
                Caller::Token(_) => "the access token is unknown or revoked".to_owned(),
                Caller::Certificate(name) => format!("the cluster has no principal {name} for this certificate"),
                Caller::Anonymous | Caller::Program => {
                    "access control is on: send an access token or use a client certificate".to_owned()
                }
            })
        })
    }

    fn require(&self, principal: &AccessName, need: &Need<'_>) -> Result<(), Denied> {
        let forbidden = |what: String| Err(Denied::Forbidden(format!("principal {principal} may not {what}")));
        match need {
            Need::Principal => Ok(()),
            Need::Admin if self.may(principal, Right::Admin, "") => Ok(()),
            Need::Admin => forbidden("do this: it needs the right `admin`".to_owned()),
            Need::Prefix(prefix) if self.may(principal, Right::Read, prefix) => Ok(()),
            Need::Prefix("") => forbidden("read all leases: name a prefix that it may read".to_owned()),
            Need::Prefix(prefix) => forbidden(format!("read all leases with the prefix {prefix:?}")),
            Need::HandOver(name) => self.require(principal, &Need::Names(Right::Hold, vec![name])),
            Need::Names(right, names) => match names.iter().find(|name| !self.may(principal, *right, name.as_str())) {
                None => Ok(()),
                Some(name) => forbidden(format!("{} {:?}", right.verb(), name.as_str())),
            },
        }
    }

    /// Whether the principal has a right on all names that begin with `text`.
    fn may(&self, principal: &AccessName, right: Right, text: &str) -> bool {
        let AccessState { roles, principals, .. } = self.state();
        let permissions = principals.get(principal).into_iter().flat_map(|principal| &principal.roles);
        let mut permissions = permissions.filter_map(|role| roles.get(role)).flatten();
        permissions.any(|permission| permission.right.includes(right) && text.starts_with(&permission.prefix))
    }

    /// Checks a change by a caller, as the leader. `has_certificates`: a client can present a certificate.
    pub fn check(&self, caller: &Caller, change: &AccessChange, has_certificates: bool) -> Result<(), Denied> {
        self.authorize(caller, &Need::Admin)?;
        self.check_change(change)?;
        let next = self.with(change);
        if next.is_enabled() && *caller != Caller::Program {
            // So access control is never on without an administrator whose credential works.
            next.authorize(caller, &Need::Admin).map_err(|denied| {
                let why = format!("after this change you could not undo it, because {denied}");
                Denied::Refused(format!("{why}: use the credential of another principal with the right `admin`"))
            })?;
            if !matches!(caller, Caller::Certificate(_)) && !next.has_lasting_admin(has_certificates) {
                let why =
                    "after this change each token with the right `admin` expires, and then no administrator is left";
                return Err(Denied::Refused(format!("{why}: create one without a ttl first")));
            }
        }
        Ok(())
    }

    /// Whether a principal with the right `admin` has a token that does not expire, or no token at all. The cluster does not
    /// know which certificates exist, so it assumes that a principal without tokens uses one.
    fn has_lasting_admin(&self, has_certificates: bool) -> bool {
        let AccessState { principals, expiries, .. } = self.state();
        principals.iter().any(|(name, principal)| {
            let mut tokens = principal.tokens.keys();
            let uses_certificate = has_certificates && tokens.len() == 0;
            self.may(name, Right::Admin, "") && (uses_certificate || tokens.any(|id| !expiries.contains_key(id)))
        })
    }

    fn check_change(&self, change: &AccessChange) -> Result<(), Denied> {
        let AccessState { roles, principals, .. } = self.state();
        let no_principal = |name: &AccessName| Denied::NotFound(format!("there is no principal {name}"));
        match change {
            AccessChange::Enable(_) => {}
            AccessChange::SetRole { permissions, .. } => {
                let is_bad = |one: &PrefixRight| one.right == Right::Admin && !one.prefix.is_empty();
                if permissions.iter().any(is_bad) {
                    return Err(Denied::Refused("the right `admin` has no prefix".to_owned()));
                }
            }
            AccessChange::RemoveRole(role) if !roles.contains_key(role) => {
                return Err(Denied::NotFound(format!("there is no role {role}")));
            }
            AccessChange::RemoveRole(role) => {
                if let Some((name, _)) = principals.iter().find(|(_, principal)| principal.roles.contains(role)) {
                    return Err(Denied::Refused(format!("principal {name} has the role {role}")));
                }
            }
            AccessChange::SetPrincipal { roles: given, .. } => {
                if let Some(missing) = given.iter().find(|role| !roles.contains_key(*role)) {
                    return Err(Denied::NotFound(format!("there is no role {missing}")));
                }
            }
            AccessChange::RemovePrincipal(name) => {
                principals.get(name).ok_or_else(|| no_principal(name))?;
            }
            AccessChange::AddToken { principal, hash, .. } | AccessChange::AddExpiringToken { principal, hash, .. } => {
                principals.get(principal).ok_or_else(|| no_principal(principal))?;
                if self.0.tokens.contains_key(&hash.id()) {
                    return Err(Denied::Refused(format!("a token with the id {} exists", hash.id())));
                }
            }
            AccessChange::RemoveToken(id) => {
                self.0.tokens.get(id).ok_or_else(|| Denied::NotFound(format!("there is no token {id}")))?;
            }
        }
        let bytes = codec::encode(change).len();
        if bytes > MAX_CHANGE_BYTES {
            return Err(Denied::Refused(format!(
                "the change has {bytes} bytes: at most {MAX_CHANGE_BYTES} are allowed"
            )));
        }
        let next = self.with(change);
        let bytes = codec::encode(&(next.state(), next.state().expiries())).len();
        if bytes > MAX_STATE_BYTES {
            let rule = format!("at most {MAX_STATE_BYTES} bytes of roles, principals and tokens are allowed");
            return Err(Denied::Refused(format!("the change makes the state {bytes} bytes long: {rule}")));
        }
        Ok(())
    }

    /// The state after a change. Replicas call it with each change of the log, so it reads only its arguments.
    pub fn with(&self, change: &AccessChange) -> Access {
        let mut state = self.state().clone();
        let AccessState { is_enabled, roles, principals, expiries } = &mut state;
        match change.clone() {
            AccessChange::Enable(enable) => *is_enabled = enable,
            AccessChange::SetRole { role, permissions } => _ = roles.insert(role, permissions),
            AccessChange::RemoveRole(role) => _ = roles.remove(&role),
            AccessChange::SetPrincipal { principal, roles } => principals.entry(principal).or_default().roles = roles,
            AccessChange::RemovePrincipal(principal) => {
                let removed = principals.remove(&principal).unwrap_or_default();
                removed.tokens.keys().for_each(|id| _ = expiries.remove(id));
            }
            AccessChange::AddToken { principal, hash, created_wall_ms } => {
                if let Some(principal) = principals.get_mut(&principal) {
                    principal.tokens.insert(hash.id(), Token { hash, created_wall_ms });
                }
            }
            AccessChange::AddExpiringToken { principal, hash, created_wall_ms, expires_wall_ms } => {
                if let Some(principal) = principals.get_mut(&principal) {
                    principal.tokens.insert(hash.id(), Token { hash, created_wall_ms });
                    expiries.insert(hash.id(), expires_wall_ms);
                }
            }
            AccessChange::RemoveToken(id) => {
                expiries.remove(&id);
                principals.values_mut().for_each(|principal| _ = principal.tokens.remove(&id));
            }
        }
        Access::from(state)
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
