//! No task of a run panics. If the node is isolated or restarted later, its panic has no other visible effect.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    /// The panics of the run on this thread. A run stays on its thread.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Starts to record the panics of this thread, for a new run.
pub fn begin() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            previous(panic);
        }));
    });
    PANICS.take();
}

pub fn check() -> Result<(), String> {
    match PANICS.take() {
        panics if panics.is_empty() => Ok(()),
        panics => Err(panics.join("; ")),
    }
}

#[test]
fn task_panic_is_reported_once() {
    begin();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let ended = runtime.block_on(async { tokio::spawn(async { panic!("of a task") }).await });
    assert!(ended.is_err());
    assert!(check().is_err_and(|how| how.contains("of a task")));
    assert_eq!(check(), Ok(()));
}
