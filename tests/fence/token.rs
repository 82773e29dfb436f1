use tenure::token::FencingToken;

/// A token with this log index. All tokens have the same term.
pub const fn token(index: u64) -> FencingToken {
    FencingToken::new(3, index)
}
