//! Integers in requests. `1262.0` is an integer in JSON Schema, so the API accepts it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// Largest integer up to which every integer has an exact `f64`: 2^53.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Converts a number with a zero fraction to an integer. `None` for other fractions, negative and inexact numbers.
pub(super) fn from_float(number: f64) -> Option<u64> {
    ((0.0..=MAX_EXACT).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}

/// A non-negative integer that fits `T`.
struct Integer<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Integer<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Integer<T>, D::Error> {
        struct IntegerVisitor<T>(std::marker::PhantomData<T>);

        impl<T: TryFrom<u64>> Visitor<'_> for IntegerVisitor<T> {
            type Value = Integer<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an integer from 0 to {}", if size_of::<T>() < 8 { u32::MAX.into() } else { u64::MAX })
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Integer<T>, E> {
                let fits = T::try_from(number).map(Integer);
                fits.map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Integer<T>, E> {
                let integer = from_float(number).and_then(|integer| T::try_from(integer).ok());
                integer.map(Integer).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
            }
        }

        deserializer.deserialize_any(IntegerVisitor(std::marker::PhantomData))
    }
}

/// Reads an optional field. `null` counts as absent.
pub(super) fn optional<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Integer<T>>::deserialize(deserializer)?.map(|Integer(number)| number))
}

/// Reads a required field.
pub(super) fn required<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    Integer::<T>::deserialize(deserializer).map(|Integer(number)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<u32, serde_json::Error> {
        serde_json::from_str::<Integer<u32>>(json).map(|Integer(number)| number)
    }

    #[test]
    fn number_with_a_zero_fraction_is_an_integer() {
        for (json, number) in [("1262", 1262), ("1262.0", 1262), ("1e3", 1000), ("0", 0), ("-0", 0), ("-0.0", 0)] {
            assert_eq!(read(json).expect(json), number);
        }
        for bad in ["1262.5", "1e300", "-1", "-1.0", "4294967296", "4294967296.0", "\"7\"", "true", "[]", "{}"] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.contains("an integer from 0 to 4294967295"), "{bad}: {error}");
        }
        assert!(
            serde_json::from_str::<Integer<u64>>("9007199254740994.0").is_err(),
            "above 2^53 the number can be a rounded one"
        );
    }
}
