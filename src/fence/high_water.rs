//! The rule itself. Every form of the fence in this crate is this comparison, made where it is atomic with the write.

use crate::token::FencingToken;
use crate::types::InvalidValue;

/// The highest token that a resource has accepted, in the integer form: that is what stores hold, and what counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HighWater(u64);

impl HighWater {
    /// Of a resource that has seen no token. It accepts every token.
    pub const NONE: HighWater = HighWater(0);

    /// The mark after `token` was accepted; refused if the resource has seen a higher one.
    ///
    /// Equal is accepted: a holder keeps its token for as long as it holds, and writes more than once.
    pub fn offer(self, token: FencingToken) -> Result<HighWater, Stale> {
        if token.as_u64() < self.0 {
            return Err(Stale { offered: token, highest: self.token() });
        }
        Ok(HighWater(token.as_u64()))
    }

    /// The token it stands at.
    pub fn token(self) -> FencingToken {
        FencingToken::try_from(self.0).expect("a mark is a token's integer form")
    }

    pub fn as_u64(self) -> u64 {
        self.0
    }
}

/// Reads a mark that a store kept; above 63 bits it is none.
impl TryFrom<u64> for HighWater {
    type Error = InvalidValue;

    fn try_from(value: u64) -> Result<HighWater, InvalidValue> {
        FencingToken::try_from(value).map(|token| HighWater(token.as_u64()))
    }
}

/// A refused token: somebody newer was here. It stays refused, so trying again is of no use: the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fencing token {offered} is stale: the resource has seen {highest}")]
pub struct Stale {
    pub offered: FencingToken,
    /// In its integer form the highest token that the resource has seen.
    pub highest: FencingToken,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the rule in words: refused exactly if something higher came before, and a refusal changes nothing.
        #[test]
        fn a_token_is_refused_exactly_if_a_higher_one_was_accepted(tokens in prop::collection::vec((0u64..5, 0u64..5), 0..50)) {
            let mut mark = HighWater::NONE;
            let mut accepted: Vec<FencingToken> = Vec::new();
            for token in tokens.into_iter().map(|(term, index)| FencingToken { term, index }) {
                let highest = accepted.iter().max().copied();
                match mark.offer(token) {
                    Ok(next) => {
                        prop_assert!(highest.is_none_or(|highest| highest <= token));
                        accepted.push(token);
                        mark = next;
                    }
                    Err(stale) => {
                        prop_assert_eq!(Some(stale.highest), highest);
                        prop_assert!(token < stale.highest && stale.offered == token);
                    }
                }
            }
        }
    }

    #[test]
    fn a_term_that_saturates_is_compared_as_the_stores_compare_it() {
        let high = HighWater::NONE.offer(FencingToken { term: 40_000, index: 9 }).expect("the first is accepted");
        assert!(high.offer(FencingToken { term: 40_001, index: 9 }).is_ok());
        assert!(high.offer(FencingToken { term: 40_001, index: 8 }).is_err());
        assert!(HighWater::try_from(1 << 63).is_err());
    }
}
