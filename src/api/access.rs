//! Access control: roles, principals and tokens.

use serde::{Deserialize, Serialize};

use super::{Timestamp, object};
use crate::types::{AccessName, Right};

/// Response of `/v1/access`: the state of access control. It has no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct AccessControl {
    /// Whether requests need a credential.
    pub enabled: bool,
    /// All roles in the order of their names.
    pub roles: Vec<RoleDefinition>,
    /// All principals in the order of their names.
    pub principals: Vec<Principal>,
}

/// A role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct RoleDefinition {
    /// The name.
    pub name: String,
    /// The rights of a principal with this role.
    pub permissions: Vec<Permission>,
}

/// A right on all lease names that begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Permission {
    /// The right.
    pub right: Right,
    /// The prefix; empty for all names. `admin` has none.
    #[serde(default)]
    #[cfg_attr(feature = "server", schema(max_length = 200, pattern = "^([A-Za-z0-9][A-Za-z0-9._:/-]*)?$"))]
    pub prefix: String,
}

impl Permission {
    /// This right on all lease names that begin with `prefix`.
    pub fn new(right: Right, prefix: impl Into<String>) -> Permission {
        Permission { right, prefix: prefix.into() }
    }
}

/// A principal: a program, a person or a team.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Principal {
    /// The name. A client certificate with the URI `tenure://CLUSTER/client/NAME` belongs to the principal with this name.
    pub name: String,
    /// The names of its roles.
    pub roles: Vec<String>,
    /// Its access tokens, without their secrets.
    pub tokens: Vec<TokenInfo>,
}

/// An access token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct TokenInfo {
    /// The public id: 16 hexadecimal digits.
    pub id: String,
    /// The time of its creation.
    #[cfg_attr(feature = "server", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    /// When the leader revokes it; absent for a token that does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
}

/// Body of `PUT /v1/access/roles/{access}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SetRole {
    /// All permissions of the role.
    #[serde(deserialize_with = "object::list")]
    pub permissions: Vec<Permission>,
}

impl SetRole {
    /// A role with these permissions.
    pub fn new(permissions: Vec<Permission>) -> SetRole {
        SetRole { permissions }
    }
}

/// Body of `PUT /v1/access/principals/{access}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SetPrincipal {
    /// The names of all its roles.
    pub roles: Vec<AccessName>,
}

impl SetPrincipal {
    /// A principal with these roles.
    pub fn new(roles: Vec<AccessName>) -> SetPrincipal {
        SetPrincipal { roles }
    }
}

/// Response to the creation of an access token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct CreatedToken {
    /// The public id.
    pub id: String,
    /// The principal of the token.
    pub principal: String,
    /// The secret. The cluster stores only its hash, and never shows it again.
    pub token: String,
    /// When the leader revokes it; absent for a token that does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
}

impl std::fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CreatedToken { id, principal, .. } = self;
        f.debug_struct("CreatedToken").field("id", id).field("principal", principal).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_of_a_role_is_an_object() {
        let role = |permissions: &str| serde_json::from_str::<SetRole>(&format!(r#"{{"permissions":{permissions}}}"#));
        let objects = role(r#"[{"right":"hold","prefix":"jobs/"},{"right":"admin"}]"#).expect("they are objects");
        assert_eq!(objects.permissions, [Permission::new(Right::Hold, "jobs/"), Permission::new(Right::Admin, "")]);
        for arrays in [r#"[["admin"]]"#, r#"[["admin",""]]"#, r#"[{"right":"read"},["hold","jobs/"]]"#] {
            let refused = role(arrays).expect_err(arrays).to_string();
            assert!(refused.contains("expected an object"), "{arrays}: {refused}");
        }
    }
}
