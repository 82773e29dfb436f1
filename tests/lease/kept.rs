//! The machine keeps its promises on random histories.

use proptest::prelude::*;
use tenure::lease::Limits;

use crate::broken::{Replica, first_broken_promise};
use crate::requests::{PlannedEntry, limits, machine_with, plans};

fn assert_kept(limits: Limits, plan: &[PlannedEntry], promise: &str) -> Result<(), TestCaseError> {
    let broken = first_broken_promise(&mut machine_with(limits) as &mut dyn Replica, limits, plan);
    // One run checks all promises; each test fails only for the promise in its name.
    prop_assert!(
        broken.as_ref().is_none_or(|broken| broken.promise != promise),
        "{}",
        broken.expect("is_none_or returned false")
    );
    Ok(())
}

macro_rules! kept {
    ($($promise:ident),+) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(256))]
            $(
                #[test]
                fn $promise(limits in limits(), plan in plans()) {
                    assert_kept(limits, &plan, stringify!($promise))?;
                }
            )+
        }
    };
}

kept!(
    one_holder,
    tokens_rise,
    no_early_expiry,
    expiry_happens,
    queue_order,
    current_token_only,
    reentrance_keeps_the_token,
    each_transition_once,
    each_is_answered,
    lock_delay,
    time_is_the_logs
);
