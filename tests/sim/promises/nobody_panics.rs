//! No task of a run panics: a panic of a node that is cut off or restarted later would leave no other trace.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    /// The panics of the run on this thread. A run stays on its thread.
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// From here on the panics of this thread are those of a run that begins.
pub fn begin() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            SEEN.with_borrow_mut(|seen| seen.push(panic.to_string()));
            usual(panic);
        }));
    });
    SEEN.take();
}

pub fn check() -> Result<(), String> {
    match SEEN.take() {
        seen if seen.is_empty() => Ok(()),
        seen => Err(seen.join("; ")),
    }
}

#[test]
fn a_panic_of_a_task_is_seen_once() {
    begin();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let ended = runtime.block_on(async { tokio::spawn(async { panic!("of a task") }).await });
    assert!(ended.is_err());
    assert!(check().is_err_and(|how| how.contains("of a task")));
    assert_eq!(check(), Ok(()));
}
