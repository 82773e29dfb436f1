//! Each grant of a name has a token above every earlier one's.

use std::collections::BTreeMap;

use tenure::lease::Change;

use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    let mut highest = BTreeMap::new();
    let grants = run.ledger.transitions().filter(|(_, transition)| matches!(transition.change, Change::Granted(_)));
    for (entry, grant) in grants {
        let before = highest.insert(&grant.name, grant.token);
        if before.is_some_and(|before| before >= grant.token || before.as_u64() >= grant.token.as_u64()) {
            return Err(format!("{} got {:?} at {}, behind {before:?}", grant.name, grant.token, entry.index));
        }
    }
    Ok(())
}
