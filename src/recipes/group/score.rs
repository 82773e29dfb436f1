//! The score of a member for a name: weighted rendezvous hashing with the logarithm method, in integer arithmetic.
//!
//! Each pair of a member and a name has a hash, read as a uniform number `u` in (0, 1]. The name belongs to the member
//! with the least `-log2(u) / weight`. These quotients are independent exponential variables with the rates `weight`,
//! so the share of each member is proportional to its weight. A member that joins or leaves does not affect the order
//! of two others.
//!
//! All members must compute the same result, but floating-point logarithms can differ in the last bit between machines.
//! So the logarithm uses integers, and quotients are compared by cross multiplication, which is exact.
//!
//! This function must never change: during an upgrade, old and new members would place the same name differently.

use std::cmp::Ordering;

/// Fractional bits of a logarithm.
const FRACTION_BITS: u32 = 48;

/// The score of a member for a name. The name belongs to the member with the greatest score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Score {
    /// `-log2(u)` with [`FRACTION_BITS`] fractional bits: 0 to 64.
    distance: u64,
    weight: u32,
    hash: u64,
}

impl Score {
    /// Returns `None` for weight 0.
    pub fn new(member: &str, weight: u32, name: &str) -> Option<Score> {
        let hash = hash(member, name);
        (weight > 0).then(|| Score { distance: distance(hash), weight, hash })
    }

    /// The score with the lesser quotient of distance and weight is greater. A tie goes to the greater hash.
    pub fn cmp(&self, other: &Score) -> Ordering {
        let own = u128::from(self.distance) * u128::from(other.weight);
        let others = u128::from(other.distance) * u128::from(self.weight);
        others.cmp(&own).then(self.hash.cmp(&other.hash))
    }
}

/// FNV-1a (64 bits) over the member's id, the byte 0xff, which no id contains, and the name. The finalizer of
/// SplitMix64 follows, because FNV alone does not spread its last bytes to the upper bits.
fn hash(member: &str, name: &str) -> u64 {
    let bytes = member.bytes().chain([0xff]).chain(name.bytes());
    mix(bytes.fold(0xcbf2_9ce4_8422_2325, fnv1a))
}

fn fnv1a(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// `-log2((hash + 1) / 2^64)`, rounded up to [`FRACTION_BITS`] fractional bits.
fn distance(hash: u64) -> u64 {
    let x = u128::from(hash) + 1;
    let whole = x.ilog2();
    // x / 2^whole, in [1, 2), with 63 fractional bits.
    let mut mantissa = if whole < 64 { x << (63 - whole) } else { 1 << 63 };
    let mut log = u64::from(whole);
    for _ in 0..FRACTION_BITS {
        // Squaring doubles the logarithm. If the result is at least 2, the next bit of the logarithm is 1.
        mantissa = (mantissa * mantissa) >> 63;
        let bit = mantissa >> 64;
        mantissa >>= bit;
        log = log << 1 | bit as u64;
    }
    (64 << FRACTION_BITS) - log
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: f64 = (1_u64 << FRACTION_BITS) as f64;

    #[test]
    fn hash_parts_match_the_published_values() {
        let fnv = |text: &str| text.bytes().fold(0xcbf2_9ce4_8422_2325, fnv1a);
        assert_eq!(fnv("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv("foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf, "the first output of SplitMix64 with seed 0");
    }

    /// Values of an independent implementation of the specification. They must never change, because members of two
    /// versions must agree.
    #[test]
    fn hashes_and_distances_are_frozen() {
        for (member, name, hashed, far) in VECTORS {
            assert_eq!((hash(member, name), distance(hash(member, name))), (hashed, far), "{member} {name}");
        }
        assert_eq!((distance(0), distance(1), distance(u64::MAX)), (64 << 48, 63 << 48, 0));
        assert_eq!(distance(u64::MAX / 2), 1 << 48);
        assert_eq!(distance(u64::MAX / 4 * 3), 0x6a3fe5c6042a, "log2(4/3)");
    }

    const VECTORS: [(&str, &str, u64, u64); 6] = [
        ("a", "x", 0x458bee57aaf3158c, 0x1e14db24a7ebb),
        ("b", "x", 0xc40f17f7024b786f, 0x6285f040d542),
        ("host-1", "partition-0", 0xdc8851a24f5e3fd9, 0x37143ce9f4c7),
        ("host-2", "partition-0", 0x1925c4d52c34f870, 0x358ffe9e239c3),
        ("eu-2:worker.7", "billing:2026", 0x827be7583be38050, 0xf8e6bf107c12),
        ("m", "a-rather-long-name-of-a-lease-0123456789", 0xc40d0a99962e4c44, 0x6289cdf0a618),
    ];

    #[test]
    fn logarithm_is_exact_to_its_last_bits() {
        for hash in (0..10_000).map(|n: u64| mix(n)) {
            let wanted = 64.0 - (hash as f64 + 1.0).log2();
            assert!((distance(hash) as f64 / ONE - wanted).abs() < 1e-13, "{hash:#x}");
        }
    }

    #[test]
    fn greater_hash_has_no_greater_distance() {
        let mut hashes: Vec<u64> = (0..10_000).map(mix).chain([0, 1, 2, u64::MAX - 1, u64::MAX]).collect();
        hashes.sort_unstable();
        assert!(hashes.windows(2).all(|pair| distance(pair[0]) >= distance(pair[1])));
    }

    #[test]
    fn ties_are_broken_by_the_hash() {
        let tied = |hash| Score { distance: 7, weight: 3, hash };
        assert_eq!(tied(2).cmp(&tied(1)), Ordering::Greater);
        let scaled = Score { distance: 14, weight: 6, hash: 1 };
        assert_eq!(scaled.cmp(&tied(1)), Ordering::Equal, "the same quotient");
    }
}
