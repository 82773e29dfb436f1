//! `tenure auth`.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::ClientArguments;
use super::duration;
use super::failure::Failure;
use super::output::{self, Format};
use crate::access::{AccessName, Right};
use crate::api::{AccessControl, Code, Permission, Principal, Problem, Timestamp};

#[derive(Subcommand)]
pub enum Command {
    /// Show whether access control is on, the roles, the principals and the ids of their tokens
    Status(ClientArguments),
    /// Turn access control on; this command needs the credential of a principal with the right `admin`
    Enable(ClientArguments),
    /// Turn access control off: every client may do everything
    Disable(ClientArguments),
    /// Define the rights of roles
    #[command(subcommand)]
    Role(RoleCommand),
    /// Create principals, and give them roles
    #[command(subcommand)]
    Principal(PrincipalCommand),
    /// Create, list and revoke access tokens
    #[command(subcommand)]
    Token(TokenCommand),
}

#[derive(Subcommand)]
pub enum RoleCommand {
    /// Create a role, or replace its rights
    Set {
        role: AccessName,
        #[command(flatten)]
        rights: RightArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Remove a role that no principal has
    Remove {
        role: AccessName,
        #[command(flatten)]
        client: ClientArguments,
    },
}

/// The prefix `''` means all names.
#[derive(Args)]
pub struct RightArguments {
    /// Read, list and watch the leases with this prefix; '' for all (repeatable, like the others)
    #[arg(long, value_name = "PREFIX")]
    read: Vec<String>,
    /// Acquire, renew, release and hand over the leases with this prefix, and read them
    #[arg(long, value_name = "PREFIX")]
    hold: Vec<String>,
    /// Revoke and hand over the leases of all principals with this prefix, and read them
    #[arg(long, value_name = "PREFIX")]
    operate: Vec<String>,
    /// Everything, members, backups and access control included
    #[arg(long)]
    admin: bool,
}

#[derive(Subcommand)]
pub enum PrincipalCommand {
    /// Create a principal, or replace its roles
    Set {
        principal: AccessName,
        /// A role of the principal (repeatable)
        #[arg(long, value_name = "ROLE")]
        role: Vec<AccessName>,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Remove a principal and its tokens; its leases stay until they end
    Remove {
        principal: AccessName,
        #[command(flatten)]
        client: ClientArguments,
    },
}

#[derive(Subcommand)]
pub enum TokenCommand {
    /// List the ids of access tokens, of one principal or of all
    List {
        principal: Option<AccessName>,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Create an access token of a principal, and print it; the cluster never shows it again
    Create {
        principal: AccessName,
        /// Revoke the token after this time, by the wall clock of the leader; without it, the token does not expire
        #[arg(long, value_parser = duration::parse_token_ttl, value_name = "DURATION")]
        ttl: Option<Duration>,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Revoke an access token: no node accepts it any more
    Revoke {
        /// The id from `tenure auth token list`
        id: String,
        #[command(flatten)]
        client: ClientArguments,
    },
}

impl Command {
    fn client(&self) -> &ClientArguments {
        match self {
            Command::Status(client) | Command::Enable(client) | Command::Disable(client) => client,
            Command::Role(RoleCommand::Set { client, .. } | RoleCommand::Remove { client, .. }) => client,
            Command::Principal(PrincipalCommand::Set { client, .. } | PrincipalCommand::Remove { client, .. }) => {
                client
            }
            Command::Token(
                TokenCommand::List { client, .. }
                | TokenCommand::Create { client, .. }
                | TokenCommand::Revoke { client, .. },
            ) => client,
        }
    }

    /// The output format that the user asked for.
    pub fn output(&self) -> Format {
        self.client().output
    }
}

impl RightArguments {
    fn permissions(&self) -> Vec<Permission> {
        let each = |right: Right, prefixes: &[String]| {
            prefixes.iter().map(|prefix| Permission::new(right, prefix.as_str())).collect::<Vec<_>>()
        };
        let admin = self.admin.then(|| Permission::new(Right::Admin, ""));
        let all = [(Right::Read, &self.read), (Right::Hold, &self.hold), (Right::Operate, &self.operate)];
        all.into_iter().flat_map(|(right, prefixes)| each(right, prefixes)).chain(admin).collect()
    }
}

pub async fn run(command: Command) -> Result<(), Failure> {
    let (remote, format) = (command.client().remote()?, command.output());
    let state = match command {
        Command::Status(_) => remote.access().await?,
        Command::Enable(_) => remote.enable_access(true).await?,
        Command::Disable(_) => remote.enable_access(false).await?,
        Command::Role(RoleCommand::Set { role, rights, .. }) => remote.set_role(&role, &rights.permissions()).await?,
        Command::Role(RoleCommand::Remove { role, .. }) => remote.remove_role(&role).await?,
        Command::Principal(PrincipalCommand::Set { principal, role, .. }) => {
            remote.set_principal(&principal, &role).await?
        }
        Command::Principal(PrincipalCommand::Remove { principal, .. }) => remote.remove_principal(&principal).await?,
        Command::Token(TokenCommand::List { principal, .. }) => {
            return list(&remote.access().await?, principal.as_ref(), format);
        }
        Command::Token(TokenCommand::Create { principal, ttl, .. }) => {
            let created = remote.create_token(&principal, ttl).await?;
            return match format {
                Format::Json => output::json(&created),
                Format::Table => {
                    let end = created.expires_at.map_or(String::new(), |at| format!(", expires {at}"));
                    message!("token {} of {principal}{end}: keep it now, the cluster never shows it again", created.id);
                    output::line(&created.token)
                }
            };
        }
        Command::Token(TokenCommand::Revoke { id, .. }) => remote.revoke_token(&id).await?,
    };
    match format {
        Format::Json => output::json(&state),
        Format::Table => shown(&state).iter().try_for_each(|line| output::line(line)),
    }
}

/// A token in a list.
#[derive(Serialize)]
struct ListedToken<'a> {
    id: &'a str,
    principal: &'a str,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

fn tokens_of(owner: &Principal) -> impl Iterator<Item = ListedToken<'_>> {
    owner.tokens.iter().map(|token| ListedToken {
        id: &token.id,
        principal: &owner.name,
        created_at: token.created_at,
        expires_at: token.expires_at,
    })
}

/// Prints the tokens of one principal, or of all.
fn list(state: &AccessControl, principal: Option<&AccessName>, format: Format) -> Result<(), Failure> {
    let is_wanted = |owner: &&Principal| principal.is_none_or(|wanted| wanted.as_str() == owner.name);
    let owners: Vec<&Principal> = state.principals.iter().filter(is_wanted).collect();
    if let (Some(principal), true) = (principal, owners.is_empty()) {
        let detail = format!("no principal {principal} exists");
        return Err(Failure::Refused(Box::new(Problem::new(Code::NotFound, detail))));
    }
    let tokens: Vec<ListedToken<'_>> = owners.into_iter().flat_map(tokens_of).collect();
    match format {
        Format::Json => output::json(&tokens),
        Format::Table => {
            let row = |token: &ListedToken<'_>| {
                let expires = token.expires_at.map_or("-".to_owned(), |at| at.to_string());
                vec![token.id.into(), token.principal.into(), token.created_at.to_string(), expires]
            };
            output::table(&["TOKEN", "PRINCIPAL", "CREATED", "EXPIRES"], tokens.iter().map(row))
        }
    }
}

/// The lines of a table.
fn shown(state: &AccessControl) -> Vec<String> {
    let first = match state.enabled {
        true => "access control is on",
        false => "access control is off: every client may do everything",
    };
    let mut lines = vec![first.to_owned()];
    let right = |permission: &Permission| match permission.right {
        Right::Admin => "admin".to_owned(),
        right => format!("{} {:?}", right.as_str(), permission.prefix),
    };
    for role in &state.roles {
        let rights: Vec<String> = role.permissions.iter().map(right).collect();
        lines.push(format!("role {}: {}", role.name, or_none(&rights)));
    }
    for principal in &state.principals {
        lines.push(format!("principal {}: roles {}", principal.name, or_none(&principal.roles)));
        for token in &principal.tokens {
            let end = token.expires_at.map_or(String::new(), |at| format!(", expires {at}"));
            lines.push(format!("  token {}, created {}{end}", token.id, token.created_at));
        }
    }
    lines
}

fn or_none(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    fn parse(line: &str) -> Command {
        Line::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}")).command
    }

    #[test]
    fn role_has_each_prefix_of_the_command_line() {
        let line = "auth role set r --hold a/ --hold b/ --read c/ --read d/ --operate e/ --operate f/ --admin";
        let Command::Role(RoleCommand::Set { rights, .. }) = parse(line) else { panic!("a role") };
        let expected = [
            (Right::Read, "c/"),
            (Right::Read, "d/"),
            (Right::Hold, "a/"),
            (Right::Hold, "b/"),
            (Right::Operate, "e/"),
            (Right::Operate, "f/"),
            (Right::Admin, ""),
        ];
        assert_eq!(rights.permissions(), expected.map(|(right, prefix)| Permission::new(right, prefix)));
        let Command::Role(RoleCommand::Set { rights, .. }) = parse("auth role set r") else { panic!("a role") };
        assert!(rights.permissions().is_empty());
    }

    #[test]
    fn token_can_expire_after_more_than_30_days() {
        let Command::Token(TokenCommand::Create { ttl, .. }) = parse("auth token create ci --ttl 90d") else {
            panic!("a token")
        };
        assert_eq!(ttl, Some(Duration::from_secs(90 * 86_400)));
    }

    #[test]
    fn status_shows_roles_principals_and_tokens() {
        let json = r#"{"enabled":true,
            "roles":[{"name":"admin","permissions":[{"right":"admin","prefix":""}]},{"name":"empty","permissions":[]},
                {"name":"worker","permissions":[{"right":"read","prefix":""},{"right":"hold","prefix":"jobs/"}]}],
            "principals":[{"name":"ci","roles":["admin","worker"],"tokens":[
                {"id":"0123456789abcdef","created_at":"2026-01-31T12:00:00.000Z"},
                {"id":"fedcba9876543210","created_at":"2026-01-31T13:00:00.000Z","expires_at":"2026-02-01T13:00:00.000Z"}]},
                {"name":"guest","roles":[],"tokens":[]}]}"#;
        let mut state: AccessControl = serde_json::from_str(json).expect("a state");
        let expected = [
            "access control is on",
            "role admin: admin",
            "role empty: none",
            r#"role worker: read "", hold "jobs/""#,
            "principal ci: roles admin, worker",
            "  token 0123456789abcdef, created 2026-01-31T12:00:00.000Z",
            "  token fedcba9876543210, created 2026-01-31T13:00:00.000Z, expires 2026-02-01T13:00:00.000Z",
            "principal guest: roles none",
        ];
        assert_eq!(shown(&state), expected);
        state.enabled = false;
        assert_eq!(shown(&state)[0], "access control is off: every client may do everything");
        assert_eq!(shown(&state)[1..], expected[1..]);
    }
}
