//! Where everything that is left to chance is drawn.
//!
//! It is the system's entropy. With the feature `testing` a thread can be given a seed instead: then a simulation that
//! runs on it draws the same every time. Tokens, log entries and states never come from here.

use std::convert::Infallible;

use rand::TryRng;

#[cfg(not(feature = "testing"))]
use entropy::draw;
#[cfg(feature = "testing")]
use seedable::draw;
#[cfg(feature = "testing")]
pub use seedable::{Seeded, seed};

/// This thread's generator, whichever thread that is when something is drawn.
pub struct ProcessRng;

pub(crate) fn rng() -> ProcessRng {
    ProcessRng
}

impl TryRng for ProcessRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(draw(|rng| rng.next_u32()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(draw(|rng| rng.next_u64()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        draw(|rng| rng.fill_bytes(bytes));
        Ok(())
    }
}

#[cfg(not(feature = "testing"))]
mod entropy {
    use rand::Rng;

    pub fn draw<T>(take: impl FnOnce(&mut dyn Rng) -> T) -> T {
        take(&mut rand::rng())
    }
}

#[cfg(feature = "testing")]
mod seedable {
    use std::cell::RefCell;
    use std::marker::PhantomData;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    thread_local! {
        static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
    }

    /// For as long as it lives, its thread draws from a seed.
    pub struct Seeded(PhantomData<*const ()>);

    /// From now on everything that this thread leaves to chance follows from `seed`.
    pub fn seed(seed: u64) -> Seeded {
        SEEDED.set(Some(StdRng::seed_from_u64(seed)));
        Seeded(PhantomData)
    }

    impl Drop for Seeded {
        fn drop(&mut self) {
            SEEDED.set(None);
        }
    }

    /// From the seeded generator if there is one.
    pub fn draw<T>(take: impl FnOnce(&mut dyn Rng) -> T) -> T {
        SEEDED.with_borrow_mut(|seeded| match seeded {
            Some(rng) => take(rng),
            None => take(&mut rand::rng()),
        })
    }

    #[cfg(test)]
    mod tests {
        use rand::RngExt;

        use super::super::rng;
        use super::*;

        fn drawn() -> [u64; 4] {
            std::array::from_fn(|_| rng().random())
        }

        #[test]
        fn seeded_draws_repeat_and_unseeded_draws_do_not() {
            let seeded = seed(7);
            let first = drawn();
            drop(seeded);
            assert_ne!(drawn(), drawn());
            let _seeded = seed(7);
            assert_eq!(drawn(), first);
        }
    }
}
