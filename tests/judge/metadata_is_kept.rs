//! An acknowledged update of the metadata replaces exactly the version that it names, and is not lost. A refused update
//! had no effect.

use tenure::token::FencingToken;

use super::claims::LeaseHistory;
use super::history::{Ended, Operation, RequestKind};

/// An update of the metadata of one grant.
struct Update<'a> {
    operation: &'a Operation,
    token: FencingToken,
    /// The version that it replaces.
    version: u64,
    tag: &'a str,
}

/// Client histories: each update has another tag, except a repeated one.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    let updates: Vec<Update> = history.operations.iter().filter_map(Update::of).collect();
    updates.iter().try_for_each(|update| update.check(&updates))
}

impl<'a> Update<'a> {
    fn of(operation: &'a Operation) -> Option<Update<'a>> {
        match &operation.what {
            RequestKind::UpdateMetadata { token, version, tag } => {
                Some(Update { operation, token: *token, version: *version, tag })
            }
            _ => None,
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.operation.ended, Ended::Updated { .. })
    }

    /// Whether the answer arrived before the other request began.
    fn is_before(&self, other: &Update) -> bool {
        self.operation.returned.is_some_and(|returned| returned < other.operation.invoked)
    }

    fn check(&self, updates: &[Update]) -> Result<(), String> {
        let of_grant = || updates.iter().filter(|other| other.token == self.token);
        match &self.operation.ended {
            Ended::Updated { version, tag } => {
                if (*version, tag.as_str()) != (self.version + 1, self.tag) {
                    return Err(format!("{:?} is answered with other metadata", self.operation));
                }
                let contradicts = |other: &&Update| {
                    let is_other = other.version == self.version && other.tag != self.tag;
                    let is_undone = other.version > self.version && other.is_before(self);
                    other.is_done() && (is_other || is_undone)
                };
                match of_grant().find(contradicts) {
                    Some(other) => Err(format!("{:?}, and also {:?}", self.operation, other.operation)),
                    None => Ok(()),
                }
            }
            Ended::Refused(code) if code == "metadata_changed" => {
                // The version was the current one: that of a new grant, or of an earlier answer.
                let was_current = self.version == 0
                    || of_grant()
                        .any(|other| other.is_done() && other.version + 1 == self.version && other.is_before(self));
                let may_have_replaced_it = |other: &Update| {
                    !std::ptr::eq(other.operation, self.operation)
                        && other.version == self.version
                        && !matches!(other.operation.ended, Ended::Refused(_))
                        && self.operation.returned.is_none_or(|returned| other.operation.invoked <= returned)
                };
                if was_current && !of_grant().any(may_have_replaced_it) {
                    return Err(format!("{:?}, but no other request replaced this version", self.operation));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
