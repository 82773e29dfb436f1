use tenure::token::FencingToken;

/// A token by its log index, all of one term.
pub const fn token(index: u64) -> FencingToken {
    FencingToken { term: 3, index }
}
