//! The position at which a restored cluster starts.
//!
//! A restore does not know the history after its backup. It knows a line that no history can cross. A cluster starts at
//! position 0 or at a position of this line. Then it adds fewer than 64 entries and fewer than 1,024 terms in each
//! millisecond. So at each time, the position of every cluster is below the line at this time.

use crate::storage::Position;
use crate::token::FencingToken;

/// Terms in one millisecond of the line: 2^10. An election takes at least 50 ms.
const TERM_BITS: u32 = 10;
/// Log entries in one millisecond of the line: 2^6. An entry waits for a disk, and two entries are in flight.
const INDEX_BITS: u32 = 6;
/// The largest log index of a token. The line reaches it in the year 2109.
const MAX_INDEX: u64 = (1 << 48) - 1;
/// Log entries between `--above` and the new position. No resource may have stored the highest token.
const ABOVE_MARGIN: u64 = 1 << 32;
/// Terms between the backup and the new position with `--above`.
const TERM_MARGIN: u64 = 1 << 20;

/// Why no position is certainly above the lost cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PositionError {
    /// The clock of this machine is behind the backup.
    #[error(
        "the clock of this machine is behind the backup, so new tokens could be too low: correct the clock, or add \
         --above with the highest token that the lost cluster can have granted"
    )]
    ClockBehind,
    /// The backup is above the line, so the clock gives no bound.
    #[error(
        "the backup is ahead of the clock, because an earlier restore used --above or a clock was wrong: add --above \
         with the highest token that the lost cluster can have granted"
    )]
    AheadOfClock,
    /// The log index would have more than 48 bits.
    #[error("the new log index would have more than 48 bits, so its tokens would not rise")]
    Exhausted,
}

/// A position above everything that a cluster with this backup can have granted before `now_ms`.
///
/// With `above`, the clock need not give a bound: then the position is also above this token and the backup.
pub fn restored(
    backup: Position,
    backup_ms: u64,
    now_ms: u64,
    above: Option<FencingToken>,
) -> Result<Position, PositionError> {
    let by_clock = line(now_ms).ok_or(PositionError::Exhausted)?;
    let position = match above {
        Some(above) => {
            let (term, index) = (backup.term.max(above.term), backup.index.max(above.index));
            let term = by_clock.term.max(term.saturating_add(TERM_MARGIN));
            Position { term, index: by_clock.index.max(index.saturating_add(ABOVE_MARGIN)) }
        }
        None if now_ms <= backup_ms => return Err(PositionError::ClockBehind),
        None if !is_below(backup, line(backup_ms)) => return Err(PositionError::AheadOfClock),
        None => by_clock,
    };
    if position.index > MAX_INDEX { Err(PositionError::Exhausted) } else { Ok(position) }
}

/// The line at this time. `None` after its end.
fn line(ms: u64) -> Option<Position> {
    let index = ms.checked_mul(1 << INDEX_BITS).filter(|index| *index <= MAX_INDEX)?;
    Some(Position { term: ms << TERM_BITS, index })
}

fn is_below(backup: Position, line: Option<Position>) -> bool {
    line.is_some_and(|line| backup.term <= line.term && backup.index <= line.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-01.
    const BACKUP_MS: u64 = 1_767_225_600_000;
    const DAY_MS: u64 = 86_400_000;

    fn token(position: Position) -> FencingToken {
        FencingToken { term: position.term, index: position.index }
    }

    fn assert_above(higher: Position, lower: Position) {
        assert!(higher.term > lower.term && higher.index > lower.index, "{higher:?} and {lower:?}");
        assert!(token(higher).as_u64() > token(lower).as_u64(), "{higher:?} and {lower:?}");
    }

    /// The last position of a cluster that adds as many entries and terms as the line permits.
    fn fastest(from: Position, ms: u64) -> Position {
        Position { term: from.term + (ms << TERM_BITS) - 1, index: from.index + (ms << INDEX_BITS) - 1 }
    }

    #[test]
    fn restore_is_above_the_fastest_lost_cluster() {
        let backup = Position { term: 3, index: 1_000 };
        for ms in [1, 1_000, DAY_MS, 20_000 * DAY_MS] {
            let lost = fastest(line(BACKUP_MS).expect("in range"), ms);
            assert_above(restored(backup, BACKUP_MS, BACKUP_MS + ms, None).expect("above"), lost);
        }
    }

    #[test]
    fn second_restore_of_a_file_is_above_the_first() {
        let backup = Position { term: 3, index: 1_000 };
        let first = restored(backup, BACKUP_MS, BACKUP_MS + DAY_MS, None).expect("above");
        let second = restored(backup, BACKUP_MS, BACKUP_MS + DAY_MS + 1, None).expect("above");
        assert_above(second, fastest(first, 1));
    }

    #[test]
    fn restore_of_a_restore_is_above_both() {
        let first = restored(Position::default(), BACKUP_MS, BACKUP_MS + DAY_MS, None).expect("above");
        let backup = fastest(first, 2 * DAY_MS);
        let second = restored(backup, BACKUP_MS + 3 * DAY_MS, BACKUP_MS + 3 * DAY_MS + 1, None).expect("above");
        assert_above(second, backup);
    }

    #[test]
    fn wrong_clock_needs_above() {
        let backup = Position { term: 3, index: 1_000 };
        for now in [0, BACKUP_MS - 1, BACKUP_MS] {
            assert_eq!(restored(backup, BACKUP_MS, now, None), Err(PositionError::ClockBehind));
        }
        let above = FencingToken { term: 9, index: 5_000 };
        let position = restored(backup, BACKUP_MS, 1_000, Some(above)).expect("above");
        assert_above(position, Position { term: 9, index: 5_000 });
        let ahead = restored(backup, BACKUP_MS, BACKUP_MS, Some(token(line(BACKUP_MS + DAY_MS).expect("in range"))));
        let ahead = ahead.expect("above");
        let refused = restored(ahead, BACKUP_MS + 1, BACKUP_MS + 365 * DAY_MS, None);
        assert_eq!(refused, Err(PositionError::AheadOfClock), "its history may be above the line for ever");
        let again = restored(ahead, BACKUP_MS + 1, BACKUP_MS + 2, Some(token(ahead))).expect("above");
        assert_above(again, ahead);
    }

    /// Also if only the term or only the index of one of them is higher.
    #[test]
    fn position_with_above_is_above_the_token_and_the_backup() {
        let (low, high) = (Position { term: 3, index: 1_000 }, line(BACKUP_MS + DAY_MS).expect("in range"));
        let (late, long) = (Position { term: high.term, ..low }, Position { index: high.index, ..low });
        for backup in [low, high, late, long] {
            for above in [low, high, late, long] {
                let position = restored(backup, BACKUP_MS, BACKUP_MS, Some(token(above))).expect("above");
                assert_above(position, backup);
                assert_above(position, above);
            }
        }
    }

    /// The lost cluster can have granted higher tokens than the highest one that the operator knows.
    #[test]
    fn position_with_above_leaves_room_above_the_token() {
        let backup = Position { term: 3, index: 1_000 };
        let above = FencingToken { term: 4_000_000_000_000_000, index: 200_000_000_000_000 };
        let clock = line(BACKUP_MS + 1).expect("in range");
        assert!(above.term > clock.term && above.index > clock.index, "control: the token is above the line");
        let position = restored(backup, BACKUP_MS, BACKUP_MS + 1, Some(above)).expect("above");
        assert_eq!(position.index, above.index + 4_294_967_296);
        assert_eq!(position.term, above.term + 1_048_576);
    }

    #[test]
    fn index_above_48_bits_is_refused() {
        let backup = Position { term: 3, index: 1_000 };
        let last = MAX_INDEX >> INDEX_BITS;
        assert!(restored(backup, BACKUP_MS, last, None).is_ok());
        assert_eq!(restored(backup, BACKUP_MS, last + 1, None), Err(PositionError::Exhausted));
        let above = FencingToken { term: 1, index: MAX_INDEX - ABOVE_MARGIN };
        assert!(restored(backup, BACKUP_MS, BACKUP_MS, Some(above)).is_ok());
        let above = FencingToken { term: 1, index: MAX_INDEX - ABOVE_MARGIN + 1 };
        assert_eq!(restored(backup, BACKUP_MS, BACKUP_MS, Some(above)), Err(PositionError::Exhausted));
    }
}
