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
    /// Revoke the leases with this prefix, and read them
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
        Format::Table => show(&state),
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

fn show(state: &AccessControl) -> Result<(), Failure> {
    output::line(if state.enabled {
        "access control is on"
    } else {
        "access control is off: every client may do everything"
    })?;
    let right = |permission: &Permission| match permission.right {
        Right::Admin => "admin".to_owned(),
        right => format!("{} {:?}", right.as_str(), permission.prefix),
    };
    for role in &state.roles {
        let rights: Vec<String> = role.permissions.iter().map(right).collect();
        output::line(&format!("role {}: {}", role.name, or_none(&rights)))?;
    }
    for principal in &state.principals {
        output::line(&format!("principal {}: roles {}", principal.name, or_none(&principal.roles)))?;
        for token in &principal.tokens {
            let end = token.expires_at.map_or(String::new(), |at| format!(", expires {at}"));
            output::line(&format!("  token {}, created {}{end}", token.id, token.created_at))?;
        }
    }
    Ok(())
}

fn or_none(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
