//! The source of all random numbers.
//!
//! Numbers come from the generator of `rand`, seeded by the operating system. With the feature `testing`, a test can
//! seed a thread, so that a simulation on it repeats exactly. Tokens, log entries and state never depend on random
//! numbers.

use std::convert::Infallible;

use rand::TryRng;

#[cfg(not(feature = "testing"))]
use entropy::draw;
#[cfg(feature = "testing")]
use seedable::draw;
#[cfg(feature = "testing")]
pub use seedable::{Seeded, seed};

/// Draws from the generator of the current thread.
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

    /// While it exists, its thread draws from the seeded generator.
    pub struct Seeded(PhantomData<*const ()>);

    /// Seeds the generator of this thread until the drop of the returned guard.
    pub fn seed(seed: u64) -> Seeded {
        SEEDED.set(Some(StdRng::seed_from_u64(seed)));
        Seeded(PhantomData)
    }

    impl Drop for Seeded {
        fn drop(&mut self) {
            SEEDED.set(None);
        }
    }

    /// Draws from the seeded generator of this thread, or from the system if the thread has none.
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
