//! Numeric settings with bounds, for values from a file and for values that a program sets.

use super::reader::Reader;

/// One numeric field of the settings `T`.
pub(super) struct Number<T> {
    pub key: &'static str,
    pub min: u64,
    pub max: u64,
    pub get: fn(&T) -> u64,
    pub set: fn(&mut T, u64),
}

/// Reads all numbers. A field keeps its value if the table has no valid value for it.
pub(super) fn read<T>(numbers: &[Number<T>], table: &mut Reader, settings: &mut T) {
    for number in numbers {
        let value = table.number(number.key, (number.get)(settings), number.min, number.max);
        (number.set)(settings, value);
    }
}

/// One problem for each number outside its bounds.
pub(super) fn check<T>(numbers: &[Number<T>], settings: &T) -> Vec<String> {
    let outside = |number: &Number<T>| {
        let (key, value, min, max) = (number.key, (number.get)(settings), number.min, number.max);
        (!(min..=max).contains(&value)).then(|| format!("{key}: {value} is outside {min} to {max}"))
    };
    numbers.iter().filter_map(outside).collect()
}
