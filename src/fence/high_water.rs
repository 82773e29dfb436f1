//! The comparison of a token with the mark. All implementations of the fence use it, atomically with the write.

use crate::token::FencingToken;
use crate::types::InvalidValue;

/// The high-water mark: the highest token that a resource has accepted, in its integer form. Stores keep this form, and
/// the check compares it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HighWater(u64);

impl HighWater {
    /// The mark of a resource that has seen no token. It accepts every token.
    pub const NONE: HighWater = HighWater(0);

    /// Returns the new mark after `token` is accepted. An equal token is accepted, because a holder keeps its token and
    /// writes more than once.
    ///
    /// # Errors
    ///
    /// [`Stale`] if the resource has seen a higher token.
    pub fn offer(self, token: FencingToken) -> Result<HighWater, Stale> {
        if token.as_u64() < self.0 {
            return Err(Stale { offered: token, highest: self.token() });
        }
        Ok(HighWater(token.as_u64()))
    }

    /// The mark as a token.
    pub fn token(self) -> FencingToken {
        FencingToken::try_from(self.0).expect("a mark is the integer form of a token")
    }

    /// The integer form of the mark.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

/// Converts a stored mark. A value above 63 bits is invalid.
impl TryFrom<u64> for HighWater {
    type Error = InvalidValue;

    fn try_from(value: u64) -> Result<HighWater, InvalidValue> {
        FencingToken::try_from(value).map(|token| HighWater(token.as_u64()))
    }
}

/// A stale token: the resource has seen a higher one. A retry cannot succeed, because the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fencing token {offered} is stale: the resource has seen {highest}")]
#[non_exhaustive]
pub struct Stale {
    /// The refused token.
    pub offered: FencingToken,
    /// The highest token that the resource has seen.
    pub highest: FencingToken,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a list of all accepted tokens. A refusal does not change the mark.
        #[test]
        fn token_is_refused_exactly_after_a_higher_one(tokens in prop::collection::vec((0u64..5, 0u64..5), 0..50)) {
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
    fn saturated_term_compares_as_in_the_stores() {
        let high = HighWater::NONE.offer(FencingToken { term: 40_000, index: 9 }).expect("the first is accepted");
        assert!(high.offer(FencingToken { term: 40_001, index: 9 }).is_ok());
        assert!(high.offer(FencingToken { term: 40_001, index: 8 }).is_err());
        assert!(HighWater::try_from(1 << 63).is_err());
    }
}
