//! Weights of commands: how much of a log entry and of the command queue each one takes.

use crate::lease::{Acquire, Command, HolderCommand, Renewal, WaiterId};
use crate::types::{HolderId, LeaseName, Metadata};

/// Upper bound of the encoded size of a command in an entry, in bytes.
pub(super) fn weight(command: &Command) -> usize {
    const NUMBERS: usize = 96;
    NUMBERS
        + match command {
            Command::Acquire(acquire) => acquire_weight(acquire),
            Command::Renew { holder, leases } => renew_weight(holder, leases),
            Command::Release { name, holder, .. } => name.as_str().len() + holder.as_str().len(),
            Command::Revoke { name, reason } => name.as_str().len() + reason.len(),
            Command::HandOver { name, holder, to, .. } => hand_over_weight(name, holder, to.as_ref()),
            Command::KeepWaiting { waiters } => waiters.iter().map(waiter_weight).sum(),
            Command::LeaveQueue { waiter } => waiter_weight(waiter),
            Command::Tick | Command::SetLimits(_) => 0,
            Command::UpdateMetadata { name, holder, metadata, .. } => update_weight(name, holder, metadata),
            Command::As { principal, command } => {
                principal.as_str().len()
                    + match command {
                        HolderCommand::Acquire(acquire) => acquire_weight(acquire),
                        HolderCommand::Renew { holder, leases } => renew_weight(holder, leases),
                        HolderCommand::Release { name, holder, .. } => name.as_str().len() + holder.as_str().len(),
                        HolderCommand::HandOver { name, holder, to, .. } => hand_over_weight(name, holder, to.as_ref()),
                        HolderCommand::UpdateMetadata { name, holder, metadata, .. } => {
                            update_weight(name, holder, metadata)
                        }
                    }
            }
        }
}

fn acquire_weight(acquire: &Acquire) -> usize {
    update_weight(&acquire.name, &acquire.holder, &acquire.metadata)
}

fn update_weight(name: &LeaseName, holder: &HolderId, metadata: &Metadata) -> usize {
    name.as_str().len() + holder.as_str().len() + metadata_weight(metadata)
}

fn renew_weight(holder: &HolderId, leases: &[Renewal]) -> usize {
    holder.as_str().len() + leases.iter().map(renewal_weight).sum::<usize>()
}

fn hand_over_weight(name: &LeaseName, holder: &HolderId, to: Option<&HolderId>) -> usize {
    name.as_str().len() + holder.as_str().len() + to.map_or(0, |to| to.as_str().len())
}

fn metadata_weight(metadata: &Metadata) -> usize {
    metadata.iter().map(|(key, value)| key.len() + value.len() + 10).sum()
}

pub(in crate::node) fn renewal_weight(renewal: &Renewal) -> usize {
    renewal.name.as_str().len() + 32
}

pub(in crate::node) fn waiter_weight(waiter: &WaiterId) -> usize {
    waiter.name.as_str().len() + waiter.holder.as_str().len() + 8
}
