//! Numbers with bounds: the same for what is read from a file and for what a program sets.

use super::reader::Reader;

/// One number of some settings.
pub(super) struct Number<T> {
    pub key: &'static str,
    pub min: u64,
    pub max: u64,
    pub get: fn(&T) -> u64,
    pub set: fn(&mut T, u64),
}

/// Reads every number; what the table does not say, or says wrong, stays as it is.
pub(super) fn read<T>(numbers: &[Number<T>], table: &mut Reader, settings: &mut T) {
    for number in numbers {
        let value = table.number(number.key, (number.get)(settings), number.min, number.max);
        (number.set)(settings, value);
    }
}

/// Every number that is outside its bounds.
pub(super) fn check<T>(numbers: &[Number<T>], settings: &T) -> Vec<String> {
    let outside = |number: &Number<T>| {
        let (key, value, min, max) = (number.key, (number.get)(settings), number.min, number.max);
        (!(min..=max).contains(&value)).then(|| format!("{key}: {value} is outside {min} to {max}"))
    };
    numbers.iter().filter_map(outside).collect()
}
